"""What rules say to ask about waits for a person. Here people are tests: they look at
what waits and answer it, while code in a sandbox, or a caller, is held."""

import concurrent.futures
import json

import httpx
import pytest
from e2b import Sandbox

from inside import fetch, shell
from people import Owner
from wait import eventually

NETWORK = {"name": "new-places", "kind": "egress", "decision": "ask", "reason": "nobody has looked at this place yet",
           "except": [{"host": ["good.example"]}]}
DEPLOY = {"name": "deploys", "kind": "exec", "decision": "ask", "reason": "deploying is for two",
          "match": [{"command": ["*deploy*"]}]}


@pytest.fixture(scope="module")
def owner(server):
    """The rules of this file hold while it runs."""
    owner = Owner(server.data)
    owner.rules(NETWORK, DEPLOY)
    yield owner
    owner.rules()


@pytest.fixture(scope="module")
def asking(owner):
    """A sandbox that must ask; each test has hosts of its own, below ask.example."""
    with Sandbox.create(timeout=900) as sandbox:
        yield sandbox


@pytest.fixture
def later():
    """Runs calls beside the test."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        yield pool.submit


# --- connections ----------------------------------------------------------------


@pytest.mark.parametrize("scheme, port", [("http", 80), ("https", 443)])
def test_a_connection_is_held_until_a_person_approves(asking, owner, world, later, scheme, port):
    host = f"{scheme}.ask.example"
    answer = later(fetch, asking, f"{scheme}://{host}/")
    hold = owner.asked(asking, host)
    assert (hold["rule"], hold["reason"], hold["waiting"]) == ("new-places", NETWORK["reason"], 1)
    assert (hold["action"]["host"], hold["action"]["port"]) == (host, port)
    assert not answer.done()
    assert world.names.asked("ask.example") == [] and world.packets.seen(protocol="tcp") == [], "nothing is sent before"
    owner.approve(hold)
    assert answer.result(20) == (200, f"{host}\n")
    assert owner.hold(hold)["state"] == "approved"


def test_what_speaks_first_is_held_too(asking, owner, world, later):
    answer = later(shell, asking, "timeout 30 bash -c 'exec 3<>/dev/tcp/mail.ask.example/25; head -n 1 <&3'")
    owner.approve(owner.asked(asking, "mail.ask.example"))
    assert answer.result(20) == "220 here I am\r\n"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_denial_says_why_and_how_to_ask(asking, owner, world, later, scheme):
    host = f"denied-{scheme}.ask.example"
    answer = later(fetch, asking, f"{scheme}://{host}/")
    owner.deny(owner.asked(asking, host), "not this one")
    status, body = answer.result(20)
    assert status == 403
    said = json.loads(body)
    assert "not this one" in str(said) and "new-places" in str(said) and "req" in body or "apr_" in body, said
    assert world.names.asked("ask.example") == []


def test_equal_connections_are_one_question(asking, owner, world, later):
    answers = [later(fetch, asking, "http://many.ask.example/") for _ in range(5)]
    hold = eventually(lambda: next((h for h in owner.holds(asking) if h["waiting"] == 5), None), 20, "five that wait")
    assert len(owner.holds(asking)) == 1 and hold["count"] == 5
    owner.approve(hold, reach="sandbox")
    assert [answer.result(20)[0] for answer in answers] == [200] * 5


def test_once_is_once(asking, owner, world, later):
    first = later(fetch, asking, "http://once.ask.example/")
    owner.approve(owner.asked(asking, "once.ask"))
    assert first.result(20)[0] == 200
    second = later(fetch, asking, "http://once.ask.example/")
    hold = owner.asked(asking, "once.ask")
    assert not second.done()
    owner.deny(hold)
    assert second.result(20)[0] == 403


def test_for_the_sandbox_is_for_all_its_life_and_no_other(asking, owner, world, later, new_box):
    first = later(fetch, asking, "http://stays.ask.example/")
    owner.approve(owner.asked(asking, "stays.ask"), reach="sandbox")
    assert first.result(20)[0] == 200
    assert fetch(asking, "http://stays.ask.example/")[0] == 200
    other = new_box()
    waits = later(fetch, other, "http://stays.ask.example/")
    owner.deny(owner.asked(other, "stays.ask"))
    assert waits.result(20)[0] == 403


def test_a_wider_match_is_what_it_says(asking, owner, world, later):
    first = later(fetch, asking, "http://a.wide.ask.example/")
    owner.approve(owner.asked(asking, "wide.ask"), reach="sandbox", match={"host": ["*.wide.ask.example"], "port": ["80"]})
    assert first.result(20)[0] == 200
    assert fetch(asking, "http://b.wide.ask.example/")[0] == 200
    other = later(fetch, asking, "https://b.wide.ask.example/")
    owner.deny(owner.asked(asking, "b.wide.ask"))
    assert other.result(20)[0] == 403


def test_an_approval_lifts_no_denial(asking, owner, world, later):
    first = later(fetch, asking, "http://both.ask.example/")
    hold = owner.asked(asking, "both.ask")
    owner.rules(NETWORK, DEPLOY, {"name": "never", "kind": "egress", "decision": "deny", "match": [{"host": ["both.ask.example"]}]})
    try:
        owner.answer(hold, True, reach="sandbox")
        assert first.result(20)[0] != 200
        assert fetch(asking, "http://both.ask.example/")[0] != 200
        assert world.names.asked("both.ask") == []
    finally:
        owner.rules(NETWORK, DEPLOY)


# --- answers that must not count ----------------------------------------------------


def test_an_answer_to_one_question_is_none_to_another(asking, owner, world, later):
    calls = [later(fetch, asking, f"http://{name}.ask.example/") for name in ("seen", "unseen")]
    seen, unseen = owner.asked(asking, "'seen.ask"), owner.asked(asking, "unseen.ask")
    status, _ = owner.answer(unseen, True, hash=seen["hash"])
    assert status == 409 and owner.hold(unseen)["state"] == "pending"
    for hold in (seen, unseen):
        owner.deny(hold)
    assert [call.result(20)[0] for call in calls] == [403, 403]


def test_an_answer_is_given_once(asking, owner, world, later):
    call = later(fetch, asking, "http://replay.ask.example/")
    hold = owner.asked(asking, "replay.ask")
    owner.deny(hold)
    assert owner.answer(hold, True, reach="sandbox")[0] == 409
    assert call.result(20)[0] == 403


def test_a_denial_holds_for_a_moment_so_that_nobody_is_asked_over_and_over(asking, owner, world, later):
    call = later(fetch, asking, "http://insists.ask.example/")
    owner.deny(owner.asked(asking, "insists.ask"))
    assert call.result(20)[0] == 403
    assert fetch(asking, "http://insists.ask.example/")[0] == 403
    assert [hold for hold in owner.holds(asking) if "insists" in str(hold)] == []


def test_of_answers_at_once_one_counts(asking, owner, world, later, server):
    call = later(fetch, asking, "http://race.ask.example/")
    hold = owner.asked(asking, "race.ask")
    answers = [later(Owner(server.data).answer, hold, approve) for approve in [True, False] * 6]
    statuses = [answer.result(20)[0] for answer in answers]
    assert sorted(set(statuses)) == [200, 409] and statuses.count(200) == 1, statuses
    said = owner.hold(hold)
    assert said["answer"]["approve"] == (statuses.index(200) % 2 == 0)
    assert (call.result(20)[0] == 200) == said["answer"]["approve"]


def test_a_match_that_does_not_fit_is_refused(asking, owner, world, later):
    call = later(fetch, asking, "http://fit.ask.example/")
    hold = owner.asked(asking, "fit.ask")
    status, _ = owner.answer(hold, True, reach="sandbox", match={"host": ["evil.example"]})
    assert status == 400 and owner.hold(hold)["state"] == "pending"
    owner.deny(hold)
    assert call.result(20)[0] == 403


def test_the_key_that_asks_cannot_answer(asking, owner, world, later, server):
    call = later(fetch, asking, "http://self.ask.example/")
    hold = owner.asked(asking, "self.ask")
    key = {"X-API-KEY": server.environment()["E2B_API_KEY"]}
    answer = httpx.post(f"{server.url}/tombolo/v1/approvals/{hold['id']}/answer", headers=key, json={"approve": True, "hash": hold["hash"]})
    assert answer.status_code == 403, answer.text
    assert httpx.post(f"{server.url}/tombolo/v1/approvals/{hold['id']}/answer", json={"approve": True, "hash": hold["hash"]}).status_code == 401
    owner.deny(hold)
    assert call.result(20)[0] == 403


def test_code_inside_sees_why_it_waits_and_proposes_and_cannot_approve(asking, owner, world, later):
    call = later(fetch, asking, "http://inside.ask.example/", "-m", "35")
    hold = owner.asked(asking, "inside.ask")
    asks = "curl -sS -m 10 -H 'Accept: application/json' http://tombolo.internal/holds"
    assert hold["id"] in shell(asking, asks)
    proposal = json.dumps({"match": {"host": ["inside.ask.example"], "port": ["80"]}, "reason": "I need its page"})
    shell(asking, f"curl -sS -m 10 -d '{proposal}' http://tombolo.internal/holds/{hold['id']}/proposal")
    assert owner.hold(hold)["proposed"]["reason"] == "I need its page"
    answer = json.dumps({"approve": True, "hash": hold["hash"]})
    for path in (f"/holds/{hold['id']}/answer", f"/tombolo/v1/approvals/{hold['id']}/answer", f"/approvals/{hold['id']}/answer"):
        shell(asking, f"curl -sS -m 10 -d '{answer}' http://tombolo.internal{path}")
    assert owner.hold(hold)["state"] == "pending"
    owner.approve(hold)
    assert call.result(20)[0] == 200


# --- commands --------------------------------------------------------------------


def test_a_command_is_held_until_a_person_approves(asking, owner, later):
    ran = later(asking.commands.run, "echo deploy >>/tmp/deployed; cat /tmp/deployed")
    hold = owner.asked(asking, "deploy")
    assert hold["action"]["kind"] == "exec" and "echo deploy" in hold["action"]["command"]
    assert shell(asking, "ls /tmp/*ployed") .startswith("ls:"), "it runs before it is approved"
    owner.approve(hold)
    assert ran.result(20).stdout == "deploy\n"


def test_a_command_that_is_denied_does_not_run(asking, owner, later):
    ran = later(asking.commands.run, "touch /tmp/deploy-denied")
    owner.deny(owner.asked(asking, "deploy-denied"), "not on a Friday")
    with pytest.raises(Exception, match="not on a Friday"):
        ran.result(20)
    assert "No such file" in shell(asking, "ls /tmp/d*-denied") or shell(asking, "ls /tmp").find("deploy-denied") < 0


def test_another_command_is_another_question(asking, owner, later):
    first = later(asking.commands.run, "echo deploy one")
    owner.approve(owner.asked(asking, "deploy one"))
    assert first.result(20).stdout == "deploy one\n"
    second = later(asking.commands.run, "echo deploy one; true")
    owner.deny(owner.asked(asking, "deploy one; true"))
    with pytest.raises(Exception):
        second.result(20)


# --- ends ----------------------------------------------------------------------------


def test_who_goes_away_asks_no_more(asking, owner, world):
    shell(asking, "curl -sS -m 4 http://gone.ask.example/")
    hold = next(h for state in ("pending", "withdrawn", "expired") for h in owner.holds(asking, state) if "gone.ask" in str(h))
    assert eventually(lambda: owner.hold(hold)["waiting"] == 0, 10, "nobody waits") is True


def test_a_sandbox_that_ends_asks_no_more(owner, world, later, new_box):
    box = new_box()
    call = later(shell, box, "curl -sS http://ended.ask.example/")
    hold = owner.asked(box, "ended.ask")
    box.kill()
    eventually(lambda: owner.hold(hold)["state"] != "pending", 10, "the end of the question")
    assert owner.answer(hold, True)[0] == 409
    call.exception(20)
    assert world.names.asked("ended.ask") == []


def test_what_waits_outlives_a_crash_of_the_server(asking, owner, world, later, server):
    call = later(shell, asking, "curl -sS -m 60 http://crash.ask.example/")
    hold = owner.asked(asking, "crash.ask")
    server.kill()
    call.exception(30)
    server.start()
    after = Owner(server.data)
    assert after.hold(hold)["state"] == "pending"
    after.approve(after.hold(hold), reach="sandbox")
    assert fetch(asking, "http://crash.ask.example/") == (200, "crash.ask.example\n")


def test_what_nobody_answers_in_time_is_refused(asking, owner, world, server):
    flags, server.flags = server.flags, (*server.flags, "--approval-timeout", "1s")
    server.kill()
    server.start()
    try:
        status, body = fetch(asking, "http://late.ask.example/")
        assert status == 403 and "in time" in body
        assert Owner(server.data).holds(asking, "expired")[0]["action"]["host"] == "late.ask.example"
        assert world.names.asked("late.ask") == []
    finally:
        server.flags = flags
        server.kill()
        server.start()
