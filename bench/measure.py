"""What all measures have in common."""

import os
import pathlib
import statistics
import sys
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test/e2e/python"))
os.environ.setdefault("TOMBOLO_BIN", str(ROOT / "bin/tombolo"))

PLAIN, WARM, COLD = "base", "code-interpreter-v1", "code-interpreter-cold"


@dataclass
class Row:
    """One measure. higher_is_better turns the ratio and the target around."""

    name: str
    value: float
    unit: str
    baseline: float
    baseline_name: str
    target: float | None = None
    higher_is_better: bool = False

    @property
    def ratio(self):
        return self.value / self.baseline if self.baseline else float("nan")

    @property
    def meets_target(self):
        if self.target is None:
            return None
        return self.value >= self.target if self.higher_is_better else self.value <= self.target


def milliseconds(act, rounds, warm_up=1):
    """Median time of act in ms; act's return value is ignored."""
    for _ in range(warm_up):
        act()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        act()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)
