"""How frames and output reach the agent."""


class Channel:
    """Frames to the agent. Safe for threads, and a SIGINT never splits a frame."""

    def __init__(self):
        self.pid = getpid()
        self.sock = socket.socket(fileno=SOCKET_FD)
        self.lock = threading.RLock()
        self.main = threading.get_ident()
        self.depth = 0  # of critical sections of the main thread
        self.pending = False  # a SIGINT came in one
        self.held = b""  # frames that go with the next one
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
        data = dumps(frame).encode() + b"\n"
        with self:
            self._settle()
            data, self.held = self.held + data, b""
            self.sock.sendall(data)

    def hold(self, frame):
        """Send with the next frame, which comes soon."""
        data = dumps(frame).encode() + b"\n"
        with self:
            self._settle()
            self.held += data

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
        self.held = b""
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
        self.pictures = 0  # saved and shown in this run
        self.tokens, self.refilled = float(DIRECT_BURST), 0.0
        self.burst = False  # lines wait for the flusher, which comes soon
        self.wake = threading.Event()
        self.flusher = None
        self.direct = False  # in a forked child: straight to the descriptors

    def begin(self):
        self.sent = {"out": 0, "err": 0}
        self.pictures = 0

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
        now = monotonic()
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
            sleep(FLUSH_AFTER)
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
