"""Requests no client would send. Each must end in a clear refusal, and leave
the server answering everybody else."""

import contextlib
import json
import os
import socket
import struct
import time
import urllib.parse

import httpx
import pytest

SERVER = urllib.parse.urlparse(os.environ["E2B_API_URL"])
KEY = {"X-API-KEY": os.environ["E2B_API_KEY"]}


@pytest.fixture(autouse=True)
def the_server_still_answers(box):
    yield
    assert httpx.get(f"{SERVER.geturl()}/health", timeout=10).status_code in (200, 204)
    assert box.commands.run("echo alive", timeout=10).stdout == "alive\n"


def api(method, path, **options):
    return httpx.request(method, SERVER.geturl() + path, headers={**KEY, **options.pop("headers", {})}, timeout=30, **options)


def agent_headers(box, port=49983):
    return {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": str(port), "X-Access-Token": box._envd_access_token}


def agent(box, method, path, port=49983, **options):
    headers = {**agent_headers(box, port), **options.pop("headers", {})}
    return httpx.request(method, SERVER.geturl() + path, headers=headers, timeout=30, **options)


def raw(data, within=5):
    """Sends bytes as they are; returns what comes back until the close."""
    with socket.create_connection((SERVER.hostname, SERVER.port), timeout=within) as peer:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall(data)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while len(answer) < 1 << 20 and (chunk := peer.recv(65536)):
                answer += chunk
    return answer


def status(answer):
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


# --- control API -------------------------------------------------------------


@pytest.mark.parametrize("body", [
    b"", b"{", b"null", b"[]", b"42", b'"x"', b"{}", b"\x00\xff\xfe", b'{"templateID":}',
    b'{"templateID": 5}', b'{"templateID": null}', b'{"templateID": ["base"]}', b'{"templateID": ""}',
    b'{"templateID": "base", "timeout": "60"}', b'{"templateID": "base", "timeout": 1.5}',
    b'{"templateID": "base", "timeout": 1e300}', b'{"templateID": "base", "timeout": -5}',
    b'{"templateID": "base", "timeout": 99999999999999999999}',
    b'{"templateID": "base", "metadata": {"a": 1}}', b'{"templateID": "base", "metadata": "x"}',
    b'{"templateID": "base", "envVars": ["A=1"]}', b'{"templateID": "base", "envVars": {"A=B": "x"}}',
    b'{"templateID": "base", "envVars": {"A": "x\\u0000y"}}', b'{"templateID": "base", "envVars": {"": "x"}}',
    b'{"templateID": "../../etc"}', b'{"templateID": "base\\u0000"}', b'{"templateID": "' + b"b" * 100000 + b'"}',
    b'{"templateID": "base"', b'{"templateID": "base"} trailing', b"[" * 100000,
], ids=lambda body: body[:40].decode("latin1"))
@pytest.mark.parametrize("path", ["/sandboxes", "/v2/sandboxes"])
def test_a_create_that_makes_no_sense_is_refused(path, body):
    answer = api("POST", path, content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()
    assert error["code"] == answer.status_code and error["message"]


def test_a_huge_body_is_refused_early():
    answer = api("POST", "/sandboxes", content=(b" " * (1 << 20) for _ in range(100)))
    assert answer.status_code in (400, 413)


@pytest.mark.parametrize("method, path, expected", [
    ("GET", "/no/such/route", {404}),
    ("GET", "/", {200, 404}),
    ("PUT", "/sandboxes", {404, 405}),
    ("DELETE", "/sandboxes", {404, 405}),
    ("PATCH", "/v2/sandboxes", {404, 405}),
    ("GET", "/sandboxes/..%2f..%2fetc%2fpasswd", {400, 404}),
    ("GET", "/sandboxes/%00", {400, 404}),
    ("GET", "/sandboxes/" + "i" * 5000, {400, 404, 414}),
    ("DELETE", "/sandboxes/%2e%2e", {400, 404}),
    ("GET", "/v2/sandboxes?limit=0", {400}),
    ("GET", "/v2/sandboxes?limit=abc", {400}),
    ("GET", "/v2/sandboxes?limit=99999999999999999999", {400}),
    ("GET", "/v2/sandboxes?nextToken=%00%ff", {400}),
    ("GET", "/v2/sandboxes?state=flying", {400}),
    ("GET", "/v2/sandboxes?metadata=%25zz", {400}),
    ("GET", "/v2/sandboxes?order=sideways", {400}),
    ("POST", "/sandboxes/iaaaaaaaaaaaaaaaaaaaa/timeout", {400, 404}),
])
def test_a_route_that_makes_no_sense_is_refused(method, path, expected):
    assert api(method, path).status_code in expected


@pytest.mark.parametrize("headers", [{}, {"X-API-KEY": ""}, {"X-API-KEY": "e2b_" + "f" * 40}, {"X-API-KEY": "' OR 1=1 --"}, {"Authorization": "Bearer x"}])
@pytest.mark.parametrize("method, path", [("POST", "/sandboxes"), ("GET", "/v2/sandboxes"), ("GET", "/sandboxes"), ("GET", "/templates"), ("DELETE", "/sandboxes/iaaaaaaaaaaaaaaaaaaaa")])
def test_nothing_is_told_without_a_key(method, path, headers):
    answer = httpx.request(method, SERVER.geturl() + path, headers=headers, timeout=10)
    assert answer.status_code == 401 and answer.json()["code"] == 401


# --- HTTP itself -------------------------------------------------------------


@pytest.mark.parametrize("data, expected", [
    (b"NONSENSE of some length\r\n\r\n", {400}),
    (b"NONSENSE\r\n\r\n", {400, None}),  # shorter than what tells HTTP/2: dropped in time
    (b"GET / HTTP/9.9\r\n\r\n", {400, 505}),
    (b"GET / HTTP/1.1\r\n\r\n", {400}),
    (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", {400}),
    (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * (4 << 20) + b"\r\n\r\n", {400, 431, None}),
    (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"H%d: x\r\n" % i for i in range(200000)) + b"\r\n", {400, 431, None}),
    (b"GET /" + b"a" * (4 << 20) + b" HTTP/1.1\r\nHost: a\r\n\r\n", {400, 414, 431, None}),
    (b"POST /sandboxes HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", {400}),
    (b"POST /sandboxes HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", {400}),
    (b"POST /sandboxes HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", {400}),
    (b"POST /sandboxes HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nhello\r\n0\r\n\r\n", {400, 401}),
    (b"POST /sandboxes HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\n", {400, 401}),
    (b"POST /sandboxes HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: odd\r\n\r\n", {400, 401, 501}),
    (b"CONNECT example.com:80 HTTP/1.1\r\nHost: example.com:80\r\n\r\n", {400, 401, 403, 404, 405}),
    (b"GET http://169.254.169.254/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", {400, 401, 403, 404}),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100, {400, 401, 505, None}),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50, {400, None}),
], ids=lambda value: value[:48].decode("latin1") if isinstance(value, bytes) else "")
def test_broken_http_is_refused(data, expected):
    if b"\r\n\r\n" in data and data.startswith((b"GET", b"POST", b"CONNECT")):
        data = data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    assert status(raw(data)) in expected


@pytest.mark.parametrize("host", [
    "49983-.localhost", "-iabc.localhost", "99999-iabc.localhost", "0-iabc.localhost", "-1-iabc.localhost",
    "49983-IABC.localhost", "49983-" + "i" * 300 + ".localhost", "49982-iaaaaaaaaaaaaaaaaaaaa.localhost", "..", "[::1", "a b", "\x7f",
])
def test_a_host_name_that_makes_no_sense_is_refused(host):
    answer = raw(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("latin1"))
    assert status(answer) in (200, 204, 400, 401, 404, 502)
    assert b"panic" not in answer


@pytest.mark.parametrize("sandbox_id, port", [
    ("", "49983"), ("iaaaaaaaaaaaaaaaaaaaa", ""), ("iaaaaaaaaaaaaaaaaaaaa", "0"), ("iaaaaaaaaaaaaaaaaaaaa", "65536"),
    ("iaaaaaaaaaaaaaaaaaaaa", "x"), ("../../x", "49983"), ("iaaaaaaaaaaaaaaaaaaaa", "49983"), ("i" * 5000, "49983"),
])
def test_routing_headers_that_make_no_sense_are_refused(sandbox_id, port):
    answer = httpx.get(f"{SERVER.geturl()}/files", headers={"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": port})
    assert answer.status_code in (400, 401, 404, 502)


def test_the_host_only_port_is_closed_by_header_too(box):
    for path in ("/init", "/relieve", "/warm", "/"):
        assert agent(box, "POST", path, port=49982, json={}).status_code in (403, 404, 502)


# --- the agent's files -------------------------------------------------------


@pytest.mark.parametrize("path, expected", [
    ("", {400}),
    ("/etc/passwd\0.txt", {400}),
    ("/" + "a" * 300, {400, 404}),
    ("/" + "a/" * 5000, {400, 404}),
    ("/proc/self/mem", {400, 403, 404, 500}),
    ("/dev/zero", {400, 403}),
    ("/dev/null", {200, 400, 403}),
    ("/etc/passwd/x", {400, 404}),
    ("../../../../etc/passwd", {200}),
    ("~nobody/x", {400, 404}),
])
def test_a_path_that_makes_no_sense_is_refused(box, path, expected):
    """`..` stays inside the sandbox: there is nothing above its root."""
    answer = agent(box, "GET", "/files", params={"path": path})
    assert answer.status_code in expected, (answer.status_code, answer.text[:200])
    assert len(answer.content) < 1 << 20


@pytest.mark.parametrize("path", ["/x\0y", "/" + "a" * 5000, "/proc/1/mem", "/sys/x"])
def test_an_upload_to_such_a_path_is_refused(box, path):
    answer = agent(box, "POST", "/files", params={"path": path}, files={"file": ("x", b"data")})
    assert 400 <= answer.status_code <= 507 and answer.json()["message"]


def test_a_pipe_does_not_hold_a_reader_for_ever(box):
    box.commands.run("rm -f /tmp/pipe; mkfifo /tmp/pipe")
    started = time.monotonic()
    with contextlib.suppress(httpx.TimeoutException):
        assert agent(box, "GET", "/files", params={"path": "/tmp/pipe"}).status_code >= 400
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("content_type, body", [
    ("multipart/form-data", b"no boundary"),
    ("multipart/form-data; boundary=x", b""),
    ("multipart/form-data; boundary=x", b"--x\r\nbroken"),
    ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data; name=other\r\n\r\nv\r\n--x--\r\n"),
    ("multipart/form-data; boundary=x", b"--x\r\n" + b"H: " + b"y" * (1 << 20) + b"\r\n\r\nv\r\n--x--\r\n"),
    ("multipart/form-data; boundary=" + "x" * 500, b"x"),
    ("text/plain", b"hello"),
    ("", b"hello"),
])
def test_a_form_that_makes_no_sense_is_refused(box, content_type, body):
    answer = agent(box, "POST", "/files", content=body, headers={"Content-Type": content_type})
    assert 400 <= answer.status_code < 500, answer.text


def test_a_broken_gzip_upload_is_refused(box):
    answer = agent(box, "POST", "/files", params={"path": "/tmp/z"}, content=b"no gzip",
                   headers={"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"})
    assert answer.status_code == 400


@pytest.mark.parametrize("headers", [
    {"X-Metadata-" + "k" * 300: "v"}, {"X-Metadata-k": "v" * 5000}, {"X-Metadata-": "v"},
], ids=["long key", "long value", "no key"])
def test_metadata_out_of_bounds_is_refused(box, headers):
    answer = agent(box, "POST", "/files", params={"path": "/tmp/m"}, content=b"x",
                   headers={"Content-Type": "application/octet-stream", **headers})
    assert answer.status_code == 400


def test_an_upload_larger_than_the_disk_is_stopped_early(new_box):
    sandbox = new_box()
    sandbox.commands.run("fallocate -l 9G /home/user/most")
    size, sent = 5 << 30, 0
    head = f"POST /files?path=/home/user/huge HTTP/1.1\r\nHost: {SERVER.netloc}\r\nContent-Type: application/octet-stream\r\nContent-Length: {size}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in agent_headers(sandbox).items()) + "\r\n"
    answer, piece = b"", bytes(1 << 20)
    deadline = time.monotonic() + 100
    with socket.create_connection((SERVER.hostname, SERVER.port), timeout=20) as peer:
        peer.sendall(head.encode())
        try:
            while sent < size and time.monotonic() < deadline:
                peer.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    answer = peer.recv(65536)
                peer.settimeout(20)
                if answer:
                    break
                peer.sendall(piece)
                sent += len(piece)
        except (BrokenPipeError, ConnectionResetError):
            with contextlib.suppress(ConnectionResetError):
                answer = peer.recv(65536)
    assert status(answer) == 507, answer[:300]
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


# --- the agent's RPCs --------------------------------------------------------


def frame(message, flags=0):
    return struct.pack(">BI", flags, len(message)) + message


START = "/process.Process/Start"
STREAM = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}


@pytest.mark.parametrize("body", [
    b"", b"\x00", b"\x00\x00\x00", frame(b"{"), frame(b"[]"), frame(b"\xff\xfe"), frame(b"{}", flags=0x80),
    frame(b"{}", flags=1), b"\x00\xff\xff\xff\xff{}", b"\x00\x7f\xff\xff\xff" + b"x" * 1000,
    frame(json.dumps({"process": {"cmd": ""}}).encode()),
    frame(json.dumps({"process": {"cmd": "/bin/true\0x"}}).encode()),
    frame(json.dumps({"process": {"cmd": "/no/such/program"}}).encode()),
    frame(json.dumps({"process": {"cmd": "/bin/true", "cwd": "\0"}}).encode()),
    frame(json.dumps({"process": {"cmd": "/bin/true", "envs": {"A=B": "c", "": "d"}}}).encode()),
    frame(json.dumps({"process": {"cmd": "/bin/true", "args": ["x" * (3 << 20)]}}).encode()),
    frame(json.dumps({"process": {"cmd": 5}}).encode()),
    frame(b'{"process":' + b"[" * 20000),
    frame(json.dumps({"process": {"cmd": "/bin/true"}, "pty": {"size": {"rows": 4294967295, "cols": 0}}}).encode()),
], ids=range(19))
def test_a_start_that_makes_no_sense_ends_in_an_error(box, body):
    answer = agent(box, "POST", START, content=body, headers=STREAM)
    assert answer.status_code < 500 or answer.status_code == 501, answer.content[:300]
    assert b"panic" not in answer.content


@pytest.mark.parametrize("path, body", [
    ("/process.Process/SendSignal", {"process": {"pid": 1}, "signal": "SIGNAL_SIGKILL"}),
    ("/process.Process/SendSignal", {"process": {"pid": 0}, "signal": "SIGNAL_SIGKILL"}),
    ("/process.Process/SendSignal", {"process": {}, "signal": 77}),
    ("/process.Process/SendSignal", {"process": {"pid": -1}}),
    ("/process.Process/SendInput", {"process": {"pid": 1}, "input": {"stdin": "eA=="}}),
    ("/process.Process/Update", {"process": {"pid": 1}, "pty": {"size": {"rows": 1, "cols": 1}}}),
    ("/process.Process/NoSuchMethod", {}),
    ("/filesystem.Filesystem/Remove", {"path": ""}),
    ("/filesystem.Filesystem/ListDir", {"path": "/", "depth": 4294967295}),
    ("/filesystem.Filesystem/Move", {"source": "/tmp", "destination": "/tmp/a/b"}),
    ("/filesystem.Filesystem/GetWatcherEvents", {"watcherId": "none"}),
    ("/no.Service/Method", {}),
])
def test_a_call_that_makes_no_sense_is_an_error(box, path, body):
    if path.endswith("ListDir"):
        body = {**body, "path": "/home"}
    answer = agent(box, "POST", path, json=body, headers={"Connect-Protocol-Version": "1"})
    if not path.endswith("ListDir"):
        assert 400 <= answer.status_code < 600 and answer.status_code != 502, answer.text[:300]
    assert b"panic" not in answer.content


def test_a_stranger_may_not_call_the_agent(box):
    headers = {"X-Access-Token": "guess"}
    assert agent(box, "POST", "/process.Process/List", json={}, headers=headers).status_code == 401
    assert agent(box, "GET", "/metrics", headers=headers).status_code == 401
    assert agent(box, "GET", "/envs", headers=headers).status_code == 401
    assert agent(box, "POST", "/execute", port=49999, json={"code": "1"}, headers=headers).status_code == 401


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"code": 5}', b'{"code": "1", "env_vars": [1]}',
                                  b'{"code": "1", "context_id": "x", "language": "python"}',
                                  b'{"code": "1", "language": "klingon"}', b'{"code": "1", "context_id": "../x"}'])
def test_an_execution_that_makes_no_sense_is_refused(interpreter, body):
    answer = agent(interpreter, "POST", "/execute", port=49999, content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text[:300]


# --- clients that vanish or dawdle -------------------------------------------


def test_clients_that_vanish_mid_stream_leave_nothing_running_hot(box):
    message = frame(json.dumps({"process": {"cmd": "/bin/bash", "args": ["-c", "yes"]}}).encode())
    head = f"POST {START} HTTP/1.1\r\nHost: {SERVER.netloc}\r\nContent-Type: application/connect+json\r\nContent-Length: {len(message)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in agent_headers(box).items()) + "\r\n"
    for _ in range(5):
        with socket.create_connection((SERVER.hostname, SERVER.port), timeout=10) as peer:
            peer.sendall(head.encode() + message)
            assert b"200 OK" in peer.recv(4096)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert box.commands.run("echo alive", timeout=20).stdout == "alive\n"
    for process in box.commands.list():
        if "yes" in process.args:
            box.commands.kill(process.pid)


def test_five_hundred_slow_connections_do_not_starve_the_rest(box):
    slow = []
    try:
        for _ in range(500):
            peer = socket.create_connection((SERVER.hostname, SERVER.port), timeout=10)
            peer.sendall(b"POST /sandboxes HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            slow.append(peer)
        started = time.monotonic()
        assert api("GET", "/v2/sandboxes").status_code == 200
        assert box.commands.run("echo quick", timeout=10).stdout == "quick\n"
        assert time.monotonic() - started < 5
    finally:
        for peer in slow:
            peer.close()
