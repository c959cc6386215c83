"""Pausing and resuming: nothing is lost, whatever was going on."""

import asyncio
import collections
import concurrent.futures
import contextlib
import datetime
import os
import pathlib
import random
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
from e2b import AsyncSandbox, AuthenticationException, NotFoundException, PtySize, Sandbox, SandboxException, SandboxQuery, SandboxState, TimeoutException
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
    sandbox = new_box()
    witness = Witness(sandbox).add("x")
    sandbox.set_timeout(5)
    end = sandbox.get_info().end_at
    sandbox.pause()
    eventually(lambda: now() > end + datetime.timedelta(seconds=1), 20, "its time is over")
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
    assert sandbox.commands.run(f"curl -sS --retry 2 -o /dev/null -w '%{{http_code}}' https://{host}/simple/six/").stdout == "200"


def test_pauses_right_after_each_other(new_box):
    sandbox = new_box()
    for _ in range(6):
        assert sandbox.pause() is True
        sandbox.connect()
    assert sandbox.commands.run("echo on").stdout == "on\n"


def test_a_sandbox_full_of_memory_and_disk_comes_back_whole(new_box):
    """The template has 1 GiB of memory."""
    sandbox = new_box(timeout=600)
    program = f"""
import hashlib, http.server, os
blocks = [os.urandom(1 << 20) for _ in range(800)]
def digest():
    return hashlib.sha256(b"".join(hashlib.sha256(b).digest() for b in blocks)).hexdigest()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(digest().encode())
http.server.HTTPServer(("127.0.0.1", {PORT}), Handler).serve_forever()
"""
    sandbox.files.write("/tmp/holder.py", program)
    sandbox.commands.run("exec python3 /tmp/holder.py", background=True, timeout=0).disconnect()
    sandbox.commands.run("head -c 1G /dev/urandom >/home/user/large; truncate -s 5G /home/user/sparse", timeout=100)
    large = sandbox.commands.run("sha256sum /home/user/large", timeout=100).stdout
    digest = eventually(lambda: (a := get(sandbox)).status_code == 200 and a.text, 60, "the program holds its memory")
    for _ in range(2):
        sandbox.pause()
        sandbox.connect(timeout=600)
        assert get(sandbox).text == digest
    assert sandbox.commands.run("sha256sum /home/user/large", timeout=100).stdout == large
    assert sandbox.commands.run("stat -c %s /home/user/sparse").stdout == f"{5 << 30}\n"


def test_a_pause_that_meets_the_timeout_keeps_it_or_says_that_it_is_gone():
    outcomes = set()
    for n in range(12):
        sandbox = Sandbox.create(timeout=60)
        sandbox.set_timeout(2)
        due = sandbox.get_info().end_at.timestamp()
        eventually(lambda: time.time() > due - 0.5 + n * 0.05, 10, "the moment has come")
        try:
            assert sandbox.pause() is True
        except NotFoundException:
            outcomes.add("gone")
            continue
        outcomes.add("paused")
        sandbox.connect(timeout=60)
        assert sandbox.commands.run("echo on").stdout == "on\n"
        sandbox.kill()
    assert "paused" in outcomes


def test_a_storm_of_calls_ends_in_a_known_state(new_box):
    """Whatever is called at once, each call succeeds or says what it met."""
    sandbox = new_box(timeout=900)
    witness = Witness(sandbox).start().add("x")
    options = {"retries": 0}
    calls = [
        lambda: sandbox.pause(**options), lambda: sandbox.connect(timeout=900, **options), lambda: sandbox.connect(timeout=900, **options),
        lambda: sandbox.set_timeout(900, **options), lambda: sandbox.get_info(**options), lambda: sandbox.commands.run("true"),
        lambda: [c.kill() for c in sandbox.fork(count=1, **options)], lambda: Sandbox.delete_snapshot(sandbox.create_snapshot(**options).snapshot_id),
    ]
    succeeded, unexpected = collections.Counter(), []

    def call(n):
        try:
            calls[n]()
            succeeded[n] += 1
        except (NotFoundException, TimeoutException):
            pass  # The timeout of a paused one cannot be set; a command met a pause.
        except SandboxException as failure:
            if failure.status_code != 409:
                unexpected.append((n, failure))
        except Exception as failure:
            unexpected.append((n, failure))

    order = random.Random(7).choices(range(len(calls)), [1, 3, 3, 2, 2, 4, 2, 2], k=160)
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        list(pool.map(call, order))
    assert unexpected == [] and set(succeeded) == set(range(len(calls))), succeeded
    sandbox.connect(timeout=900)
    assert state(sandbox) == SandboxState.RUNNING
    witness.check()


# Makes things that are easily forgotten and, asked by a line on its input,
# tells whether they are as they were.
ODD_THINGS = r'''
import ctypes, fcntl, hashlib, mmap, os, select, signal, socket, subprocess, tempfile, threading, time

data = os.urandom(300_000)
deleted = tempfile.TemporaryFile(dir="/home/user")
deleted.write(data); deleted.flush()
mapped_file = open("/home/user/mapped", "w+b"); mapped_file.truncate(1 << 20)
mapped = mmap.mmap(mapped_file.fileno(), 1 << 20); mapped[:300_000] = data
anonymous = mmap.mmap(-1, 1 << 20); anonymous[:300_000] = data
memory_file = os.memfd_create("x"); os.write(memory_file, data)
locked = open("/home/user/locked", "w"); fcntl.flock(locked, fcntl.LOCK_EX)
reader, writer = os.pipe(); os.write(writer, data[:1000])
os.mkfifo("/home/user/fifo")
fifo = os.open("/home/user/fifo", os.O_RDWR); os.write(fifo, data[:1000])
left, right = socket.socketpair(); left.send(data[:1000])
listener = socket.create_server(("127.0.0.1", 7001))
client = socket.create_connection(("127.0.0.1", 7001)); served, _ = listener.accept(); client.send(data[:1000])
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); datagrams.bind(("127.0.0.1", 7002))
named = socket.socket(socket.AF_UNIX); named.bind("/home/user/socket"); named.listen()
poller = select.epoll(); poller.register(reader, select.EPOLLIN)
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
os.symlink("/home/user/mapped", "/home/user/link"); os.link("/home/user/locked", "/home/user/second")
os.setxattr("/home/user/locked", "user.test", b"kept"); os.utime("/home/user/locked", ns=(10**18 + 7, 10**18 + 9))
os.chmod("/home/user/locked", 0o4751)
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append("signal"))
beats = []
def beat():
    while True:
        beats.append(time.monotonic()); time.sleep(0.01)
threading.Thread(target=beat, daemon=True).start()
# Threads blocked in the kernel since before the pause.
woken = []
lock = threading.Lock(); lock.acquire()
threading.Thread(target=lambda: (lock.acquire(), woken.append("futex")), daemon=True).start()
threading.Thread(target=lambda: woken.append(datagrams.recv(100)), daemon=True).start()
alarm_at = []
signal.signal(signal.SIGALRM, lambda *_: alarm_at.append(1))

def check(name, condition):
    if not condition:
        print("LOST", name)

print("ready", flush=True)
input()
check("deleted file", deleted.seek(0) == 0 and deleted.read() == data)
check("file map", mapped[:300_000] == data and open("/home/user/mapped", "rb").read(300_000) == data)
check("anonymous map", anonymous[:300_000] == data)
check("memory file", os.pread(memory_file, 300_000, 0) == data)
try:
    fcntl.flock(open("/home/user/locked"), fcntl.LOCK_EX | fcntl.LOCK_NB); check("file lock", False)
except BlockingIOError:
    pass
check("epoll", [event for _, event in poller.poll(1)] == [select.EPOLLIN])
check("pipe", os.read(reader, 2000) == data[:1000])
check("fifo", os.read(fifo, 2000) == data[:1000])
check("socket pair", right.recv(2000) == data[:1000])
check("loopback connection", served.recv(2000) == data[:1000] and served.send(b"x") and client.recv(1) == b"x")
check("listener", socket.create_connection(("127.0.0.1", 7001), timeout=5))
to_named = socket.socket(socket.AF_UNIX); to_named.connect("/home/user/socket"); check("unix listener", named.accept())
child.stdin.write(b"echoed"); child.stdin.close(); check("child", child.stdout.read() == b"echoed" and child.wait() == 0)
check("symlink", os.readlink("/home/user/link") == "/home/user/mapped")
status = os.stat("/home/user/locked")
check("hard link", status.st_nlink == 2 and os.stat("/home/user/second").st_ino == status.st_ino)
check("extended attribute", os.getxattr("/home/user/locked", "user.test") == b"kept")
check("times", (status.st_atime_ns, status.st_mtime_ns) == (10**18 + 7, 10**18 + 9))
check("mode", status.st_mode & 0o7777 == 0o4751)
os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.05); check("signal handler", got == ["signal"])
seen = len(beats); time.sleep(1); check("threads", len(beats) > seen + 10)
lock.release(); socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"datagram", ("127.0.0.1", 7002))
deadline = time.monotonic() + 5
while len(woken) < 2 and time.monotonic() < deadline: time.sleep(0.01)
check("blocked threads", set(woken) == {"futex", b"datagram"})
signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(0.3); check("timer", alarm_at)
print("checked", flush=True)
'''


def test_what_programs_have_open_is_kept(new_box):
    sandbox = new_box()
    sandbox.files.write("/tmp/odd.py", ODD_THINGS)
    handle = sandbox.commands.run("exec python3 /tmp/odd.py", background=True, stdin=True, timeout=0)
    assert next(iter(handle))[0] == "ready\n"
    handle.disconnect()
    for _ in range(2):
        sandbox.pause()
        sandbox.connect()
    handle = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "go on\n")
    assert handle.wait().stdout == "checked\n"


def test_a_terminal_is_kept(new_box):
    sandbox = new_box()
    terminal = sandbox.pty.create(size=PtySize(rows=30, cols=90), timeout=0)
    sandbox.pty.send_stdin(terminal.pid, b"kept=words; cd /tmp\n")
    terminal.disconnect()
    sandbox.pause()
    sandbox.connect()
    seen = b""
    again = sandbox.pty.connect(terminal.pid, timeout=30)
    sandbox.pty.send_stdin(terminal.pid, b"echo $kept in $PWD; stty size; exit\n")
    for _, _, output in again:
        seen += output or b""
    assert b"words in /tmp" in seen and b"30 90" in seen


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


def test_code_that_runs_at_the_pause_goes_on_after_it(new_interpreter):
    """Its client gets an error; what it was to do is done."""
    sandbox = new_interpreter()
    code = "print('on', flush=True)\nimport time\nfor n in range(40):\n    time.sleep(0.1)\ndone = n"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        started = threading.Event()
        running = pool.submit(sandbox.run_code, code, on_stdout=lambda _: started.set())
        assert started.wait(20)
        sandbox.pause()
        with pytest.raises((TimeoutException, httpx.TransportError)):
            running.result(timeout=20)
    sandbox.connect()
    assert sandbox.run_code("done").text == "39"


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


# --- the other client --------------------------------------------------------


def test_the_asynchronous_client_does_the_same(request):
    async def live():
        sandbox = await AsyncSandbox.create(timeout=300)
        request.addfinalizer(lambda: Sandbox.kill(sandbox.sandbox_id))
        await sandbox.files.write("/dev/shm/note", "kept")
        assert [await sandbox.pause(), await sandbox.pause()] == [True, False]
        assert await sandbox.is_running() is False
        again = await AsyncSandbox.connect(sandbox.sandbox_id)
        assert await again.files.read("/dev/shm/note") == "kept"
        snapshot = await sandbox.create_snapshot()
        request.addfinalizer(lambda: Sandbox.delete_snapshot(snapshot.snapshot_id))
        copies = await sandbox.fork(count=2, timeout=300)
        child = await AsyncSandbox.create(snapshot.snapshot_id)
        for copy in [*copies, child]:
            request.addfinalizer(lambda id=copy.sandbox_id: Sandbox.kill(id))
            assert await copy.files.read("/dev/shm/note") == "kept"
        await sandbox.pause(mode="filesystem")
        await sandbox.connect()
        assert await sandbox.files.exists("/dev/shm/note") is False

    asyncio.run(live())


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
                with pytest.raises(SandboxException, match="507.*disk of the server is full"):
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
    sandbox = new_interpreter(lifecycle={"on_timeout": "pause"})
    info = sandbox.get_info()
    assert (info.lifecycle["on_timeout"], info.lifecycle["auto_resume"]) == ("pause", False)
    witness = Witness(sandbox).add("x")
    sandbox.set_timeout(2)
    eventually(lambda: is_paused(sandbox), 20, "it is paused at its time")
    with pytest.raises(Exception):
        sandbox.commands.run("true")
    assert is_paused(sandbox), "traffic does not wake it without auto_resume"
    sandbox.connect(timeout=60)
    witness.check()


def test_the_timeout_may_pause_the_disk_only(new_box):
    sandbox = new_box(lifecycle={"on_timeout": {"action": "pause", "mode": "filesystem"}})
    witness = Witness(sandbox).add("x")
    booted = boot_id(sandbox)
    sandbox.set_timeout(2)
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
