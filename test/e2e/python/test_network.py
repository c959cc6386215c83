"""What a sandbox may reach, seen from inside it.

The tests that need the outside take the package index that pip and npm inside
the sandbox are set up for, so they work behind a mirror too.
"""

import contextlib
import json
import os
import socket
import threading
import urllib.parse

import pytest

# Prints for each [host, port] what a connection attempt ended in, and when. "told" is
# the gateway's own answer on ports where HTTP is spoken: it says why nothing got out.
DIAL = r'''
import json, socket, sys, time
results = []
for host, port in json.loads(sys.argv[1]):
    started = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=8) as peer:
            peer.settimeout(8)
            try:
                peer.sendall(b"GET / HTTP/1.1\r\nHost: dialled.example\r\n\r\n")
                answer = peer.recv(65536)
                told = answer.startswith(b"HTTP/1.1 403 ") and b"\r\ntombolo-refused:" in answer.lower()
                outcome = "told" if told else "data" if answer else "closed"
            except (ConnectionResetError, BrokenPipeError):
                outcome = "reset"
            except TimeoutError:
                outcome = "open"
    except ConnectionRefusedError:
        outcome = "refused"
    except TimeoutError:
        outcome = "hang"
    except OSError as error:
        outcome = f"unreachable"
    results.append([outcome, time.monotonic() - started])
print(json.dumps(results))
'''

CLOSED = {"refused", "reset", "unreachable", "closed", "told"}

# The host of pip's index, whatever configures it, without naming one here.
INDEX_HOST = r'''python3 - <<'END'
import urllib.parse
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
settings = Configuration(isolated=False)
settings.load()
print(urllib.parse.urlparse(dict(settings.items()).get("global.index-url", PyPI.simple_url)).hostname)
END'''


def dial(box, *targets):
    box.files.write("/tmp/dial.py", DIAL)
    out = box.commands.run(f"python3 /tmp/dial.py '{json.dumps(targets)}'", timeout=100).stdout
    return json.loads(out)


@contextlib.contextmanager
def listener(address):
    """A server of the host that must never see a connection; yields its port
    and the list of those it saw."""
    seen = []
    with socket.create_server((address, 0)) as server:
        def accept():
            with contextlib.suppress(OSError):
                while True:
                    peer, source = server.accept()
                    seen.append(source)
                    peer.close()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1], seen


def own_address():
    """The address of the host's interface towards the world; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]


# --- the world ---------------------------------------------------------------


def test_pip_installs_a_package(interpreter):
    interpreter.commands.run("pip install --no-input --quiet --retries 10 six", timeout=110)
    execution = interpreter.run_code("import six\nsix.__name__")
    assert execution.text == "six", execution.error


def test_https_works_from_each_tool(interpreter):
    host = interpreter.commands.run(INDEX_HOST).stdout.strip()
    assert host
    url = f"https://{host}/simple/six/"
    code = f"import requests\nrequests.get('{url}', timeout=30).status_code"
    assert interpreter.run_code(code).text == "200"
    assert interpreter.commands.run(f"curl -sS --retry 2 -o /dev/null -w '%{{http_code}}' {url}").stdout == "200"
    script = f"fetch('{url}').then(r => console.log(r.status), e => console.log(e.cause || e))"
    assert interpreter.commands.run(f"node -e \"{script}\"").stdout.strip() == "200"


def test_npm_reaches_its_registry(box):
    assert box.commands.run("npm view left-pad name", timeout=60).stdout.strip() == "left-pad"


def test_plain_http_works(box):
    host = box.commands.run(INDEX_HOST).stdout.strip()
    code = box.commands.run(f"curl -sS -o /dev/null -w '%{{http_code}}' http://{host}/").stdout
    assert 200 <= int(code) < 500


def test_an_unknown_name_fails_fast(box):
    out = box.commands.run("time -p getent hosts no-such-host.invalid || true; echo; date", timeout=20)
    seconds = next(float(line.split()[1]) for line in out.stderr.splitlines() if line.startswith("real"))
    assert seconds < 6


# --- what stays closed -------------------------------------------------------


@pytest.mark.parametrize("host, port", [
    ("169.254.169.254", 80),
    ("169.254.170.2", 80),
    ("10.0.0.1", 22),
    ("10.0.0.1", 49982),
    ("10.1.2.3", 80),
    ("172.16.0.1", 443),
    ("192.168.0.1", 80),
    ("100.64.0.1", 80),
    ("0.0.0.0", 81),
    ("127.0.0.1", 81),
    ("224.0.0.1", 80),
    ("255.255.255.255", 80),
    ("::ffff:169.254.169.254", 80),
    ("fe80::1", 80),
    ("fd00::1", 80),
    ("::1", 81),
    ("fd00:ec2::254", 80),
    ("64:ff9b::a9fe:a9fe", 80),
])
def test_a_private_address_is_refused_at_once(box, host, port):
    (outcome, seconds), = dial(box, [host, port])
    assert outcome in CLOSED and seconds < 3, (outcome, seconds)


def test_the_gateway_says_what_it_refused_and_nothing_else(box):
    dial(box, ["169.254.169.254", 80])
    code = "curl -s -m 10 -o /tmp/answer -w '%{{http_code}}' {}"
    assert box.commands.run(code.format("http://tombolo.internal/refusals")).stdout == "200"
    assert "169.254.169.254" in box.files.read("/tmp/answer")
    assert box.commands.run(code.format("http://10.0.0.1/health")).stdout == "404"
    assert box.commands.run(code.format("-H 'Host: 127.0.0.1' http://10.0.0.1/")).stdout == "421"


@pytest.mark.parametrize("address", ["127.0.0.1", "own"])
def test_the_host_is_out_of_reach(box, address):
    if address == "own":
        address = own_address()
    with listener(address) as (port, seen):
        (outcome, seconds), = dial(box, [address, port])
    assert outcome in CLOSED and seconds < 3, (outcome, seconds)
    assert seen == []


def test_the_server_itself_is_out_of_reach(box):
    port = urllib.parse.urlparse(os.environ["E2B_API_URL"]).port
    for outcome, seconds in dial(box, ["127.0.0.1", port], ["10.0.0.1", port], [own_address(), port]):
        assert outcome in CLOSED and seconds < 3


def test_a_name_for_a_private_address_does_not_help(box):
    # The resolver may not answer, or the connection may be refused.
    box.commands.run("echo '169.254.169.254 innocent.example' | sudo tee -a /etc/hosts >/dev/null")
    (outcome, seconds), = dial(box, ["innocent.example", 80])
    assert outcome in CLOSED and seconds < 3


def test_a_closed_sandbox_reaches_nothing(new_box):
    sandbox = new_box(allow_internet_access=False)
    assert sandbox.get_info().allow_internet_access is False
    host = sandbox.commands.run(INDEX_HOST).stdout.strip()
    out = sandbox.commands.run(f"curl -sS -m 10 -o /dev/null -w '%{{time_total}}' https://{host}/ ; echo \" $?\"")
    seconds, status = out.stdout.split()
    assert status != "0" and float(seconds) < 5, out
    for outcome, seconds in dial(sandbox, ["1.1.1.1", 53], ["1.1.1.1", 443], ["8.8.8.8", 53]):
        assert outcome in CLOSED and seconds < 3
    assert sandbox.commands.run("echo inside works").stdout == "inside works\n"


def test_a_refusal_of_the_name_server_does_not_open_the_network(new_box):
    sandbox = new_box(allow_internet_access=False)
    sandbox.commands.run("echo 'nameserver 8.8.8.8' | sudo tee /etc/resolv.conf >/dev/null")
    out = sandbox.commands.run("timeout 10 getent hosts example.com; echo $?")
    assert out.stdout.strip() != "0"


def test_root_inside_cannot_change_the_rules(box):
    box.commands.run("ip route add 169.254.0.0/16 via 10.0.0.1 2>&1; ip addr add 10.9.9.9/24 dev eth0 2>&1; true", user="root")
    for outcome, seconds in dial(box, ["169.254.169.254", 80], [own_address(), 22]):
        assert outcome in CLOSED and seconds < 3


def test_nothing_inside_reaches_the_port_for_the_host(box):
    # The agent answers there only to the gateway; root tries to have its address.
    box.commands.run("ip addr add 10.0.0.1/32 dev lo || true", user="root")
    attempt = "curl -s -m 5 -o /dev/null -w '%{{http_code}}' {} http://{}:49982/init -d '{{}}' || true"
    for source in ("", "--interface 10.0.0.1"):
        for target in ("127.0.0.1", "10.0.0.2"):
            assert box.commands.run(attempt.format(source, target), user="root").stdout == "000", (source, target)
