"""Engines that die, servers that end their sandboxes, and what they leave: nothing.

These tests run servers of their own beside the one the other tests use.
"""

import concurrent.futures
import contextlib
import os
import signal
import subprocess

import pytest
from e2b import NotFoundException, Sandbox, TimeoutException

from cli import as_json
from server import BINARY, cgroup_folders, expect_nothing_left, traces
from wait import eventually, steady


def test_twenty_cycles_of_create_and_kill_leave_nothing(serve, data):
    server = serve()
    options = server.client_options()
    Sandbox.create(**options).kill()  # What the first create makes once may stay, as what is kept for the next.
    files = steady(server.open_files, 2, 30, "the server has prepared for the next sandbox")
    for _ in range(10):
        Sandbox.create(**options).kill()
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda _: Sandbox.create(**options).kill(), range(10)))
    expect_nothing_left(data)
    eventually(lambda: server.open_files() <= files + 12, 10, f"open files return to about {files}")


def test_a_server_told_so_ends_its_sandboxes_when_it_stops(serve, data):
    server = serve("--on-stop", "end")
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


def test_a_sandbox_whose_engine_dies_ends_with_a_reason(serve, data):
    server = serve()
    options = server.client_options()
    sandbox = Sandbox.create(**options)
    engine = [int(trace.split()[1]) for trace in traces(data) if trace.startswith("process ")]
    assert engine, "the engine's processes are seen"
    for pid in engine:
        with contextlib.suppress(ProcessLookupError):  # the death of one ends others
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not sandbox.is_running(), 10, "the sandbox is known to be dead")
    with pytest.raises(TimeoutException):
        sandbox.commands.run("true")
    with pytest.raises(NotFoundException):
        sandbox.get_info()
    # It is gone for its callers at once; its record says why when it was taken down.
    records = lambda: as_json("sandbox", "list", "--all", "--data", str(data))
    eventually(lambda: any(r["id"] == sandbox.sandbox_id and r.get("reason") for r in records()), 10, "its record says why it ended")
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
