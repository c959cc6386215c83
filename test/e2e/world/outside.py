"""The world: everything that a sandbox can reach, or must not, in one process with the
tests, which can look at all of it and change it."""

import asyncio
import socket
import threading

import link
from authority import Authority
from datagrams import serve as serve_datagrams
from names import Names
from origin import Origin
from packets import Packets
from plain import Connect, Listener, Record, Socks, Speaker
from repository import Repository
from wait import eventually

RESOLVER = "203.0.113.53"
HTTP, HTTPS, MAIL, SOCKS, PROXY, ECHO = 80, 443, 25, 1080, 3128, 7

# Names that are there from the beginning. *.example is for examples alone, so no name
# here is anybody's.
ZONE = {
    "good.example": ["203.0.113.10"],
    "*.good.example": ["203.0.113.11"],
    "other.example": ["203.0.113.12"],
    "evil.example": ["198.51.100.66"],
    "*.evil.example": ["198.51.100.66"],
    # Two names of one address, as behind one front of many sites.
    "open.cdn.example": ["203.0.113.20"],
    "hidden.cdn.example": ["203.0.113.20"],
    "alias.example": "good.example",
    "away.example": "evil.example",
    "packages.example": ["203.0.113.30"],
    "code.example": ["203.0.113.31"],
    "proxy.example": ["203.0.113.40"],
    "*.ask.example": ["203.0.113.60"],
    "strange.example": ["203.0.113.14"],
    "raw.example": ["203.0.113.50"],
    "private.example": ["10.1.2.3"],
    "metadata.example": ["169.254.169.254"],
    "mixed.example": ["10.1.2.3", "203.0.113.10"],
    "mapped.example": ["::ffff:169.254.169.254"],
    "xn--bcher-kva.example": ["203.0.113.13"],
}



def _answers(port):
    try:
        socket.create_connection((RESOLVER, port), timeout=2).close()
        return True
    except OSError:
        return False


class World:
    def __init__(self, folder):
        self.folder = folder
        self.names = Names()
        self.origin = Origin()
        self.authority = Authority(folder / "authority")
        self.stranger = Authority(folder / "stranger", "Nobody's Authority")  # that nobody trusts
        self.untrusted = set()  # names whose server has a certificate of the stranger's
        self.speaker, self.listener, self.socks, self.proxy = Speaker(), Listener(), Socks(), Connect()
        self.datagrams = Record()  # of (address, port, data)
        self._ready = threading.Event()
        self._failed = None
        self.reset()

    def reset(self):
        """The world as it was, with nothing that was seen."""
        self.names.records = dict(ZONE)
        self.names.forget()
        self.origin.forget()
        self.origin.logins.clear()
        self.untrusted.clear()
        for record in (self.speaker.connections, self.listener.received, self.socks.asked, self.proxy.asked, self.datagrams):
            record.forget()
        self.socks.login = self.proxy.login = None
        if self._ready.is_set():
            self.packets.forget()

    def start(self):
        threading.Thread(target=self._live, daemon=True).start()
        self._ready.wait(60)
        if self._failed or not self._ready.is_set():
            raise RuntimeError("the world does not start") from self._failed
        link.join_world()
        link.use_resolver(RESOLVER, self.folder)
        for port in (53, HTTP, HTTPS):
            eventually(lambda: _answers(port), within=20, what=f"the world's port {port}")
        return self

    def _live(self):
        try:
            link.enter_world()
            self.packets = Packets("machine")
            self.origin.repository = Repository(self.folder)
            serve_datagrams(53, lambda data, _: self.names.answer(data))
            for port in (ECHO, HTTPS):  # what comes to 443 would be QUIC
                serve_datagrams(port, lambda data, address, port=port: self._echo(data, address, port))
            asyncio.run(self._serve())
        except BaseException as failure:
            self._failed = failure
            self._ready.set()

    def _echo(self, data, address, port):
        self.datagrams.add((address, port, data))
        return data

    def _context_for(self, name):
        return (self.stranger if name in self.untrusted else self.authority).context(name)

    async def _serve(self):
        services = {53: self.names.serve_stream, MAIL: self.speaker.serve,
                    SOCKS: self.socks.serve, PROXY: self.proxy.serve}
        for port, serve in services.items():
            await asyncio.start_server(serve, "0.0.0.0", port)
        for port in (HTTP, 8080):
            await asyncio.start_server(self.listener.serve, "203.0.113.50", port, reuse_port=True)
        context = self.authority.server_context(self.origin.handshakes.append, self._context_for)
        ports = {HTTP: False, 8080: False, HTTPS: True, 8443: True}
        self._ready.set()
        await asyncio.gather(*self.origin.listeners(ports, context))
