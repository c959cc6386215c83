"""Volumes with the official client: made, read and written without a sandbox,
mounted in several, over pauses, snapshots and a crash of the server."""

import concurrent.futures
import hashlib
import os
import pathlib
import subprocess
import time
import uuid

import e2b
import httpx
import pytest
from e2b import AuthenticationException, Sandbox, Volume
from e2b.exceptions import VolumeException, VolumeNotFoundException, VolumePathNotFoundException

from cli import as_json
from server import expect_nothing_left

MIB = 1 << 20


@pytest.fixture
def new_volume(request):
    """Makes volumes that go with the test; sandboxes made after it go first."""
    def make(size_mb=None):
        name = "v-" + uuid.uuid4().hex[:8]
        volume = small(name, size_mb) if size_mb else Volume.create(name)
        request.addfinalizer(lambda: Volume.destroy(volume.volume_id))
        return volume

    return make


def small(name, size_mb):
    """A volume of a size, which the client cannot ask for."""
    answer = httpx.post(f"{os.environ['E2B_API_URL']}/volumes", json={"name": name, "sizeMB": size_mb},
                        headers={"X-API-KEY": os.environ["E2B_API_KEY"]})
    assert answer.status_code == 201, answer.text
    return Volume.connect(answer.json()["volumeID"])


def run(sandbox, command, **options):
    return sandbox.commands.run(command, **options).stdout


def fails(sandbox, command, **options):
    """The message of a command that must not succeed."""
    with pytest.raises(e2b.CommandExitException) as failed:
        sandbox.commands.run(command, **options)
    return failed.value.stderr


def test_create_find_and_destroy():
    volume = Volume.create("crud-" + uuid.uuid4().hex[:8])
    assert (volume.volume_id, volume.name) in [(v.volume_id, v.name) for v in Volume.list()]
    info = Volume.get_info(volume.volume_id)
    assert (info.name, info.token, info.domain) == (volume.name, volume.token, None)
    assert Volume.connect(volume.volume_id).list("/") == []
    with pytest.raises(VolumeException, match="already"):
        Volume.create(volume.name)
    assert Volume.destroy(volume.volume_id) is True
    assert Volume.destroy(volume.volume_id) is False
    with pytest.raises(VolumeNotFoundException):
        Volume.get_info(volume.volume_id)
    with pytest.raises(AuthenticationException):
        volume.list("/")
    for name in ("", "a b", "../a", "ä", "n" * 129):
        with pytest.raises(VolumeException, match="name"):
            Volume.create(name)


def test_content_without_a_sandbox(new_volume):
    volume = new_volume()
    entry = volume.write_file("/file.txt", "hello")
    assert (entry.name, entry.path, entry.type.value, entry.size, entry.mode) == ("file.txt", "/file.txt", "file", 5, 0o644)
    assert volume.read_file("/file.txt") == "hello"
    with pytest.raises(VolumeException, match="409"):
        volume.write_file("/file.txt", "again")
    volume.write_file("/file.txt", b"\0\xff", force=True, uid=1001, gid=1002, mode=0o4750)
    assert volume.read_file("/file.txt", format="bytes") == b"\0\xff"
    entry = volume.get_info("file.txt")
    assert (entry.uid, entry.gid, entry.mode) == (1001, 1002, 0o4750)
    entry = volume.update_metadata("/file.txt", uid=5, mode=0o600)
    assert (entry.uid, entry.gid, entry.mode) == (5, 1002, 0o600)

    assert volume.make_dir("/dir", mode=0o700).type.value == "directory"
    with pytest.raises(VolumeException, match="409"):
        volume.make_dir("/dir")
    with pytest.raises(VolumePathNotFoundException):
        volume.make_dir("/a/b/c")
    volume.make_dir("/a/b/c", force=True, uid=7)
    assert volume.make_dir("/a/b/c", force=True).uid == 7
    with pytest.raises(VolumePathNotFoundException):
        volume.write_file("/none/file", "x")
    volume.write_file("/a/b/c/deep", "x")
    assert [e.path for e in volume.list("/")] == ["/a", "/dir", "/file.txt"]
    assert [e.path for e in volume.list("/a", depth=2)] == ["/a/b", "/a/b/c"]
    assert "/a/b/c/deep" in [e.path for e in volume.list("/", depth=32)]
    for depth in (0, -1, 33):
        with pytest.raises(VolumeException, match="depth"):
            volume.list("/", depth=depth)
    for missing in ("/none", "/file.txt/x", "/file.txt"):
        with pytest.raises((VolumePathNotFoundException, VolumeException), match="not found|no director"):
            volume.list(missing)
    with pytest.raises(VolumePathNotFoundException):
        volume.read_file("/dir")

    assert volume.exists("/a/b") and not volume.exists("/none")
    volume.remove("/a")
    assert not volume.exists("/a/b/c/deep")
    for path in ("/a", "/"):
        with pytest.raises(VolumePathNotFoundException):
            volume.remove(path)


def test_large_files_stream_both_ways(new_volume):
    volume = new_volume()
    block = os.urandom(MIB)
    want = hashlib.sha256(block * 64).hexdigest()

    class Blocks:
        left = 64

        def read(self, _=-1):
            self.left -= 1
            return block if self.left >= 0 else b""

        def __iter__(self):
            return iter(lambda: self.read(), b"")

    assert volume.write_file("/large", Blocks()).size == 64 * MIB
    got = hashlib.sha256()
    for chunk in volume.read_file("/large", format="stream"):
        got.update(chunk)
    assert got.hexdigest() == want
    part = httpx.get(f"{os.environ['E2B_VOLUME_API_URL']}/volumecontent/{volume.volume_id}/file", params={"path": "/large"},
                     headers={"Authorization": f"Bearer {volume.token}", "Range": "bytes=1048574-1048577"})
    assert (part.status_code, part.content) == (206, block[-2:] + block[:2])


def test_who_has_no_token_is_refused(new_volume):
    volume, other = new_volume(), new_volume()
    url = f"{os.environ['E2B_VOLUME_API_URL']}/volumecontent/{volume.volume_id}/dir?path=/"
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {other.token}"},
                    {"Authorization": volume.token}, {"X-API-KEY": os.environ["E2B_API_KEY"]}):
        assert httpx.get(url, headers=headers).status_code == 401, headers
    assert httpx.get(url, headers={"Authorization": f"Bearer {volume.token}"}).status_code == 200


def test_two_sandboxes_see_one_volume(new_volume, new_box):
    volume = new_volume()
    volume.write_file("/from-outside", "hello")
    one = new_box(volume_mounts={"/mnt/data": volume})
    two = new_box(volume_mounts={"/home/user/deep/er": volume.name})
    assert one.get_info().volume_mounts == [{"name": volume.name, "path": "/mnt/data"}]
    assert run(one, "cat /mnt/data/from-outside") == "hello"
    one.files.write("/mnt/data/one", "1")
    assert two.files.read("/home/user/deep/er/one") == "1"
    run(two, "echo 2 >> deep/er/one; mkdir deep/er/dir; mv deep/er/one deep/er/dir/moved; touch deep/beside")
    assert run(one, "cat /mnt/data/dir/moved") == "12\n"
    assert volume.read_file("/dir/moved") == "12\n"
    with pytest.raises(VolumeException, match=f"(?s)409.*{one.sandbox_id}"):
        Volume.destroy(volume.volume_id)
    listed = {s.sandbox_id: s for s in Sandbox.list().next_items()}
    assert listed[two.sandbox_id].volume_mounts == [{"name": volume.name, "path": "/home/user/deep/er"}]
    assert one.kill() and two.kill()


def test_files_on_a_volume_are_like_others(new_volume, new_box):
    volume = new_volume()
    one, two = (new_box(volume_mounts={"/mnt/data": volume}) for _ in range(2))
    run(one, """set -e; cd /mnt/data
        printf '#!/bin/sh\necho ran' > script; chmod 755 script; test "$(./script)" = ran
        ln script hard; test "$(stat -c %h script)" = 2; ln -s script soft; test "$(./soft)" = ran
        mkfifo pipe || true
        for n in $(seq 300); do echo $n > many-$n; done; test $(ls many-* | wc -l) = 300; rm many-*
        mkdir -p a/b; mv a c; test -d c/b; rm -r c""")
    run(one, "chown 1234:4321 /mnt/data/script; chmod 640 /mnt/data/script", user="root")
    assert run(two, "stat -c '%u %g %a' /mnt/data/script").split() == ["1234", "4321", "640"]
    entry = volume.get_info("/script")
    assert (entry.uid, entry.gid, entry.mode) == (1234, 4321, 0o640)
    # Memory of a file is shared within a sandbox, and written back.
    run(one, """cd /mnt/data; python3 -c '
import mmap, os
f = open("mapped", "w+b"); f.truncate(4096)
m = mmap.mmap(f.fileno(), 4096); m[:5] = b"hello"; m.flush(); m.close()'""")
    assert run(two, "head -c 5 /mnt/data/mapped") == "hello"
    run(one, "cd /mnt/data; flock -n lock true && flock -n lock -c 'flock -n lock false || true'")
    # 100 MB at once, and what a sandbox writes is what the other reads.
    run(one, "head -c 100000000 /dev/urandom > /mnt/data/large; sha256sum < /mnt/data/large > /mnt/data/sum", timeout=120)
    assert run(two, "sha256sum < /mnt/data/large", timeout=120) == volume.read_file("/sum")


def test_a_volume_can_be_full(new_volume, new_box):
    volume = new_volume(size_mb=16)
    box = new_box(volume_mounts={"/mnt/data": volume})
    assert "No space left" in fails(box, "dd if=/dev/zero of=/mnt/data/large bs=1M count=32")
    with pytest.raises(VolumeException, match="507"):
        volume.write_file("/more", b"x" * 8 * MIB)
    assert [e.name for e in volume.list("/")] == ["large"]
    run(box, "rm /mnt/data/large")
    volume.write_file("/more", b"x" * 8 * MIB)
    for size in (1, 1 << 50):
        answer = httpx.post(f"{os.environ['E2B_API_URL']}/volumes", json={"name": "no", "sizeMB": size},
                            headers={"X-API-KEY": os.environ["E2B_API_KEY"]})
        assert answer.status_code == 400, answer.text


def test_nothing_leads_out_of_a_volume(new_volume, new_box):
    volume, other = new_volume(), new_volume()
    other.write_file("/secret", "secret")
    box = new_box(volume_mounts={"/mnt/data": volume})
    inside = run(box, "cat /etc/passwd")
    run(box, f"""cd /mnt/data; ln -s /etc/passwd absolute; ln -s ../../../../../../../../etc/passwd up
        ln -s / root; ln -s ../../{other.volume_id}/mnt/files beside; ln -s loop loop; ln -s . self""", user="root")
    for link in ("absolute", "up", "root/etc/passwd"):
        assert run(box, f"cat /mnt/data/{link}") == inside
        for do in (volume.read_file, volume.list):
            with pytest.raises((VolumeException, VolumePathNotFoundException)):
                do("/" + link)
        with pytest.raises(VolumeException):
            volume.make_dir(f"/{link}/x")
    for path in ("/root/tmp/x", "/beside/x", "/loop/x"):
        with pytest.raises((VolumeException, VolumePathNotFoundException)):
            volume.write_file(path, "x", force=True)
    assert volume.get_info("/up").target.endswith("etc/passwd")
    for path in ("/../disk.ext4", "/../../lock", "../../../../etc/passwd", "/beside/secret", "/root/etc"):
        assert volume.get_info("/self/absolute").type.value == "symlink"
        with pytest.raises((VolumeException, VolumePathNotFoundException)):
            volume.read_file(path)
    assert "loop" in [e.name for e in volume.list("/", depth=32)]
    volume.write_file("/absolute", "replaced", force=True)
    assert run(box, "cat /etc/passwd") == inside
    volume.remove("/root")
    assert pathlib.Path("/etc/passwd").read_text() != ""

    # Root inside finds its own volume and no other, and no device.
    assert run(box, "ls /.volumes", user="root").split() == [volume.volume_id]
    assert "Permission denied" in fails(box, "ls /.volumes")
    assert "Read-only" in fails(box, "touch /.volumes/x", user="root")
    for kind in ("c 1 5", "b 7 0"):
        fails(box, f"mknod /mnt/data/device {kind} && head -c 1 /mnt/data/device", user="root")
    assert run(box, "ls /.volumes/../.volumes/.. | grep -c proc", user="root") == "1\n"
    fails(box, f"cat /.volumes/{volume.volume_id}/../../mnt/files/secret /.volumes/{other.volume_id}/secret", user="root")


def test_where_a_volume_cannot_be_mounted(new_volume):
    volume = new_volume()
    for path in ("", "/", "data", "/proc/x", "/sys", "/dev/shm", "/.tombolo/x", "/.volumes", "/a/../b", "/a//b", "/etc/passwd", "/x" * 1000):
        with pytest.raises(e2b.SandboxException, match="400"):
            Sandbox.create(volume_mounts={path: volume})
    with pytest.raises(e2b.SandboxException, match="hides"):
        Sandbox.create(volume_mounts={"/a": volume, "/a/b": volume})
    with pytest.raises(e2b.SandboxException, match="not found"):
        Sandbox.create(volume_mounts={"/a": "no-such-volume"})


def test_pause_fork_and_snapshot(new_volume, new_box, request):
    volume = new_volume()
    box = new_box(volume_mounts={"/mnt/data": volume}, timeout=300)
    box.commands.run("exec 3>>/mnt/data/ticks; while sleep 0.1; do echo tick >&3; done", background=True)
    box.files.write("/mnt/data/file", "before")
    box.pause()
    with pytest.raises(VolumeException, match="409"):
        Volume.destroy(volume.volume_id)
    volume.write_file("/meanwhile", "x")
    before = len(volume.read_file("/ticks"))
    box.connect()
    assert run(box, "cat /mnt/data/file /mnt/data/meanwhile") == "beforex"
    deadline = time.monotonic() + 10
    while len(volume.read_file("/ticks")) <= before:
        assert time.monotonic() < deadline, "the file that was open is not written any more"
        time.sleep(0.1)

    # A file that is open and removed during a pause is gone, and the sandbox goes on.
    box.pause()
    volume.remove("/ticks")
    box.connect()
    assert run(box, "cat /mnt/data/file") == "before"
    assert not volume.exists("/ticks")
    run(box, "pkill sleep || true")

    fork = box.fork(timeout=300)
    fork = fork[0] if isinstance(fork, list) else fork
    request.addfinalizer(fork.kill)
    fork.files.write("/mnt/data/file", "by the fork")
    assert box.files.read("/mnt/data/file") == "by the fork"

    snapshot = fork.create_snapshot()
    request.addfinalizer(lambda: Sandbox.delete_snapshot(snapshot.snapshot_id))
    without = new_box(snapshot.snapshot_id)
    assert without.get_info().volume_mounts == []
    assert run(without, "ls /mnt/data") == ""
    other = new_volume()
    other.write_file("/file", "of another")
    with_other = new_box(snapshot.snapshot_id, volume_mounts={"/mnt/data": other, "/mnt/first": volume})
    assert run(with_other, "cat /mnt/data/file /mnt/first/file") == "of anotherby the fork"
    for sandbox in (box, fork, without, with_other):
        sandbox.kill()


def test_many_at_once(new_volume):
    volume = new_volume()

    def one(n):
        box = Sandbox.create(volume_mounts={"/mnt/data": volume})
        try:
            box.files.write(f"/mnt/data/{n}", str(n))
            volume.write_file(f"/outside-{n}", str(n))
        finally:
            box.kill()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(8)))
    assert {e.name for e in volume.list("/")} == {str(n) for n in range(8)} | {f"outside-{n}" for n in range(8)}


def test_crash_of_the_server(serve, data):
    server = serve()
    options = server.client_options()
    volume = Volume.create("crash", **options)
    content = {"api_url": server.url}
    running = Sandbox.create("base", volume_mounts={"/mnt/data": volume}, timeout=300, **options)
    paused = Sandbox.create("base", volume_mounts={"/mnt/data": volume}, timeout=300, **options)
    paused.pause()
    running.commands.run("while sleep 0.05; do echo tick >> /mnt/data/ticks; done", background=True)
    running.files.write("/mnt/data/file", "kept")
    server.kill()

    server = serve()
    options, content = server.client_options(), {"api_url": server.url}
    volume = Volume.connect(volume.volume_id, **options)
    before = len(volume.read_file("/ticks", **content))
    running = Sandbox.connect(running.sandbox_id, **options)
    paused = Sandbox.connect(paused.sandbox_id, **options)
    assert run(paused, "cat /mnt/data/file") == "kept"
    volume.write_file("/after", "x", **content)
    assert run(running, "cat /mnt/data/after") == "x"
    deadline = time.monotonic() + 10
    while len(volume.read_file("/ticks", **content)) <= before:
        assert time.monotonic() < deadline, "the sandbox does not write to its volume any more"
        time.sleep(0.1)

    server.kill_sandboxes()
    expect_nothing_left(data)
    assert volume.read_file("/file", **content) == "kept"
    assert Volume.destroy(volume.volume_id, **options) is True
    server.stop()
    assert f"{data}/volumes/" not in pathlib.Path("/proc/self/mounts").read_text()


def test_command_line():
    tombolo = [os.environ["TOMBOLO_BIN"]]
    name = "cli-" + uuid.uuid4().hex[:8]
    folder = os.environ["TOMBOLO_DATA"]
    created = subprocess.run([*tombolo, "volume", "create", name, "--size", "64MiB", "--data", folder], capture_output=True, text=True, check=True)
    volume_id = created.stdout.strip()
    try:
        [listed] = [v for v in as_json("volume", "list", "--data", folder) if v["id"] == volume_id]
        assert (listed["name"], listed["key"], listed["sizeBytes"]) == (name, "default", 64 * MIB)
        assert 0 < listed["diskBytes"] < 32 * MIB and "token" not in listed
        flags = ["--data", folder, "--volume", f"{name}:/mnt/data"]
        subprocess.run([*tombolo, "run", *flags, "--", "sh", "-c", "echo hello > /mnt/data/file"], check=True)
        assert Volume.connect(volume_id).read_file("/file") == "hello\n"
        sandbox = subprocess.run([*tombolo, "sandbox", "create", *flags], capture_output=True, text=True, check=True).stdout.strip()
        refused = subprocess.run([*tombolo, "volume", "delete", name, "--data", folder], capture_output=True, text=True)
        assert refused.returncode != 0 and sandbox in refused.stderr
        assert Sandbox.connect(sandbox).files.read("/mnt/data/file") == "hello\n"
        Sandbox.kill(sandbox)
    finally:
        subprocess.run([*tombolo, "volume", "delete", volume_id, "--data", folder], check=True)
    unknown = subprocess.run([*tombolo, "run", "--data", folder, "--volume", "none:/x", "--", "true"], capture_output=True, text=True)
    assert unknown.returncode != 0 and "tombolo volume list" in unknown.stderr
