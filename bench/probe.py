"""The client that bench/network.py runs inside a sandbox and, as the baseline, on the
host. It needs the standard library alone. probe.py MEASURE ARGUMENTS prints JSON."""

import contextlib
import functools
import http.client
import json
import os
import resource
import socket
import ssl
import statistics
import sys
import time

TAKE, GIVE, ECHO = 7001, 7002, 7003
PIECE = bytes(1 << 18)


def timed(act):
    """ms that act takes."""
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1000


def connect(host, port):
    peer = socket.create_connection((host, int(port)), timeout=30)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer


def greeted(host, port, greeting):
    """A connection; with greeting one to the port of HTTPS that begins as TLS does, and
    carries bytes as they are after that."""
    if not greeting:
        return connect(host, port)
    peer = connect(host, 443)
    peer.sendall(hello(host))
    return peer


def out(host, size, greeting=""):
    """ms to send so many bytes, until the peer has them all."""
    with greeted(host, TAKE, greeting) as peer:
        def send():
            for _ in range(int(size) // len(PIECE)):
                peer.sendall(PIECE)
            peer.shutdown(socket.SHUT_WR)
            assert peer.recv(1) == b"k"

        return timed(send)


def into(host, size, greeting=""):
    """ms to get so many bytes."""
    with greeted(host, GIVE, greeting) as peer:
        def receive():
            peer.sendall(int(size).to_bytes(8, "big"))
            left, buffer = int(size), bytearray(len(PIECE))
            while left > 0:
                count = peer.recv_into(buffer)
                assert count, "the connection ended early"
                left -= count

        return timed(receive)


@functools.cache
def context():
    """The certificates that are trusted, read once."""
    return ssl.create_default_context()


def client(host):
    """A connection by HTTPS, open."""
    connection = http.client.HTTPSConnection(host, timeout=60, context=context())
    connection.connect()
    return connection


def tls_out(host, size):
    with contextlib.closing(client(host)) as connection:
        def send():
            connection.putrequest("POST", "/")
            connection.putheader("Content-Length", size)
            connection.endheaders()
            for _ in range(int(size) // len(PIECE)):
                connection.sock.sendall(PIECE)
            answered(connection)

        return timed(send)


def tls_in(host, size):
    with contextlib.closing(client(host)) as connection:
        def receive():
            connection.request("GET", f"/bytes/{size}")
            answer, buffer, left = connection.getresponse(), bytearray(len(PIECE)), int(size)
            while count := answer.readinto(buffer):
                left -= count
            assert left == 0, f"{left} bytes are missing"

        return timed(receive)


def answered(connection):
    answer = connection.getresponse()
    said = answer.read().decode()
    assert answer.status == 200, (answer.status, said)
    return said


def requests(host, rounds, secret=""):
    """The medians of a request on a connection that is kept, and of one on a new one, ms.
    secret is a variable that has the placeholder of one."""
    headers = {"Authorization": f"Bearer {os.environ[secret]}"} if secret else {}

    def ask(connection):
        connection.request("GET", "/", headers=headers)
        said = answered(connection)
        assert all(value in said for value in headers.values()), f"what comes back is not the placeholder: {said}"

    def anew():
        with contextlib.closing(client(host)) as connection:
            ask(connection)

    anew()
    with contextlib.closing(client(host)) as kept:
        ask(kept)
        return {"kept": statistics.median(timed(lambda: ask(kept)) for _ in range(int(rounds))),
                "new": statistics.median(timed(anew) for _ in range(int(rounds) // 2))}


def hello(name):
    """What a client of TLS says first."""
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context().wrap_bio(coming, going, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return going.read()


def first(rounds, start):
    """The median of connect() to addresses that nobody connected to before, ms."""
    numbers = range(int(start), int(start) + int(rounds))
    return statistics.median(timed(lambda: connect(f"198.51.100.{number}", ECHO).close()) for number in numbers)


def first_by_name(rounds, start):
    """The parts of a first connection to each of so many new names, ms: the question for
    the name, connect(), and a TLS greeting until its answer begins."""
    times = []
    for number in range(int(start), int(start) + int(rounds)):
        name = f"n{number}.bench.example"
        greeting = hello(name)
        begun = time.perf_counter()
        family, kind, protocol, _, address = socket.getaddrinfo(name, 443, 0, socket.SOCK_STREAM)[0]
        found = time.perf_counter()
        with socket.socket(family, kind, protocol) as peer:
            peer.settimeout(30)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.connect(address)
            connected = time.perf_counter()
            peer.sendall(greeting)
            peer.recv(1)
            answered = time.perf_counter()
        times.append([1000 * (to - since) for since, to in [(begun, found), (found, connected), (connected, answered)]])
    return times


def many(host, count, until=""):
    """Opens so many connections, has each echo, and says what one more takes. It holds
    them until a file is there."""
    count = int(count)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(count + 100, 4096), hard), hard))

    def echo(peer):
        peer.sendall(b"x" * 8)
        assert peer.recv(8, socket.MSG_WAITALL) == b"x" * 8

    def one_more():
        with connect(host, ECHO) as peer:
            echo(peer)

    one_more()
    alone = statistics.median(timed(one_more) for _ in range(21))
    peers = []
    opened = timed(lambda: peers.extend(connect(host, ECHO) for _ in range(count)))
    for peer in peers:
        echo(peer)
    beside = statistics.median(timed(one_more) for _ in range(21))
    echoes = statistics.median(timed(lambda: echo(peer)) for peer in peers)
    print(json.dumps({"opened": opened, "alone": alone, "beside": beside, "echo": echoes}), flush=True)
    while until and not os.path.exists(until):
        time.sleep(0.05)


if __name__ == "__main__":
    measures = {"out": out, "in": into, "tls-out": tls_out, "tls-in": tls_in, "requests": requests, "first": first, "first-by-name": first_by_name, "many": many}
    result = measures[sys.argv[1]](*sys.argv[2:])
    if result is not None:
        print(json.dumps(result))
