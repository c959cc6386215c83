"""Rules that change requests: what goes to a host with one is carried request by request, by
a gateway that ends TLS with an authority of its own, and must work as before.
"""

import pytest
from e2b import ALL_TRAFFIC, Sandbox

from inside import echo, fetch, python, reaches, shell
from test_attacks import DATAGRAM


@pytest.fixture(scope="module")
def changeable(server):
    """A sandbox whose rules the tests change."""
    with Sandbox.create(timeout=900) as sandbox:
        yield sandbox


HEADERS = {"rules": {"good.example": [{"transform": {"headers": {"X-Added": "by the rule", "Accept": "replaced"}}}]}}


@pytest.mark.parametrize("url", ["http://good.example/echo", "https://good.example/echo"])
def test_a_rule_sets_headers_of_requests_to_its_host(changeable, world, url):
    changeable.update_network(HEADERS)
    seen = echo(changeable, url, "-H", "Accept: mine")
    assert [value for name, value in seen["headers"] if name == "x-added"] == ["by the rule"]
    assert [value for name, value in seen["headers"] if name == "accept"] == ["replaced"]


def test_requests_to_others_are_as_they_were(changeable, world):
    changeable.update_network(HEADERS)
    seen = echo(changeable, "https://other.example/echo", "-H", "Accept: mine")
    assert dict(seen["headers"]).get("x-added") is None and dict(seen["headers"])["accept"] == "mine"


def test_only_hosts_with_rules_are_looked_into(changeable, world):
    changeable.update_network(HEADERS)
    issuer = "echo | openssl s_client -connect {0}:443 -servername {0} 2>/dev/null | openssl x509 -noout -issuer"
    assert "World Test Authority" in shell(changeable, issuer.format("other.example"))
    assert "World Test Authority" not in shell(changeable, issuer.format("good.example"))


def test_a_rule_opens_nothing(changeable, world):
    changeable.update_network(HEADERS | {"deny_out": [ALL_TRAFFIC]})
    assert not reaches(changeable, "https://good.example/")
    changeable.update_network(HEADERS | {"deny_out": [ALL_TRAFFIC], "allow_out": lambda context: list(context.rules)})
    assert reaches(changeable, "https://good.example/")


@pytest.mark.parametrize("path, says", [
    ("/chunks/3", "chunk 0\nchunk 1\nchunk 2\n"),
    ("/events", "data: 0\n\ndata: 1\n\ndata: 2\n\n"),
    ("/redirect?to=/&status=307", "good.example\n"),
])
@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_answers_of_all_kinds_come_through(changeable, world, path, says, version):
    changeable.update_network(HEADERS)
    assert fetch(changeable, f"https://good.example{path}", version, "-L") == (200, says)


def test_large_bodies_pass_both_ways(changeable, world):
    changeable.update_network(HEADERS)
    assert shell(changeable, "curl -sS https://good.example/bytes/20000000 | wc -c") == "20000000\n"
    shell(changeable, "head -c 5000000 /dev/zero | curl -sS -T - https://good.example/upload >/dev/null")
    assert [len(request.body) for request in world.origin.requests("/upload")] == [5000000]


WEBSOCKET = r'''
import base64, os, socket, ssl
raw = socket.create_connection(("good.example", 443), timeout=10)
peer = ssl.create_default_context().wrap_socket(raw, server_hostname="good.example")
key = base64.b64encode(os.urandom(16)).decode()
peer.sendall(f"GET /socket HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode())
head = b""
while b"\r\n\r\n" not in head:
    head += peer.recv(4096)
print(head.split()[1].decode())
peer.sendall(b"\x81\x85\0\0\0\0hello")
answer = b""
while len(answer) < 7:
    answer += peer.recv(4096)
print(answer[2:7].decode())
'''


def test_a_websocket_is_opened_by_a_request_with_the_headers(changeable, world):
    changeable.update_network(HEADERS)
    assert python(changeable, WEBSOCKET) == "101\nhello\n"
    request, = world.origin.requests("/socket")
    assert request.header("x-added") == ["by the rule"]


def test_a_server_that_nobody_trusts_is_not_talked_to(changeable, world):
    changeable.update_network({"rules": {"other.example": [{"transform": {"headers": {"X": "secret"}}}]}})
    world.untrusted.add("other.example")
    status, body = fetch(changeable, "https://other.example/echo", "-k")
    assert status != 200, body
    assert world.origin.requests(host="other.example") == []


def test_a_rule_with_a_secret_that_is_not_there_is_refused(changeable, world):
    with pytest.raises(Exception, match="nowhere"):
        changeable.update_network({"rules": {"good.example": [{"transform": {"headers": {"X": "${e2b.secrets.nowhere}"}}}]}})


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
def test_within_a_connection_to_one_host_there_is_no_other(changeable, world, version):
    """Domain fronting: both names are at one address, and only one of them is allowed."""
    changeable.update_network({"allow_out": ["open.cdn.example"], "deny_out": [ALL_TRAFFIC],
                               "rules": {"open.cdn.example": [{"transform": {"headers": {"X-Added": "1"}}}]}})
    assert reaches(changeable, "https://open.cdn.example/")
    status, _ = fetch(changeable, "https://open.cdn.example/fronted", version, "-H", "Host: hidden.cdn.example")
    assert status in (403, 421)
    assert world.origin.requests("/fronted") == [] and world.origin.requests(host="hidden") == []


@pytest.mark.parametrize("url, why", [
    ("https://good.example/echo", "the handshake names it"),
    ("http://good.example/echo", "the request names it"),
    ("https://good.example:8443/echo", "a name counts on every port"),
])
def test_an_address_from_elsewhere_is_no_way_around_the_headers(new_box, world, url, why):
    """The sandbox never looks the name up here: it has the address written down."""
    box = new_box(network=HEADERS)
    seen = echo(box, url, *[option for port in (80, 443, 8443) for option in ("--resolve", f"good.example:{port}:203.0.113.10")])
    assert [value for name, value in seen["headers"] if name == "x-added"] == ["by the rule"], why
    assert world.names.asked("good") != [], "the gateway asked where the name leads"


def test_http3_is_no_way_around_the_headers(new_box, world):
    box = new_box(network=HEADERS)
    python(box, DATAGRAM, "203.0.113.10", "443")
    assert world.packets.seen(address="203.0.113.10") == []


def test_what_else_a_sandbox_with_headers_does_is_left_alone(new_box, world):
    box = new_box(network=HEADERS)
    assert fetch(box, "https://other.example/", "-k", "--resolve", "other.example:443:203.0.113.10")[0] == 200, "a name that does not lead there"
    assert "World Test Authority" in shell(box, "echo | openssl s_client -connect 203.0.113.10:443 -servername other.example 2>/dev/null | openssl x509 -noout -issuer")
