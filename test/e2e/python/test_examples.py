"""The programs of examples/ print what their README says, and leave no sandbox."""

import pathlib
import re
import subprocess
import sys

import pytest
from e2b import Sandbox

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".mjs"))


def promised(program):
    """What the README says a program prints."""
    for line in (EXAMPLES / "README.md").read_text().splitlines():
        if line.startswith("|") and f"`{program}`" in line:
            return re.search(r"`([^`]*)`", line.split("|")[3])[1] + "\n"
    raise AssertionError(f"examples/README.md does not speak of {program}")


def run(program):
    if program.endswith(".py"):
        return subprocess.run([sys.executable, EXAMPLES / program], capture_output=True, text=True, timeout=60)
    # From stdin, so that imports resolve in the folder that has the packages.
    return subprocess.run(
        ["node", "--input-type=module", "-"], cwd=ROOT / "test/e2e/js",
        input=(EXAMPLES / program).read_text(), capture_output=True, text=True, timeout=60,
    )


def sandboxes():
    return {sandbox.sandbox_id for sandbox in Sandbox.list().next_items()}


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_prints_what_the_readme_says(program):
    before = sandboxes()
    done = run(program)
    assert (done.returncode, done.stdout) == (0, promised(program)), done.stderr
    assert sandboxes() <= before
