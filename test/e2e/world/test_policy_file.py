"""Tricks with policy files and rules: each is refused whole, with the place named, and
what held before holds after."""

import pytest
from e2b import Sandbox

from cli import tombolo
from inside import reaches
from people import Owner

GOOD = """
server:
  default: {egress: deny}
  rules:
    - {name: good, kind: egress, decision: allow, match: [{host: [good.example]}]}
"""

TRICKS = {
    "a key twice, the second milder": "server:\n  default: {egress: deny}\n  default: {egress: allow}\n",
    "a key that nobody knows": "server:\n  defaults: {egress: allow}\n",
    "a rule field that nobody knows": "server:\n  rules:\n    - {name: a, kind: egress, decision: deny, hosts: [evil.example]}\n",
    "a match that does not belong to the kind": "server:\n  rules:\n    - {name: a, kind: exec, decision: deny, match: [{host: [evil.example]}]}\n",
    "an empty match value": "server:\n  rules:\n    - {name: a, kind: egress, decision: allow, match: [{host: []}]}\n",
    "an alias": "server: &all\n  default: {egress: allow}\nkeys:\n  default: *all\n",
    "a merge": "x: &x {egress: allow}\nserver:\n  default:\n    <<: *x\n",
    "a tag": "server: !!map {default: {egress: allow}}\n",
    "a second document": "server: {}\n---\nserver:\n  default: {egress: allow}\n",
    "a decision that is none": "server:\n  default: {egress: allowed}\n",
    "a decision that YAML reads as true": "server:\n  default: {egress: yes}\n",
    "a name twice in a table": "server:\n  rules:\n    - {name: a, kind: egress, decision: deny}\n    - {name: a, kind: egress, decision: allow}\n",
    "a host with a star within": "server:\n  rules:\n    - {name: a, kind: egress, decision: allow, match: [{host: ['ev*l.example']}]}\n",
    "a host with NUL": "server:\n  rules:\n    - {name: a, kind: egress, decision: allow, match: [{host: [\"evil\\0.good.example\"]}]}\n",
    "an example that the rule does not fit": "server:\n  rules:\n    - {name: a, kind: egress, decision: allow, match: [{host: [good.example]}], matches: [egress evil.example]}\n",
    "a counter-example that it fits": "server:\n  rules:\n    - {name: a, kind: egress, decision: allow, match: [{host: ['*']}], matches-not: [egress evil.example]}\n",
    "bytes that are no text": b"server: {default: {egress: \xff}}\n",
    "letters that look like others": "server:\n  default: {egreѕs: allow}\n",
    "brackets without end": "server: " + "[" * 5000,
    "a file without end": "# " + "x" * (2 << 20) + "\nserver: {}\n",
    "a key that is not there": "keys:\n  nobody-has-this:\n    default: {egress: allow}\n",
}


@pytest.fixture(scope="module")
def judged(server):
    """The good file holds, and nothing else."""
    assert tombolo("policy", "apply", "/dev/stdin", stdin=GOOD.encode()).returncode == 0
    yield server
    Owner(server.data).rules()


@pytest.fixture(scope="module")
def inmate(judged, server):
    with Sandbox.create(timeout=900) as sandbox:
        yield sandbox


def test_the_file_holds(inmate, world):
    assert reaches(inmate, "https://good.example/") and not reaches(inmate, "https://evil.example/")


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_is_refused_and_changes_nothing(judged, trick, tmp_path):
    file = tmp_path / "rules.yaml"
    text = TRICKS[trick]
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = tombolo("policy", "show").stdout
    refused = tombolo("policy", "apply", str(file))
    assert refused.returncode != 0 and refused.stderr and b"panic" not in refused.stderr
    assert tombolo("policy", "show").stdout == before


def test_after_all_tricks_the_file_holds_still(inmate, world):
    assert reaches(inmate, "https://good.example/") and not reaches(inmate, "https://evil.example/")


@pytest.mark.parametrize("narrower", [
    {"allow_out": ["0.0.0.0/0"]},
    {"allow_out": ["evil.example"], "deny_out": ["0.0.0.0/0"]},
    {"rules": {"evil.example": [{"transform": {"headers": {"X": "1"}}}]}, "allow_out": ["evil.example"], "deny_out": ["0.0.0.0/0"]},
])
def test_no_narrower_scope_allows_what_the_server_forbids(inmate, world, narrower):
    inmate.update_network(narrower)
    assert not reaches(inmate, "https://evil.example/")
    assert world.names.asked("evil") == []
    inmate.update_network({})
