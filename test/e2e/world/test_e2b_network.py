"""E2B's network options, driven by its clients: what they mean, at create and live."""

import json
import pathlib
import subprocess

import pytest
from e2b import ALL_TRAFFIC, Sandbox
from e2b.exceptions import InvalidArgumentException, NotFoundException, SandboxException

from inside import python, reaches, shell
from wait import eventually

GOOD, OTHER, EVIL = "203.0.113.10", "203.0.113.12", "198.51.100.66"
ONLY_GOOD = {"allow_out": ["good.example"], "deny_out": [ALL_TRAFFIC]}


@pytest.fixture(scope="module")
def changeable(server):
    """A sandbox whose rules the tests change."""
    with Sandbox.create(timeout=900) as sandbox:
        yield sandbox


# --- what the options mean ----------------------------------------------------


@pytest.mark.parametrize("network, reached, refused", [
    ({}, [f"http://{GOOD}/", "https://evil.example/"], []),
    ({"deny_out": [ALL_TRAFFIC]}, [], [f"http://{GOOD}/", "https://good.example/", "http://good.example/"]),
    ({"deny_out": [EVIL]}, ["http://good.example/"], [f"http://{EVIL}/", "http://evil.example/", "https://evil.example/"]),
    ({"deny_out": ["198.51.100.0/24"]}, ["http://good.example/"], ["http://evil.example/"]),
    # What is allowed wins over what is denied.
    ({"allow_out": [EVIL], "deny_out": ["198.51.100.0/24"]}, [f"http://{EVIL}/"], ["http://198.51.100.67/"]),
    ({"allow_out": ["203.0.113.0/24"], "deny_out": [ALL_TRAFFIC]}, [f"http://{GOOD}/", f"http://{OTHER}:8080/"], [f"http://{EVIL}/"]),
    # Without anything denied an allow list changes nothing.
    ({"allow_out": [GOOD]}, [f"http://{EVIL}/", "http://evil.example/"], []),
    (ONLY_GOOD, ["http://good.example/", "https://good.example/", "https://GOOD.Example/"],
     ["http://other.example/", "https://api.good.example/", f"http://{GOOD}/", "http://good.example:8080/"]),
    ({"allow_out": ["*.good.example"], "deny_out": [ALL_TRAFFIC]}, ["https://api.good.example/"], ["https://good.example/", "https://evil.example/"]),
    ({"allow_out": ["good.example", EVIL], "deny_out": lambda context: [context.all_traffic]}, ["https://good.example/", f"http://{EVIL}/"],
     ["https://other.example/"]),
    ({"allow_internet_access": False}, [], ["http://good.example/", f"http://{GOOD}/"]),
])
def test_what_is_reached(changeable, world, network, reached, refused):
    changeable.update_network(network)
    assert [url for url in reached if not reaches(changeable, url)] == []
    assert [url for url in refused if reaches(changeable, url)] == []


def test_options_hold_from_the_first_moment(new_box, world):
    box = new_box(network=ONLY_GOOD)
    assert not reaches(box, "http://evil.example/")
    assert reaches(box, "http://good.example/")
    assert world.names.asked("evil") == []
    info = box.get_info()
    assert info.network["allow_out"] == ["good.example"] and info.network["deny_out"] == [ALL_TRAFFIC]


def test_no_internet_is_as_all_denied(new_box, world):
    box = new_box(allow_internet_access=False)
    assert not reaches(box, "http://good.example/")
    assert world.names.asked() == [] and world.packets.seen(protocol="tcp") == []
    assert box.get_info().allow_internet_access is False


def test_no_internet_but_what_is_allowed(new_box, world):
    box = new_box(allow_internet_access=False, network={"allow_out": [GOOD]})
    assert reaches(box, f"http://{GOOD}/")
    assert not reaches(box, f"http://{OTHER}/")


def test_datagrams_go_by_address(changeable, world):
    ask = ("import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); "
           "s.sendto(b'hi', (sys.argv[1], 7)); print(s.recv(9))")
    changeable.update_network({"allow_out": [GOOD, "evil.example"], "deny_out": [ALL_TRAFFIC]})
    assert python(changeable, ask, GOOD) == "b'hi'\n"
    assert "timed out" in python(changeable, ask, "evil.example")
    assert world.packets.seen(address=EVIL) == []


def test_what_speaks_first_goes_by_address(changeable, world):
    hear = "timeout 5 bash -c 'exec 3<>/dev/tcp/{}/25; head -n 1 <&3'"
    changeable.update_network({"allow_out": [GOOD, "evil.example"], "deny_out": [ALL_TRAFFIC]})
    assert "220 here I am" in shell(changeable, hear.format(GOOD))
    assert "220" not in shell(changeable, hear.format("evil.example"))
    assert world.speaker.connections.all() == [GOOD]


# --- changes ------------------------------------------------------------------


def test_an_update_replaces_all(changeable, world):
    changeable.update_network(ONLY_GOOD)
    assert not reaches(changeable, "http://evil.example/")
    changeable.update_network({"deny_out": [GOOD]})
    assert reaches(changeable, "http://evil.example/")
    assert not reaches(changeable, "http://good.example/")
    changeable.update_network({})
    assert reaches(changeable, "http://good.example/")


def test_an_update_ends_connections_that_it_denies(changeable, world):
    changeable.update_network({})
    hold = "timeout 60 bash -c 'exec 3<>/dev/tcp/203.0.113.10/25; cat <&3 >/dev/null'; echo ended"
    handle = changeable.commands.run(hold, background=True)
    eventually(lambda: world.speaker.connections.all(), 10, "the connection")
    changeable.update_network({"deny_out": [ALL_TRAFFIC]})
    assert "ended" in handle.wait().stdout


def test_options_outlive_a_pause_and_are_copied(new_box, request, world):
    box = new_box(network=ONLY_GOOD)
    box.pause()
    box = Sandbox.connect(box.sandbox_id)
    assert reaches(box, "http://good.example/") and not reaches(box, "http://other.example/")
    copy, = box.fork(timeout=300)
    request.addfinalizer(copy.kill)
    assert reaches(copy, "http://good.example/") and not reaches(copy, "http://other.example/")


@pytest.mark.parametrize("network, says", [
    ({"allow_out": ["good.example"]}, "ALL_TRAFFIC"),
    ({"deny_out": ["good.example"]}, "good.example"),
    ({"allow_out": ["good.example:443"], "deny_out": [ALL_TRAFFIC]}, "port"),
    ({"allow_out": ["exa mple"], "deny_out": [ALL_TRAFFIC]}, "exa mple"),
    ({"deny_out": ["10.0.0.0/99"]}, "10.0.0.0/99"),
    ({"rules": {"good.example": [{"transform": {"headers": {"X" * 65: "1"}}}]}}, ""),
    ({"rules": {"good.example": [{"transform": {"headers": {"X": "1" * 2049}}}]}}, ""),
    ({"rules": {"good.example": [{"transform": {"headers": {f"X-{i}": "1" for i in range(21)}}}]}}, ""),
    ({"rules": {"good.example": [{"transform": {"headers": {"Bad Name": "1"}}}]}}, ""),
    ({"rules": {"good.example": [{"transform": {"headers": {"X": "a\r\nHost: evil.example"}}}]}}, ""),
    ({"rules": {"good.example": [{"transform": {"headers": {"Host": "evil.example"}}}]}}, ""),
    ({"rules": {f"{i}.good.example": [{"transform": {"headers": {"X": "1"}}}] for i in range(11)}}, ""),
    ({"egress_proxy": {"address": "no port"}}, ""),
])
def test_what_cannot_be_is_refused_and_changes_nothing(changeable, world, network, says):
    changeable.update_network(ONLY_GOOD)
    with pytest.raises((InvalidArgumentException, SandboxException), match="400") as refusal:
        changeable.update_network(network)
    assert says in str(refusal.value)
    assert changeable.get_info().network["allow_out"] == ["good.example"]
    with pytest.raises((InvalidArgumentException, SandboxException)):
        Sandbox.create(network=network).kill()


def test_an_unknown_sandbox_has_no_network(server):
    with pytest.raises(NotFoundException):
        Sandbox.update_network("inowhere0000000000000", {})


# --- a proxy of one's own ---------------------------------------------------------


def test_connections_go_through_the_proxy(changeable, world):
    world.socks.login = ("me", "mine")
    changeable.update_network({"egress_proxy": {"address": "proxy.example:1080", "username": "me", "password": "mine"}})
    assert reaches(changeable, "https://good.example/")
    (user, host, port), = world.socks.asked.all()
    assert (user, port) == ("me", 443) and host in (GOOD, "good.example")
    assert world.packets.seen(address=GOOD, protocol="tcp") == []
    proxy = changeable.get_info().network["egress_proxy"]
    assert proxy == {"address": "proxy.example:1080", "username": "me"}


def test_rules_hold_before_the_proxy(changeable, world):
    changeable.update_network(ONLY_GOOD | {"egress_proxy": {"address": "proxy.example:1080"}})
    assert reaches(changeable, "http://good.example/")
    assert not reaches(changeable, "http://evil.example/")
    assert {host for _, host, _ in world.socks.asked.all()} <= {GOOD, "good.example"}


@pytest.mark.parametrize("address", ["203.0.113.40:9", "good.example:80"])
def test_without_its_proxy_nothing_goes_out(changeable, world, address):
    changeable.update_network({"egress_proxy": {"address": address}})
    world.packets.forget()
    assert not reaches(changeable, "http://other.example/")
    assert world.packets.seen(address=OTHER) == []


# --- the JavaScript client ----------------------------------------------------------

SCRIPT = """
import { Sandbox, ALL_TRAFFIC } from 'e2b'
const reaches = async (box, url) => (await box.commands.run(`curl -sS -m 10 -o /dev/null -w '%{http_code}' ${url} || true`)).stdout === '200'
const box = await Sandbox.create({ network: { allowOut: ['good.example'], denyOut: [ALL_TRAFFIC] } })
const seen = {}
try {
  seen.first = [await reaches(box, 'https://good.example/'), await reaches(box, 'https://other.example/')]
  seen.info = (await box.getInfo()).network.allowOut
  await box.updateNetwork({ denyOut: ['203.0.113.10'] })
  seen.second = [await reaches(box, 'https://good.example/'), await reaches(box, 'https://other.example/')]
  seen.refused = await box.updateNetwork({ allowOut: ['good.example'] }).then(() => '', (error) => error.message)
} finally {
  await box.kill()
}
console.log(JSON.stringify(seen))
"""


def test_the_javascript_client_says_the_same(server, world):
    folder = pathlib.Path(__file__).parents[1] / "js"
    done = subprocess.run(["node", "--input-type=module", "-e", SCRIPT], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["first"], seen["info"], seen["second"]) == ([True, False], ["good.example"], [False, True])
    assert "ALL_TRAFFIC" in seen["refused"]
