"""What tests run in sandboxes."""

import json
import shlex

# Sends raw bytes to an address and prints what comes back until the other end is done or
# silent: send.py HOST PORT HEX [tls NAME]
SEND = r'''
import socket, ssl, sys
host, port, data, *tls = sys.argv[1:]
try:
    with socket.create_connection((host, int(port)), timeout=5) as peer:
        if tls:
            context = ssl._create_unverified_context()
            peer = context.wrap_socket(peer, server_hostname=tls[1] if len(tls) > 1 else None)
        peer.settimeout(1)
        peer.sendall(bytes.fromhex(data))
        while chunk := peer.recv(65536):
            sys.stdout.buffer.write(chunk)
except OSError as error:
    sys.stdout.write(f"[{type(error).__name__}]")
'''


def shell(box, command, user="root", timeout=60):
    """The output of a command, whatever its status."""
    return box.commands.run(f"({command}) 2>&1 || true", user=user, timeout=timeout).stdout


def python(box, code, *arguments, user="root", timeout=60):
    """The output of a Python program."""
    box.files.write("/tmp/program.py", code, user="root")
    return shell(box, shlex.join(["python3", "/tmp/program.py", *arguments]), user, timeout)


def send(box, host, port, data, tls=None):
    """What a server answers to raw bytes; tls is the name in the handshake, "" for none."""
    box.files.write("/tmp/send.py", SEND, user="root")
    if isinstance(data, str):
        data = data.encode("latin-1")
    end = [] if tls is None else ["tls", *([tls] if tls else [])]
    return shell(box, shlex.join(["python3", "/tmp/send.py", host, str(port), data.hex(), *end]))


def fetch(box, url, *options):
    """(status, body) of a URL by curl; the status is 0 where there was no answer."""
    command = shlex.join(["curl", "-sS", "-m", "15", "-w", "\n%{http_code}", *options, url])
    out = box.commands.run(f"{command} 2>/dev/null || true", timeout=40).stdout
    body, _, status = out.rpartition("\n")
    return int(status or 0), body


def reaches(box, url):
    """Whether there is a page."""
    return fetch(box, url)[0] == 200


def echo(box, url, *options):
    """What the world's /echo saw of a request; options are curl's."""
    status, body = fetch(box, url, *options)
    assert status == 200, (status, body)
    return json.loads(body)
