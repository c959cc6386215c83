"""Creating, finding, keeping and ending sandboxes with the Python client."""

import concurrent.futures
import datetime
import re
import time
import uuid

import httpx
import pytest
from e2b import (
    AuthenticationException,
    NotFoundException,
    RateLimitException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

from cli import as_json, tombolo
from wait import eventually

UNKNOWN_ID = "i" + "0" * 20


def everything(**options):
    """All pages of Sandbox.list."""
    pages, found = Sandbox.list(**options), []
    while pages.has_next:
        found += pages.next_items()
    return found


def ids(sandboxes):
    return [sandbox.sandbox_id for sandbox in sandboxes]


@pytest.fixture
def mark():
    """Metadata that only this test's sandboxes carry."""
    return {"test": uuid.uuid4().hex}


# --- create and describe -----------------------------------------------------


def test_an_id_fits_a_host_name(box):
    assert re.fullmatch(r"[a-z0-9]{8,40}", box.sandbox_id)


def test_info_tells_what_was_asked_for(new_box):
    metadata = {"a": "1", "ünï & =": "välue ?#%20+"}
    sandbox = new_box(timeout=120, metadata=metadata)
    info = sandbox.get_info()
    now = datetime.datetime.now(datetime.timezone.utc)
    assert info.sandbox_id == sandbox.sandbox_id and info.state == SandboxState.RUNNING
    assert info.metadata == metadata and info.name == "base" and info.template_id
    assert abs((now - info.started_at).total_seconds()) < 30
    assert abs((info.end_at - info.started_at).total_seconds() - 120) < 5
    assert info.cpu_count >= 1 and info.memory_mb >= 128 and info.envd_version >= "0.6"


def test_the_default_lifetime_is_five_minutes(new_box):
    info = new_box().get_info()
    assert abs((info.end_at - info.started_at).total_seconds() - 300) < 5


def test_a_template_can_be_named_by_id(box, new_box):
    template_id = box.get_info().template_id
    assert new_box(template_id).get_info().template_id == template_id


def test_an_unknown_template_is_named_in_the_error():
    with pytest.raises(SandboxException, match="no-such-template"):
        Sandbox.create("no-such-template")


@pytest.mark.parametrize("timeout", [-1, 10**9])
def test_a_lifetime_out_of_range_is_a_clear_error(timeout):
    with pytest.raises(SandboxException, match="(?i)timeout"):
        Sandbox.create(timeout=timeout).kill()


@pytest.mark.parametrize("key", ["e2b_" + "0" * 40, "e2b_00", "nonsense"])
def test_a_wrong_key_is_refused(key):
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key=key)
    with pytest.raises(AuthenticationException):
        everything(api_key=key)


def test_a_sandbox_is_a_context_manager():
    with Sandbox.create() as sandbox:
        assert sandbox.is_running()
    assert not sandbox.is_running()


def test_sandboxes_do_not_see_each_other(new_box):
    one, two = new_box(), new_box()
    one.files.write("/tmp/mine", "x")
    assert not two.files.exists("/tmp/mine")
    assert one.commands.run("hostname").stdout != "" and one.sandbox_id != two.sandbox_id
    one.commands.run("sleep 1000", background=True)
    assert "sleep 1000" not in two.commands.run("ps -eo args").stdout


def test_the_clock_is_right(box):
    assert abs(float(box.commands.run("date +%s.%N").stdout) - time.time()) < 2


# --- list --------------------------------------------------------------------


def test_list_filters_by_metadata(new_box, mark):
    with_blue = new_box(metadata={**mark, "colour": "blue & green=teal"})
    with_red = new_box(metadata={**mark, "colour": "red"})
    assert set(ids(everything(query=SandboxQuery(metadata=mark)))) == {with_blue.sandbox_id, with_red.sandbox_id}
    found = everything(query=SandboxQuery(metadata={**mark, "colour": "blue & green=teal"}))
    assert ids(found) == [with_blue.sandbox_id]
    assert everything(query=SandboxQuery(metadata={**mark, "colour": "grey"})) == []


def test_list_pages(new_box, mark):
    made = {new_box(metadata=mark).sandbox_id for _ in range(3)}
    pages = Sandbox.list(query=SandboxQuery(metadata=mark), limit=2)
    first = pages.next_items()
    assert len(first) == 2 and pages.has_next and pages.next_token
    second = pages.next_items()
    assert len(second) == 1 and not pages.has_next
    assert set(ids(first + second)) == made


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_list_orders_by_start(new_box, mark, order):
    made = [new_box(metadata=mark).sandbox_id for _ in range(3)]
    found = ids(everything(query=SandboxQuery(metadata=mark), order=order, limit=1))
    assert found == (made if order == "asc" else made[::-1])


def test_list_filters_by_state(new_box, mark):
    sandbox = new_box(metadata=mark)
    running = SandboxQuery(metadata=mark, state=[SandboxState.RUNNING])
    both = SandboxQuery(metadata=mark, state=[SandboxState.RUNNING, SandboxState.PAUSED])
    assert ids(everything(query=running)) == ids(everything(query=both)) == [sandbox.sandbox_id]
    assert everything(query=SandboxQuery(metadata=mark, state=[SandboxState.PAUSED])) == []


def test_list_filters_by_template_and_start(new_box, mark):
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=5)
    after = before + datetime.timedelta(hours=1)
    sandbox = new_box(metadata=mark)
    assert ids(everything(query=SandboxQuery(metadata=mark, template="base", started_after=before))) == [sandbox.sandbox_id]
    assert everything(query=SandboxQuery(metadata=mark, template="code-interpreter-v1")) == []
    assert everything(query=SandboxQuery(metadata=mark, started_after=after)) == []


def test_a_killed_sandbox_leaves_the_list(new_box, mark):
    sandbox = new_box(metadata=mark)
    sandbox.kill()
    assert everything(query=SandboxQuery(metadata=mark)) == []


# --- connect, timeout, kill --------------------------------------------------


def test_connect_reaches_the_same_sandbox(new_box):
    first = new_box()
    first.files.write("/tmp/note", "hello")
    second = Sandbox.connect(first.sandbox_id)
    assert second.files.read("/tmp/note") == "hello"


def test_connect_extends_and_never_shortens(new_box):
    sandbox = new_box(timeout=200)
    end = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert sandbox.get_info().end_at >= end
    Sandbox.connect(sandbox.sandbox_id, timeout=600)
    assert (sandbox.get_info().end_at - end).total_seconds() > 300


def test_set_timeout_counts_from_now_and_may_shorten(new_box):
    sandbox = new_box(timeout=600)
    sandbox.set_timeout(100)
    left = sandbox.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)
    assert 90 < left.total_seconds() <= 101


def test_a_sandbox_ends_at_its_time(new_box):
    sandbox = new_box(timeout=5)
    assert sandbox.is_running()
    eventually(lambda: not sandbox.is_running(), 20, "the sandbox ends by itself")
    with pytest.raises(TimeoutException):
        sandbox.commands.run("true")
    with pytest.raises(NotFoundException):
        sandbox.get_info()


def test_a_shortened_timeout_ends_it(new_box):
    sandbox = new_box()
    sandbox.set_timeout(1)
    eventually(lambda: not sandbox.is_running(), 10, "the sandbox ends")


def test_kill_says_whether_there_was_one(new_box):
    sandbox = new_box()
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert Sandbox.kill(UNKNOWN_ID) is False
    assert not sandbox.is_running()


def test_killing_ends_what_runs_in_it(new_box):
    sandbox = new_box()
    handle = sandbox.commands.run("sleep 300", background=True)
    sandbox.kill()
    with pytest.raises(TimeoutException):
        handle.wait()


def test_killing_ends_running_code_and_open_connections_to_it(new_interpreter):
    sandbox = new_interpreter()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        started = concurrent.futures.Future()
        running = pool.submit(sandbox.run_code, "print('started', flush=True)\nimport time\ntime.sleep(60)",
                              on_stdout=lambda _: started.done() or started.set_result(True))
        assert started.result(timeout=30)
        Sandbox.kill(sandbox.sandbox_id)
        with pytest.raises(TimeoutException, match="killed"):
            running.result(timeout=20)


@pytest.mark.parametrize("sandbox_id", [UNKNOWN_ID, "no_such_id", "..", "a" * 300])
def test_an_unknown_id_is_not_found(sandbox_id):
    for act in (Sandbox.get_info, Sandbox.connect, lambda id: Sandbox.set_timeout(id, 10)):
        with pytest.raises((NotFoundException, SandboxException)) as failure:
            act(sandbox_id)
        assert not isinstance(failure.value, TimeoutException)


def test_many_creates_at_once(request):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        sandboxes = list(pool.map(lambda _: Sandbox.create(timeout=60), range(8)))
        for sandbox in sandboxes:
            request.addfinalizer(sandbox.kill)
        assert len({sandbox.sandbox_id for sandbox in sandboxes}) == 8
        outputs = list(pool.map(lambda s: s.commands.run("echo $E2B_SANDBOX_ID").stdout.strip(), sandboxes))
    assert outputs == [sandbox.sandbox_id for sandbox in sandboxes]


# --- keys and their limits ---------------------------------------------------


@pytest.fixture
def narrow_key():
    """A key that may have one sandbox at a time."""
    made = as_json("key", "create", "narrow", "--max-sandboxes", "1")
    yield made["key"]
    tombolo("key", "delete", made["id"])


def test_a_key_at_its_limit_is_told_so_at_once(narrow_key, request):
    first = Sandbox.create(api_key=narrow_key)
    request.addfinalizer(lambda: Sandbox.kill(first.sandbox_id, api_key=narrow_key))
    started = time.monotonic()
    with pytest.raises(RateLimitException, match="limit"):
        Sandbox.create(api_key=narrow_key)
    assert time.monotonic() - started < 5
    first.kill()
    second = Sandbox.create(api_key=narrow_key)
    second.kill()


def test_a_key_sees_only_its_own_sandboxes(narrow_key, box, request):
    own = Sandbox.create(api_key=narrow_key)
    request.addfinalizer(own.kill)
    assert ids(everything(api_key=narrow_key)) == [own.sandbox_id]
    assert own.sandbox_id not in ids(everything())
    with pytest.raises(NotFoundException):
        Sandbox.get_info(box.sandbox_id, api_key=narrow_key)
    assert Sandbox.kill(box.sandbox_id, api_key=narrow_key) is False
    assert box.is_running()


def test_the_token_of_a_sandbox_guards_it(box, new_box):
    other = new_box()
    def status(token):
        headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49983"}
        if token is not None:
            headers["X-Access-Token"] = token
        return httpx.get(box.envd_api_url + "/files", params={"path": "/etc/passwd"}, headers=headers).status_code

    assert status(box._envd_access_token) == 200
    assert [status(None), status(""), status("wrong"), status(other._envd_access_token)] == [401] * 4
