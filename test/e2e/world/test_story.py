"""The story of examples/gate, as its README tells it: an agent needs a host that no rule
allows and a token that it must not have; a person approves, by the command line in
another process; the audit log shows every step.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from cli import as_json, tombolo
from people import Owner
from wait import eventually

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "gate"
TOKEN = "ghp_0nlyTheGatewayKnowsThis"
URL = "https://work.example/login"


def well(*arguments, **options):
    done = tombolo(*arguments, **options)
    assert done.returncode == 0, (arguments, done.stderr.decode())
    return done.stdout.decode()


@pytest.fixture
def prepared(server, world):
    """The rules and the secret, made as the README says, with the world's host."""
    world.names.records["work.example"] = ["203.0.113.70"]
    world.origin.logins.add(TOKEN)
    well("policy", "check", str(EXAMPLE / "rules.yaml"))
    well("policy", "apply", str(EXAMPLE / "rules.yaml"))
    well("secret", "set", "agent-token", "--host", "work.example", "--in", "authorization", stdin=TOKEN.encode())
    yield
    well("secret", "delete", "agent-token")
    Owner(server.data).rules()


@pytest.fixture
def agent(prepared):
    process = subprocess.Popen([sys.executable, EXAMPLE / "agent.py"], env=os.environ | {"AGENT_URL": URL},
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    yield process
    process.kill()
    process.wait()


def line(process, pattern):
    text = process.stdout.readline()
    found = re.fullmatch(pattern, text.strip())
    assert found, text + process.stdout.read()
    return found[1]


def test_an_agent_waits_for_a_person_and_finishes(agent, world):
    sandbox = line(agent, "sandbox (.*)")
    placeholder = line(agent, "token inside: (.*)")
    assert placeholder and TOKEN not in placeholder

    waiting, = eventually(lambda: [hold for hold in as_json("approvals", "list") if hold["subject"]["sandboxID"] == sandbox],
                          20, "what the agent asks for")
    assert waiting["action"]["host"] == "work.example" and waiting["rule"] == "default"
    assert agent.poll() is None and world.names.asked("work.example") == [] and world.origin.requests() == []

    well("approvals", "approve", waiting["id"], "--for", "sandbox", "--reason", "it is our own")
    rest, _ = agent.communicate(timeout=30)
    assert (agent.returncode, rest.strip()) == (0, "welcome"), rest
    request, = world.origin.requests("/login")
    assert request.header("authorization") == [f"Bearer {TOKEN}"]

    log = well("audit", "tail", "--json", "-n", "200", "--sandbox", sandbox)
    steps = [(record["kind"], record.get("decision", ""), record["what"]) for record in map(json.loads, log.splitlines())]
    for kind, decision in (("lifecycle", ""), ("exec", "allow"), ("approval", "ask"), ("approval", "allow"), ("network", "allow"), ("secret", "allow")):
        assert any(step[0] == kind and decision in ("", step[1]) for step in steps), (kind, decision, steps)
    assert TOKEN not in log
    assert "work.example" in log and "it is our own" in log
    well("audit", "verify")


def test_an_agent_that_is_denied_is_told_why(agent, world):
    sandbox = line(agent, "sandbox (.*)")
    waiting, = eventually(lambda: [hold for hold in as_json("approvals", "list") if hold["subject"]["sandboxID"] == sandbox],
                          20, "what the agent asks for")
    well("approvals", "deny", waiting["id"], "--reason", "not today")
    rest, _ = agent.communicate(timeout=30)
    assert agent.returncode != 0 and "not today" in rest
    assert world.names.asked("work.example") == [] and world.origin.requests() == []
