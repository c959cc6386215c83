"""What may be reached, what is a secret and what was asked about holds: over pauses,
copies, crashes of the server and changes while it all runs.

The world of these tests is the public package registries. What a secret becomes is seen
by its being the form of a page that is asked for.
"""

import concurrent.futures
import json
import os
import socket
import time
import uuid

import httpx
import pytest
from e2b import ALL_TRAFFIC, BuildException, Sandbox, Secret, Template

from cli import as_json, tombolo
from inside import fetch, reaches, shell
from people import Owner
from server import Server, expect_nothing_left
from wait import eventually

PYPI, NPM, FILES = "https://pypi.org/simple/sampleproject/", "https://registry.npmjs.org/-/ping", "https://files.pythonhosted.org/"
WHEEL = FILES + "packages/8a/6a/19e9fe04fca059ccf770861c7d5721ab4c2aebc539889e97c7977528a53b/pip-24.0-py3-none-any.whl"  # 2 MiB
ONLY_PYPI = {"allow_out": ["pypi.org"], "deny_out": [ALL_TRAFFIC]}
ONLY_NPM = {"allow_out": ["registry.npmjs.org"], "deny_out": [ALL_TRAFFIC]}
NO_NPM = {"name": "no-npm", "kind": "egress", "decision": "deny", "reason": "npm is not for these tests",
          "match": [{"host": ["registry.npmjs.org"]}]}
ASK_NPM = {"name": "npm-first", "kind": "egress", "decision": "ask", "reason": "look at it first", "match": [{"host": ["registry.npmjs.org"]}]}

# How many sandboxes are made to see what is mixed up or left.
POOLED, LIVES = (int(os.environ.get("TOMBOLO_TEST_MANY", few)) for few in (10, 16))


class Gate(Server):
    """A server with rules, that is started again at the same address."""

    def __init__(self, data):
        with socket.create_server(("127.0.0.1", 0)) as probe, socket.create_server(("127.0.0.1", 0)) as other:
            address, self.metrics = (f"127.0.0.1:{s.getsockname()[1]}" for s in (probe, other))
        super().__init__(data, "--metrics-listen", self.metrics, listen=address)
        self.people = Owner(data)

    def crash(self):
        """Kills it, and starts it again."""
        self.kill()
        self.start()

    def rules(self, *rules, scope=None):
        """Puts these rules of a scope, the server's when none is named, in place of all."""
        tables = [{"scope": scope or {"kind": "server"}, "rules": list(rules)}] if rules else []
        status, body = self.people.call("PUT", "/policy", json={"tables": tables})
        assert status == 200, body

    def gauges(self):
        """What it measures, by name."""
        lines = httpx.get(f"http://{self.metrics}/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def command(self, *arguments, **options):
        return tombolo("--data", str(self.data), *arguments, **options)


@pytest.fixture(scope="module")
def running(data):
    server = Gate(data)
    server.start()
    yield server
    if not server.runs():
        server.start()
    server.kill_sandboxes()
    server.delete_templates()
    assert server.stop() == 0, server.log()[-3000:]


@pytest.fixture
def gate(running):
    """The server, with no rules but those the test makes."""
    yield running
    if not running.runs():
        running.start()
    running.rules()


@pytest.fixture
def box(gate, request):
    """Makes sandboxes, killed when the test ends."""

    def make(*template, **options):
        sandbox = Sandbox.create(*template, **gate.client_options(), **options)
        request.addfinalizer(sandbox.kill)
        return sandbox

    return make


@pytest.fixture
def secret(gate, request):
    """Makes secrets, deleted when the test ends."""

    def make(value, **options):
        made = Secret.create("t-" + uuid.uuid4().hex[:8], value, **api(gate), **options)
        request.addfinalizer(lambda: Secret.destroy(made.secret_id, **api(gate)))
        return made

    return make


@pytest.fixture
def later():
    """Runs calls beside the test, a few at a time."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        yield pool.submit


def api(gate):
    options = gate.client_options()
    del options["sandbox_url"]
    return options


def expect_only(sandbox, reached, refused):
    assert fetch(sandbox, refused)[0] in (0, 403), refused
    eventually(lambda: reaches(sandbox, reached), 30, reached)


def paused(sandbox, keep_memory):
    sandbox.pause(keep_memory=keep_memory)
    return sandbox.connect()


# --- network options ------------------------------------------------------------


def test_options_hold_over_pauses_forks_and_crashes(gate, box, request):
    first = box(network=ONLY_PYPI)
    offline = box(allow_internet_access=False)
    changed = box(network=ONLY_PYPI)
    changed.update_network(ONLY_NPM)

    def expect(first, changed, offline, what):
        expect_only(first, PYPI, NPM)
        expect_only(changed, NPM, PYPI)
        assert not reaches(offline, PYPI), what
        assert first.get_info().network["allow_out"] == ["pypi.org"]
        assert changed.get_info().network["allow_out"] == ["registry.npmjs.org"]

    expect(first, changed, offline, "made")
    gate.crash()
    expect(first, changed, offline, "crash")
    forks = []
    for sandbox in (first, changed, offline):
        copy, = sandbox.fork(timeout=300)
        request.addfinalizer(copy.kill)
        forks.append(copy)
    for sandbox in (first, changed, offline):
        sandbox.pause(keep_memory=sandbox is first)
    gate.crash()
    expect(*forks, "forked, and a crash")
    for sandbox in (first, changed, offline):
        sandbox.connect()
    expect(first, changed, offline, "paused over a crash")
    paused(changed, True)
    paused(first, False)
    expect(first, changed, offline, "paused")


def test_a_snapshot_carries_no_options(box, request):
    closed = box(network=ONLY_PYPI)
    snapshot = closed.create_snapshot()
    expect_only(closed, PYPI, NPM)
    opened = box(snapshot.snapshot_id)
    assert reaches(opened, NPM)
    assert not opened.get_info().network.get("allow_out")
    assert reaches(closed, PYPI) and not reaches(closed, NPM)


def test_headers_hold_over_pauses_and_crashes(gate, box):
    rule = {"transform": {"headers": {"Range": "bytes=0-9"}}}
    sandbox = box(network={"rules": {"files.pythonhosted.org": [rule]}})
    assert size(sandbox) == 10
    paused(sandbox, True)
    assert size(sandbox) == 10
    gate.crash()
    assert size(sandbox) == 10


def size(sandbox, *options):
    """(status, bytes) of what a part of the file is; the status alone when it is refused."""
    return int(shell(sandbox, f"curl -s --retry 2 -m 15 {' '.join(options)} {WHEEL} -o /tmp/part; stat -c %s /tmp/part; rm /tmp/part"))


def test_an_update_of_what_is_paused_holds_when_it_goes_on(gate, box):
    sandbox = box(network=ONLY_PYPI)
    sandbox.pause()
    sandbox.update_network(ONLY_NPM)
    gate.crash()
    sandbox.connect()
    expect_only(sandbox, NPM, PYPI)


def test_an_update_amid_pause_and_resume_holds(box, later):
    sandbox = box(network=ONLY_PYPI)
    for pause, resume in ((ONLY_NPM, ONLY_PYPI), (ONLY_PYPI, ONLY_NPM)):
        pausing = later(sandbox.pause)
        updates = [later(sandbox.update_network, pause) for _ in range(3)]
        assert pausing.result(30) is not False
        assert [u.result(30) for u in updates] == [None] * 3
        resuming = later(sandbox.connect)
        updates = [later(sandbox.update_network, resume) for _ in range(3)]
        resuming.result(30)
        assert [u.result(30) for u in updates] == [None] * 3
        expect_only(sandbox, *((PYPI, NPM) if resume is ONLY_PYPI else (NPM, PYPI)))


# Asks for one page after another on one connection, and says how many came. {} is the end.
KEPT = r'''
import http.client, sys, time
peer, pages = http.client.HTTPSConnection("pypi.org", timeout=30), 0
try:
    peer.connect()
    own = peer.sock
    while True:
        peer.request("HEAD", "/simple/sampleproject/")
        peer.getresponse().read()
        assert peer.sock is own, "another connection"
        pages += 1
        open("/tmp/pages", "w").write(str(pages))
        time.sleep(0.05)
except BaseException as error:
    open("/tmp/ended", "w").write(repr(error))
'''


def test_an_update_ends_what_it_forbids_and_nothing_else(box):
    everything = ["pypi.org", "files.pythonhosted.org", "registry.npmjs.org"]
    sandbox = box(network={"allow_out": everything, "deny_out": [ALL_TRAFFIC]})
    sandbox.files.write("/tmp/kept.py", KEPT)
    sandbox.commands.run("python3 /tmp/kept.py", background=True, timeout=0)
    slow = sandbox.commands.run(f"curl -sS --limit-rate 20k {WHEEL} -o /tmp/slow; echo ended $?", background=True, timeout=0)
    expect_more(sandbox, "/tmp/pages", "/tmp/slow")
    sandbox.update_network({"allow_out": everything[:2], "deny_out": [ALL_TRAFFIC]})
    expect_more(sandbox, "/tmp/pages", "/tmp/slow")
    sandbox.update_network({"allow_out": everything[1:2], "deny_out": [ALL_TRAFFIC]})
    eventually(lambda: sandbox.files.exists("/tmp/ended"), 10, "the end of the connection")
    expect_more(sandbox, "/tmp/slow")
    sandbox.update_network({"deny_out": [ALL_TRAFFIC]})
    assert "ended 0" not in slow.wait().stdout


def test_an_update_by_address_leaves_alone_what_was_never_looked_at(box):
    sandbox = box()
    slow = sandbox.commands.run(f"curl -sS --limit-rate 20k {WHEEL} -o /tmp/slow; echo ended $?", background=True, timeout=0)
    expect_more(sandbox, "/tmp/slow")
    sandbox.update_network({"deny_out": ["192.0.2.0/24"]})
    expect_more(sandbox, "/tmp/slow")
    sandbox.update_network(ONLY_PYPI)
    assert "ended 0" not in slow.wait().stdout


def expect_more(sandbox, *paths):
    """Waits until files have grown: the number in /tmp/pages, the size of another."""
    look = "for f in %s; do if [ $f = /tmp/pages ]; then cat $f; echo; else stat -c %%s $f; fi; done" % " ".join(paths)
    def numbers():
        found = shell(sandbox, f"{look} 2>/dev/null").split()
        return [int(n) for n in found] if len(found) == len(paths) else None
    before = eventually(numbers, 15, f"{paths}")
    eventually(lambda: all(now > was for now, was in zip(numbers() or before, before)), 15, f"more in {paths}")


# --- rules ----------------------------------------------------------------------


def test_rules_of_every_scope_hold_at_once_and_after_a_crash(gate, box, tmp_path):
    sandbox, base = box(), next(t for t in as_json("template", "list", "--data", str(gate.data)) if t.get("name") == "base")
    key = next(k for k in as_json("key", "list", "--data", str(gate.data)) if k["name"] == "default")
    for scope in ({"kind": "server"}, {"kind": "key", "id": key["id"]}, {"kind": "template", "id": base["id"]}):
        gate.rules(NO_NPM, scope=scope)
        status, body = fetch(sandbox, NPM)
        assert status == 403 and NO_NPM["reason"] in body, scope
        assert reaches(sandbox, PYPI)
        gate.crash()
        assert fetch(sandbox, NPM)[0] == 403, scope
        gate.rules()
        assert reaches(sandbox, NPM), scope
    gate.people.call("PUT", f"/sandboxes/{sandbox.sandbox_id}/rules", json={"rules": [NO_NPM]})
    assert fetch(sandbox, NPM)[0] == 403
    gate.crash()
    assert fetch(sandbox, NPM)[0] == 403
    assert fetch(paused(sandbox, True), NPM)[0] == 403
    assert reaches(box(), NPM)

    policy = tmp_path / "rules.yaml"
    policy.write_text("server: {rules: [{name: no-npm, kind: egress, decision: deny, match: [{host: [registry.npmjs.org]}]}]}\n")
    other = box()
    assert gate.command("policy", "apply", str(policy)).returncode == 0
    assert fetch(other, NPM)[0] == 403


# Tries again and again, and writes down what came of it.
TRIES = "while :; do curl -s -m 5 -o /dev/null -w '%{http_code}\\n' " + NPM + " >>/tmp/tries && sleep 0.2; done"


def test_sandboxes_of_the_pool_have_their_own_options_from_the_first_packet(box, later):
    trying = box(network=ONLY_PYPI)
    trying.commands.run(TRIES, background=True, timeout=0)
    eventually(lambda: trying.files.exists("/tmp/tries"), 15, "the first try")
    snapshot = trying.create_snapshot().snapshot_id
    trying.kill()

    def start(i):
        open = bool(i % 2)
        sandbox = box(snapshot, network=None if open else ONLY_PYPI)
        before = len(sandbox.files.read("/tmp/tries").split())
        done = lambda tries: "200" in tries if open else len(tries) > before + 3
        eventually(lambda: done(sandbox.files.read("/tmp/tries").split()), 40, f"tries in {i}")
        tries = sandbox.files.read("/tmp/tries").split()
        sandbox.kill()
        return open or "200" not in tries

    assert [f.result(110) for f in [later(start, i) for i in range(POOLED)]] == [True] * POOLED


def test_a_build_is_under_the_rules_of_its_key(gate):
    key = next(k for k in as_json("key", "list", "--data", str(gate.data)) if k["name"] == "default")
    gate.rules(NO_NPM, scope={"kind": "key", "id": key["id"]})
    logged = []
    with pytest.raises(BuildException) as failed:
        template = Template().from_template("base").run_cmd(f"curl -sS --fail-with-body {NPM}")
        Template.build(template, "refused-" + uuid.uuid4().hex[:8], on_build_logs=lambda e: logged.append(e.message), **api(gate))
    assert NO_NPM["reason"] in str(failed.value) + "\n".join(logged)


def test_run_is_under_the_rules_with_and_without_a_server(gate):
    gate.rules(NO_NPM)
    curl = ["curl", "-sS", "--retry", "2", "-m", "15", "-w", "\n%{http_code}"]
    for serves in (True, False):
        if not serves:
            gate.stop()
        run = gate.command("run", "--", *curl, NPM)
        assert run.stdout.endswith(b"\n403") and NO_NPM["reason"].encode() in run.stdout, run
        run = gate.command("run", "--", *curl, "-o", "/dev/null", PYPI)
        assert run.stdout.endswith(b"\n200"), run


# --- holds ----------------------------------------------------------------------


def test_a_hold_outlives_the_server(gate, box, later):
    gate.rules(ASK_NPM)
    sandbox = box()
    sandbox.commands.run(f"curl -sS -m 100 {NPM} -o /tmp/page", background=True, timeout=0)
    hold = gate.people.asked(sandbox, "npmjs")
    gate.crash()
    assert [h["id"] for h in gate.people.holds(sandbox)] == [hold["id"]]
    gate.people.approve(hold, reach="sandbox")
    assert reaches(sandbox, NPM) and gate.people.holds(sandbox) == []
    gate.crash()
    assert reaches(sandbox, NPM) and gate.people.holds(sandbox) == []


def test_a_hold_outlives_a_pause_and_ends_with_the_sandbox(gate, box):
    gate.rules(ASK_NPM)
    sandbox = box()
    command = sandbox.commands.run(f"curl -sS -m 100 {NPM}; echo ended $?", background=True, timeout=0)
    hold = gate.people.asked(sandbox, "npmjs")
    paused(sandbox, True)
    assert [h["id"] for h in gate.people.holds(sandbox)] == [hold["id"]]
    eventually(lambda: gate.people.holds(sandbox)[0]["waiting"] == 0, 10, "nobody waits")
    eventually(lambda: shell(sandbox, "pgrep curl") == "", 10, "its connection has ended")
    gate.people.approve(hold)
    assert reaches(sandbox, NPM), "what nobody waits for is for the next"
    sandbox.commands.run(f"curl -sS -m 100 {NPM}", background=True, timeout=0)
    hold = gate.people.asked(sandbox, "npmjs")
    sandbox.kill()
    assert gate.people.holds(sandbox) == []
    status, answer = gate.people.call("GET", f"/approvals/{hold['id']}")
    assert status == 404 or answer["state"] == "withdrawn"


def test_a_hold_that_nobody_answers_ends_readably(gate, box):
    gate.rules(ASK_NPM)
    gate.stop()
    impatient = Server(gate.data, "--approval-timeout", "1s", listen=gate.listen).start()
    try:
        status, body = fetch(box(), NPM)
    finally:
        impatient.stop()
        gate.start()
    assert status == 403 and "nobody answered in time" in body and "npm-first" in body


# --- secrets --------------------------------------------------------------------

BOUND = {"tombolo.hosts": "pypi.org", "tombolo.in": "Accept"}
AS_JSON, AS_HTML = "application/vnd.pypi.simple.v1+json", "text/html"


def is_json(sandbox, *options):
    """Whether the page is sent as JSON, which only AS_JSON asks for."""
    page = shell(sandbox, f"curl -s --retry 2 -m 15 {' '.join(options)} {PYPI}")
    assert "sampleproject" in page, page
    return page.startswith("{")


def test_a_secret_outlives_pauses_copies_and_crashes(gate, box, secret, request):
    key = secret(AS_JSON, metadata=BOUND)
    sandbox = box(envs={"FORM": Secret.fill(key.name)})
    copy, = sandbox.fork(timeout=300)
    request.addfinalizer(copy.kill)
    placeholder = shell(sandbox, "echo $FORM").strip()
    use = ["-H", '"Accept: $FORM"']
    steps = [lambda: None, lambda: paused(sandbox, True), gate.crash, lambda: Secret.update(key.name, AS_HTML, **api(gate)),
             lambda: paused(sandbox, False)]
    for step, want in zip(steps, [True, True, True, False, False]):
        step()
        for each in (sandbox, copy):
            assert shell(each, "echo $FORM").strip() == placeholder
            assert is_json(each, *use) == want
    # The command line is another process.
    assert gate.command("secret", "set", key.name, stdin=AS_JSON.encode() + b"\n").returncode == 0
    eventually(lambda: is_json(sandbox, *use), 20, "the value of the command line")
    shown = as_json("secret", "show", key.name, "--data", str(gate.data))
    assert shown["version"] == 3
    sandbox.pause()
    Secret.destroy(key.name, **api(gate))
    sandbox.connect()
    assert shell(sandbox, "echo $FORM").strip() == placeholder
    assert not is_json(sandbox, *use), "the placeholder is sent, which is no form"


def test_headers_with_a_secret_that_is_gone_are_refused(gate, box, secret):
    key = secret(AS_JSON)
    sandbox = box(network={"rules": {"pypi.org": [{"transform": {"headers": {"Accept": Secret.fill(key.name)}}}]}})
    assert is_json(sandbox)
    Secret.update(key.name, AS_HTML, **api(gate))
    assert not is_json(paused(sandbox, True))
    Secret.destroy(key.name, **api(gate))
    status, body = fetch(sandbox, PYPI)
    assert status == 403 and key.name in body


# --- the record -----------------------------------------------------------------


def test_the_record_is_one_chain_over_crashes_and_processes(gate, box, later):
    gate.rules(NO_NPM)
    sandbox = box()
    sandbox.commands.run(TRIES, background=True, timeout=0)
    before = head(gate)
    calls = [later(sandbox.commands.run, f"echo {i}") for i in range(30)]
    beside = [later(gate.command, "secret", "set", f"t-chain-{i}", stdin=b"12345678\n") for i in range(3)]
    eventually(lambda: head(gate) > before + 20, 40, "records")
    gate.crash()
    concurrent.futures.wait(calls + beside)
    assert [b.result().returncode for b in beside] == [0] * 3
    at_crash = head(gate)
    shell(sandbox, "true")
    eventually(lambda: head(gate) > at_crash, 10, "more records")
    for i in range(3):
        gate.command("secret", "delete", f"t-chain-{i}")
    checked = gate.command("audit", "verify")
    assert checked.returncode == 0, checked.stdout


def head(gate):
    status, body = gate.people.call("GET", "/audit/head")
    assert status == 200
    return body["seq"]


# --- what is left ---------------------------------------------------------------


def test_nothing_is_left_of_sandboxes_that_had_it_all(gate, secret, later):
    gate.rules(ASK_NPM, {"name": "deploys", "kind": "exec", "decision": "ask", "match": [{"command": ["*deploy*"]}]})
    key = secret(AS_JSON, metadata=BOUND)

    def life(i):
        sandbox = Sandbox.create(**gate.client_options(), envs={"FORM": Secret.fill(key.name)}, network=ONLY_NPM)
        gate.people.call("PUT", f"/sandboxes/{sandbox.sandbox_id}/rules", json={"rules": [NO_NPM | {"match": [{"host": ["pypi.org"]}]}]})
        sandbox.commands.run(f"curl -s -m 60 {PYPI}; curl -s -m 60 {NPM}", background=True)
        hold = gate.people.asked(sandbox, "npmjs")
        if i % 2:
            gate.people.approve(hold, reach="sandbox")
        with concurrent.futures.ThreadPoolExecutor() as beside:
            held = beside.submit(sandbox.commands.run, "deploy")
            gate.people.asked(sandbox, "deploy")
            sandbox.kill()
            assert held.exception(30)
        return sandbox.sandbox_id

    concurrent.futures.wait([later(life, i) for i in range(4)])
    quiet = lambda: {name: gate.gauges()[name] for name in ("go_goroutines", "process_open_fds")}
    before = quiet()
    ids = [f.result(60) for f in [later(life, i) for i in range(LIVES)]]
    assert gate.people.call("GET", "/approvals", params={"state": "pending"}) == (200, [])
    _, grants = gate.people.call("GET", "/grants")
    assert [g for g in grants if any(i in json.dumps(g) for i in ids)] == []
    eventually(lambda: gate.gauges()["tombolo_guard_sandboxes"] == 0, 20, "no sandbox is kept in mind")
    eventually(lambda: gate.gauges()["tombolo_guard_networks"] <= 4, 20, "no networks but those of the pool")
    eventually(lambda: all(quiet()[name] <= before[name] + 10 for name in before), 20, f"no more than {before}")
    expect_nothing_left(gate.data)
