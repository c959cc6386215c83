"""The world's web servers: one application that every name and address leads to, by
http and https, HTTP/1.1 and 2, WebSocket."""

import asyncio
import base64
import dataclasses
import gzip
import socket
import threading
import urllib.parse

import hypercorn.asyncio
import hypercorn.config
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute

import packages
import repository

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclasses.dataclass
class Request:
    """What came, as it came."""

    address: str  # of the world, that was connected to
    scheme: str
    version: str
    method: str
    host: str
    path: str  # not decoded
    query: str
    headers: list  # of (name in lower case, value)
    body: bytes = b""

    def header(self, name):
        """All values of a header."""
        return [value for key, value in self.headers if key == name]


class Origin:
    """Records requests and TLS names. Paths that need a login want one of `logins`: a
    bearer token, the password of Basic, or the parameter `token`."""

    def __init__(self):
        self.logins = set()
        self.packages = packages.Packages()
        self.repository = None  # set by the world, on its thread
        self.handshakes = []
        self._requests = []
        self._lock = threading.Lock()
        self._app = Starlette(routes=[
            Route("/echo", self._echo, methods=METHODS),
            Route("/reflect", self._reflect, methods=METHODS),
            Route("/redirect", self._redirect, methods=METHODS),
            Route("/events", self._events),
            Route("/chunks/{count:int}", self._chunks),
            Route("/bytes/{count:int}", self._bytes),
            Route("/slow/{seconds:int}", self._slow),
            Route("/login", self._login, methods=METHODS),
            Route("/simple/{rest:path}", self._python),
            Route("/npm/{rest:path}", self._node),
            Route("/git/{rest:path}", self._git, methods=METHODS),
            WebSocketRoute("/socket", self._socket),
            Route("/{rest:path}", self._any, methods=METHODS),
        ])

    def requests(self, path="", host=""):
        """The requests that came, whose path and host have these parts in them."""
        with self._lock:
            return [request for request in self._requests if path in request.path and host in request.host]

    def forget(self):
        with self._lock:
            self._requests.clear()
            self.handshakes.clear()

    async def __call__(self, scope, receive, send):
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        request = Request(
            address=scope["server"][0].removeprefix("::ffff:"), scheme=scope["scheme"], version=scope["http_version"],
            method=scope.get("method", "GET"), host=dict(headers).get("host", ""),
            path=scope["raw_path"].decode("latin-1"), query=scope["query_string"].decode("latin-1"), headers=headers)
        with self._lock:
            self._requests.append(request)

        async def recorded():
            message = await receive()
            request.body += message.get("body", b"")
            return message

        scope["recorded"] = request
        await self._app(scope, recorded, send)

    def _logged_in(self, request):
        kind, _, value = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "basic":
            value = base64.b64decode(value + "==").decode("latin-1").partition(":")[2]
        return value in self.logins or request.query_params.get("token") in self.logins

    # --- what there is ---

    async def _any(self, request):
        await request.body()
        return PlainTextResponse(f"{request.scope['recorded'].host}\n")

    async def _echo(self, request):
        body = await request.body()
        seen = request.scope["recorded"]
        return JSONResponse({"method": seen.method, "host": seen.host, "path": seen.path, "query": seen.query,
                             "headers": seen.headers, "body": body.decode("latin-1"), "version": seen.version})

    async def _reflect(self, request):
        """Sends back what a header held (?header=, default authorization), in the way
        that ?as= says: plain, header, gzip, chunks, error."""
        value = request.headers.get(request.query_params.get("header", "authorization"), "").encode("latin-1")
        how = request.query_params.get("as", "plain")
        text = b'{"you sent": "' + value + b'"}\n'
        if how == "header":
            return Response(b"see the header\n", headers={"x-reflected": value.decode("latin-1"),
                                                         "set-cookie": f"token={value.decode('latin-1')}"})
        if how == "gzip":
            return Response(gzip.compress(text), headers={"content-encoding": "gzip"})
        if how == "chunks":
            async def bytewise():
                for i in range(len(text)):
                    yield text[i:i + 1]
                    await asyncio.sleep(0)
            return StreamingResponse(bytewise())
        return Response(text, status_code=401 if how == "error" else 200)

    async def _redirect(self, request):
        return RedirectResponse(request.query_params["to"], status_code=int(request.query_params.get("status", "302")))

    async def _events(self, request):
        async def stream():
            for i in range(int(request.query_params.get("count", "3"))):
                yield f"data: {i}\n\n"
                await asyncio.sleep(0.05)
        return StreamingResponse(stream(), media_type="text/event-stream")

    async def _chunks(self, request):
        async def stream():
            for i in range(request.path_params["count"]):
                yield f"chunk {i}\n"
        return StreamingResponse(stream())

    async def _bytes(self, request):
        async def stream():
            left = request.path_params["count"]
            while left > 0:
                yield bytes(min(left, 1 << 16))
                left -= 1 << 16
        return StreamingResponse(stream())

    async def _slow(self, request):
        await asyncio.sleep(request.path_params["seconds"])
        return PlainTextResponse("at last\n")

    async def _login(self, request):
        if not self._logged_in(request):
            return PlainTextResponse("who are you?\n", status_code=401, headers={"www-authenticate": 'Basic realm="world"'})
        return PlainTextResponse("welcome\n")

    async def _socket(self, socket):
        await socket.accept()
        async for message in socket.iter_text():
            await socket.send_text(message)

    async def _python(self, request):
        if not self._logged_in(request):
            return await self._login(request)
        return self._file(self.packages.python(request.path_params["rest"]))

    async def _node(self, request):
        if not self._logged_in(request):
            return await self._login(request)
        base = f"{request.scope['scheme']}://{request.scope['recorded'].host}/npm/"
        return self._file(self.packages.node(urllib.parse.unquote(request.path_params["rest"]), base))

    async def _git(self, request):
        if not self._logged_in(request):
            return await self._login(request)
        return await self.repository.answer(request)

    @staticmethod
    def _file(found):
        if found is None:
            return PlainTextResponse("not here\n", status_code=404)
        content, kind = found
        return Response(content, media_type=kind)

    def listeners(self, ports, context):
        """Coroutines that serve on these ports: http, and https where context says."""
        for port, secure in ports.items():
            config = _Config(context if secure else None)
            config.bind = [f"fd://{_listen(port)}"]
            config.errorlog = None
            config.h2_max_concurrent_streams = 1000
            config.keep_alive_timeout = 60
            yield hypercorn.asyncio.serve(self, config, shutdown_trigger=asyncio.Event().wait)


def _listen(port):
    """A socket for a port of all addresses, of some of which others may serve it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("0.0.0.0", port))
    return listener.detach()


class _Config(hypercorn.config.Config):
    """Takes a context instead of files."""

    def __init__(self, context):
        super().__init__()
        self._context = context

    @property
    def ssl_enabled(self):
        return self._context is not None

    def create_ssl_context(self):
        return self._context
