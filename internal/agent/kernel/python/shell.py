"""The IPython shell."""


def fail(channel, message):
    channel.send({"t": "fatal", "s": message})
    os._exit(1)


def make_shell(channel, output):
    """The IPython shell that runs the cells; nothing of it is kept on disk."""
    try:
        from IPython.core.interactiveshell import InteractiveShell
    except ImportError as e:
        fail(
            channel,
            f"{sys.executable} cannot import IPython ({e}); "
            "add the packages ipython and matplotlib-inline to the template",
        )
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.error import StdinNotImplementedError
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Type, Unicode
    from traitlets.config import Config

    def publish(data, main, last=False):
        output.flush()
        frame = {"t": "data", "d": fit(encode_bundle(data), output), "main": main}
        if output.direct:
            output.write("out", str(data.get("text/plain", "")) + "\n")
            return
        if last:
            channel.hold(frame)  # the end of the run comes next
        else:
            channel.send(frame)

    class Hook(DisplayHook):
        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            publish(format_dict, True, self.shell.ast_node_interactivity.startswith("last_expr"))

        def finish_displayhook(self):
            self._is_active = False

        def log_output(self, format_dict):
            """Results are not kept twice."""

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
            if not update:  # what was sent cannot be changed
                publish(data, False)

        def clear_output(self, wait=False):
            """What was sent cannot be taken back."""

    # Libraries (pandas, rich) tell a notebook from a terminal by this name.
    class ZMQInteractiveShell(InteractiveShell):
        displayhook_class = Type(Hook)
        display_pub_class = Type(Publisher)
        failure_sent = False  # in this run
        shown = False  # the error at hand
        cancelled = False

        def _tee(self, channel):
            return nullcontext()  # the original keeps all output in memory

        # A full or read-only disk must not keep a kernel from starting: nothing
        # that is kept in these folders is needed.
        def init_ipython_dir(self, ipython_dir):
            try:
                self.ipython_dir = os.path.expanduser("~/.ipython")
            except OSError:
                pass

        def init_profile_dir(self, profile_dir):
            try:
                super().init_profile_dir(profile_dir)
            except Exception:
                self.profile_dir = None

        def init_completer(self):
            self.Completer = None

        def enable_gui(self, gui=None):
            if gui is not None:
                raise ValueError(f"a sandbox has no display for the GUI {gui!r}; use %matplotlib inline")

        def ask_exit(self):
            raise SystemExit

        def system(self, cmd):
            """`!cmd`: output straight to the pipes, in a process group of its own."""
            import subprocess

            command = self.var_expand(cmd, depth=1)
            shell = os.environ.get("SHELL") or "/bin/sh"
            if not os.access(shell, os.X_OK) or shell.endswith("nologin"):
                shell = "/bin/sh"
            group = {"process_group": 0} if sys.version_info >= (3, 11) else {}
            child = subprocess.Popen([shell, "-c", command], stdin=subprocess.DEVNULL, **group)
            try:
                code = child.wait()
            except KeyboardInterrupt:
                code = self._end_child(child)
                self.user_ns["_exit_code"] = code
                raise
            self.user_ns["_exit_code"] = code
            if code and getattr(self, "system_raise_on_error", False):
                raise subprocess.CalledProcessError(code, command)

        def _end_child(self, child):
            import subprocess

            group = os.getpgid(child.pid) != os.getpgid(0)
            for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(child.pid, sig) if group else child.send_signal(sig)
                    return child.wait(0.5)
                except subprocess.TimeoutExpired:
                    continue
                except ProcessLookupError:
                    break
            return child.wait()

        system_raw = system
        system_piped = system

        def showtraceback(self, exc_tuple=None, *args, **kwargs):
            error = exc_tuple[1] if exc_tuple else sys.exc_info()[1]
            self.shown = False
            with shortened(error):
                super().showtraceback(exc_tuple, *args, **kwargs)
            if error is not None and not self.shown:  # IPython could not format it
                self.send_failure(error)

        def _format_exception_for_storage(self, *args, **kwargs):
            return {}  # what was sent is not formatted again, nor kept

        def _showtraceback(self, etype, evalue, stb):
            name = name_of(etype)
            if self.cancelled and issubclass(etype, asyncio.CancelledError):
                name, evalue = "KeyboardInterrupt", ""
                stb = [line.replace("CancelledError", name) for line in stb]
            self.send_error(name, evalue, self.InteractiveTB.stb2text(stb))

        def send_failure(self, error):
            """Sends an error with the traceback that Python itself would print."""
            name = name_of(type(error))
            if isinstance(error, asyncio.CancelledError) and self.cancelled:
                name = "KeyboardInterrupt"
            try:
                with shortened(error):
                    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            except Exception:
                text = name
            self.send_error(name, error, text)

        def send_error(self, name, value, traceback):
            self.failure_sent = self.shown = True
            try:
                value = str(value)
            except Exception:
                value = "<the exception's __str__ failed>"
            output.flush()
            if output.direct:
                output.write("err", traceback + "\n")
                return
            channel.send({
                "t": "error",
                "name": clip(name, 1024),
                "value": clip(value, ERROR_LIMIT),
                "tb": clip(traceback, ERROR_LIMIT),
            })

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "linux"
    config.InteractiveShell.banner1 = ""
    shell = None
    for colors in ("linux", "Linux"):  # spelt differently before IPython 9
        config.InteractiveShell.colors = colors
        try:
            shell = ZMQInteractiveShell.instance(config=config)
            break
        except Exception as e:
            problem = e
            ZMQInteractiveShell.clear_instance()
    if shell is None:
        fail(channel, f"start IPython: {type(problem).__name__}: {problem}")

    class DataFormatter(BaseFormatter):
        format_type = Unicode(DATA_MIME)
        print_method = ObjectName("_repr_data_")
        _return_type = dict

    class ChartFormatter(BaseFormatter):
        format_type = Unicode(CHART_MIME)
        print_method = ObjectName("_repr_chart_")

        def __call__(self, value):
            # matplotlib_inline takes Figure out of every formatter's list.
            matplotlib = sys.modules.get("matplotlib.figure")
            if matplotlib is not None and isinstance(value, matplotlib.Figure):
                return figure_chart(value)
            return None

    display = shell.display_formatter
    data, chart = DataFormatter(parent=display), ChartFormatter(parent=display)
    for module in ("pandas", "pandas.core.frame"):
        data.for_type_by_name(module, "DataFrame", frame_data)
    display.formatters.update({DATA_MIME: data, CHART_MIME: chart})
    display.active_types = [*display.formatters]

    sys.meta_path.insert(0, SavedImages(output))

    def no_input(*_, **__):
        raise StdinNotImplementedError(
            "input() and getpass() have nobody to ask here: runs have no standard input; pass the value in the code or by env_vars"
        )

    builtins.input = no_input
    import getpass

    getpass.getpass = no_input
    warnings.filterwarnings("ignore", message="To exit: use 'exit'")
    return shell
