"""A secret that was in use is nowhere in clear: not in what a sandbox leaves behind of any
kind, not on the server's disk, and not in the memory of any process inside.
"""

import base64
import json
import os
import pathlib
import urllib.parse

import pytest
from e2b import Sandbox, Secret

from cli import tombolo
from inside import fetch, python, shell

# Long and odd enough that it is nowhere by chance, and differs in every encoding.
VALUE = "Gr3p+this/if~you&can=" + base64.urlsafe_b64encode(os.urandom(24)).decode()


def encodings(value):
    """The value in the forms that programs give it, as bytes by name."""
    raw = value.encode()
    forms = {
        "clear": raw, "hex": raw.hex().encode(), "HEX": raw.hex().upper().encode(),
        "URL": urllib.parse.quote(value, safe="").encode(), "form": urllib.parse.quote_plus(value).encode(),
        "JSON": value.replace("/", "\\/").encode(), "HTML": value.replace("&", "&amp;").encode(),
        "UTF-16": value.encode("utf-16-le"), "reversed": raw[::-1],
    }
    for offset in range(3):  # wherever in something longer it begins
        for name, encode in (("Base64", base64.b64encode), ("Base64 URL", base64.urlsafe_b64encode)):
            forms[f"{name} at {offset}"] = encode(bytes(offset) + raw)[4:-4]
    return forms


def found(data, forms):
    return sorted(name for name, form in forms.items() if form in data)


def search(folder, forms):
    """Where below a folder one of the forms is, in files of any kind. Holes are left out."""
    hits = []
    overlap = max(map(len, forms.values()))
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_symlink() or not path.is_file() or "images" in path.relative_to(folder).parts[:1]:
            continue
        with path.open("rb") as file:
            position, end = 0, path.stat().st_size
            while position < end:
                try:
                    position = os.lseek(file.fileno(), position, os.SEEK_DATA)
                except OSError:
                    break  # nothing but a hole follows
                data = os.pread(file.fileno(), 4 << 20, position)
                if not data:
                    break
                hits += [f"{path}: {name}" for name in found(data, forms)]
                position += max(1, len(data) - overlap) if position + len(data) < end else len(data)
    return hits


# Looks through the memory and the environment of every process but itself.
LOOK = r'''
import json, os, re, sys
forms = {name: bytes(byte ^ 85 for byte in bytes.fromhex(text)) for name, text in json.load(open("/tmp/forms.json")).items()}
hits, looked = [], 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) in (os.getpid(), os.getppid()):
        continue
    try:
        environment = open(f"/proc/{pid}/environ", "rb").read()
        command = open(f"/proc/{pid}/cmdline", "rb").read()
        maps = open(f"/proc/{pid}/maps").read()
        memory = open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        continue
    looked += 1
    hits += [f"{pid} environ {name}" for name, form in forms.items() if form in environment + command]
    for line in maps.splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if " r" not in line[:40] or line.rstrip().endswith(("[vvar]", "[vsyscall]")):
            continue
        while start < end:
            try:
                memory.seek(start)
                data = memory.read(min(end - start, 1 << 22))
            except (OSError, ValueError, OverflowError):
                break
            if not data:
                break
            hits += [f"{pid} {start:x} {name}" for name, form in forms.items() if form in data]
            start += len(data)
print(looked, hits)
'''

# Holds the placeholder and an answer, and waits.
CLIENT = r'''
import os, time, urllib.request as r
request = r.Request("https://good.example/reflect", headers={"Authorization": "Bearer " + os.environ["TOKEN"]})
answer = r.urlopen(request).read()
print(answer.decode(), flush=True)
time.sleep(600)
'''


@pytest.fixture
def secret(server):
    made = Secret.create("grep-me", VALUE, metadata={"tombolo.hosts": "good.example", "tombolo.in": "authorization"})
    yield made
    Secret.destroy(made.name)


def masked(form):
    """Something else than the form, so that the search does not find what it looks for."""
    return bytes(byte ^ 85 for byte in form)


def look_inside(box, forms):
    box.files.write("/tmp/forms.json", json.dumps({name: masked(form).hex() for name, form in forms.items()}), user="root")
    looked, _, hits = python(box, LOOK).partition(" ")
    shell(box, "rm -f /tmp/forms.json")
    return int(looked), hits.strip()


def test_the_value_is_nowhere(server, world, secret, request):
    forms = encodings(VALUE)
    box = Sandbox.create(timeout=900, envs={"TOKEN": Secret.fill(secret.name)})
    request.addfinalizer(box.kill)
    # In use: in a program that still runs, in one that dumps its core, and on the disk.
    box.files.write("/tmp/client.py", CLIENT)
    client = box.commands.run("python3 /tmp/client.py", background=True)
    assert fetch(box, "https://good.example/echo", "-o", "/home/user/answer", "-H", f"Authorization: Bearer {shell(box, 'printf %s $TOKEN')}")[0] == 200
    shell(box, "ulimit -c unlimited; echo /tmp/core >/proc/sys/kernel/core_pattern; cd /tmp; python3 -c \"" +
          "import os, urllib.request as r; a = r.urlopen(r.Request('https://good.example/echo', headers={'Authorization': 'Bearer ' + os.environ['TOKEN']})).read(); os.abort()\"")
    assert {f"Bearer {VALUE}"} == {value for seen in world.origin.requests() for value in seen.header("authorization")}, "it was not in use"

    looked, hits = look_inside(box, forms)
    assert looked > 1 and hits == "[]"
    assert shell(box, "env; cat /proc/1/environ").find(VALUE) < 0

    # Everything that is made of a sandbox.
    snapshot = box.create_snapshot()
    request.addfinalizer(lambda: Sandbox.delete_snapshot(snapshot.snapshot_id))
    copy, = box.fork(timeout=300)
    request.addfinalizer(copy.kill)
    assert look_inside(copy, forms)[1] == "[]"
    copy.pause()
    box.pause()
    audit = tombolo("audit", "tail", "--json", "-n", "1000").stdout
    assert found(audit, forms) == []
    assert search(server.data, forms) == []
    box = Sandbox.connect(box.sandbox_id)
    box.commands.kill(client.pid)
    box.kill()
    assert search(server.data, forms) == []
    assert found(server.log().encode(), forms) == []


def test_the_search_finds_what_is_there(server, world, new_box):
    """The same search, of a value that a sandbox has in clear."""
    value = "F1nd+this/~" + base64.urlsafe_b64encode(os.urandom(24)).decode()
    forms = encodings(value)
    box = new_box(envs={"CLEAR": value})
    box.commands.run("sleep 600", background=True)
    looked, hits = look_inside(box, forms)
    assert looked > 1 and "environ clear" in hits
    box.pause()
    hits = [hit for hit in search(server.data, forms) if hit.endswith(": clear")]
    assert any("/sandboxes/" in hit for hit in hits), "the saved memory"
    assert any("tombolo.db" in hit for hit in hits), "the record"
