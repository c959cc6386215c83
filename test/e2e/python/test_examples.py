"""The programs of examples/ do what their README says."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"


def test_python_quickstart_prints_42():
    run = subprocess.run([sys.executable, EXAMPLES / "quickstart.py"], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "42\n"), run.stderr


def test_javascript_quickstart_prints_42():
    # From stdin, so that imports resolve in the folder that has the packages.
    run = subprocess.run(
        ["node", "--input-type=module", "-"], cwd=ROOT / "test/e2e/js",
        input=(EXAMPLES / "quickstart.mjs").read_text(), capture_output=True, text=True, timeout=60,
    )
    assert (run.returncode, run.stdout) == (0, "42\n"), run.stderr
