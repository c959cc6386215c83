"""A sandbox at its limits: it says so, lives on, and disturbs nobody."""

import concurrent.futures
import time

import pytest
from e2b import CommandExitException, SandboxException, TimeoutException

from wait import eventually

# Allocates 3 GiB in pieces that are really written.
GREEDY = "hoard = [bytearray(b'x') * (1 << 20) for _ in range(3072)]\nprint(len(hoard))"


def test_a_command_that_takes_too_much_memory_dies_alone(new_box):
    sandbox = new_box()
    bystander = sandbox.commands.run("sleep 1000", background=True)
    sandbox.files.write("/tmp/greedy.py", GREEDY)
    with pytest.raises(SandboxException) as failure:
        sandbox.commands.run("exec python3 /tmp/greedy.py", timeout=60)
    assert "memory" in f"{failure.value} {getattr(failure.value, 'error', '')}".lower()
    assert sandbox.is_running() and sandbox.commands.run("echo alive").stdout == "alive\n"
    assert bystander.pid in [process.pid for process in sandbox.commands.list()]


def test_a_child_that_takes_too_much_memory_is_named(new_box):
    sandbox = new_box()
    sandbox.files.write("/tmp/greedy.py", GREEDY)
    with pytest.raises(CommandExitException) as failure:
        sandbox.commands.run("python3 /tmp/greedy.py; code=$?; echo after; exit $code", timeout=60)
    assert "memory" in f"{failure.value.error} {failure.value.stderr}".lower()
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_code_that_takes_too_much_memory_is_told_and_the_sandbox_lives(new_interpreter):
    sandbox = new_interpreter()
    execution = sandbox.run_code(GREEDY, timeout=60)
    assert execution.error is not None
    assert "memory" in f"{execution.error.name} {execution.error.value}".lower()
    assert sandbox.run_code("1 + 1", timeout=60).text == "2"
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_memory_hogs_again_and_again_do_not_wear_it_out(new_box):
    sandbox = new_box()
    sandbox.files.write("/tmp/greedy.py", GREEDY)
    for _ in range(3):
        with pytest.raises(SandboxException):
            sandbox.commands.run("exec python3 /tmp/greedy.py", timeout=60)
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_a_fork_bomb_stays_in_its_sandbox(new_box, new_interpreter):
    victim, neighbour = new_box(), new_interpreter()
    neighbour.run_code("1")

    def bomb():
        try:
            victim.commands.run(":(){ :|:& };:", timeout=12)
        except SandboxException:
            pass  # The shell of the bomb fails, or its time is over.

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        bombing = pool.submit(bomb)
        slowest = 0.0
        while not bombing.done():
            started = time.monotonic()
            assert neighbour.run_code("6 * 7", timeout=30).text == "42"
            slowest = max(slowest, time.monotonic() - started)
    assert slowest < 10, f"a neighbour waited {slowest:.1f} s"

    def works_again():
        try:
            return victim.commands.run("echo alive", timeout=10).stdout == "alive\n"
        except (SandboxException, CommandExitException):
            return False

    eventually(works_again, 30, "commands work in the sandbox that was bombed")
    assert victim.kill() is True


def test_too_many_processes_end_with_a_reason(new_box):
    sandbox = new_box()
    bystander = sandbox.commands.run("sleep 1000", background=True)
    with pytest.raises(CommandExitException) as failure:
        sandbox.commands.run("while :; do sleep 100 & done", timeout=100)
    assert "process" in f"{failure.value.error} {failure.value.stderr}"
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
    assert bystander.pid in [process.pid for process in sandbox.commands.list()]


def test_many_small_processes_that_take_too_much_memory_do_not_end_the_sandbox(new_box):
    sandbox = new_box()
    sandbox.files.write("/tmp/many.py", "import os, time\nhoard = b'x' * (4 << 20)\nfor _ in range(200):\n  if os.fork() == 0:\n    mine = bytearray(hoard); time.sleep(60)\ntime.sleep(60)")
    with pytest.raises(SandboxException):
        sandbox.commands.run("exec python3 /tmp/many.py", timeout=30)
    sandbox.commands.run("pkill -9 -f 'many[.]py' || true")
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def fill_all_but(sandbox, size):
    free = int(sandbox.commands.run("df -B1 --output=avail /home/user | tail -1").stdout)
    sandbox.commands.run(f"fallocate -l {free - size} /home/user/most")


def test_a_full_disk_is_an_error_inside(new_box):
    sandbox = new_box()
    fill_all_but(sandbox, 50 << 20)
    with pytest.raises(CommandExitException) as failure:
        sandbox.commands.run("dd if=/dev/zero of=/home/user/rest bs=1M", timeout=60)
    assert "No space left on device" in failure.value.stderr
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
    sandbox.commands.run("rm /home/user/rest && echo again > /home/user/fits")


def test_code_runs_on_a_full_disk(new_interpreter):
    sandbox = new_interpreter()
    fill_all_but(sandbox, 0)
    assert sandbox.run_code("6 * 7").text == "42"
    assert sandbox.run_code("open('more', 'wb').write(bytes(50 << 20))").error.name == "OSError"
    assert sandbox.run_code("8 * 8").text == "64"


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/run"])
def test_no_folder_is_without_limit(new_box, folder):
    sandbox = new_box()
    with pytest.raises(SandboxException):
        sandbox.commands.run(f"fallocate -l 20G {folder}/all && dd if=/dev/zero of={folder}/all bs=1M count=20000", user="root", timeout=60)
    eventually(lambda: sandbox.commands.run("echo alive").stdout == "alive\n", 10, "the sandbox answers")


def test_a_folder_in_memory_counts_as_memory(new_box):
    sandbox = new_box()
    with pytest.raises(SandboxException):
        sandbox.commands.run("dd if=/dev/zero of=/tmp/fill bs=1M", timeout=60)
    eventually(lambda: sandbox.commands.run("rm -f /tmp/fill; echo alive").stdout == "alive\n", 10, "the sandbox answers")


def test_endless_loops_leave_the_rest_responsive(new_box, new_interpreter):
    busy, neighbour = new_interpreter(), new_box()
    for _ in range(4):
        busy.commands.run("while :; do :; done", background=True, timeout=60)
    with pytest.raises(TimeoutException):
        busy.run_code("while True: pass", timeout=2)
    started = time.monotonic()
    assert busy.commands.run("echo alive", timeout=30).stdout == "alive\n"
    assert neighbour.commands.run("echo alive", timeout=30).stdout == "alive\n"
    assert time.monotonic() - started < 15


def test_a_flood_of_output_nobody_reads_does_not_grow_the_sandbox(new_box):
    sandbox = new_box()
    flood = sandbox.commands.run("yes", background=True, timeout=60)
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
    flood.disconnect()
    eventually(lambda: sandbox.commands.run("echo alive").stdout == "alive\n", 10, "the sandbox answers")
    flood.kill()
