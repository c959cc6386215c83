"""The command line of Tombolo, run on the data folder of the tests."""

import json
import os
import subprocess


def tombolo(*arguments, stdin=None, timeout=60):
    """Runs `tombolo ARGUMENTS` and returns the finished process, output as
    bytes. The data folder goes by the environment, as TOMBOLO_DATA."""
    return subprocess.run([os.environ["TOMBOLO_BIN"], *arguments], input=stdin, capture_output=True, timeout=timeout)


def as_json(*arguments):
    """Runs it with --json and returns what it printed, decoded."""
    run = tombolo(*arguments, "--json")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
