"""The loop that serves the agent's requests."""


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
        self.streams = {"stdout": Stream(self.output, "out", 1), "stderr": Stream(self.output, "err", 2)}
        sys.stdout, sys.stderr = self.streams["stdout"], self.streams["stderr"]
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
            except (KeyboardInterrupt, SystemExit):
                continue  # of a task the user left running

    def _read(self):
        try:
            self._take_requests()
        except BaseException as e:
            self._die(e)

    def _die(self, e):
        """End the process. The loop would only report the error and leave the
        agent waiting for what never comes."""
        os.write(self.channel.pipes[1], f"the kernel cannot go on: {type(e).__name__}: {e}\n".encode())
        os._exit(1)

    def _take_requests(self):
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
            self._handle(loads(line))

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
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self._repair_streams()
            self.shell.failure_sent = self.shell.cancelled = False
            self.channel.send({"t": "count", "n": self.shell.execution_count})
            self._add_env(request.get("env") or {})
            result = await self._run_cell(request.get("code", ""))
            failure = result.error_before_exec or result.error_in_exec
            if failure is not None and not self.shell.failure_sent:
                self.shell.send_failure(failure)
        except BaseException as e:  # an interrupt between the steps
            if getpid() == self.channel.pid and not self.shell.failure_sent:
                self.shell.send_failure(e)
        finally:
            if getpid() != self.channel.pid:
                os._exit(0)  # a child that the cell forked and did not end

    def _ran(self, task):
        """After _run, whatever stopped it: no interrupt is raised in here."""
        try:
            self.task = None
            self.channel.pending = False
            if not task.cancelled():
                task.exception()  # was sent; asyncio need not report it
            self._remove_env()
            self.output.flush()
            self.channel.send({"t": "end"})
        except BaseException as e:
            self._die(e)

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

    def _on_sigint(self, signum, frame):
        if getpid() != self.channel.pid:
            raise KeyboardInterrupt
        if self.channel.depth:
            self.channel.pending = True
            return
        self._interrupt(frame)

    def _interrupt(self, frame):
        """Raise in the cell if the main thread is in it; else it awaits: cancel.
        A task of the code's own is interrupted when that does not help, or when
        it goes on after its run."""
        ended = self.task is None or self.task.done()
        while frame is not None:
            if frame.f_code is Kernel._run.__code__:
                raise KeyboardInterrupt
            if (ended or self.shell.cancelled) and frame.f_globals is self.shell.user_ns:
                raise KeyboardInterrupt
            frame = frame.f_back
        if ended:
            return
        self.shell.cancelled = True
        self.loop.call_soon_threadsafe(self.task.cancel)

    def _repair_streams(self):
        """Put back what cannot be written to; what the code has put there stays."""
        for name, stream in self.streams.items():
            now = getattr(sys, name, None)
            if not hasattr(now, "write") or getattr(now, "closed", False):
                setattr(sys, name, stream)

    def _before_child(self, event, args):
        # Half a line printed before a child starts belongs before its output.
        if event in CHILD_EVENTS and self.output.parts and getpid() == self.channel.pid:
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
            self._set_var(name, value)

    def _remove_env(self):
        while self.undo:
            self._set_var(*self.undo.pop())

    def _set_var(self, name, value):
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
        if name == "TZ":
            time.tzset()

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


if __name__ == "__main__":
    Kernel().serve()
