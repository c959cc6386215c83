#!/usr/bin/env python3
"""Measures a real server with the official Python client and prints medians,
each beside a baseline measured in the same run and against its target.

    .tombolo/clients/python/bin/python bench/run.py --data DIR [--json]

DIR is a data folder that has the default templates and no server on it. Times
of a shared machine wander; the ratios to the baselines travel better. The exit
status is 1 when a create/kill cycle leaves something behind, never for a time.
"""

import argparse
import concurrent.futures
import contextlib
import io
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test/e2e/python"))
os.environ.setdefault("TOMBOLO_BIN", str(ROOT / "bin/tombolo"))

from e2b_code_interpreter import Sandbox  # noqa: E402

from server import BINARY, Server, private_data_folder, traces  # noqa: E402

WARM, COLD = "code-interpreter-v1", "code-interpreter-cold"
MEGABYTE = 1_000_000
FILE_SIZE = 100 * MEGABYTE


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


# --- measures ----------------------------------------------------------------


def create_to_result(options, template, rounds, warm_up=1):
    """ms from create to the first result, and the kills' median in ms."""
    firsts, kills = [], []
    for i in range(rounds + warm_up):
        started = time.perf_counter()
        sandbox = Sandbox.create(template, **options)
        assert sandbox.run_code("21 * 2").text == "42"
        answered = time.perf_counter()
        sandbox.kill()
        killed = time.perf_counter()
        if i >= warm_up:
            firsts.append((answered - started) * 1000)
            kills.append((killed - answered) * 1000)
    return statistics.median(firsts), statistics.median(kills)


def live_calls(sandbox, rounds):
    """ms of run_code and of commands.run on a sandbox that is there."""
    code = milliseconds(lambda: sandbox.run_code("21 * 2"), rounds)
    command = milliseconds(lambda: sandbox.commands.run("true"), rounds)
    return code, command


def host_calls(rounds):
    """ms of the same two on the host: a new Python, a shell without profile."""
    code = milliseconds(lambda: subprocess.run([sys.executable, "-S", "-c", "21 * 2"], check=True), rounds)
    command = milliseconds(lambda: subprocess.run(["bash", "--noprofile", "--norc", "-c", "true"], check=True), rounds)
    return code, command


def file_speeds(sandbox, rounds):
    """MB/s of a 100 MB file up and down."""
    data = os.urandom(MEGABYTE) * (FILE_SIZE // MEGABYTE)

    def download():
        with sandbox.files.read("/home/user/bench", format="stream") as stream:
            assert sum(len(chunk) for chunk in stream) == FILE_SIZE

    up = milliseconds(lambda: sandbox.files.write("/home/user/bench", io.BytesIO(data)), rounds)
    down = milliseconds(download, rounds)
    return FILE_SIZE / MEGABYTE / (up / 1000), FILE_SIZE / MEGABYTE / (down / 1000)


def loopback_speed(rounds):
    """MB/s of the same bytes over one TCP connection on the host's loopback."""
    data = bytes(FILE_SIZE)

    def transfer():
        with socket.create_server(("127.0.0.1", 0)) as server:
            def send():
                with socket.create_connection(server.getsockname()) as peer:
                    peer.sendall(data)

            sender = threading.Thread(target=send)
            sender.start()
            with contextlib.closing(server.accept()[0]) as peer:
                while peer.recv(1 << 16):
                    pass
            sender.join()

    return FILE_SIZE / MEGABYTE / (milliseconds(transfer, rounds) / 1000)


def creates(options, count, at_once):
    """ms until `count` creates are done, so many of them at once."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        started = time.perf_counter()
        sandboxes = list(pool.map(lambda _: Sandbox.create(**options), range(count)))
        elapsed = (time.perf_counter() - started) * 1000
        list(pool.map(lambda sandbox: sandbox.kill(), sandboxes))
    return elapsed


def cycles_leave(server, count):
    """What `count` create/kill cycles leave: traces, sandbox folders, and how
    many more files the server has open."""
    options = server.client_options()
    Sandbox.create(**options).kill()
    files = server.open_files()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: Sandbox.create(**options).kill(), range(count)))
    deadline = time.monotonic() + 15
    while (left := sorted(traces(server.data))) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left, server.open_files() - files


# --- the run -----------------------------------------------------------------


def build_cold_template(data):
    """The same image without its snapshot, so that each sandbox boots it."""
    subprocess.run([BINARY, "template", "build", WARM, "--cold", "--name", COLD, "--data", str(data)], check=True, stdout=subprocess.DEVNULL)


def measure(data, cycles):
    """All rows, and what the cycles left."""
    build_cold_template(data)
    server = Server(data).start()
    try:
        options = server.client_options()
        warm, kill = create_to_result(options, WARM, rounds=15)
        cold, cold_kill = create_to_result(options, COLD, rounds=3, warm_up=0)
        with Sandbox.create(**options, timeout=600) as sandbox:
            code, command = live_calls(sandbox, rounds=60)
            up, down = file_speeds(sandbox, rounds=5)
        host_code, host_command = host_calls(rounds=20)
        loopback = loopback_speed(rounds=5)
        one_by_one, at_once = creates(options, 20, at_once=1), creates(options, 20, at_once=20)
        left, open_files = cycles_leave(server, cycles)
    finally:
        server.stop()

    rows = [
        Row("create to first run_code result", warm, "ms", cold, "cold boot and kernel start", 400),
        Row("run_code on a live sandbox", code, "ms", host_code, "python3 -c on the host", 25),
        Row('commands.run("true")', command, "ms", host_command, "bash -c true on the host", 20),
        Row("100 MB file up", up, "MB/s", loopback, "TCP on the host's loopback", 200, higher_is_better=True),
        Row("100 MB file down", down, "MB/s", loopback, "TCP on the host's loopback", 200, higher_is_better=True),
        Row("20 creates at once", at_once, "ms", one_by_one, "20 creates one by one"),
        Row("kill", kill, "ms", cold_kill, "kill of a cold-booted sandbox", 60),
    ]
    return rows, left, open_files


def show(rows, left, open_files, cycles):
    print(f"{'measure':33} {'median':>12} {'target':>9}   {'baseline':>12}  ratio  of")
    for row in rows:
        target = "" if row.target is None else f"{row.target:.0f} {'ok' if row.meets_target else 'no'}"
        print(f"{row.name:33} {row.value:7.1f} {row.unit:4} {target:>9}   {row.baseline:7.1f} {row.unit:4}  {row.ratio:5.2f}  {row.baseline_name}")
    print(f"{cycles} create/kill cycles left {len(left)} traces, {open_files:+d} open files in the server")
    for trace in left:
        print(f"  left: {trace}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="data folder with the default templates")
    parser.add_argument("--cycles", type=int, default=200, help="create/kill cycles of the leak check")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()

    with private_data_folder(arguments.data) as data:
        rows, left, open_files = measure(data, arguments.cycles)
    if arguments.json:
        print(json.dumps({"rows": [{**asdict(r), "ratio": r.ratio, "meets_target": r.meets_target} for r in rows],
                          "cycles": arguments.cycles, "left": left, "open_files": open_files}, indent=2))
    else:
        show(rows, left, open_files, arguments.cycles)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
