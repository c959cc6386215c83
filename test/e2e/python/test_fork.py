"""Snapshots and forks of running sandboxes."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import time
import uuid

import e2b_code_interpreter
import httpx
import pytest
from e2b import NotFoundException, Sandbox, SandboxException, SandboxState

from cli import as_json, tombolo
from test_network import INDEX_HOST
from wait import eventually
from witness import FOLDER, Witness, get

# Prints the time each 20 ms; what it misses shows how long it stood still.
TICKER = "exec python3 -u -c 'import time\nwhile True:\n  print(time.time())\n  time.sleep(0.02)' >>/tmp/ticks"


@pytest.fixture
def snapshot_of(request):
    """Takes snapshots, deleted when the test ends."""

    def take(sandbox, *args, **options):
        snapshot = sandbox.create_snapshot(*args, **options)
        request.addfinalizer(lambda: Sandbox.delete_snapshot(snapshot.snapshot_id))
        return snapshot

    return take


@pytest.fixture
def forks_of(request):
    """Forks a sandbox; the copies are killed when the test ends."""

    def fork(sandbox, **options):
        copies = sandbox.fork(**{"timeout": 300} | options)
        for copy in copies:
            if not isinstance(copy, Exception):
                request.addfinalizer(copy.kill)
        return copies

    return fork


def all_snapshots(**options):
    """All pages of Sandbox.list_snapshots."""
    pages, found = Sandbox.list_snapshots(**options), []
    while pages.has_next:
        found += pages.next_items()
    return found


def listed(snapshot, **options):
    return snapshot.snapshot_id in [s.snapshot_id for s in all_snapshots(**options)]


def gaps(sandbox, since):
    """How long the ticker stood still at a time, in seconds, longest first."""
    times = [float(t) for t in sandbox.files.read("/tmp/ticks").split("\n")[:-1]]
    times = [t for t in times if t >= since - 1]
    return sorted((b - a for a, b in zip(times, times[1:])), reverse=True)


# --- snapshots ---------------------------------------------------------------


def test_a_snapshot_is_a_template_with_everything_in_it(new_interpreter, snapshot_of):
    parent = new_interpreter(timeout=600)
    witness = Witness(parent).start().add("x")
    snapshot = snapshot_of(parent)
    child = new_interpreter(snapshot.snapshot_id, timeout=600)
    assert child.sandbox_id != parent.sandbox_id and child._envd_access_token != parent._envd_access_token
    witness.check(child)
    witness.check()
    child.files.write(f"{FOLDER}/x", "changed in the child only")
    child.run_code("v_x = b''")
    witness.check()


def test_the_parent_stands_still_only_for_a_moment(new_box, snapshot_of):
    sandbox = new_box()
    witness = Witness(sandbox).start().add("x")
    ticker = sandbox.commands.run(TICKER, background=True, timeout=0)
    ticker.disconnect()
    eventually(lambda: sandbox.files.exists("/tmp/ticks") and len(sandbox.files.read("/tmp/ticks")) > 200, 10, "it ticks")
    end, started = sandbox.get_info().end_at, time.time()
    snapshot_of(sandbox)
    witness.check()
    assert gaps(sandbox, started)[0] < 3
    info = sandbox.get_info()
    assert info.state == SandboxState.RUNNING and info.end_at == end
    assert [p.pid for p in sandbox.commands.list() if p.pid == ticker.pid] == [ticker.pid]


def test_open_streams_into_the_parent_live_through_a_snapshot(new_box, snapshot_of):
    sandbox = new_box()
    handle = sandbox.commands.run("for i in $(seq 1 60); do echo $i; sleep 0.05; done", background=True)
    snapshot_of(sandbox)
    assert handle.wait().stdout.split() == [str(i) for i in range(1, 61)]


def test_a_snapshot_outlives_its_sandbox(new_box, snapshot_of):
    parent = new_box()
    witness = Witness(parent).start().add("x")
    snapshot = snapshot_of(parent)
    parent.kill()
    child = new_box(snapshot.snapshot_id)
    witness.check(child)
    second = new_box(snapshot.snapshot_id)
    witness.check(second)


def test_a_snapshot_of_the_disk_alone_boots_afresh(new_box, snapshot_of):
    parent = new_box()
    witness = Witness(parent).start().add("x")
    child = new_box(snapshot_of(parent, mode="filesystem").snapshot_id)
    witness.of(child).check_disk()
    assert child.commands.run("ls -A /dev/shm").stdout == ""
    assert "program.py" not in child.commands.run("ps -eo args").stdout
    boots = {s.commands.run("cat /proc/sys/kernel/random/boot_id").stdout for s in (parent, child)}
    assert len(boots) == 2
    witness.check()


def test_snapshots_have_names(new_box, snapshot_of):
    name = f"named-{uuid.uuid4().hex[:8]}"
    sandbox = new_box()
    sandbox.files.write("/home/user/note", "first")
    snapshot = snapshot_of(sandbox, name)
    assert any(name in full for full in snapshot.names)
    for reference in (name, snapshot.snapshot_id, snapshot.names[0]):
        assert new_box(reference).files.read("/home/user/note") == "first", reference
    sandbox.files.write("/home/user/note", "second")
    snapshot_of(sandbox, name)
    assert new_box(name).files.read("/home/user/note") == "second", "the name means the newest"


@pytest.mark.parametrize("name", ["No Spaces", "../up", "a" * 300, "base"])
def test_a_name_that_cannot_be_is_refused(new_box, name):
    sandbox = new_box()
    with pytest.raises(SandboxException):
        Sandbox.delete_snapshot(sandbox.create_snapshot(name).snapshot_id)
    assert sandbox.commands.run("echo on").stdout == "on\n"
    assert new_box("base").commands.run("echo on").stdout == "on\n"


def test_snapshots_are_listed_and_deleted(new_box, snapshot_of):
    one, two = new_box(), new_box()
    first, second, third = snapshot_of(one), snapshot_of(one), snapshot_of(two)
    assert all(listed(s) for s in (first, second, third))
    assert [listed(s, sandbox_id=one.sandbox_id) for s in (first, second, third)] == [True, True, False]
    assert listed(first, limit=1), "pages"
    assert Sandbox.delete_snapshot(first.snapshot_id) is True
    assert Sandbox.delete_snapshot(first.snapshot_id) is False
    assert not listed(first) and listed(second)
    with pytest.raises(SandboxException):
        Sandbox.create(first.snapshot_id).kill()
    assert new_box(second.snapshot_id).commands.run("echo on").stdout == "on\n"


def test_a_snapshot_deleted_while_it_is_used_leaves_nothing(new_box):
    folder = pathlib.Path(os.environ["TOMBOLO_DATA"]) / "snapshots"

    def kept():
        return {entry.name for entry in folder.iterdir() if entry.is_dir()}

    sandbox, before = new_box(), kept()
    for _ in range(5):
        snapshot = sandbox.create_snapshot()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            child = pool.submit(Sandbox.create, snapshot.snapshot_id, timeout=60)
            eventually(lambda: child.done() or sandbox.is_running(), 5, "the create is on its way")
            assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
            with contextlib.suppress(SandboxException):  # It may come too late.
                child.result().kill()
    eventually(lambda: kept() <= before, 10, "the snapshots are removed")


def test_a_template_of_the_machine_is_not_deleted_as_a_snapshot(new_box):
    with contextlib.suppress(SandboxException):
        assert Sandbox.delete_snapshot("base") is False
    assert new_box("base").is_running()


def test_another_key_has_no_part_in_a_snapshot(new_box, snapshot_of, request):
    made = as_json("key", "create", "stranger-to-snapshots")
    request.addfinalizer(lambda: tombolo("key", "delete", made["id"]))
    sandbox = new_box()
    snapshot = snapshot_of(sandbox)
    assert not listed(snapshot, api_key=made["key"])
    with pytest.raises(SandboxException):
        Sandbox.create(snapshot.snapshot_id, api_key=made["key"]).kill()
    with pytest.raises(NotFoundException):
        Sandbox.create_snapshot(sandbox.sandbox_id, api_key=made["key"])
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, api_key=made["key"]) is False
    assert listed(snapshot)


def test_a_snapshot_of_a_paused_sandbox_or_of_none_says_so(new_box):
    sandbox = new_box()
    sandbox.pause()
    with pytest.raises(SandboxException, match="paused"):
        sandbox.create_snapshot()
    sandbox.kill()
    with pytest.raises(NotFoundException):
        sandbox.create_snapshot()


def test_what_was_made_from_a_snapshot_can_be_paused_and_outlives_it(new_box, snapshot_of):
    parent = new_box()
    witness = Witness(parent).start().add("x")
    snapshot = snapshot_of(parent)
    child = new_box(snapshot.snapshot_id)
    parent.kill()
    Sandbox.delete_snapshot(snapshot.snapshot_id)
    child.pause()
    child.connect()
    witness.check(child)
    grandchild_of = snapshot_of(child)
    witness.check(new_box(grandchild_of.snapshot_id))


# --- forks -------------------------------------------------------------------

# What must differ in every copy. The generators were seeded before the fork.
RANDOM = r'''
import json, os, random, uuid
import numpy
json.dumps([random.random(), float(numpy.random.rand()), os.urandom(8).hex(), str(uuid.uuid4()),
            open("/proc/sys/kernel/random/uuid").read().strip()])
'''


def test_eight_forks_are_alike_and_apart(new_interpreter, forks_of):
    parent = new_interpreter(timeout=600, metadata={"kept": "by all"}, envs={"OF_THE_PARENT": "1"})
    witness = Witness(parent).start().add("x")
    parent.run_code("import random, numpy\nrandom.seed(7)\nnumpy.random.seed(7)")
    end = parent.get_info().end_at
    copies = forks_of(parent, count=8, timeout=300)
    assert [type(copy) for copy in copies] == [e2b_code_interpreter.Sandbox] * 8
    family = [parent, *copies]
    assert len({s.sandbox_id for s in family}) == len({s._envd_access_token for s in family}) == 9
    assert parent.get_info().end_at == end

    for copy in copies:
        witness.check(copy)
        info = copy.get_info()
        assert abs((info.end_at - info.started_at).total_seconds() - 300) < 30
        told = copy.commands.run("echo $E2B_SANDBOX_ID $OF_THE_PARENT; hostname").stdout.split()
        assert told[:2] == [copy.sandbox_id, "1"]
        assert copy.run_code("import os\nos.environ['E2B_SANDBOX_ID']").text == copy.sandbox_id
    numbers = [json.loads(s.run_code(RANDOM).text) for s in copies]
    for kind in zip(*numbers):
        assert len(set(kind)) == 8, kind

    copies[0].files.write(f"{FOLDER}/x", "changed in one only")
    copies[0].run_code("v_x = b''")
    copies[1].kill()
    for copy in copies[2:]:
        witness.check(copy)
    witness.check()


def test_a_fork_says_nothing_of_its_parents_tokens(new_box, forks_of):
    parent = new_box()
    copy, = forks_of(parent)
    for sandbox, other in (parent, copy), (copy, parent):
        with pytest.raises(Exception):
            Sandbox.connect(sandbox.sandbox_id)._envd_api.get("/files", params={"path": "/etc/hosts"}, headers={"X-Access-Token": other._envd_access_token}).raise_for_status()


def test_a_connection_out_is_not_inherited(new_box, forks_of):
    parent = new_box()
    host = parent.commands.run(INDEX_HOST).stdout.strip()
    program = f"""
import socket
peer = socket.create_connection(("{host}", 443), timeout=20)
peer.settimeout(None)
print("connected", flush=True)
try:
    outcome = "closed" if peer.recv(1) == b"" else "data"
except OSError as error:
    outcome = type(error).__name__
open("/tmp/outcome", "w").write(outcome)
"""
    handle = parent.commands.run(f"exec python3 -c '{program}'", background=True, timeout=0)
    assert next(iter(handle))[0] == "connected\n"
    copy, = forks_of(parent)
    outcome = eventually(lambda: copy.files.exists("/tmp/outcome") and copy.files.read("/tmp/outcome"), 20, "the copy's program is told")
    assert outcome in ("closed", "ConnectionResetError", "ConnectionAbortedError")
    assert not parent.files.exists("/tmp/outcome"), "the parent's connection lives on"


def test_forks_of_forks(new_box, forks_of):
    parent = new_box()
    witness = Witness(parent).start().add("x")
    child, = forks_of(parent)
    grandchild, = forks_of(child)
    parent.kill()
    child.kill()
    witness.check(grandchild)


def test_a_fork_can_be_paused_and_resumed(new_box, forks_of):
    parent = new_box()
    witness = Witness(parent).start().add("x")
    one, two = forks_of(parent, count=2)
    one.pause()
    parent.pause()
    witness.check(two)
    one.connect()
    witness.check(one)
    parent.connect()
    witness.check()
    two.pause()
    two.connect()
    witness.check(two)


def test_the_parent_serves_while_it_is_forked(new_box, forks_of):
    parent = new_box()
    witness = Witness(parent).start()
    forks_of(parent, count=3)
    assert get(parent).json()["token"] == witness.program["token"]
    witness.check()


@pytest.mark.parametrize("count", [0, 101])
def test_a_count_out_of_range_is_refused(new_box, count):
    sandbox = new_box()
    answer = httpx.post(f"{os.environ['E2B_API_URL']}/sandboxes/{sandbox.sandbox_id}/fork", json={"count": count}, headers={"X-API-Key": os.environ["E2B_API_KEY"]}, timeout=60)
    assert answer.status_code == 400 and "count" in answer.json()["message"]


def test_forking_a_paused_sandbox_or_none_says_so(new_box):
    sandbox = new_box()
    sandbox.pause()
    with pytest.raises(SandboxException, match="paused"):
        sandbox.fork()
    sandbox.kill()
    with pytest.raises(NotFoundException):
        sandbox.fork()
