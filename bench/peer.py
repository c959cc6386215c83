"""What bench/network.py connects to: it runs in the world's namespace, where every
address leads to it. peer.py FOLDER: FOLDER gets the authority of its certificates.

One service takes bytes, one gives them, one sends back what comes. Each has a port, and
an address where it is at the port of HTTPS. HTTPS itself keeps connections open, takes
what is posted, gives /bytes/COUNT, and else what the header authorization held.
"""

import asyncio
import pathlib
import re
import socket
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "test/e2e/world"))

from authority import Authority  # noqa: E402
from datagrams import serve as serve_datagrams  # noqa: E402
from names import Names  # noqa: E402

TAKE, GIVE, ECHO, HTTPS, DNS = 7001, 7002, 7003, 443, 53
ADDRESSES = {"https": "203.0.113.1", "take": "203.0.113.2", "give": "203.0.113.3"}
PIECE = bytes(1 << 18)


class Zone(Names):
    """Every name below bench.example is there. n7 has an address of its own."""

    def _find(self, name):
        first = name.partition(".")[0]
        if match := re.fullmatch(r"n(\d+)", first):
            number = int(match[1])
            return [f"203.0.{114 + number // 250}.{1 + number % 250}"]
        return [ADDRESSES.get(first, ADDRESSES["https"])] if name.endswith(".bench.example") else None


def take(peer):
    buffer = bytearray(1 << 18)
    while peer.recv_into(buffer):
        pass
    peer.sendall(b"k")


def give(peer):
    if peer.recv(1, socket.MSG_PEEK) == b"\x16":  # a greeting of TLS, one record
        record = peer.recv(5, socket.MSG_WAITALL)
        peer.recv(int.from_bytes(record[3:]), socket.MSG_WAITALL)
    left = int.from_bytes(peer.recv(8, socket.MSG_WAITALL))
    while left > 0:
        left -= peer.send(PIECE[:left])


def https(context):
    def serve(peer):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(peer, server_side=True) as inside:
            file = inside.makefile("rb")
            while request := file.readline():
                headers = {}
                while line := file.readline().strip():
                    name, _, value = line.partition(b":")
                    headers[name.lower()] = value.strip()
                left = int(headers.get(b"content-length", 0))
                while left > 0:
                    left -= len(file.read(min(left, len(PIECE))))
                if match := re.match(rb"GET /bytes/(\d+)", request):
                    inside.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n" % match[1])
                    for _ in range(int(match[1]) // len(PIECE)):
                        inside.sendall(PIECE)
                else:
                    body = headers.get(b"authorization", b"none") + b"\n"
                    inside.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    return serve


def listen(port, serve, address="0.0.0.0"):
    listener = socket.create_server((address, port), backlog=4096, reuse_port=True)

    def one(peer):
        try:
            with peer:
                serve(peer)
        except OSError:  # a client that went away
            pass

    def accept():
        while True:
            threading.Thread(target=one, args=listener.accept()[:1], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


async def main(folder):
    names = Zone()
    serve_datagrams(DNS, lambda data, _: names.answer(data))
    authority = Authority(folder)

    def context_for(name):
        context = authority.context(name)
        context.set_alpn_protocols(["http/1.1"])
        return context

    context = authority.server_context(lambda _: None, context_for)
    listen(TAKE, take)
    listen(GIVE, give)
    for name, serve in {"https": https(context), "take": take, "give": give}.items():
        listen(HTTPS, serve, ADDRESSES[name])
    await asyncio.start_server(names.serve_stream, "0.0.0.0", DNS)
    for port in ECHO, HTTPS:
        await asyncio.get_running_loop().create_server(Echo, "0.0.0.0", port, backlog=4096, reuse_port=True)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(pathlib.Path(sys.argv[1])))
