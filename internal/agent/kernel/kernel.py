"""The Python side of Tombolo's kernel driver: IPython without Jupyter.

The agent starts this file with these descriptors and owns the other ends:

    0  /dev/null
    1  a pipe: output below Python (child processes, C code), likewise 2
    3  a stream socket: one JSON object a line, requests in, frames out
    4  a pipe: one byte for each "sync" frame the agent has dealt with
    5  this file

Python's own output goes over the socket, so that it keeps its order with
results. The agent reads the pipes itself. Before a frame is sent while bytes
wait in a pipe, a "sync" frame makes the agent read the pipe first; thus
print(), a child process and print() again arrive in that order.
"""

import sys

# The folder of this file, and never the current one, while the kernel imports
# what it needs: a user's json.py must not break it.
sys.path[:] = [p for p in sys.path if p and not p.startswith("/proc/")]

import array
import asyncio
import base64
import builtins
import codecs
import faulthandler
import fcntl
import gc
import io
import json
import os
import signal
import socket
import termios
import threading
import time
import warnings
from collections import deque
from contextlib import nullcontext

SOCKET_FD, ACK_FD, PROGRAM_FD = 3, 4, 5
CHUNK = 32 * 1024  # characters of output in one frame
STREAM_LIMIT = 16 * 1024 * 1024 + 1  # characters a run and stream; the agent's limit is just below
BUNDLE_LIMIT = 12 * 1024 * 1024  # bytes of one result, encoded
TEXT_LIMIT = 1024 * 1024  # characters of text/plain
ERROR_LIMIT = 512 * 1024  # characters of an error's value and of its traceback
DATA_CELLS = 500_000  # a DataFrame with more cells carries no "data"
DATA_MIME = "application/vnd.tombolo.data+json"
FLUSH_AFTER = 0.02  # seconds
DIRECT_BURST, DIRECT_RATE = 64, 100  # lines sent as they are printed: at once, and a second


class Channel:
    """Frames to the agent. Safe for threads, and a SIGINT never splits a frame."""

    def __init__(self):
        self.pid = os.getpid()
        self.sock = socket.socket(fileno=SOCKET_FD)
        self.lock = threading.RLock()
        self.main = threading.get_ident()
        self.depth = 0  # of critical sections of the main thread
        self.pending = False  # a SIGINT came in one
        self.interrupt = lambda frame: None
        # Copies that stay on the pipes whatever the user does to 1 and 2.
        self.pipes = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (1, 2)]
        for fd in (SOCKET_FD, ACK_FD):
            os.set_inheritable(fd, False)
        os.close(PROGRAM_FD)

    def __enter__(self):
        if threading.get_ident() == self.main:
            self.depth += 1
        self.lock.acquire()
        return self

    def __exit__(self, *exc):
        self.lock.release()
        if threading.get_ident() == self.main:
            self.depth -= 1
            if self.pending and not self.depth:
                self.pending = False
                self.interrupt(sys._getframe())

    def send(self, frame):
        data = json.dumps(frame).encode() + b"\n"
        with self:
            self._settle()
            self.sock.sendall(data)

    def _settle(self):
        """Let the agent read what is in the pipes before the next frame."""
        waiting = array.array("i", [0])
        for fd in self.pipes:
            fcntl.ioctl(fd, termios.FIONREAD, waiting)
            if waiting[0]:
                self.sock.sendall(b'{"t":"sync"}\n')
                os.read(ACK_FD, 1)
                return

    def forked(self):
        """In a child made by fork: the channel belongs to the parent."""
        self.lock = threading.RLock()
        self.depth = 0
        self.sock.close()
        os.close(ACK_FD)


class Output:
    """Collects what Python writes: whole lines go at once until there are many.

    Writing takes no lock: appending is atomic, for threads and for signals.
    """

    def __init__(self, channel):
        self.channel = channel
        self.parts = deque()  # (stream, text)
        self.size = 0  # characters in it, roughly
        self.sent = {"out": 0, "err": 0}
        self.tokens, self.refilled = float(DIRECT_BURST), 0.0
        self.burst = False  # lines wait for the flusher, which comes soon
        self.wake = threading.Event()
        self.flusher = None
        self.direct = False  # in a forked child: straight to the descriptors

    def begin(self):
        self.sent = {"out": 0, "err": 0}

    def write(self, name, text):
        if self.direct:
            self._write_fd(name, text)
            return
        room = STREAM_LIMIT - self.sent[name]
        if not text or room <= 0:
            return
        if len(text) > room:
            text = text[:room]
        self.sent[name] += len(text)
        self.parts.append((name, text))
        self.size += len(text)
        if self.size >= CHUNK:
            self.flush()
        elif self.burst:
            return
        elif text[-1] == "\n":
            self.flush_politely()
        else:
            self._flush_soon()

    def flush_politely(self):
        """Flush at once, or soon when there was much to flush lately."""
        if self.burst or not self.parts:
            return
        if self._may_send():
            self.flush()
        else:
            self.burst = True
            self._flush_soon()

    def flush(self):
        if not self.parts:
            return
        with self.channel:
            self.size = 0
            name, texts = "", []
            while self.parts:
                part = self.parts.popleft()
                if part[0] != name:
                    self._send(name, "".join(texts))
                    name, texts = part[0], []
                texts.append(part[1])
            self._send(name, "".join(texts))

    def _send(self, name, text):
        for at in range(0, len(text), CHUNK):
            self.channel.send({"t": name, "s": text[at : at + CHUNK]})

    def _may_send(self):
        now = time.monotonic()
        self.tokens = min(DIRECT_BURST, self.tokens + (now - self.refilled) * DIRECT_RATE)
        self.refilled = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def _flush_soon(self):
        if self.wake.is_set():
            return
        self.wake.set()
        if self.flusher is None:
            self.flusher = threading.Thread(target=self._flush_loop, name="output", daemon=True)
            self.flusher.start()

    def _flush_loop(self):
        while True:
            self.wake.wait()
            time.sleep(FLUSH_AFTER)
            self.wake.clear()
            self.burst = False
            self.flush()

    def _write_fd(self, name, text):
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            data = data[os.write(1 if name == "out" else 2, data) :]

    def forked(self):
        self.direct = True
        self.parts.clear()


class Stream(io.TextIOBase):
    """sys.stdout or sys.stderr."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, output, name, fd):
        self._output, self._name, self._fd = output, name, fd
        self.buffer = Bytes(self)
        self.name = "<stdout>" if name == "out" else "<stderr>"

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._output.write(self._name, text)
        return len(text)

    def writelines(self, lines):
        self.write("".join(lines))

    def flush(self):
        self._output.flush_politely()

    def fileno(self):
        return self._fd

    def writable(self):
        return True

    def isatty(self):
        return False

    def reconfigure(self, **_):
        pass

    def close(self):
        """Closing would only lose later output."""


class Bytes(io.BufferedIOBase):
    """sys.stdout.buffer: bytes decoded into the stream."""

    def __init__(self, stream):
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, data):
        self._stream.write(self._decoder.decode(bytes(data)))
        return len(data)

    def flush(self):
        self._stream.flush()

    def writable(self):
        return True

    def fileno(self):
        return self._stream.fileno()


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

    def publish(data, main):
        output.flush()
        frame = {"t": "data", "d": fit(encode_bundle(data), output), "main": main}
        if output.direct:
            output.write("out", str(data.get("text/plain", "")) + "\n")
            return
        channel.send(frame)

    class Hook(DisplayHook):
        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            publish(format_dict, True)

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
        failure_sent = False
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

        def _showtraceback(self, etype, evalue, stb):
            name = etype.__name__
            if self.cancelled and issubclass(etype, asyncio.CancelledError):
                name, evalue = "KeyboardInterrupt", ""
                stb = [line.replace("CancelledError", name) for line in stb]
            self.send_error(name, evalue, self.InteractiveTB.stb2text(stb))

        def send_error(self, name, value, traceback):
            self.failure_sent = True
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

    def no_input(*_, **__):
        raise StdinNotImplementedError(
            "input() and getpass() have nobody to ask here: runs have no standard input; pass the value in the code or by env_vars"
        )

    builtins.input = no_input
    import getpass

    getpass.getpass = no_input
    warnings.filterwarnings("ignore", message="To exit: use 'exit'")
    return shell


def clip(text, limit):
    if len(text) <= limit:
        return text
    return text[:limit] + f"\n… {len(text) - limit} more characters were left out"


def encode_bundle(data):
    bundle = {}
    for mime, value in data.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = base64.b64encode(bytes(value)).decode()
        elif isinstance(value, str):
            if mime in ("image/png", "image/jpeg", "application/pdf"):
                value = value.replace("\n", "")
            elif mime == "text/plain":
                value = clip(value, TEXT_LIMIT)
        else:
            value = plain(value)
        bundle[str(mime)] = value
    return bundle


def fit(bundle, output):
    """Drop the largest parts of a result that is too big to send."""
    sizes = {mime: len(json.dumps(value)) for mime, value in bundle.items()}
    while sum(sizes.values()) > BUNDLE_LIMIT:
        mime = max(sizes, key=sizes.get)
        output.write("err", f"[{mime} of a result left out: {sizes[mime]} bytes; a result may have {BUNDLE_LIMIT}. Write it to a file.]\n")
        output.flush()
        del bundle[mime], sizes[mime]
    return bundle


def plain(value, depth=0):
    """value as JSON has it: NaN is null, what has no JSON form is its text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        value = float(value)
        return value if value - value == 0 else None
    if depth > 50:
        return str(value)
    if isinstance(value, dict):
        return {str(k): plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v, depth + 1) for v in value]
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        return None if text == "NaT" else text
    if hasattr(value, "tolist"):
        return plain(value.tolist(), depth + 1)
    text = str(value)
    return None if text in ("<NA>", "NaT") else text


def frame_data(frame):
    rows, columns = frame.shape
    if rows * columns > DATA_CELLS:
        return None
    return {str(name): [plain(v) for v in frame.iloc[:, i].tolist()] for i, name in enumerate(frame.columns)}


class Kernel:
    def __init__(self):
        self.channel = Channel()
        self.output = Output(self.channel)
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.task = None  # of the open run
        self.undo = []  # variables as they were before the run
        self.input = bytearray()
        self.env = dict(os.environ)
        self.env.pop("LC_CTYPE", None)  # Python sets it itself in the C locale
        faulthandler.enable(2)
        self.shell = make_shell(self.channel, self.output)
        for stream in (sys.__stdout__, sys.__stderr__):
            stream.reconfigure(write_through=True)
        sys.stdout = Stream(self.output, "out", 1)
        sys.stderr = Stream(self.output, "err", 2)
        self.channel.interrupt = self._interrupt
        os.register_at_fork(before=self.output.flush, after_in_child=self._forked)
        sys.addaudithook(self._before_child)
        sys.path.insert(0, "")
        sys.argv = [""]

    def serve(self):
        signal.signal(signal.SIGINT, self._on_sigint)
        self.loop.add_reader(SOCKET_FD, self._read)
        self.channel.send({"t": "ready"})
        while True:
            try:
                self.loop.run_forever()
                return
            except (KeyboardInterrupt, SystemExit):
                continue  # of a task the user left running

    def _read(self):
        try:
            data = self.channel.sock.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            os._exit(0)  # the agent is gone
        self.input += data
        while (end := self.input.find(b"\n")) >= 0:
            line = bytes(self.input[:end])
            del self.input[: end + 1]
            self._handle(json.loads(line))

    def _handle(self, request):
        op = request["op"]
        if op == "run":
            self.task = self.loop.create_task(self._run(request))
            self.task.add_done_callback(self._ran)
        elif op == "env":
            self._set_env(request.get("env", {}))
        elif op == "seed":
            reseed(base64.b64decode(request["seed"]))
        elif op == "warm":
            self.loop.create_task(self._warm(request["modules"]))

    async def _run(self, request):
        try:
            self.output.begin()
            signal.signal(signal.SIGINT, self._on_sigint)
            self.shell.failure_sent = self.shell.cancelled = False
            self.channel.send({"t": "count", "n": self.shell.execution_count})
            self._add_env(request.get("env") or {})
            result = await self._run_cell(request.get("code", ""))
            failure = result.error_before_exec or result.error_in_exec
            if failure is not None and not self.shell.failure_sent:
                self._send_failure(failure)
        except BaseException as e:  # an interrupt between the steps
            if os.getpid() == self.channel.pid and not self.shell.failure_sent:
                self._send_failure(e)
        finally:
            if os.getpid() != self.channel.pid:
                os._exit(0)  # a child that the cell forked and did not end

    def _ran(self, task):
        """After _run, whatever stopped it: no interrupt is raised in here."""
        self.task = None
        self.channel.pending = False
        if not task.cancelled():
            task.exception()  # was sent; asyncio need not report it
        self._remove_env()
        self.output.flush()
        self.channel.send({"t": "end"})

    async def _run_cell(self, code, keep=True):
        shell = self.shell
        failed, cell = None, code
        try:
            cell = shell.transform_cell(code)
        except Exception:
            failed = sys.exc_info()
        result = None
        try:
            result = await shell.run_cell_async(
                code, store_history=keep, transformed_cell=cell, preprocessing_exc_tuple=failed
            )
        finally:
            shell.events.trigger("post_execute")
            if result is not None:
                shell.events.trigger("post_run_cell", result)
        return result

    def _send_failure(self, e):
        import traceback

        name = type(e).__name__
        if isinstance(e, asyncio.CancelledError) and self.shell.cancelled:
            name = "KeyboardInterrupt"
        self.shell.send_error(name, e, "".join(traceback.format_exception(type(e), e, e.__traceback__)))

    def _on_sigint(self, signum, frame):
        if os.getpid() != self.channel.pid:
            raise KeyboardInterrupt
        if self.task is None:
            return
        if self.channel.depth:
            self.channel.pending = True
            return
        self._interrupt(frame)

    def _interrupt(self, frame):
        """Raise in the cell if the main thread is in it; else it awaits: cancel."""
        if self.task is None:
            return
        while frame is not None:
            if frame.f_code is Kernel._run.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back
        self.shell.cancelled = True
        self.loop.call_soon_threadsafe(self.task.cancel)

    def _before_child(self, event, args):
        # Half a line printed before a child starts belongs before its output.
        if event in CHILD_EVENTS and self.output.parts and os.getpid() == self.channel.pid:
            self.output.flush()

    def _forked(self):
        self.output.forked()
        self.channel.forked()

    def _set_env(self, env):
        """Apply what changed of the sandbox's variables; the user's own stay."""
        for name in self.env.keys() - env.keys():
            if os.environ.get(name) == self.env[name]:
                os.environ.pop(name, None)
        for name, value in env.items():
            if self.env.get(name) != value:
                os.environ[name] = value
        self.env = env
        time.tzset()

    def _add_env(self, env):
        for name, value in env.items():
            self.undo.append((name, os.environ.get(name)))
            os.environ[name] = value

    def _remove_env(self):
        while self.undo:
            name, value = self.undo.pop()
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    async def _warm(self, modules):
        """Go once through every path a first run takes, then give memory back."""
        problem = ""
        try:
            for name in modules:
                __import__(name)
            send, self.channel.send = self.channel.send, lambda frame: None
            try:
                await self._run_cell("1+1", keep=False)
                await self._run_cell("import asyncio\nawait asyncio.sleep(0)\n1/0", keep=False)
            finally:
                self.channel.send = send
            for name in ("asyncio", "_", "__", "___"):
                self.shell.user_ns.pop(name, None)
            self.shell.displayhook.flush()
            sys.last_exc = sys.last_value = sys.last_traceback = sys.last_type = None
            self.shell.last_execution_result = None
            settle_memory()
        except Exception as e:
            problem = f"{type(e).__name__}: {e}"
        self.channel.send({"t": "warmed", "s": problem})


CHILD_EVENTS = {"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.spawn", "pty.spawn"}


def reseed(seed):
    """Give this process random state of its own: clones of a snapshot share it.

    Only what is imported; os.urandom and secrets ask the sandbox's kernel.
    """
    for name, mix in RESEED.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            mix(module, seed)
        except Exception as e:  # a module of the user's with that name
            print(f"reseed {name}: {type(e).__name__}: {e}", file=sys.stderr)


def reseed_numpy(module, seed):
    module.seed([int.from_bytes(seed[i : i + 4], "little") for i in range(0, len(seed) - 3, 4)])


def reseed_uuid(module, seed):
    for name in ("_node", "_last_timestamp", "_last_timestamp_v7"):
        if hasattr(module, name):
            setattr(module, name, None)
    if hasattr(module, "_last_counter_v7"):
        module._last_counter_v7 = 0


def reseed_tempfile(module, seed):
    module._name_sequence = None


RESEED = {
    # Bytes are hashed on the way, so that random and numpy differ.
    "random": lambda module, seed: module.seed(b"random" + seed),
    "numpy.random": reseed_numpy,
    "torch": lambda module, seed: module.manual_seed(int.from_bytes(seed[:7], "little")),
    "_ssl": lambda module, seed: module.RAND_add(seed, float(len(seed))),
    "uuid": reseed_uuid,
    "tempfile": reseed_tempfile,
    # What it knows of folders can be older than a restored disk.
    "importlib": lambda module, seed: module.invalidate_caches(),
}


def settle_memory():
    import ctypes
    import linecache

    linecache.clearcache()
    gc.collect()
    gc.freeze()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass  # not glibc


if __name__ == "__main__":
    Kernel().serve()
