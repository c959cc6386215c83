"""The wire of a sandbox's whole life: what the API answers, with the asynchronous
client and without any. What pausing, forking and quotas keep or refuse is in
test_pause.py, test_fork.py and test_quota.py."""

import asyncio
import concurrent.futures
import datetime
import os
import time
import uuid

import httpx
import pytest
from e2b import AsyncSandbox, NotFoundException, Sandbox, SandboxException, SandboxQuery, SandboxState

from cli import as_json, tombolo
from wait import eventually

UNKNOWN_ID = "i" + "0" * 20


def call(method, path, body=None, key=None, **headers):
    """One request to the control API."""
    headers = {"X-API-KEY": key or os.environ["E2B_API_KEY"], **{name.replace("_", "-"): value for name, value in headers.items()}}
    return httpx.request(method, os.environ["E2B_API_URL"] + path, json=body, headers=headers, timeout=60)


def post(sandbox, what, body=None, **options):
    return call("POST", f"/sandboxes/{sandbox.sandbox_id}/{what}", body, **options)


def seconds_left(sandbox):
    return (sandbox.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()


@pytest.fixture
def mark():
    """Metadata that only this test's sandboxes carry."""
    return {"test": uuid.uuid4().hex}


@pytest.fixture
def stranger(request):
    """The secret of another key."""
    made = as_json("key", "create", f"stranger-{uuid.uuid4().hex[:8]}")
    request.addfinalizer(lambda: tombolo("key", "delete", made["id"]))
    return made["key"]


# --- pause, resume, connect ---------------------------------------------------


def test_codes_of_pause_resume_and_connect(new_box):
    sandbox = new_box()
    assert post(sandbox, "resume", {}).status_code == 409, "it runs"
    assert post(sandbox, "connect", {"timeout": 60}).status_code == 200
    paused = post(sandbox, "pause")
    assert (paused.status_code, paused.content) == (204, b"")
    again = post(sandbox, "pause", {"memory": True})
    assert again.status_code == 409 and "paused" in again.json()["message"]

    resumed = post(sandbox, "resume", {"timeout": 100})
    assert resumed.status_code == 201
    assert resumed.json()["sandboxID"] == sandbox.sandbox_id
    assert resumed.json()["envdAccessToken"] == sandbox._envd_access_token
    assert 90 < seconds_left(sandbox) <= 100

    assert post(sandbox, "pause").status_code == 204
    assert post(sandbox, "connect", {}).status_code == 400, "the older form needs a timeout"
    connected = call("POST", f"/v2/sandboxes/{sandbox.sandbox_id}/connect")
    assert connected.status_code == 201
    assert 290 < seconds_left(sandbox) <= 300, "the newer form has one"


def test_the_default_of_resume_is_fifteen_seconds(new_box):
    sandbox = new_box()
    sandbox.pause()
    assert post(sandbox, "resume").status_code == 201
    assert 5 < seconds_left(sandbox) <= 15


@pytest.mark.parametrize("path", ["timeout", "refreshes"])
def test_a_paused_sandbox_has_no_timeout_to_set(new_box, path):
    sandbox = new_box()
    sandbox.pause()
    answer = post(sandbox, path, {"timeout": 60, "duration": 60})
    assert answer.status_code == 404 and "paused" in answer.json()["message"]
    with pytest.raises(NotFoundException):
        sandbox.set_timeout(60)
    assert sandbox.get_info().state == SandboxState.PAUSED


def test_refreshes_extend_only(new_box):
    sandbox = new_box(timeout=200)
    assert post(sandbox, "refreshes", {"duration": 10}).status_code == 204
    assert seconds_left(sandbox) > 150
    assert post(sandbox, "refreshes", {"duration": 3600}).status_code == 204
    assert seconds_left(sandbox) > 3500
    assert post(sandbox, "refreshes", {"duration": 3601}).status_code == 400


def test_a_strict_pause_of_a_healthy_sandbox_works(new_box):
    sandbox = new_box()
    assert sandbox.pause(strict=True) is True
    assert sandbox.get_info().state == SandboxState.PAUSED


# --- lists and info -----------------------------------------------------------


def test_lists_tell_running_from_paused(new_box, mark):
    running, paused = new_box(metadata=mark), new_box(metadata=mark)
    paused.pause()
    query = f"metadata=test%3D{mark['test']}"

    def ids(answer):
        return {s["sandboxID"]: s["state"] for s in answer.json()}

    both = call("GET", f"/v2/sandboxes?{query}")
    assert ids(both) == {running.sandbox_id: "running", paused.sandbox_id: "paused"}
    assert both.headers["X-Total-Running"] == "1"
    assert ids(call("GET", f"/v2/sandboxes?{query}&state=running,paused")) == ids(both)
    assert ids(call("GET", f"/v2/sandboxes?{query}&state=paused")) == {paused.sandbox_id: "paused"}
    assert ids(call("GET", f"/sandboxes?{query}")) == {running.sandbox_id: "running"}, "the older list has no paused ones"


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_go_over_running_and_paused(new_box, mark, order):
    made = [new_box(metadata=mark) for _ in range(4)]
    made[0].pause()
    made[2].pause()
    pages, found = Sandbox.list(query=SandboxQuery(metadata=mark), limit=1, order=order), []
    while pages.has_next:
        found += [(s.sandbox_id, s.state.value) for s in pages.next_items()]
    expected = [(s.sandbox_id, "paused" if i in (0, 2) else "running") for i, s in enumerate(made)]
    assert found == (expected if order == "asc" else expected[::-1])


def test_info_of_a_paused_sandbox(new_box, mark):
    options = {"metadata": mark, "lifecycle": {"on_timeout": "pause", "auto_resume": True},
               "network": {"allow_public_traffic": False, "mask_request_host": "localhost:${PORT}"}}
    sandbox = new_box(**options)
    before = sandbox.get_info()
    sandbox.pause()
    info = sandbox.get_info()
    assert info.state == SandboxState.PAUSED
    for field in ("template_id", "name", "metadata", "started_at", "cpu_count", "memory_mb", "lifecycle", "network"):
        assert getattr(info, field) == getattr(before, field), field
    assert info.lifecycle == {"on_timeout": "pause", "auto_resume": True}
    assert info.network == {"allow_public_traffic": False, "mask_request_host": "localhost:${PORT}"}
    assert abs((info.end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()) < 30, "when it was paused"


def test_the_default_is_to_kill(box):
    info = box.get_info()
    assert info.lifecycle == {"on_timeout": "kill", "auto_resume": False}
    assert info.network["allow_public_traffic"] is True


@pytest.mark.parametrize("body", [
    {"autoResume": {"enabled": True}},
    {"autoPause": True, "autoPauseMemory": False, "autoResume": {"enabled": True}},
    {"network": {"maskRequestHost": "not a host"}},
    {"network": {"maskRequestHost": "a\r\nb"}},
    {"network": {"allowPublicTraffic": "no"}},
    {"network": {"allowOut": ["10.0.0.0/33"]}},
    {"network": {"denyOut": ["example.com"]}},
    {"network": {"noSuchOption": ["10.0.0.0/8"]}},
    {"autoPause": "yes"},
])
def test_options_that_cannot_be_are_refused(body):
    answer = call("POST", "/v2/sandboxes", {"templateID": "base", **body})
    assert answer.status_code == 400 and answer.json()["message"]


def test_only_a_private_sandbox_has_a_traffic_token():
    public = call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60}).json()
    private = call("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60, "network": {"allowPublicTraffic": False}}).json()
    try:
        assert "trafficAccessToken" not in public
        token = private["trafficAccessToken"]
        assert token and token != private["envdAccessToken"]
        answer = call("POST", f"/v2/sandboxes/{private['sandboxID']}/connect", {"timeout": 60}).json()
        assert answer["trafficAccessToken"] == token
        fork = call("POST", f"/sandboxes/{private['sandboxID']}/fork", {"timeout": 30}).json()[0]["sandbox"]
        assert fork["trafficAccessToken"] not in (token, None)
        assert Sandbox.kill(fork["sandboxID"])
        assert "trafficAccessToken" not in call("GET", f"/sandboxes/{private['sandboxID']}").json()
    finally:
        Sandbox.kill(public["sandboxID"])
        Sandbox.kill(private["sandboxID"])


# --- metrics and logs ---------------------------------------------------------


@pytest.fixture(scope="module")
def measured(request):
    """A sandbox that has three points of its use."""
    sandbox = Sandbox.create(timeout=300)
    request.addfinalizer(sandbox.kill)
    sandbox.commands.run("timeout 8 sh -c 'while :; do :; done'; true", timeout=30)
    eventually(lambda: len(sandbox.get_metrics()) >= 3, 30, "three points")
    return sandbox


def test_metrics_say_what_is_used(measured):
    points = measured.get_metrics()
    info = measured.get_info()
    assert all(p.cpu_count == info.cpu_count and p.mem_total == info.memory_mb << 20 for p in points)
    assert all(0 < p.mem_used < p.mem_total and 0 <= p.disk_used < p.disk_total and 0 <= p.mem_cache for p in points)
    assert 2 < max(p.cpu_used_pct for p in points) <= 101, "a program was busy, as far as the machine let it"
    times = [p.timestamp for p in points]
    assert times == sorted(times) and len(set(times)) == len(times)
    assert all((b - a).total_seconds() <= 11 for a, b in zip(times, times[1:])), "a point each 5 s, but where the server had no time"


def test_metrics_of_a_window(measured):
    points = measured.get_metrics()
    middle = points[1].timestamp
    assert [p.timestamp for p in measured.get_metrics(start=middle, end=middle)] == [middle]
    assert measured.get_metrics(end=middle - datetime.timedelta(hours=1)) == []
    assert measured.get_metrics(start=middle + datetime.timedelta(hours=1)) == []
    assert [p.timestamp for p in measured.get_metrics(start=middle)][: len(points) - 1] == [p.timestamp for p in points[1:]]
    for query in ("start=x", "start=-1", "start=20&end=10"):
        assert call("GET", f"/sandboxes/{measured.sandbox_id}/metrics?{query}").status_code == 400, query


def test_the_wire_of_metrics(measured):
    point = call("GET", f"/sandboxes/{measured.sandbox_id}/metrics").json()[0]
    assert set(point) == {"timestamp", "timestampUnix", "cpuCount", "cpuUsedPct", "memUsed", "memTotal", "memCache", "diskUsed", "diskTotal"}
    at = datetime.datetime.fromisoformat(point["timestamp"])
    assert int(at.timestamp()) == point["timestampUnix"]


def test_metrics_of_many(measured, box):
    ids = [measured.sandbox_id, box.sandbox_id, UNKNOWN_ID]
    found = eventually(lambda: len(latest(ids)) == 2 and latest(ids), 20, "the latest of both")
    assert set(found) == {measured.sandbox_id, box.sandbox_id}
    assert call("GET", "/sandboxes/metrics?sandbox_ids=" + ",".join(["i1"] * 101)).status_code == 400
    assert call("GET", "/sandboxes/metrics").status_code == 400


def latest(ids, **options):
    return call("GET", "/sandboxes/metrics?sandbox_ids=" + ",".join(ids), **options).json()["sandboxes"]


def test_metrics_and_logs_outlive_a_pause(new_box):
    sandbox = new_box()
    before = eventually(sandbox.get_metrics, 20, "a point")
    sandbox.pause()
    assert [p.timestamp for p in sandbox.get_metrics()][: len(before)] == [p.timestamp for p in before]
    assert sandbox.sandbox_id in latest([sandbox.sandbox_id])
    texts = [entry["message"] for entry in call("GET", f"/sandboxes/{sandbox.sandbox_id}/logs").json()["logEntries"]]
    assert any("running" in text for text in texts) and any("paused" in text for text in texts)
    Sandbox.connect(sandbox.sandbox_id)
    eventually(lambda: len(sandbox.get_metrics()) > len(before), 20, "points go on")


# --- snapshots and forks on the wire -------------------------------------------


def test_names_of_snapshots(new_box, request):
    sandbox, name = new_box(), f"api-{uuid.uuid4().hex[:8]}"

    def snapshot(name):
        answer = post(sandbox, "snapshots", {"name": name})
        assert answer.status_code == 201, answer.text
        request.addfinalizer(lambda: Sandbox.delete_snapshot(answer.json()["snapshotID"]))
        return answer.json()

    first, tagged = snapshot(name.upper()), snapshot(f"{name}:v1.2")
    assert first["names"] == [first["snapshotID"]] and first["snapshotID"].endswith(f"/{name}:default")
    assert tagged["snapshotID"].endswith(f"/{name}:v1.2")
    assert snapshot(name)["snapshotID"] == first["snapshotID"], "the same name is the same snapshot"
    assert {s.snapshot_id for s in Sandbox.list_snapshots(name=name).next_items()} == {first["snapshotID"], tagged["snapshotID"]}
    assert [s.snapshot_id for s in Sandbox.list_snapshots(name=f"{name}:v1.2").next_items()] == [tagged["snapshotID"]]
    template = call("GET", "/templates/" + tagged["snapshotID"].replace("/", "%2F")).json()
    assert template["aliases"] == [name] and template["names"] == [tagged["names"][0].removesuffix(":v1.2")] and template["public"] is False
    assert call("GET", f"/templates/aliases/{name}").status_code == 200
    assert template["templateID"] not in [t["templateID"] for t in call("GET", "/templates").json()]
    assert new_box(template["templateID"]).get_info().name == name
    assert Sandbox.delete_snapshot(tagged["snapshotID"]) is True
    assert call("GET", f"/templates/aliases/{name}").status_code == 200, "the other tag stays"


@pytest.mark.parametrize("name,code", [("a b", 400), ("a/b/c", 400), ("a:", 201), ("a:b:c", 400), ("x" * 200, 400), ("other/mine", 400),
                                       ("base", 403), ("base:mine", 403), ("code-interpreter-v1", 403)])
def test_names_that_cannot_be(box, name, code):
    answer = post(box, "snapshots", {"name": name})
    assert answer.status_code == code, answer.text
    if code == 201:
        assert Sandbox.delete_snapshot(answer.json()["snapshotID"])


def test_another_keys_name_is_taken(new_box, stranger, request):
    name = f"taken-{uuid.uuid4().hex[:8]}"
    snapshot = new_box().create_snapshot(name=name)
    request.addfinalizer(lambda: Sandbox.delete_snapshot(snapshot.snapshot_id))
    theirs = Sandbox.create(api_key=stranger)
    request.addfinalizer(lambda: Sandbox.kill(theirs.sandbox_id, api_key=stranger))
    for taken in (name, f"{name}:v2"):
        assert post(theirs, "snapshots", {"name": taken}, key=stranger).status_code == 409
    assert new_box(name).is_running()


def test_a_fork_repeated_with_one_key_is_made_once(new_box, mark):
    sandbox = new_box(metadata=mark)
    key = {"Idempotency_Key": uuid.uuid4().hex}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: post(sandbox, "fork", {"timeout": 60, "count": 2}, **key), range(3)))
    assert [a.status_code for a in answers] == [201] * 3
    assert answers[0].json() == answers[1].json() == answers[2].json()
    made = {f["sandbox"]["sandboxID"] for f in answers[0].json()}
    try:
        listed = {s["sandboxID"] for s in call("GET", f"/v2/sandboxes?metadata=test%3D{mark['test']}").json()}
        assert listed == made | {sandbox.sandbox_id}
        assert post(sandbox, "fork", {"timeout": 60, "count": 3}, **key).status_code == 409, "one key for two requests"
    finally:
        for fork in made:
            Sandbox.kill(fork)


@pytest.mark.parametrize("body", [{"count": 0}, {"count": 101}, {"count": -1}, {"count": 1.5}, {"count": "2"}, {"timeout": 0}, {"timeout": -5}])
def test_forks_that_cannot_be(box, body):
    assert post(box, "fork", body).status_code == 400


# --- who may -------------------------------------------------------------------


def test_another_key_finds_nothing(new_box, stranger):
    running, paused = new_box(), new_box()
    paused.pause()
    for sandbox in (running, paused):
        path = f"/sandboxes/{sandbox.sandbox_id}"
        for method, what, body in [
            ("GET", "", None), ("DELETE", "", None), ("GET", "/logs", None), ("GET", "/metrics", None),
            ("POST", "/pause", {}), ("POST", "/resume", {}), ("POST", "/connect", {"timeout": 60}),
            ("POST", "/timeout", {"timeout": 60}), ("POST", "/refreshes", {"duration": 60}),
            ("POST", "/fork", {}), ("POST", "/snapshots", {}),
        ]:
            answer = call(method, path + what, body, key=stranger)
            assert answer.status_code == 404, (method, what)
            assert answer.json()["message"] == f"sandbox '{sandbox.sandbox_id}' not found", "it is not told that it is there"
        assert call("POST", f"/v2{path}/connect", {}, key=stranger).status_code == 404
    assert latest([running.sandbox_id, paused.sandbox_id], key=stranger) == {}
    assert running.is_running() and paused.get_info().state == SandboxState.PAUSED


def test_a_run_is_no_longer_than_the_key_allows(request):
    made = as_json("key", "create", f"short-{uuid.uuid4().hex[:8]}", "--max-timeout", "60s")
    request.addfinalizer(lambda: tombolo("key", "delete", made["id"]))
    sandbox = Sandbox.create(api_key=made["key"])
    request.addfinalizer(lambda: Sandbox.kill(sandbox.sandbox_id, api_key=made["key"]))
    info = sandbox.get_info()
    last = info.started_at + datetime.timedelta(seconds=60)
    assert info.end_at <= last, "the default fits"
    eventually(lambda: datetime.datetime.now(datetime.timezone.utc) > info.started_at + datetime.timedelta(seconds=2), 10, "some time of the run")
    sandbox.set_timeout(60)
    assert abs((sandbox.get_info().end_at - last).total_seconds()) < 1
    with pytest.raises(SandboxException, match="60"):
        sandbox.set_timeout(61)
    sandbox.pause()
    Sandbox.connect(sandbox.sandbox_id, timeout=60, api_key=made["key"])
    assert sandbox.get_info().end_at > last, "a resume begins a new run"


# --- the asynchronous client ----------------------------------------------------


def test_the_asynchronous_client_does_all_of_it():
    async def life():
        sandbox = await AsyncSandbox.create(timeout=120, lifecycle={"on_timeout": "pause"})
        snapshot = None
        try:
            await sandbox.files.write("/home/user/note", "kept")
            assert await sandbox.pause() is True
            assert await sandbox.pause() is False
            assert (await sandbox.get_info()).state == SandboxState.PAUSED
            assert not await sandbox.is_running()
            again = await AsyncSandbox.connect(sandbox.sandbox_id, timeout=120)
            assert await again.files.read("/home/user/note") == "kept"
            forks = await again.fork(count=2, timeout=60)
            assert [await fork.files.read("/home/user/note") for fork in forks] == ["kept"] * 2
            assert all(await asyncio.gather(*(fork.kill() for fork in forks)))
            snapshot = await again.create_snapshot()
            copy = await AsyncSandbox.create(snapshot.snapshot_id, timeout=60)
            assert await copy.files.read("/home/user/note") == "kept"
            assert await copy.kill()
            assert snapshot.snapshot_id in [s.snapshot_id for s in await AsyncSandbox.list_snapshots(sandbox_id=sandbox.sandbox_id).next_items()]
            deadline = time.monotonic() + 20
            while not (points := await again.get_metrics()):
                assert time.monotonic() < deadline, "a point"
                await asyncio.sleep(0.1)
            assert points[0].mem_total > 0
        finally:
            if snapshot:
                assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id) is True
            assert await sandbox.kill() is True

    asyncio.run(life())
