"""The server crashes, stops or is replaced; sandboxes live on.

These tests run servers of their own beside the one the other tests use.
"""

import concurrent.futures
import contextlib
import datetime
import os
import pathlib
import random
import socket
import subprocess
import threading
import time

import e2b
import e2b_code_interpreter
import pytest
from e2b import NotFoundException, Sandbox, SandboxState

from cli import as_json
from server import build_templates, expect_nothing_left, traces
from wait import eventually
from witness import Witness, get

ROOT = pathlib.Path(__file__).resolve().parents[3]

# Appends a number and the time to a file each 50 ms.
COUNTER = r'''exec python3 -u -c '
import time
n = 0
while True:
    n += 1
    print(n, time.time())
    time.sleep(0.05)
' >>/home/user/counter'''


@pytest.fixture
def address():
    """A free address, for servers that take each other's place."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def ids(options):
    """The sandboxes there are, running or paused."""
    pages, found = Sandbox.list(**options), set()
    while pages.has_next:
        found |= {sandbox.sandbox_id for sandbox in pages.next_items()}
    return found


def check_counter(sandbox):
    """It counts without an omission and never stood still for long."""
    lines = [line.split() for line in sandbox.files.read("/home/user/counter").split("\n")[:-1]]
    assert [int(n) for n, _ in lines] == list(range(1, len(lines) + 1))
    times = [float(t) for _, t in lines]
    assert max(b - a for a, b in zip(times, times[1:])) < 5
    assert time.time() - times[-1] < 3, "it still counts"


# --- crash -------------------------------------------------------------------


def test_a_crash_of_the_server_disturbs_no_sandbox(serve, data, address):
    server = serve(listen=address)
    options = server.client_options()
    counting = Sandbox.create(**options, timeout=900, metadata={"kept": "yes"})
    counter = counting.commands.run(COUNTER, background=True, timeout=0)
    with_kernel = e2b_code_interpreter.Sandbox.create(**options, timeout=800)
    kernel = Witness(with_kernel).start().add("x")
    serving = Sandbox.create(**options, timeout=700)
    served = Witness(serving).start()
    paused = e2b_code_interpreter.Sandbox.create(**options, timeout=600)
    asleep = Witness(paused).start().add("y")
    paused.pause()
    expiring = Sandbox.create(**options, timeout=10)
    over = expiring.get_info().end_at
    late = Sandbox.create(**options, timeout=30)
    family = [counting, with_kernel, serving]
    before = [sandbox.get_info() for sandbox in family]
    late_end = late.get_info().end_at

    server.kill()
    eventually(lambda: now() > over, 30, "one timeout has passed meanwhile")
    server = serve(listen=address)

    for sandbox, known in zip(family, before):
        info = sandbox.get_info()
        assert (info.state, info.end_at, info.started_at, info.metadata) == (SandboxState.RUNNING, known.end_at, known.started_at, known.metadata)
    eventually(lambda: not expiring.is_running(), 20, "what was due in between ends at once")
    check_counter(counting)
    assert [p.pid for p in counting.commands.list() if p.pid == counter.pid] == [counter.pid]
    kernel.check()
    kernel.check_clock()
    served.check()
    assert paused.get_info().state == SandboxState.PAUSED
    assert paused.is_running() is False
    paused.connect(timeout=300)
    asleep.check()
    for sandbox in family:
        sandbox.pause()
        sandbox.connect()
    kernel.check()
    served.check()
    eventually(lambda: now() > late_end, 60, "the last timeout is over")
    eventually(lambda: not late.is_running(), 20, "it ended at its time")
    assert ids(options) == {sandbox.sandbox_id for sandbox in [*family, paused]}
    server.kill_sandboxes()
    expect_nothing_left(data)


def test_the_server_is_ready_within_seconds_of_a_crash(serve, address):
    server = serve(listen=address)
    options = server.client_options()
    sandboxes = [Sandbox.create(**options) for _ in range(8)]
    for n in range(2):
        server.kill()
        started = time.monotonic()
        server = serve(listen=address)
        assert time.monotonic() - started < 25
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda s: s.commands.run("echo on").stdout, sandboxes)) == ["on\n"] * 8
        assert time.monotonic() - started < 40


def test_a_sandbox_that_died_with_the_server_is_told_of(serve, data, address):
    server = serve(listen=address)
    options = server.client_options()
    sandbox = Sandbox.create(**options)
    engine = [int(trace.split()[1]) for trace in traces(data) if trace.startswith("process ")]
    server.kill()
    for pid in engine:
        with contextlib.suppress(ProcessLookupError):  # what was being started dies with the server
            os.kill(pid, 9)
    serve(listen=address)
    with pytest.raises(NotFoundException):
        sandbox.get_info()
    ended, = [s for s in as_json("sandbox", "list", "--all", "--data", str(data)) if s["id"] == sandbox.sandbox_id]
    assert ended["reason"]
    expect_nothing_left(data)


def test_a_sandbox_whose_engine_dies_after_the_restart_ends(serve, data, address):
    server = serve(listen=address)
    sandbox = Sandbox.create(**server.client_options())
    server.kill()
    serve(listen=address)
    assert sandbox.is_running()
    for trace in traces(data):
        if trace.startswith("process "):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(trace.split()[1]), 9)
    eventually(lambda: not sandbox.is_running(), 10, "the sandbox is known to be dead")
    expect_nothing_left(data)


def test_limits_hold_after_a_restart(serve, address):
    server = serve(listen=address)
    sandbox = Sandbox.create(**server.client_options())
    server.kill()
    serve(listen=address)
    handle = sandbox.commands.run("exec python3 -c 'x = bytearray(8 << 30)'", background=True)
    with pytest.raises((e2b.CommandExitException, e2b.TimeoutException)):
        handle.wait()
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


class Life:
    """Does something with sandboxes at random until the server is gone, and
    keeps what was acknowledged: id -> what must be in it."""

    def __init__(self, options, seed, known):
        self.options, self.random = options, random.Random(seed)
        self.known, self.killed, self.doing = known, set(), []

    def run(self):
        try:
            while True:
                self.act()
        except Exception as failure:
            self.failure, self.ended = failure, time.monotonic()

    def act(self):
        act = self.random.choice([self.create, self.create, self.pause, self.resume, self.fork, self.kill] if self.known else [self.create])
        self.doing.append(act.__name__)
        act()

    def create(self):
        sandbox = Sandbox.create(**self.options, timeout=900)
        self.known[sandbox.sandbox_id] = None
        sandbox.files.write("/dev/shm/mark", sandbox.sandbox_id)
        sandbox.files.write("/home/user/mark", sandbox.sandbox_id)
        self.known[sandbox.sandbox_id] = sandbox.sandbox_id

    def pause(self):
        Sandbox.pause(self.random.choice(list(self.known)), **self.options)

    def resume(self):
        Sandbox.connect(self.random.choice(list(self.known)), timeout=900, **self.options)

    def fork(self):
        parent = Sandbox.connect(self.random.choice(list(self.known)), timeout=900, **self.options)
        for copy in parent.fork(count=2, timeout=900):
            if isinstance(copy, Exception):
                raise copy
            self.known[copy.sandbox_id] = self.known[parent.sandbox_id]

    def kill(self):
        victim = self.random.choice(list(self.known))
        self.killed.add(victim)
        del self.known[victim]
        Sandbox.kill(victim, **self.options)


@pytest.mark.timeout(1200)
def test_crashes_at_random_moments_lose_nothing_and_leave_nothing(serve, data, address):
    seed = int(os.environ.get("TOMBOLO_TEST_SEED", time.time()))
    print(f"TOMBOLO_TEST_SEED={seed}")
    known, moments = {}, random.Random(seed)
    for n in range(20):
        server = serve(listen=address)
        options = {**server.client_options(), "retries": 0}
        life = Life(options, seed + n, known)
        thread = threading.Thread(target=life.run)
        thread.start()
        time.sleep(moments.uniform(0.2, 4))  # A moment, not a condition: whatever is going on then.
        killed = time.monotonic()
        server.kill()
        thread.join(60)
        assert not thread.is_alive()
        assert life.ended >= killed, f"not the crash but {life.failure!r} ended it"

        server = serve(listen=address)
        alive = ids(options)
        assert set(known) <= alive, (n, life.doing[-1], "acknowledged and lost")
        for sandbox_id in alive:
            sandbox = Sandbox.connect(sandbox_id, timeout=900, **options)
            assert sandbox.commands.run("echo on").stdout == "on\n", "half made things are swept"
            if (mark := known.get(sandbox_id)) is not None:
                assert sandbox.files.read("/home/user/mark") == sandbox.files.read("/dev/shm/mark") == mark
        # What was under way may be there or not. Some stay for the next round.
        for sandbox_id in sorted(alive)[3:] + sorted(alive - set(known)):
            known.pop(sandbox_id, None)
            Sandbox.kill(sandbox_id, **options)
        assert ids(options) == set(known)
        server.kill()
    server = serve(listen=address)
    server.kill_sandboxes()
    expect_nothing_left(data)


# --- stop --------------------------------------------------------------------


def test_a_server_that_stops_leaves_its_sandboxes_to_the_next(serve, data, address):
    server = serve(listen=address)
    options = server.client_options()
    sandbox = e2b_code_interpreter.Sandbox.create(**options, timeout=600)
    witness = Witness(sandbox).start().add("x")
    sleeping = Sandbox.create(**options)
    asleep = Witness(sleeping).add("y")
    sleeping.pause()
    assert server.stop() == 0
    serve(listen=address)
    witness.check()
    sleeping.connect()
    asleep.check()


def test_paused_sandboxes_outlive_a_server_that_ends_the_running(serve, data, address):
    server = serve("--on-stop", "end", listen=address)
    options = server.client_options()
    running, sleeping = Sandbox.create(**options), Sandbox.create(**options)
    asleep = Witness(sleeping).start().add("y")
    sleeping.pause()
    assert server.stop() == 0
    serve(listen=address)
    assert ids(options) == {sleeping.sandbox_id}
    sleeping.connect()
    asleep.check()


# --- upgrade -----------------------------------------------------------------


@pytest.fixture(scope="module")
def next_binary(tmp_path_factory):
    """The program with the engine of another version, as far as it can tell."""
    if built := os.environ.get("TOMBOLO_NEXT_BIN"):
        return built
    binary = tmp_path_factory.mktemp("next") / "tombolo"
    flags = "-s -w -X github.com/tombolo-dev/tombolo/internal/engine/gvisor.revision=next"
    subprocess.run(["go", "build", "-ldflags", flags, "-o", binary, "./cmd/tombolo"], cwd=ROOT, check=True,
                   env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"})
    return str(binary)


@pytest.mark.timeout(600)
def test_an_upgrade_keeps_what_runs_what_sleeps_and_snapshots(serve, data, address, next_binary):
    old = serve(listen=address)
    options = old.client_options()
    running = e2b_code_interpreter.Sandbox.create(**options, timeout=900)
    awake = Witness(running).start().add("x")
    sleeping = e2b_code_interpreter.Sandbox.create(**options, timeout=900)
    asleep = Witness(sleeping).start().add("y")
    snapshot = sleeping.create_snapshot()
    sleeping.pause()
    assert old.stop() == 0

    new = serve(listen=address, binary=next_binary)
    awake.check()
    sleeping.connect()
    asleep.check()
    child = e2b_code_interpreter.Sandbox.create(snapshot.snapshot_id, **options)
    asleep.check(child)
    for sandbox, witness in (running, awake), (sleeping, asleep):
        sandbox.pause()
        sandbox.connect()
        witness.check()
    copy, = running.fork(timeout=300)
    awake.check(copy)
    with Sandbox.create(**options) as fresh:
        assert fresh.commands.run("echo new").stdout == "new\n"

    # The same the other way round: back to the program of before.
    for sandbox in running, sleeping:
        sandbox.pause()
    new.kill()
    serve(listen=address)
    for sandbox, witness in (running, awake), (sleeping, asleep):
        sandbox.connect()
        witness.check()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, **options) is True


def test_the_program_of_an_old_version_stays_as_long_as_it_is_needed(serve, data, address, next_binary, request):
    def programs():
        return {path.name for path in (data / "engines").iterdir()}

    request.addfinalizer(lambda: build_templates(data))
    old = serve(listen=address)
    options = old.client_options()
    sandbox = Sandbox.create(**options)
    witness = Witness(sandbox).start().add("x")
    sandbox.pause()
    old.stop()
    [kept] = programs()
    build_templates(data, next_binary)
    new = serve(listen=address, binary=next_binary)
    sandbox.connect()
    witness.check()
    new.stop()
    new = serve(listen=address, binary=next_binary)
    sandbox.pause()
    sandbox.connect()
    witness.check()
    assert kept in programs()
    sandbox.kill()
    new.stop()
    serve(listen=address, binary=next_binary)
    eventually(lambda: kept not in programs(), 20, "the program that nothing needs is removed")
    with Sandbox.create(**options) as fresh:
        assert fresh.is_running()
