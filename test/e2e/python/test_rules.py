"""What rules say of callers: by the official client, and by the command line."""

import json

import httpx
import pytest
from e2b import Sandbox, SandboxException

from cli import tombolo
from people import Owner
from server import Server

NO_COPY = {"name": "no-copies", "kind": "snapshot", "decision": "deny", "reason": "copies are made elsewhere"}
SHORT = {"name": "short", "kind": "lifetime", "decision": "deny", "reason": "an hour is enough", "match": [{"longerThan": "1h"}]}
SMALL = {"name": "small", "kind": "resources", "decision": "deny", "reason": "too large", "match": [{"cpusOver": 1}]}
NO_EXEC = {"rules": [{"name": "no-root", "kind": "exec", "decision": "deny", "reason": "not as root", "match": [{"user": ["root"]}]}]}


@pytest.fixture(scope="module")
def gate(data):
    """A server of its own, since rules of a server are for all its sandboxes."""
    server = Server(data).start()
    server.people = Owner(data)
    yield server
    server.people.rules()
    server.kill_sandboxes()
    server.stop()


@pytest.fixture
def make(gate, request):
    def make(**options):
        sandbox = Sandbox.create(**gate.client_options(), **options)
        request.addfinalizer(sandbox.kill)
        return sandbox

    yield make
    gate.people.rules()


def refused(call, rule, reason):
    with pytest.raises(SandboxException) as error:
        call()
    said = str(error.value)
    assert "403" in said and rule in said and reason in said, said


def test_what_a_rule_forbids_is_refused_with_its_reason(gate, make):
    box = make(timeout=300)
    gate.people.rules(NO_COPY, SHORT, SMALL)
    logged = gate.log()
    refused(lambda: box.create_snapshot(), "no-copies", "copies are made elsewhere")
    refused(lambda: box.set_timeout(7200), "short", "an hour is enough")
    refused(lambda: make(timeout=300), "small", "too large")  # base has two processors
    gate.people.rules(SHORT)
    refused(lambda: make(timeout=7200), "short", "an hour is enough")
    box.set_timeout(600)
    assert make(timeout=600).is_running()
    assert "request failed" not in gate.log()[len(logged):], "what was refused is no failure of the server"


def test_a_sandbox_is_held_from_the_first_packet(gate, make):
    box = make(api_headers={
        "Tombolo-Rules": json.dumps(NO_EXEC),
        "Tombolo-Network": json.dumps({"bandwidthOut": 1 << 20, "connections": 20}),
    })
    assert box.commands.run("id -un").stdout == "user\n"
    with pytest.raises(Exception, match="no-root"):
        box.commands.run("id -un", user="root")
    assert gate.people.call("GET", f"/sandboxes/{box.sandbox_id}/rules")[1]["rules"][0]["name"] == "no-root"
    options = gate.people.network(box)["options"]
    assert (options["bandwidthOut"], options["connections"]) == (1 << 20, 20)
    box.update_network({"deny_out": ["192.0.2.0/24"]})
    options = gate.people.network(box)["options"]
    assert (options["bandwidthOut"], options["connections"], options["denyOut"]) == (1 << 20, 20, ["192.0.2.0/24"])


def test_rules_of_a_sandbox_open_nothing(gate, make):
    gate.people.rules(SHORT)
    opens = {"default": {"lifetime": "allow"}, "rules": [SHORT | {"decision": "allow"}]}
    refused(lambda: make(timeout=7200, api_headers={"Tombolo-Rules": json.dumps(opens)}), "short", "an hour is enough")
    gate.people.rules()
    refused(lambda: make(timeout=7200, api_headers={"Tombolo-Rules": json.dumps({"rules": [SHORT]})}), "short", "an hour is enough")


def test_rules_that_are_wrong_make_nothing(gate):
    headers = {"X-API-KEY": gate.client_options()["api_key"], "Tombolo-Rules": '{"rulez": []}'}
    answer = httpx.post(gate.url + "/v2/sandboxes", headers=headers, json={"templateID": "base"})
    assert answer.status_code == 400 and "rulez" in answer.text, answer.text


def test_files_of_volumes_are_read_as_rules_say(gate):
    with httpx.Client(base_url=gate.url, headers={"X-API-KEY": gate.client_options()["api_key"]}) as client:
        made = client.post("/volumes", json={"name": "rules"})
        assert made.status_code == 201, made.text
        volume = made.json()["volumeID"]
        try:
            client.headers["Authorization"] = f"Bearer {made.json()['token']}"
            for path in "/open", "/key":
                wrote = client.put(f"/volumecontent/{volume}/file", params={"path": path, "force": "true"}, content=b"x")
                assert wrote.status_code == 201, wrote.text
            gate.people.rules({"name": "no-keys", "kind": "file-out", "decision": "deny", "match": [{"file": ["/key"]}]})
            read = {path: client.get(f"/volumecontent/{volume}/file", params={"path": path}) for path in ("/open", "/key")}
            assert read["/open"].status_code == 200 and read["/open"].content == b"x"
            assert read["/key"].status_code == 403 and "no-keys" in read["/key"].text
        finally:
            gate.people.rules()
            client.delete(f"/volumes/{volume}")
    seen = tombolo("--data", str(gate.data), "audit", "export", "--kind", "file").stdout.decode()
    assert f'"actor":"volume:{volume}"' in seen and '"file":"/key"' in seen, seen


def test_rules_and_limits_on_the_command_line(gate, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules:\n  - name: no-root\n    kind: exec\n    decision: deny\n    match: [{user: [root]}]\n")
    run = tombolo("--data", str(gate.data), "sandbox", "create", "--rules", str(rules), "--bandwidth-out", "1MiB", "--connections", "20")
    assert run.returncode == 0, run.stderr
    box = Sandbox.connect(run.stdout.decode().strip(), **gate.client_options())
    with pytest.raises(Exception, match="no-root"):
        box.commands.run("id -un", user="root")
    options = gate.people.network(box)["options"]
    assert (options["bandwidthOut"], options["connections"]) == (1 << 20, 20)
    rules.write_text("server:\n  rules: []\n")
    run = tombolo("--data", str(gate.data), "sandbox", "create", "--rules", str(rules))
    assert run.returncode != 0 and b"server" in run.stderr, run.stderr
