"""Services of the world that are no web servers: they record who came."""

import asyncio
import base64
import struct
import threading

GREETING = b"220 here I am\r\n"


class Record:
    """A list that threads share."""

    def __init__(self):
        self._entries = []
        self._lock = threading.Lock()

    def add(self, entry):
        with self._lock:
            self._entries.append(entry)

    def all(self):
        with self._lock:
            return list(self._entries)

    def forget(self):
        with self._lock:
            self._entries.clear()


def _local(writer):
    return writer.get_extra_info("sockname")[0]


async def _copy(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


class Speaker:
    """Speaks first, as mail servers do, and sends back each line it is told."""

    def __init__(self):
        self.connections = Record()

    async def serve(self, reader, writer):
        self.connections.add(_local(writer))
        writer.write(GREETING)
        try:
            while line := await reader.readline():
                writer.write(line)
        except (OSError, ValueError):
            pass
        writer.close()


class Listener:
    """A web server that keeps the very bytes it is sent, for what no library would hand
    on. It answers each head of a request that it sees with an empty 200."""

    def __init__(self):
        self.received = Record()

    async def serve(self, reader, writer):
        seen = b""
        try:
            while data := await reader.read(1 << 16):
                answered = seen.count(b"\r\n\r\n")
                seen += data
                self.received.add(data)
                for _ in range(seen.count(b"\r\n\r\n") - answered):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except OSError:
            pass
        writer.close()


class Socks:
    """A SOCKS5 proxy. With `login`, a (name, password), it lets nobody else in."""

    def __init__(self):
        self.asked = Record()  # of (name or None, host, port)
        self.login = None

    async def serve(self, reader, writer):
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader, writer):
        _, count = await reader.readexactly(2)
        methods, user = await reader.readexactly(count), None
        if self.login:
            if 2 not in methods:
                writer.write(b"\5\xff")
                return
            writer.write(b"\5\2")
            await reader.readexactly(1)
            user = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
            password = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
            if (user, password) != self.login:
                writer.write(b"\1\1")
                return
            writer.write(b"\1\0")
        else:
            writer.write(b"\5\0")
        _, _, _, kind = await reader.readexactly(4)
        if kind == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            host = ".".join(map(str, await reader.readexactly(4))) if kind == 1 else (await reader.readexactly(16)).hex()
        port, = struct.unpack("!H", await reader.readexactly(2))
        self.asked.add((user, host, port))
        out_reader, out_writer = await asyncio.open_connection(host, port)
        writer.write(b"\5\0\0\1" + bytes(6))
        await asyncio.gather(_copy(reader, out_writer), _copy(out_reader, writer))
        out_writer.close()


class Connect:
    """An HTTP proxy that stands CONNECT. `login` as of Socks."""

    def __init__(self):
        self.asked = Record()  # of (name or None, target)
        self.login = None

    async def serve(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ", 2)
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if ": " in line)}
            user = password = None
            if value := headers.get("proxy-authorization"):
                user, _, password = base64.b64decode(value.partition(" ")[2]).decode().partition(":")
            self.asked.add((user, target))
            if self.login and (user, password) != self.login:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n")
                return
            if method != "CONNECT":
                writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
                return
            host, _, port = target.rpartition(":")
            out_reader, out_writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(_copy(reader, out_writer), _copy(out_reader, writer))
            out_writer.close()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
