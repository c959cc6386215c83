"""The world itself, seen from a sandbox that may reach all that is public. What other
tests find refused, is here seen to answer."""

import socket

import pytest


def test_a_name_is_asked_of_the_world_and_its_page_comes(box, world):
    assert box.commands.run("curl -sS http://good.example/").stdout == "good.example\n"
    assert ("good.example", "A") in world.names.asked()
    request, = world.origin.requests(host="good.example")
    assert (request.address, request.method, request.path) == ("203.0.113.10", "GET", "/")


@pytest.mark.parametrize("command", [
    "curl -sS https://good.example/",
    "curl -sS --http1.1 https://good.example/",
    "python3 -c \"import urllib.request as r; print(r.urlopen('https://good.example/').read().decode(), end='')\"",
    "node -e \"fetch('https://good.example/').then(r => r.text()).then(t => process.stdout.write(t))\"",
])
def test_the_worlds_certificates_are_trusted_inside(box, world, command):
    assert box.commands.run(command).stdout == "good.example\n"


def test_a_strangers_certificate_is_not(box, world):
    world.untrusted.add("other.example")
    out = box.commands.run("curl -sS https://other.example/ 2>&1; echo $?").stdout
    assert "certificate" in out


def test_datagrams_come_back(box, world):
    code = ("import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); "
            "s.sendto(b'hello', ('203.0.113.10', 7)); print(s.recv(99))")
    assert box.commands.run(f'python3 -c "{code}"').stdout == "b'hello'\n"
    assert world.datagrams.all() == [("203.0.113.10", 7, b"hello")]


def test_what_speaks_first_is_heard(box, world):
    assert box.commands.run("exec 3<>/dev/tcp/good.example/25; head -n 1 <&3").stdout == "220 here I am\r\n"


def test_no_private_address_is_reached_though_the_machine_reaches_all(box, world):
    for address in ("10.1.2.3", "169.254.169.254", "192.168.7.7", "100.64.0.1"):
        socket.create_connection((address, 80), timeout=5).close()
        world.packets.forget()
        assert box.commands.run(f"curl -fsS -m 5 http://{address}/ >/dev/null 2>&1; echo $?").stdout != "0\n"
        assert world.packets.seen(address=address) == []
