"""The Python clients of the generation that creates by POST /sandboxes."""

import time

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    NotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b_code_interpreter import Sandbox


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox.create(timeout=300, metadata={"generation": "old"}, envs={"FROM": "create"}) as sandbox:
        yield sandbox


def test_code_runs(sandbox):
    sandbox.run_code("x = 21")
    assert sandbox.run_code("x * 2").text == "42"
    assert sandbox.run_code("1 / 0").error.name == "ZeroDivisionError"
    with pytest.raises(TimeoutException):
        sandbox.run_code("while True: pass", timeout=1)
    assert sandbox.run_code("x").text == "21"


def test_commands_run(sandbox):
    assert sandbox.commands.run("echo $FROM").stdout == "create\n"
    with pytest.raises(CommandExitException) as failure:
        sandbox.commands.run("echo out; exit 3")
    assert (failure.value.exit_code, failure.value.stdout) == (3, "out\n")
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "in")
    assert handle.kill() is True


def test_files_are_written_read_listed_and_watched(sandbox):
    sandbox.files.make_dir("old")
    watch = sandbox.files.watch_dir("old")
    sandbox.files.write("old/f", b"content")
    assert sandbox.files.read("old/f") == "content"
    assert [entry.name for entry in sandbox.files.list("old")] == ["f"]
    watch.stop()
    with pytest.raises(NotFoundException):
        sandbox.files.read("old/none")


def test_the_life_cycle_works(sandbox):
    assert sandbox.get_info().metadata["generation"] == "old"
    assert Sandbox.connect(sandbox.sandbox_id).commands.run("echo same").stdout == "same\n"
    listed = Sandbox.list(query=SandboxQuery(metadata={"generation": "old"})).next_items()
    assert sandbox.sandbox_id in [info.sandbox_id for info in listed]
    sandbox.set_timeout(200)
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 40)


def test_a_pause_keeps_it_all():
    with Sandbox.create(timeout=120, lifecycle={"on_timeout": "pause", "auto_resume": True}) as sandbox:
        sandbox.run_code("x = 41")
        sandbox.files.write("note", "kept")
        assert sandbox.pause() is True and sandbox.pause() is False
        info = sandbox.get_info()
        assert info.state == SandboxState.PAUSED and info.lifecycle["on_timeout"] == "pause"
        again = Sandbox.connect(sandbox.sandbox_id, timeout=60)
        assert again.files.read("note") == "kept" and again.run_code("x + 1").text == "42"
        sandbox.pause()
        assert sandbox.commands.run("cat note").stdout == "kept", "a command wakes it"


def test_snapshots_and_forks(sandbox):
    sandbox.files.write("note", "copied")
    snapshot = sandbox.create_snapshot(name="old-client")
    try:
        assert snapshot.snapshot_id in [s.snapshot_id for s in Sandbox.list_snapshots().next_items()]
        with Sandbox.create(snapshot.snapshot_id, timeout=60) as copy:
            assert copy.files.read("note") == "copied"
    finally:
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False
    for fork in sandbox.fork(count=2, timeout=60):
        assert fork.files.read("note") == "copied" and fork.kill()


def test_metrics(sandbox):
    deadline = time.monotonic() + 20
    while not (points := sandbox.get_metrics()):
        assert time.monotonic() < deadline, "a point"
        time.sleep(0.1)
    assert all(0 < point.mem_used < point.mem_total for point in points)


def test_an_ended_sandbox_is_known_to_be_gone():
    ended = Sandbox.create()
    assert ended.kill() is True and ended.kill() is False
    assert not ended.is_running()
    with pytest.raises(TimeoutException):
        ended.commands.run("true")
