"""Limits of a key, as the client sees them."""

import concurrent.futures
import os
import time

import httpx
import pytest
from e2b import RateLimitException, Sandbox, SandboxException

from cli import as_json, tombolo
from wait import eventually
from witness import Witness

MIB = 1 << 20


@pytest.fixture
def key(request):
    """Makes keys with limits; what they own is killed and they are deleted when
    the test ends. Returns the options that make a client use one, without
    retries: the first answer counts."""

    def make(*flags):
        made = as_json("key", "create", f"quota-{time.time_ns()}", *flags)
        options = {"api_key": made["key"], "retries": 0}

        def clean():
            for page in (Sandbox.list(**options), Sandbox.list_snapshots(**options)):
                while page.has_next:
                    for found in page.next_items():
                        if hasattr(found, "snapshot_id"):
                            Sandbox.delete_snapshot(found.snapshot_id, **options)
                        else:
                            Sandbox.kill(found.sandbox_id, **options)
            tombolo("key", "delete", made["id"])

        request.addfinalizer(clean)
        return options

    return make


def create(options):
    return Sandbox.create("base", timeout=120, **options)


def refusal(options, path="/v2/sandboxes", body={"templateID": "base"}):
    """The raw answer to a request that is over a limit."""
    answer = httpx.post(os.environ["E2B_API_URL"] + path, json=body, headers={"X-API-Key": options["api_key"]}, timeout=60)
    assert answer.status_code == 429, answer.text
    return answer


# --- sandboxes at once -------------------------------------------------------


def test_sandboxes_at_once(key):
    options = key("--max-sandboxes", "2")
    one, two = create(options), create(options)
    with pytest.raises(RateLimitException, match="limit of 2"):
        create(options)
    assert refusal(options).json()["code"] == 429
    one.kill()
    create(options)
    with pytest.raises(RateLimitException):
        create(options)


def test_creates_at_once_do_not_pass_the_limit(key):
    options = key("--max-sandboxes", "3")

    def attempt(_):
        try:
            return create(options)
        except RateLimitException:
            return None

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(pool.map(attempt, range(8)))
    assert len([sandbox for sandbox in made if sandbox]) == 3


def test_a_paused_sandbox_makes_room_and_needs_it_to_come_back(key):
    options = key("--max-sandboxes", "1")
    sleeping = create(options)
    witness = Witness(sleeping).add("x")
    sleeping.pause()
    running = create(options)
    with pytest.raises(RateLimitException):
        sleeping.connect()
    assert sleeping.get_info().state == "paused"
    running.kill()
    sleeping.connect()
    witness.check()


def test_traffic_does_not_pass_the_limit_either(key):
    options = key("--max-sandboxes", "1")
    sleeping = Sandbox.create("base", timeout=120, lifecycle={"on_timeout": "pause", "auto_resume": True}, **options)
    sleeping.pause()
    running = create(options)
    with pytest.raises(RateLimitException):
        sleeping.commands.run("true")
    running.kill()
    assert sleeping.commands.run("echo awake").stdout == "awake\n"


def test_each_fork_is_within_the_limit_or_an_error(key):
    options = key("--max-sandboxes", "3")
    parent = create(options)
    copies = parent.fork(count=4, timeout=300)
    assert sorted(type(copy).__name__ for copy in copies) == ["RateLimitException"] * 2 + ["Sandbox"] * 2


# --- creates a second --------------------------------------------------------


def test_creates_a_second(key):
    options = key("--max-create-rate", "0.2")

    def until_refused():
        for _ in range(10):
            try:
                create(options).kill()
            except RateLimitException:
                return True
        return False

    assert until_refused()
    answer = refusal(options)
    wait = int(answer.headers["Retry-After"])
    assert 1 <= wait <= 10
    # The client waits as it is told and then gets through.
    patient = {**options, "retries": 3}
    sandbox = Sandbox.create("base", timeout=60, **patient)
    assert sandbox.commands.run("echo on").stdout == "on\n"


# --- processors, memory, disk ------------------------------------------------


@pytest.mark.parametrize("flags", [("--max-cpus", "4"), ("--max-memory", "2GiB"), ("--max-disk", "20GiB")], ids=lambda f: f[0])
def test_what_the_running_ones_may_have_together(key, flags):
    """The template has 2 processors, 1 GiB of memory and 10 GiB of disk."""
    options = key(*flags)
    one, two = create(options), create(options)
    with pytest.raises(RateLimitException, match=flags[0].removeprefix("--")):
        create(options)
    two.kill()
    create(options)


def test_paused_sandboxes_count_for_the_disk_they_hold(key):
    options = key("--max-disk", "10300MiB")
    sleeping = create(options)
    sleeping.files.write("/home/user/large", os.urandom(100 * MIB))
    sleeping.pause()
    with pytest.raises(RateLimitException):
        create(options)
    sleeping.kill()
    create(options)


def test_snapshots(key):
    options = key("--max-snapshots", "2")
    sandbox = create(options)
    one, _ = sandbox.create_snapshot(), sandbox.create_snapshot()
    with pytest.raises(RateLimitException, match="snapshots"):
        sandbox.create_snapshot()
    assert sandbox.commands.run("echo on").stdout == "on\n"
    assert Sandbox.delete_snapshot(one.snapshot_id, **options)
    sandbox.create_snapshot()


# --- lifetime ----------------------------------------------------------------


def test_the_longest_lifetime(key):
    options = key("--max-timeout", "10m")
    sandbox = Sandbox.create("base", timeout=600, **options)
    for act in (lambda: Sandbox.create("base", timeout=601, **options), lambda: sandbox.set_timeout(601), lambda: sandbox.connect(timeout=601)):
        with pytest.raises(SandboxException, match="(?i)timeout|lifetime"):
            act()
    assert sandbox.is_running()


def test_a_limit_can_be_changed_while_the_key_is_in_use(key, request):
    options = key("--max-sandboxes", "1")
    create(options)
    with pytest.raises(RateLimitException):
        create(options)
    own, = [k for k in as_json("key", "list") if options["api_key"].startswith(k["prefix"])]
    assert tombolo("key", "update", own["id"], "--max-sandboxes", "2").returncode == 0

    def allowed():
        try:
            return create(options)
        except RateLimitException:
            return None

    eventually(allowed, 10, "the new limit holds")
