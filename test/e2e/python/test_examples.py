"""The programs of examples/ print what their README says, and leave no sandbox."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import httpx
import pytest
from e2b import Sandbox, Volume

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".mjs"))


def promised(program):
    """What the README says a program prints."""
    for line in (EXAMPLES / "README.md").read_text().splitlines():
        if line.startswith("|") and f"`{program}`" in line:
            return re.search(r"`([^`]*)`", line.split("|")[3])[1] + "\n"
    raise AssertionError(f"examples/README.md does not speak of {program}")


@pytest.fixture
def folder(tmp_path):
    """The examples, beside the packages that JavaScript programs import."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (tmp_path / "node_modules").symlink_to(ROOT / "test/e2e/js/node_modules")
    return tmp_path / "examples"


@pytest.fixture
def no_template_stays():
    """Deletes the templates that programs make."""
    yield
    for name in re.findall(r"`(example-[a-z-]+)`", (EXAMPLES / "README.md").read_text()):
        httpx.delete(f"{os.environ['E2B_API_URL']}/templates/{name}", headers={"X-API-KEY": os.environ["E2B_API_KEY"]})


def run(path):
    program = sys.executable if path.suffix == ".py" else "node"
    return subprocess.run([program, path], capture_output=True, text=True, timeout=60)


def there():
    """What programs are to leave as it was."""
    return {sandbox.sandbox_id for sandbox in Sandbox.list().next_items()}, {volume.volume_id for volume in Volume.list()}


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_prints_what_the_readme_says(program, folder, no_template_stays):
    before = there()
    done = run(folder / program)
    assert (done.returncode, done.stdout) == (0, promised(program)), done.stderr
    assert all(after <= whole for after, whole in zip(there(), before))
