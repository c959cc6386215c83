"""Pausing and resuming: nothing is lost, whatever was going on."""

import concurrent.futures
import contextlib
import datetime
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse

import e2b_code_interpreter
import httpx
import pytest
from e2b import AuthenticationException, NotFoundException, Sandbox, SandboxException, SandboxQuery, SandboxState, TimeoutException
from websockets.sync.client import connect

from cli import as_json, tombolo
from server import Server, disk_usage
from test_network import INDEX_HOST
from test_ports import ECHO, SERVER
from wait import eventually
from witness import FOLDER, PORT, Witness, get, sha256

MIB = 1 << 20


def host_disk():
    """What all sandboxes and snapshots take on the server's disk."""
    data = pathlib.Path(os.environ["TOMBOLO_DATA"])
    return disk_usage(data / "sandboxes") + disk_usage(data / "snapshots")


def state(sandbox):
    return sandbox.get_info().state


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def boot_id(sandbox):
    return sandbox.commands.run("cat /proc/sys/kernel/random/boot_id").stdout


# --- with memory -------------------------------------------------------------


@pytest.mark.timeout(600)
def test_twenty_rounds_of_pause_and_resume_lose_nothing(new_interpreter):
    metadata = {"kept": "ünï"}
    sandbox = new_interpreter(timeout=900, metadata=metadata, envs={"OF_THE_SANDBOX": "kept too"})
    witness = Witness(sandbox).start().add("first")
    booted, token, disk = boot_id(sandbox), sandbox._envd_access_token, []
    for n in range(20):
        witness.add("replaced", size=4 * MIB)
        assert sandbox.pause() is True
        assert state(sandbox) == SandboxState.PAUSED
        again = e2b_code_interpreter.Sandbox.connect(sandbox.sandbox_id)
        assert (again.sandbox_id, again._envd_access_token) == (sandbox.sandbox_id, token)
        disk.append(host_disk())
        witness.check()
        witness.check_clock()
    info = sandbox.get_info()
    assert info.metadata == metadata and info.state == SandboxState.RUNNING
    assert boot_id(sandbox) == booted, "it is still the same boot"
    assert sandbox.commands.run("echo $OF_THE_SANDBOX $E2B_SANDBOX_ID").stdout.split() == ["kept", "too", sandbox.sandbox_id]
    assert sandbox.run_code("import os\nos.environ['OF_THE_SANDBOX']").text == "kept too"
    assert max(disk[3:]) < disk[2] + 48 * MIB, f"old states are removed: {disk}"


def test_a_paused_sandbox_is_listed_and_answers_nothing(new_box):
    sandbox = new_box(metadata={"test": "listed when paused"})
    sandbox.pause()
    assert sandbox.is_running() is False
    with pytest.raises(TimeoutException):
        sandbox.commands.run("true")

    def listed(*states):
        query = SandboxQuery(metadata={"test": "listed when paused"}, state=list(states) or None)
        return [(s.sandbox_id, s.state) for s in Sandbox.list(query=query).next_items()]

    found = [(sandbox.sandbox_id, SandboxState.PAUSED)]
    assert listed() == listed(SandboxState.PAUSED) == found and listed(SandboxState.RUNNING) == []
    own, = [s for s in as_json("sandbox", "list") if s["id"] == sandbox.sandbox_id]
    assert own["state"] == "paused"


def test_pausing_twice_says_so(new_box):
    sandbox = new_box()
    assert [sandbox.pause(), sandbox.pause()] == [True, False]
    assert sandbox.connect().commands.run("echo on").stdout == "on\n"


def test_many_pauses_at_once_are_one(new_box):
    sandbox = new_box()
    Witness(sandbox).add("x")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        paused = list(pool.map(lambda _: sandbox.pause(), range(6)))
    assert paused.count(True) == 1, paused
    assert state(sandbox) == SandboxState.PAUSED


def test_many_connects_at_once_all_get_it(new_box):
    sandbox = new_box()
    witness = Witness(sandbox).start().add("x")
    sandbox.pause()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: Sandbox.connect(sandbox.sandbox_id).commands.run("echo $E2B_SANDBOX_ID").stdout, range(8)))
    assert got == [sandbox.sandbox_id + "\n"] * 8
    witness.check()


def test_killing_a_paused_sandbox_removes_it(new_box):
    before = host_disk()
    sandbox = new_box()
    Witness(sandbox).add("x", size=16 * MIB)
    sandbox.pause()
    assert sandbox.kill() is True
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
    assert Sandbox.kill(sandbox.sandbox_id) is False
    assert host_disk() < before + MIB


def test_pausing_what_is_not_there_is_not_found(new_box):
    gone = new_box()
    gone.kill()
    for sandbox_id in gone.sandbox_id, "i" + "0" * 20:
        with pytest.raises(NotFoundException):
            Sandbox.pause(sandbox_id)


def test_the_time_after_a_resume_counts_from_it(new_box):
    sandbox = new_box(timeout=1000)
    sandbox.pause()
    sandbox.connect(timeout=200)
    assert 190 < (sandbox.get_info().end_at - now()).total_seconds() <= 201
    end = sandbox.get_info().end_at
    sandbox.connect(timeout=10)
    assert sandbox.get_info().end_at >= end, "connect to a running one never shortens"
    sandbox.set_timeout(100)
    assert 90 < (sandbox.get_info().end_at - now()).total_seconds() <= 101
    sandbox.pause()
    sandbox.connect(timeout=2)
    eventually(lambda: not sandbox.is_running(), 15, "it ends at its new time")


def test_a_paused_sandbox_does_not_time_out(new_box):
    sandbox = new_box(timeout=3)
    witness = Witness(sandbox).add("x")
    end = sandbox.get_info().end_at
    sandbox.pause()
    eventually(lambda: now() > end + datetime.timedelta(seconds=1), 10, "its time is over")
    assert state(sandbox) == SandboxState.PAUSED
    sandbox.connect(timeout=60)
    witness.check()


def test_network_settings_are_kept(new_box):
    sandbox = new_box(allow_internet_access=False)
    sandbox.pause()
    sandbox.connect()
    assert sandbox.get_info().allow_internet_access is False
    assert sandbox.commands.run("timeout 10 getent hosts example.com; echo $?").stdout.strip() != "0"


def test_the_network_works_after_a_resume(new_box):
    sandbox = new_box()
    host = sandbox.commands.run(INDEX_HOST).stdout.strip()
    sandbox.pause()
    sandbox.connect()
    assert sandbox.commands.run(f"curl -sS -o /dev/null -w '%{{http_code}}' https://{host}/simple/six/").stdout == "200"


# --- what is open at that moment ---------------------------------------------


def test_a_connection_out_ends_with_an_error_not_a_hang(new_box):
    sandbox = new_box()
    host = sandbox.commands.run(INDEX_HOST).stdout.strip()
    program = f"""
import socket, time
peer = socket.create_connection(({host!r}, 443), timeout=20)
peer.settimeout(None)
print("connected", flush=True)
try:
    outcome = "closed" if peer.recv(1) == b"" else "data"
except OSError as error:
    outcome = type(error).__name__
open("/tmp/outcome", "w").write(outcome)
time.sleep(1000)
"""
    handle = sandbox.commands.run(f"exec python3 -c '{program.replace(chr(39), chr(34))}'", background=True, timeout=0)
    assert next(iter(handle))[0] == "connected\n"
    assert not sandbox.files.exists("/tmp/outcome"), "the connection is open before the pause"
    sandbox.pause()
    sandbox.connect()
    outcome = eventually(lambda: sandbox.files.exists("/tmp/outcome") and sandbox.files.read("/tmp/outcome"), 10, "the program is told")
    assert outcome in ("closed", "ConnectionResetError", "ConnectionAbortedError")
    assert [p.pid for p in sandbox.commands.list() if p.pid == handle.pid] == [handle.pid]


def test_a_connection_in_ends_on_both_sides(new_box):
    sandbox = new_box()
    witness = Witness(sandbox).start()
    address = urllib.parse.urlparse(sandbox.envd_api_url)
    with httpx.stream("GET", f"http://{address.netloc}/stream", headers={"Host": f"{PORT}-{sandbox.sandbox_id}.localhost"}, timeout=20) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "tick"
        sandbox.pause()
        started = time.monotonic()
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            for _ in lines:
                assert time.monotonic() < started + 20
    sandbox.connect()
    eventually(lambda: get(sandbox).json()["ended_streams"], 10, "the server inside sees the end of the stream")
    witness.check()


def test_a_command_goes_on_after_its_stream_broke(new_box):
    sandbox = new_box()
    handle = sandbox.commands.run("i=0; while :; do echo $((i = i + 1)); sleep 0.05; done", background=True, timeout=0)
    seen = []

    def follow(events):
        for stdout, _, _ in events:
            seen.extend(int(n) for n in (stdout or "").split())

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, handle)
        eventually(lambda: len(seen) > 5, 10, "the command prints")
        sandbox.pause()
        with pytest.raises(TimeoutException):
            following.result(timeout=20)
    sandbox.connect()
    last = seen[-1]
    again = sandbox.commands.connect(handle.pid, timeout=30)
    later = int(next(iter(again))[0].split()[0])
    assert last < later < last + 200
    assert again.kill()


def test_code_that_runs_at_the_pause_ends_with_an_error(new_interpreter):
    sandbox = new_interpreter()
    sandbox.run_code("x = 41")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        started = threading.Event()
        running = pool.submit(sandbox.run_code, "print('on', flush=True)\nimport time\ntime.sleep(60)", on_stdout=lambda _: started.set())
        assert started.wait(20)
        sandbox.pause()
        with pytest.raises((TimeoutException, httpx.TransportError)):
            running.result(timeout=20)
    sandbox.connect()
    assert sandbox.run_code("x + 1").text == "42"


class Writers:
    """Eight threads that write files while they may, and what was acknowledged
    to them. At rest none of them is in the middle of a write."""

    def __init__(self, sandbox):
        self.sandbox, self.hashes = sandbox, {}  # path -> hash of what was acknowledged last
        self.acknowledged, self.failed, self.writing = 0, 0, 0
        self.change, self.may_write, self.over = threading.Condition(), False, False

    def __enter__(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(8)
        self.threads = [self.pool.submit(self._write, thread) for thread in range(8)]
        return self

    def __exit__(self, *_):
        with self.change:
            self.over = True
            self.change.notify_all()
        self.pool.shutdown()
        for thread in self.threads:
            thread.result()

    def go(self):
        with self.change:
            self.may_write = True
            self.change.notify_all()

    def rest(self, within):
        with self.change:
            self.may_write = False
            assert self.change.wait_for(lambda: self.writing == 0, within), "each write ends, well or badly"

    def _write(self, thread):
        for n in range(100_000):
            path, data = f"/home/user/t{thread}/{n % 40}", os.urandom(64 << 10)
            with self.change:
                self.change.wait_for(lambda: self.may_write or self.over)
                if self.over:
                    return
                self.writing += 1
                self.hashes.pop(path, None)  # Unknown until it is answered.
            try:
                self.sandbox.files.write(path, data, request_timeout=20)
            except Exception:
                answered = False
            else:
                answered = True
            with self.change:
                self.writing -= 1
                self.failed += not answered
                self.acknowledged += answered
                if answered:
                    self.hashes[path] = sha256(data)
                self.change.notify_all()


@pytest.mark.timeout(400)
def test_no_acknowledged_write_is_lost_to_a_pause(new_box):
    sandbox = new_box(timeout=900)
    with Writers(sandbox) as writers:
        for _ in range(10):
            before = writers.acknowledged
            writers.go()
            eventually(lambda: writers.acknowledged > before + 20, 30, "writes go on")
            assert sandbox.pause()
            sandbox.connect()
            writers.rest(within=60)
            check_files(sandbox, writers.hashes)
        assert writers.failed, "writes were under way at the pauses"


def check_files(sandbox, expected):
    """Every file has its hash."""
    out = sandbox.commands.run("cd /home/user && find t* -type f -print0 | xargs -0 sha256sum", timeout=60).stdout
    found = {f"/home/user/{path}": hash for hash, path in (line.split(maxsplit=1) for line in out.splitlines())}
    assert {path: found.get(path) for path in expected} == expected


# --- without memory ----------------------------------------------------------


@pytest.mark.timeout(400)
def test_five_rounds_without_memory_keep_the_disk_and_boot_afresh(new_interpreter):
    sandbox = new_interpreter(timeout=900, envs={"OF_THE_SANDBOX": "kept"})
    witness = Witness(sandbox).add("first")
    booted, token = {boot_id(sandbox)}, sandbox._envd_access_token
    for n in range(5):
        sandbox.commands.run("sleep 1000", background=True).disconnect()
        sandbox.run_code("gone = 1")
        data = os.urandom(20 * MIB)
        sandbox.files.write(f"{FOLDER}/large", data)
        assert sandbox.pause(**({"mode": "filesystem"} if n % 2 else {"keep_memory": False})) is True
        assert state(sandbox) == SandboxState.PAUSED
        again = e2b_code_interpreter.Sandbox.connect(sandbox.sandbox_id)
        assert again._envd_access_token == token
        witness.check_disk()
        assert sha256(sandbox.files.read(f"{FOLDER}/large", format="bytes")) == sha256(data)
        assert "sleep 1000" not in sandbox.commands.run("ps -eo args").stdout
        assert sandbox.commands.run("ls -A /dev/shm").stdout == "", "memory is empty"
        assert sandbox.run_code("'gone' in globals()").text == "False"
        assert sandbox.commands.run("echo $OF_THE_SANDBOX").stdout == "kept\n"
        assert boot_id(sandbox) not in booted, "each resume is another boot"
        booted.add(boot_id(sandbox))
        witness.check_clock()


def test_a_reboot_drops_the_memory_of_a_pause_that_has_it(new_box):
    sandbox = new_box()
    witness = Witness(sandbox).start().add("x")
    booted = boot_id(sandbox)
    sandbox.pause()
    sandbox.connect(on_resume="reboot")
    witness.check_disk()
    assert boot_id(sandbox) != booted
    assert "program.py" not in sandbox.commands.run("ps -eo args").stdout
    sandbox.connect(on_resume="reboot")
    assert sandbox.commands.run("echo on").stdout == "on\n", "it runs already: nothing happens"


def test_memory_and_disk_only_pauses_may_follow_each_other(new_box):
    sandbox = new_box(timeout=600)
    witness = Witness(sandbox).add("x")
    for memory in True, False, True, True, False:
        sandbox.commands.run("touch /dev/shm/here")
        sandbox.pause(keep_memory=memory)
        sandbox.connect()
        witness.check_disk()
        assert sandbox.files.exists("/dev/shm/here") is memory


# --- pauses that fail --------------------------------------------------------


@contextlib.contextmanager
def small_disk(mebibytes):
    """A data folder on a disk of its own, so large, with the templates of the
    shared one; and a function that fills the disk but for so many bytes."""
    shared = pathlib.Path(os.environ["TOMBOLO_DATA"])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder).resolve()
        folder.chmod(0o711)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=711", "tombolo-test", folder], check=True)
        try:
            (folder / "images").symlink_to(shared / "images")
            for name in "agents", "snapshots":
                shutil.copytree(shared / name, folder / name)
            for file in shared.glob("tombolo.db*"):
                shutil.copy(file, folder)

            def fill(leave):
                size = shutil.disk_usage(folder).free - leave
                subprocess.run(["fallocate", "-l", str(size), folder / "filler"], check=True)

            yield folder, fill
        finally:
            subprocess.run(["umount", folder], check=True)


@pytest.mark.timeout(300)
def test_a_pause_that_finds_the_disk_full_leaves_the_sandbox_running():
    with small_disk(700) as (data, fill):
        server = Server(data, "--on-stop", "end").start()
        try:
            sandbox = Sandbox.create(timeout=600, **server.client_options())
            witness = Witness(sandbox).start().add("x")
            big = os.urandom(96 * MIB)
            sandbox.files.write("/dev/shm/big", big)
            fill(leave=40 * MIB)
            free = shutil.disk_usage(data).free
            for _ in range(2):
                with pytest.raises(SandboxException, match="(?i)space|disk|full"):
                    sandbox.pause()
                assert state(sandbox) == SandboxState.RUNNING
                witness.check()
                eventually(lambda: shutil.disk_usage(data).free > free - 4 * MIB, 10, "the failed pause has left nothing on the disk")
            (data / "filler").unlink()
            assert sandbox.pause() is True
            sandbox.connect()
            witness.check()
            assert sha256(sandbox.files.read("/dev/shm/big", format="bytes")) == sha256(big)
            sandbox.kill()
        finally:
            if server.runs():
                server.kill_sandboxes()
                server.stop()


# --- at the timeout, and back by traffic -------------------------------------

ON_TIMEOUT = {"on_timeout": "pause", "auto_resume": True}


def is_paused(sandbox):
    return state(sandbox) == SandboxState.PAUSED


def test_the_timeout_pauses_instead_of_killing(new_interpreter):
    sandbox = new_interpreter(timeout=6, lifecycle={"on_timeout": "pause"})
    info = sandbox.get_info()
    assert (info.lifecycle["on_timeout"], info.lifecycle["auto_resume"]) == ("pause", False)
    witness = Witness(sandbox).add("x")
    eventually(lambda: is_paused(sandbox), 20, "it is paused at its time")
    with pytest.raises(Exception):
        sandbox.commands.run("true")
    assert is_paused(sandbox), "traffic does not wake it without auto_resume"
    sandbox.connect(timeout=60)
    witness.check()


def test_the_timeout_may_pause_the_disk_only(new_box):
    sandbox = new_box(timeout=5, lifecycle={"on_timeout": {"action": "pause", "mode": "filesystem"}})
    witness = Witness(sandbox).add("x")
    booted = boot_id(sandbox)
    eventually(lambda: is_paused(sandbox), 20, "it is paused at its time")
    sandbox.connect(timeout=60)
    witness.check_disk()
    assert boot_id(sandbox) != booted


@pytest.mark.parametrize("lifecycle", [
    {"on_timeout": "kill", "auto_resume": True},
    {"on_timeout": {"action": "pause", "mode": "filesystem"}, "auto_resume": True},
], ids=["kill", "disk only"])
def test_auto_resume_needs_a_pause_with_memory(lifecycle):
    with pytest.raises(SandboxException):
        Sandbox.create(lifecycle=lifecycle).kill()


def test_a_command_wakes_it(new_box):
    sandbox = new_box(timeout=60, lifecycle=ON_TIMEOUT)
    witness = Witness(sandbox).start().add("x")
    sandbox.pause()
    assert sandbox.commands.run("echo awake").stdout == "awake\n"
    witness.check()
    left = (sandbox.get_info().end_at - now()).total_seconds()
    assert 280 < left <= 301, "it gets the time it was created with, five minutes at least"


def test_the_time_it_was_created_with_is_what_it_gets(new_box):
    sandbox = new_box(timeout=900, lifecycle=ON_TIMEOUT)
    sandbox.set_timeout(30)
    sandbox.pause()
    assert sandbox.commands.run("echo awake").stdout == "awake\n"
    assert 880 < (sandbox.get_info().end_at - now()).total_seconds() <= 901


def test_code_wakes_it(new_interpreter):
    sandbox = new_interpreter(lifecycle=ON_TIMEOUT)
    sandbox.run_code("x = 41")
    sandbox.pause()
    assert sandbox.run_code("x + 1").text == "42"


def test_it_sleeps_and_wakes_again_and_again(new_box):
    sandbox = new_box(lifecycle=ON_TIMEOUT)
    witness = Witness(sandbox).start().add("x")
    for _ in range(3):
        sandbox.set_timeout(1)
        eventually(lambda: is_paused(sandbox), 20, "it falls asleep at its time")
        assert get(sandbox).status_code == 200
        witness.check()


@pytest.mark.parametrize("by", ["label", "headers"])
def test_a_request_to_a_port_wakes_it(new_box, by):
    sandbox = new_box(lifecycle=ON_TIMEOUT)
    witness = Witness(sandbox).start()
    sandbox.pause()
    if by == "label":
        answer = get(sandbox)
    else:
        answer = httpx.get(sandbox.envd_api_url + "/", headers={"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(PORT)}, timeout=30)
    assert answer.status_code == 200 and answer.json()["token"] == witness.program["token"]


def test_a_web_socket_wakes_it(new_box):
    sandbox = new_box(lifecycle=ON_TIMEOUT)
    sandbox.files.write("/tmp/echo.py", ECHO)
    sandbox.commands.run("python3 /tmp/echo.py 8010", background=True, timeout=0).disconnect()
    eventually(lambda: sandbox.commands.run("ss -ltn | grep -c :8010 || true").stdout.strip() == "1", 15, "the echo server listens")
    sandbox.pause()
    tunnel = socket.create_connection((SERVER.hostname, SERVER.port))
    with connect(f"ws://8010-{sandbox.sandbox_id}.localhost:{SERVER.port}/", sock=tunnel) as peer:
        peer.send("hello")
        assert peer.recv(timeout=10) == "hello"


def test_a_wrong_token_does_not_wake_it(new_box):
    sandbox = new_box(lifecycle=ON_TIMEOUT, network={"allow_public_traffic": False})
    witness = Witness(sandbox)
    sandbox.files.write(f"{FOLDER}/page", "private")
    sandbox.commands.run(f"exec python3 -m http.server {PORT}", cwd=FOLDER, background=True, timeout=0).disconnect()
    token = {"E2b-Traffic-Access-Token": sandbox.traffic_access_token}
    eventually(lambda: get(sandbox, "/page", **token).text == "private", 20, "the server listens")
    witness.add("x")
    sandbox.pause()
    for headers in {}, {"E2b-Traffic-Access-Token": "wrong"}, {"E2b-Traffic-Access-Token": ""}:
        assert get(sandbox, "/page", **headers).status_code == 403
    agent = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    for headers in {}, {"X-Access-Token": "wrong"}, token:
        status = httpx.get(sandbox.envd_api_url + "/files", params={"path": f"{FOLDER}/page"}, headers={**agent, **headers}).status_code
        assert status in (401, 403)
    assert is_paused(sandbox)
    assert get(sandbox, "/page", **token).text == "private"
    witness.check()


def test_another_key_cannot_resume_it(new_box, request):
    made = as_json("key", "create", "stranger")
    request.addfinalizer(lambda: tombolo("key", "delete", made["id"]))
    sandbox = new_box()
    sandbox.pause()
    for act in Sandbox.connect, Sandbox.pause, Sandbox.get_info:
        with pytest.raises((NotFoundException, AuthenticationException)):
            act(sandbox.sandbox_id, api_key=made["key"])
    assert is_paused(sandbox)


@pytest.mark.timeout(180)
def test_twenty_requests_at_once_wake_it_once(new_box):
    sandbox = new_box(lifecycle=ON_TIMEOUT)
    witness = Witness(sandbox).start()
    for _ in range(3):
        before = len(resumes(sandbox))
        sandbox.pause()
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: get(sandbox), range(20)))
        assert [answer.status_code for answer in answers] == [200] * 20
        assert len(resumes(sandbox)) == before + 1
    witness.check()


def resumes(sandbox):
    """The resumes that the sandbox's log tells of."""
    return [line for line in as_json("sandbox", "logs", sandbox.sandbox_id) if line["source"] == "lifecycle" and "resumed" in line["text"]]
