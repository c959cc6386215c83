"""Servers inside a sandbox, reached from outside by host name."""

import os
import socket
import urllib.parse

import httpx
import pytest
from websockets.sync.client import connect

from wait import eventually

SERVER = urllib.parse.urlparse(os.environ["E2B_API_URL"])

ECHO = r'''
import asyncio, base64, hashlib, struct, sys



async def serve(reader, writer):
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    key = {k.lower(): v for k, v in headers.items()}["sec-websocket-key"]
    accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    writer.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode())
    while True:
        first, second = await reader.readexactly(2)
        size = second & 127
        if size == 126: size, = struct.unpack(">H", await reader.readexactly(2))
        elif size == 127: size, = struct.unpack(">Q", await reader.readexactly(8))
        mask = await reader.readexactly(4)
        data = bytes(b ^ mask[i % 4] for i, b in enumerate(await reader.readexactly(size)))
        if first & 15 == 8: break
        head = bytes([first, size]) if size < 126 else bytes([first, 126]) + struct.pack(">H", size)
        writer.write(head + data)
        await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()

asyncio.run(main())
'''


def get(box, port, path="/", **headers):
    """GET through the edge, chosen by the first label of the host name."""
    headers["Host"] = f"{port}-{box.sandbox_id}.localhost"
    return httpx.get(f"http://{SERVER.netloc}{path}", headers=headers, timeout=20)


@pytest.mark.parametrize("port, bind", [(8000, "127.0.0.1"), (8001, "0.0.0.0"), (8002, "::1")])
def test_a_server_is_reached_whatever_it_listens_on(box, port, bind):
    box.files.write(f"/tmp/www{port}/page.txt", f"page of {port}")
    box.commands.run(f"python3 -m http.server {port} --bind {bind} --directory /tmp/www{port}", background=True)
    answer = eventually(lambda: (a := get(box, port, "/page.txt")).status_code == 200 and a, 15, "the page is served")
    assert answer.text == f"page of {port}"
    assert get(box, port, "/missing").status_code == 404


def test_a_closed_port_says_so(box):
    answer = get(box, 9999)
    body = answer.json()
    assert answer.status_code == 502 and body["code"] == 502 and body["port"] == 9999
    assert body["sandboxId"] == box.sandbox_id and "port is not open" in body["message"]


def test_a_dead_sandbox_says_so(new_box):
    sandbox = new_box()
    sandbox.kill()
    answer = get(sandbox, 8000)
    assert answer.status_code == 502 and "was not found" in answer.json()["message"]


def test_a_browser_gets_a_page_not_json(box):
    answer = get(box, 9999, **{"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/130.0", "Accept": "text/html"})
    assert answer.status_code == 502 and answer.headers["content-type"].startswith("text/html")


def test_the_host_port_of_the_agent_is_not_reachable(box):
    assert get(box, 49982, "/").status_code in (403, 404, 502)
    for path in ("/init", "/freeze", "/unfreeze", "/collapse", "/upgrade"):
        headers = {"Host": f"49983-{box.sandbox_id}.localhost", "X-Access-Token": box._envd_access_token}
        assert httpx.post(f"http://{SERVER.netloc}{path}", headers=headers, json={}).status_code == 404, path


def test_get_host_starts_with_port_and_id(box):
    assert box.get_host(3000).startswith(f"3000-{box.sandbox_id}.")


@pytest.mark.parametrize("message", ["hello", "x" * 60000, b"\x00\xff" * 100], ids=["text", "long text", "binary"])
def test_a_web_socket_goes_through(box, message):
    port = 8010
    if not box.files.exists("/tmp/echo.py"):
        box.files.write("/tmp/echo.py", ECHO)
        box.commands.run(f"python3 /tmp/echo.py {port}", background=True)
        eventually(lambda: box.commands.run(f"ss -ltn | grep -c :{port} || true").stdout.strip() == "1", 15, "the echo server listens")
    tunnel = socket.create_connection((SERVER.hostname, SERVER.port))
    with connect(f"ws://{port}-{box.sandbox_id}.localhost:{SERVER.port}/chat?x=1", sock=tunnel) as peer:
        for _ in range(3):
            peer.send(message)
            assert peer.recv(timeout=10) == message
