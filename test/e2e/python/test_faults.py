"""Servers that crash or stop, and what they leave: nothing.

These tests run servers of their own beside the one the other tests use.
"""

import concurrent.futures
import os
import signal
import subprocess
import time

import pytest
from e2b import NotFoundException, Sandbox, TimeoutException

from cli import as_json
from server import BINARY, Server, cgroup_folders, private_data_folder, traces
from wait import eventually


@pytest.fixture(scope="module")
def data():
    with private_data_folder(os.environ["TOMBOLO_DATA"]) as folder:
        yield folder


@pytest.fixture
def serve(data, request):
    """Starts servers on the test's own data folder; ends what still runs."""

    def start(*flags):
        server = Server(data, *flags).start()
        request.addfinalizer(lambda: server.process.poll() is None and server.stop())
        return server

    return start


def expect_nothing_left(data, within=10):
    """Fails with the list of what is left when that does not vanish in time."""
    deadline = time.monotonic() + within
    while (left := traces(data)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sorted(left) == []


@pytest.mark.timeout(300)
def test_twenty_cycles_of_create_and_kill_leave_nothing(serve, data):
    server = serve()
    options = server.client_options()
    Sandbox.create(**options).kill()  # What the first create makes once may stay.
    files = server.open_files()
    for _ in range(10):
        Sandbox.create(**options).kill()
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda _: Sandbox.create(**options).kill(), range(10)))
    expect_nothing_left(data)
    eventually(lambda: server.open_files() <= files + 12, 10, f"open files return to about {files}")


def test_terminate_stops_cleanly_with_live_sandboxes(serve, data):
    server = serve()
    sandbox = Sandbox.create(**server.client_options())
    sandbox.commands.run("sleep 1000", background=True)
    groups = cgroup_folders(sandbox.sandbox_id)
    assert groups and traces(data), "the test finds what a live sandbox has"
    assert server.stop() == 0
    expect_nothing_left(data)
    assert [group for group in groups if os.path.exists(group)] == []


def test_a_second_server_on_the_same_data_is_refused(serve, data):
    server = serve()
    second = subprocess.run([BINARY, "serve", "--listen", "127.0.0.1:0", "--data", str(data)], capture_output=True, text=True, timeout=30)
    assert second.returncode != 0 and str(data) in second.stderr
    with Sandbox.create(**server.client_options()) as sandbox:
        assert sandbox.is_running()


def test_a_crash_is_swept_at_the_next_start(serve, data):
    crashed = serve()
    options = crashed.client_options()
    lost = [Sandbox.create(**options, metadata={"n": str(n)}) for n in range(3)]
    crashed.kill()

    server = serve()
    options = server.client_options()
    expect_nothing_left(data)
    assert Sandbox.list(**options).next_items() == []
    for sandbox in lost:
        with pytest.raises(NotFoundException):
            Sandbox.get_info(sandbox.sandbox_id, **options)
    told = {ended["id"]: ended["reason"] for ended in as_json("sandbox", "list", "--all", "--data", str(data))}
    assert all("server" in told[sandbox.sandbox_id] for sandbox in lost), told
    with Sandbox.create(**options) as fresh:
        assert fresh.commands.run("echo new").stdout == "new\n"
    assert server.stop() == 0
    expect_nothing_left(data)


def test_a_crash_in_the_middle_of_creates_is_swept(serve, data):
    crashed = serve()
    options = crashed.client_options()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        attempts = [pool.submit(Sandbox.create, **options) for _ in range(6)]
        next(concurrent.futures.as_completed(attempts))  # Some are half-made now.
        crashed.kill()
        concurrent.futures.wait(attempts)
    server = serve()
    expect_nothing_left(data)
    Sandbox.create(**server.client_options()).kill()
    assert server.stop() == 0


def test_a_sandbox_whose_engine_dies_ends_with_a_reason(serve, data):
    server = serve()
    options = server.client_options()
    sandbox = Sandbox.create(**options)
    engine = [int(trace.split()[1]) for trace in traces(data) if trace.startswith("process ")]
    assert engine, "the engine's processes are seen"
    for pid in engine:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not sandbox.is_running(), 10, "the sandbox is known to be dead")
    with pytest.raises(TimeoutException):
        sandbox.commands.run("true")
    with pytest.raises(NotFoundException):
        sandbox.get_info()
    ended, = [ended for ended in as_json("sandbox", "list", "--all", "--data", str(data)) if ended["id"] == sandbox.sandbox_id]
    assert ended["reason"]
    expect_nothing_left(data)
    with Sandbox.create(**options) as fresh:
        assert fresh.is_running()


def test_killing_a_sandbox_during_its_creation_or_twice_is_safe(serve, data):
    server = serve()
    options = server.client_options()
    sandboxes = [Sandbox.create(**options) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        results = list(pool.map(lambda s: s.kill(), sandboxes * 3))
    assert results.count(True) == 3 and results.count(False) == 6
    expect_nothing_left(data)
