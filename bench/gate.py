"""Measures what the gates cost that every action passes: rules, records, and the
recording of programs. Whole, by the client, and the judging alone, by Go's benchmarks."""

import re
import statistics
import subprocess
import time

import httpx
from e2b_code_interpreter import Sandbox

from measure import ROOT, WARM, Row
from server import Server

RULES = 100


def costs(data):
    """Rows of a create and a command: programs not recorded, recorded, and with rules for
    commands as well. Two servers take turns, so that all meet the same noise."""
    quiet = {"create": [], "run": []}
    recorded, ruled = {"create": [], "run": []}, {"run": []}
    for turn in range(3):
        for flag, kept in ("--audit-processes=false", quiet), ("--audit-processes=true", recorded):
            server = Server(data, flag, "--on-stop", "end").start()
            try:
                options = server.client_options()
                for _ in range(4):
                    kept["create"].append(first_result(options))
                kept["create"].pop(-4)  # the first of a server finds nothing ready
                with Sandbox.create(WARM, timeout=600, **options) as sandbox:
                    kept["run"] += runs(sandbox)
                    if kept is recorded:
                        with rules(data):
                            ruled["run"] += runs(sandbox)
            finally:
                server.kill_sandboxes()
                server.stop()
    create, run, gated = (statistics.median(times) for times in (recorded["create"], recorded["run"], ruled["run"]))
    return [
        Row("create to result, recorded", create, "ms", statistics.median(quiet["create"]), "the same, programs not recorded"),
        Row("commands.run, recorded", run, "ms", statistics.median(quiet["run"]), "the same, programs not recorded"),
        Row(f"commands.run, {RULES} exec rules", gated, "ms", run, "the same without rules"),
    ]


def first_result(options):
    started = time.perf_counter()
    sandbox = Sandbox.create(WARM, **options)
    assert sandbox.run_code("21 * 2").text == "42"
    took = (time.perf_counter() - started) * 1000
    sandbox.kill()
    return took


def runs(sandbox, rounds=30):
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        sandbox.commands.run("true")
        times.append((time.perf_counter() - started) * 1000)
    return times[1:]


class rules:
    """While it lasts the server has rules for commands, none of which fits."""

    def __init__(self, data):
        self._owner = httpx.Client(transport=httpx.HTTPTransport(uds=str(data / "control.sock")), base_url="http://owner/tombolo/v1")

    def __enter__(self):
        self._put([{"name": f"r{i}", "kind": "exec", "decision": "deny", "match": [{"command": [f"*forbidden{i} *"]}]} for i in range(RULES)])

    def __exit__(self, *_):
        self._put([])
        self._owner.close()

    def _put(self, rules):
        tables = [{"scope": {"kind": "server"}, "rules": rules}] if rules else []
        self._owner.put("/policy", json={"tables": tables}).raise_for_status()


# --- judging alone ----------------------------------------------------------------


def judging():
    """Rows of what the server itself does, µs."""
    took = benchmarks("policy", "BenchmarkJudgeRules") | benchmarks("guard", "BenchmarkDecide|BenchmarkAdmit") | benchmarks("audit", "BenchmarkAppend|BenchmarkAppendPlain")
    return [
        Row("rules judged, 100", took["JudgeRules/100"], "µs", took["JudgeRules/1"], "one rule"),
        Row("decision, with its record", took["Decide/recorded"], "µs", took["Decide/unrecorded"], "the decision, records dropped"),
        Row("decision on a command", took["Admit/ruled"], "µs", took["Admit/free"], "the same without rules"),
        Row("record appended", took["Append"], "µs", took["AppendPlain"], "its line written to a file, no hash"),
    ]


def benchmarks(package, pattern):
    """µs of the benchmarks of a package, by name."""
    done = subprocess.run(["go", "test", "-run", "^$", "-bench", f"^({pattern})$", "-benchtime", "0.5s", f"./internal/{package}"],
                          cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    return {name: float(ns) / 1000 for name, ns in re.findall(r"^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op", done.stdout, re.M)}
