"""The edge in front of people's own ports: private ports, the host a server
inside sees, and https under each sandbox's own name."""

import hashlib
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import urllib.parse

import e2b
import httpx
import pytest
from websockets.sync.client import connect

from server import BINARY, Server
from test_ports import ECHO
from wait import eventually

ADDRESS = urllib.parse.urlparse(os.environ["E2B_API_URL"]).netloc
PORT = 8000
DOMAIN = "sbx.localhost"
TOKEN = "e2b-traffic-access-token"

# /: the request as it came, as JSON. /events: each follows what the client did
# at /next. POST /sum: the SHA-256 of the body. /bytes?n: n bytes.
INSIDE = r'''
import hashlib, http.server, json, sys, threading

turn = threading.Semaphore(0)

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for n in range(3):
                self.wfile.write(b"data: %d\n\n" % n)
                turn.acquire(timeout=20)
            return
        if self.path == "/next":
            turn.release()
        if self.path.startswith("/bytes?"):
            left = int(self.path[7:])
            self.send_response(200)
            self.send_header("Content-Length", str(left))
            self.end_headers()
            while left:
                left -= self.wfile.write(bytes(min(left, 1 << 20)))
            return
        self.answer(json.dumps({name.lower(): value for name, value in self.headers.items()}).encode())

    def do_POST(self):
        digest, left = hashlib.sha256(), int(self.headers["Content-Length"])
        while left:
            piece = self.rfile.read(min(left, 1 << 20))
            digest.update(piece)
            left -= len(piece)
        self.answer(digest.hexdigest().encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
'''


def start_inside(sandbox, program=INSIDE, port=PORT):
    sandbox.files.write(f"/tmp/inside{port}.py", program)
    sandbox.commands.run(f"exec python3 /tmp/inside{port}.py {port}", background=True, timeout=0).disconnect()
    eventually(lambda: sandbox.commands.run(f"ss -ltn | grep -c :{port} || true").stdout.strip() == "1", 15, "the server inside listens")
    return sandbox


def get(sandbox, port=PORT, path="/", **headers):
    return httpx.get(f"http://{ADDRESS}{path}", headers={"Host": f"{port}-{sandbox.sandbox_id}.localhost"} | headers, timeout=60)


# --- private ports ---------------------------------------------------------------


def test_private_ports_take_the_token_only(new_box):
    sandbox = start_inside(new_box(network={"allow_public_traffic": False}))
    for headers in {}, {TOKEN: "wrong"}, {TOKEN: ""}, {"X-Access-Token": sandbox._envd_access_token}, {"X-API-KEY": os.environ["E2B_API_KEY"]}:
        answer = get(sandbox, **headers)
        assert answer.status_code == 403, headers
        assert answer.json()["sandboxId"] == sandbox.sandbox_id and TOKEN in answer.json()["message"]
    page = get(sandbox, **{"User-Agent": "Mozilla/5.0", "Accept": "text/html"})
    assert page.status_code == 403 and page.headers["content-type"].startswith("text/html")
    answer = get(sandbox, **{TOKEN: sandbox.traffic_access_token})
    assert answer.status_code == 200 and TOKEN not in answer.json(), "the token stays outside"
    assert get(sandbox, 9999).status_code == 403, "whether a port is open is private too"


def test_private_ports_leave_the_agent_and_code_to_the_sdk(new_interpreter):
    sandbox = new_interpreter(network={"allow_public_traffic": False})
    assert sandbox.commands.run("echo there").stdout == "there\n"
    assert sandbox.run_code("6 * 7").text == "42"
    assert get(sandbox, 49999, "/contexts").status_code == 403


def test_a_public_sandbox_has_no_token(box):
    assert box.traffic_access_token is None


# --- the host --------------------------------------------------------------------


@pytest.mark.parametrize("mask, seen", [(f"app-${{PORT}}.example.com:${{PORT}}", f"app-{PORT}.example.com:{PORT}"), ("localhost", "localhost")])
def test_a_server_inside_sees_the_masked_host(new_box, mask, seen):
    sandbox = start_inside(new_box(network={"mask_request_host": mask}))
    headers = get(sandbox).json()
    assert headers["host"] == seen
    assert headers["x-forwarded-host"] == f"{PORT}-{sandbox.sandbox_id}.localhost"


@pytest.mark.parametrize("mask", ["-https://abcd", "a b", "localhost:", "${PORT", "x\r\ny: z"])
def test_a_mask_that_is_no_host_is_refused(mask):
    with pytest.raises(e2b.SandboxException, match="400: maskRequestHost"):
        e2b.Sandbox.create(network={"mask_request_host": mask}).kill()


# --- paused ----------------------------------------------------------------------


@pytest.mark.parametrize("auto_resume", [False, True])
def test_is_running_asks_and_does_not_wake(new_box, auto_resume):
    sandbox = new_box(lifecycle={"on_timeout": "pause", "auto_resume": auto_resume})
    assert sandbox.is_running()
    sandbox.pause()
    assert not sandbox.is_running()
    assert sandbox.get_info().state == "paused"
    sandbox.connect()
    assert sandbox.is_running()


def test_a_paused_sandbox_says_so_and_what_to_do(new_box):
    sandbox = start_inside(new_box())
    sandbox.pause()
    answer = get(sandbox)
    assert answer.status_code == 502
    assert re.search("paused.*resume", answer.json()["message"])
    page = get(sandbox, **{"User-Agent": "Mozilla/5.0", "Accept": "text/html"})
    assert page.status_code == 502 and "paused" in page.text


def test_an_upload_wakes_it_and_arrives_whole(new_box):
    sandbox = start_inside(new_box(lifecycle={"on_timeout": "pause", "auto_resume": True}))
    content = os.urandom(8 << 20)
    sandbox.pause()
    answer = httpx.post(f"http://{ADDRESS}/sum", headers={"Host": f"{PORT}-{sandbox.sandbox_id}.localhost"}, content=content, timeout=60)
    assert answer.text == hashlib.sha256(content).hexdigest()


# --- https -----------------------------------------------------------------------


class Secure:
    """A server that speaks https with a private authority, and what trusts it."""

    def __init__(self, server, file):
        self.server, self.file = server, file
        self.port = urllib.parse.urlparse(server.url).port
        self.trust = ssl.create_default_context(cafile=file)

    def create(self, sandbox_class=e2b.Sandbox, **options):
        return sandbox_class.create(**self.server.client_options(), **options)

    def client(self, **options):
        return httpx.Client(verify=self.trust, timeout=60, **options)


@pytest.fixture(scope="module")
def secure(data):
    subprocess.run([BINARY, "tls", "init", "--data", str(data)], check=True, capture_output=True)
    server = Server(data).start()
    yield Secure(server, data / "ca.pem")
    server.kill_sandboxes()
    server.stop()
    for file in data / "ca.pem", data / "keys" / "ca.key":
        file.unlink()


@pytest.fixture(scope="module")
def site(secure):
    """A sandbox of that server with servers inside."""
    sandbox = secure.create(timeout=900)
    start_inside(sandbox)
    return start_inside(sandbox, ECHO, 8010)


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """Finds *.sbx.localhost, as browsers do and this machine's resolver does not."""
    ask = socket.getaddrinfo

    def answer(host, *rest, **options):
        name = host.decode() if isinstance(host, bytes) else host
        return ask("127.0.0.1" if name and name.endswith("." + DOMAIN) else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
def test_get_host_is_reached_by_https(secure, site, http2):
    host = site.get_host(PORT)
    assert host == f"{PORT}-{site.sandbox_id}.{DOMAIN}:{secure.port}"
    with secure.client(http2=http2) as client:
        answer = client.get(f"https://{host}/")
        assert answer.status_code == 200
        assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
        assert answer.json()["host"] == host and answer.json()["x-forwarded-proto"] == "https"
        content = os.urandom(16 << 20)
        assert client.post(f"https://{host}/sum", content=content).text == hashlib.sha256(content).hexdigest()
        assert client.get(f"https://{host}/bytes?{64 << 20}").content == bytes(64 << 20)
        assert client.get(f"https://{site.get_host(9999)}/").json()["message"] == "The sandbox is running but port is not open"


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
def test_events_are_not_held_back(secure, site, http2):
    url = f"https://{site.get_host(PORT)}"
    with secure.client(http2=http2) as client, secure.client() as other:
        with client.stream("GET", f"{url}/events") as answer:
            lines = (line for line in answer.iter_lines() if line)
            for n in range(3):
                assert next(lines) == f"data: {n}", "it comes before the next is made"
                other.get(f"{url}/next")


def test_a_web_socket_by_wss(secure, site):
    host = site.get_host(8010)
    with connect(f"wss://{host}/", ssl=secure.trust, origin=f"https://{host}") as peer:
        for message in "hello", b"\x00" * 60000:
            peer.send(message)
            assert peer.recv(timeout=10) == message


def test_curl_finds_the_name_by_itself(secure, site):
    got = subprocess.run(["curl", "-sS", "--fail", "--cacert", secure.file, f"https://{site.get_host(PORT)}/"], capture_output=True, text=True, timeout=30)
    assert got.returncode == 0, got.stderr
    assert json.loads(got.stdout)["x-forwarded-proto"] == "https"


def test_node_trusts_what_env_says_and_reaches_api_and_sandbox(secure, site):
    program = """
        const [host, api, key] = process.argv.slice(1), https = require('node:https')
        const lookup = (_, options, done) => done(null, options.all ? [{address: '127.0.0.1', family: 4}] : '127.0.0.1', 4)
        const get = (url, headers) => new Promise((ok, fail) => https.get(url, {lookup, headers}, r => ok((r.resume(), r.statusCode))).on('error', fail))
        Promise.all([get(`https://${host}/`), get(`https://${api}/v2/sandboxes`, {'X-API-KEY': key})]).then(codes => console.log(codes.join()))
    """
    env = secure.server.environment()
    got = subprocess.run(["node", "-e", program, site.get_host(PORT), f"api.{env['E2B_DOMAIN']}", env["E2B_API_KEY"]],
                         env=os.environ | env, capture_output=True, text=True, timeout=30)
    assert got.stdout.strip() == "200,200", got.stderr


def test_the_js_sdk_needs_key_and_domain_only(secure):
    """All of it by https and HTTP/2: control API, agent, code, files by URL."""
    program = """
        import dns from 'node:dns'
        const lookup = dns.lookup
        dns.lookup = (name, options, done) => lookup(name.endsWith('.sbx.localhost') ? '127.0.0.1' : name, options, done)
        const {Sandbox} = await import('@e2b/code-interpreter')
        const sandbox = await Sandbox.create()
        const files = Array.from({length: 20}, (_, n) => `/tmp/${n}`)
        await Promise.all(files.map(path => sandbox.files.write(path, path.repeat(1000))))
        const back = await Promise.all(files.map(path => sandbox.files.read(path)))
        console.log(back.every((text, n) => text === files[n].repeat(1000)))
        console.log((await sandbox.commands.run('echo there')).stdout.trim())
        console.log((await sandbox.runCode('6 * 7')).text)
        console.log((await (await fetch(await sandbox.downloadUrl('/tmp/3'))).text()).length)
        console.log(await sandbox.isRunning(), await sandbox.kill(), await sandbox.isRunning())
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    told = secure.server.environment()
    env |= {name: told[name] for name in ("E2B_API_KEY", "E2B_DOMAIN", "NODE_EXTRA_CA_CERTS")}
    got = subprocess.run(["node", "--input-type=module", "-e", program], cwd=pathlib.Path(__file__).parent.parent / "js",
                         env=env, capture_output=True, text=True, timeout=60)
    assert got.stdout.split() == ["true", "there", "42", "6000", "true", "true", "false"], got.stderr


def test_plain_http_stays_on_the_same_port(secure, site):
    assert site.commands.run("echo plain").stdout == "plain\n"
    host = {"Host": f"{PORT}-{site.sandbox_id}.{DOMAIN}"}
    answer = httpx.get(f"{secure.server.url}/", headers=host)
    assert answer.json()["x-forwarded-proto"] == "http"


def test_who_does_not_trust_the_authority_is_told(secure, site):
    with pytest.raises(httpx.ConnectError, match="(?i)certificate"):
        httpx.get(f"https://{site.get_host(PORT)}/")


def test_the_authority_is_for_its_names_only(secure):
    with socket.create_connection(("127.0.0.1", secure.port)) as raw:
        with pytest.raises(ssl.SSLCertVerificationError):
            secure.trust.wrap_socket(raw, server_hostname="example.com")
