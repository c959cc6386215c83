"""The command line, against the running server and its data folder."""

import os
import re
import subprocess
import time

import pytest
from e2b import Sandbox

from cli import as_json, tombolo
from wait import eventually


# --- run ---------------------------------------------------------------------


def test_run_prints_what_the_command_prints():
    run = tombolo("run", "--", "python3", "-c", "print(42)")
    assert (run.returncode, run.stdout) == (0, b"42\n"), run.stderr


def test_run_passes_all_three_streams_and_the_exit_code():
    run = tombolo("run", "--", "sh", "-c", "cat; echo problem >&2; exit 7", stdin=b"from outside\n")
    assert (run.returncode, run.stdout, run.stderr) == (7, b"from outside\n", b"problem\n")


def test_run_passes_bytes_unchanged():
    data = bytes(range(256)) * 4000
    run = tombolo("run", "--", "cat", stdin=data)
    assert run.stdout == data


def test_run_keeps_the_arguments_apart():
    run = tombolo("run", "--", "printf", "[%s]", "a b", "$HOME", "'q'", "")
    assert run.stdout == b"[a b][$HOME]['q'][]"


ASKS = ["sh", "-c",
        "for url in https://pypi.org/ https://registry.npmjs.org/-/ping; do curl -sS --retry 2 -m 15 -o /dev/null -w '%{http_code} ' $url 2>/dev/null; done"]


@pytest.mark.parametrize("flags, answers", [
    ([], "200 200"),
    (["--allow", "pypi.org"], "200 403"),
    (["--allow", "pypi.org", "--allow", "*.npmjs.org"], "200 200"),
    (["--deny", "192.0.2.0/24"], "200 200"),
    (["--deny", "0.0.0.0/0"], "refused refused"),
    (["--offline"], "refused refused"),
])
def test_run_reaches_what_the_flags_say(flags, answers):
    run = tombolo("run", *flags, "--", *ASKS)
    for got, want in zip(run.stdout.decode().split(), answers.split(), strict=True):
        assert got == want or want == "refused" and not got.startswith("200"), run


@pytest.mark.parametrize("flags", [["--offline", "--allow", "pypi.org"], ["--allow", "pypi.org", "--deny", "192.0.2.1"], ["--deny", "pypi.org"]])
def test_flags_that_say_nothing_clear_are_refused(flags):
    for command in (["run"], ["sandbox", "create"]):
        refused = tombolo(*command, *flags, *(["--", "true"] if command == ["run"] else []))
        assert refused.returncode != 0 and flags[0].strip("-").encode() in refused.stderr, refused


def test_a_sandbox_is_made_with_what_it_may_reach():
    made = tombolo("sandbox", "create", "--allow", "pypi.org").stdout.decode().strip()
    sandbox = Sandbox.connect(made)
    try:
        assert sandbox.get_info().network["allow_out"] == ["pypi.org"]
        assert tombolo("sandbox", "exec", made, "--", *ASKS).stdout.split() == [b"200", b"403"]
    finally:
        sandbox.kill()


def test_run_leaves_no_sandbox():
    before = {sandbox["id"] for sandbox in as_json("sandbox", "list")}
    tombolo("run", "--", "true")
    assert {sandbox["id"] for sandbox in as_json("sandbox", "list")} <= before


def test_run_of_a_missing_program_says_so():
    run = tombolo("run", "--", "no-such-program")
    assert run.returncode == 127 and b"no-such-program" in run.stderr


def test_run_in_an_unknown_template_says_so():
    run = tombolo("run", "--template", "no-such-template", "--", "true")
    assert run.returncode not in (0, 127) and b"no-such-template" in run.stderr


def test_run_ends_at_its_timeout():
    started = time.monotonic()
    run = tombolo("run", "--timeout", "3s", "--", "sleep", "60")
    assert run.returncode != 0 and time.monotonic() - started < 20
    assert run.stderr


# --- sandbox -----------------------------------------------------------------


@pytest.fixture
def created(request):
    sandbox = as_json("sandbox", "create", "--template", "base")
    request.addfinalizer(lambda: tombolo("sandbox", "kill", sandbox["id"]))
    return sandbox["id"]


def test_create_list_exec_kill(created):
    assert created in [sandbox["id"] for sandbox in as_json("sandbox", "list")]
    assert created.encode() in tombolo("sandbox", "list").stdout
    run = tombolo("sandbox", "exec", created, "--", "sh", "-c", "cat; exit 3", stdin=b"piped")
    assert (run.returncode, run.stdout) == (3, b"piped")
    assert Sandbox.connect(created).commands.run("echo same").stdout == "same\n"
    assert tombolo("sandbox", "kill", created).returncode == 0
    assert created not in [sandbox["id"] for sandbox in as_json("sandbox", "list")]
    ended, = [sandbox for sandbox in as_json("sandbox", "list", "--all") if sandbox["id"] == created]
    assert ended["reason"], "the list of all tells why a sandbox ended"


def test_lists_show_no_tokens(created):
    for listed in (tombolo("sandbox", "list", "--json"), tombolo("sandbox", "list", "--all", "--json")):
        assert Sandbox.connect(created)._envd_access_token.encode() not in listed.stdout


def test_logs_tell_the_life_of_a_sandbox(created):
    logs = as_json("sandbox", "logs", created)
    assert logs, "a sandbox has at least the line of its start"


@pytest.mark.parametrize("action", [("exec", "iaaaaaaaaaaaaaaaaaaaa", "--", "true"), ("kill", "iaaaaaaaaaaaaaaaaaaaa"), ("logs", "iaaaaaaaaaaaaaaaaaaaa")], ids=lambda a: a[0])
def test_an_unknown_sandbox_is_named_in_the_error(action):
    run = tombolo("sandbox", *action)
    assert run.returncode != 0 and b"iaaaaaaaaaaaaaaaaaaaa" in run.stderr


# --- template, key, doctor, version, env -------------------------------------


def test_the_default_templates_are_there():
    assert {"base", "code-interpreter-v1"} <= {template.get("name") for template in as_json("template", "list")}


def test_a_key_lives_from_create_to_delete():
    made = as_json("key", "create", "for-the-test")
    assert re.fullmatch(r"e2b_[0-9a-f]{40}", made["key"])
    assert made["id"] in [key["id"] for key in as_json("key", "list")]
    assert made["key"].encode() not in tombolo("key", "list", "--json").stdout, "a list never shows secrets"
    Sandbox.create(api_key=made["key"]).kill()
    assert tombolo("key", "delete", made["id"]).returncode == 0
    assert made["id"] not in [key["id"] for key in as_json("key", "list")]

    def refused():
        try:
            Sandbox.create(api_key=made["key"]).kill()
        except Exception as failure:
            return "401" in str(failure)

    eventually(refused, 5, "a deleted key is refused")


def test_doctor_finds_this_machine_fit():
    run = tombolo("doctor")
    assert run.returncode == 0, run.stdout + run.stderr
    checks = as_json("doctor")
    assert checks, "doctor lists what it looked at"


def test_version_names_the_program_and_its_engine():
    run = tombolo("version")
    assert run.returncode == 0 and [line.split()[0] for line in run.stdout.splitlines()] == [b"tombolo", b"engine"]
    assert set(as_json("version")) == {"version", "engine"}


def test_env_exports_what_the_clients_need():
    out = tombolo("env").stdout.decode()
    shown = subprocess.run(["sh", "-c", f"{out}\necho $E2B_API_KEY $E2B_API_URL $E2B_SANDBOX_URL"], capture_output=True, text=True).stdout.split()
    assert shown == [os.environ["E2B_API_KEY"], os.environ["E2B_API_URL"], os.environ["E2B_SANDBOX_URL"]]


@pytest.mark.parametrize("arguments", [["no-such-command"], ["sandbox", "fly"], ["serve", "--no-such-flag"], ["run"]], ids=" ".join)
def test_a_wrong_call_explains_itself(arguments):
    run = tombolo(*arguments)
    assert run.returncode != 0 and run.stderr
