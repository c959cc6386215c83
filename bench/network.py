"""Measures what the network of a sandbox costs, each beside the same program on the
host. run.py starts it in a network and a mount namespace of its own, since sandboxes
reach public addresses only: here all of them lead to peer.py.

    unshare --net --mount .tombolo/clients/world/bin/python bench/network.py DATA

DATA is a data folder of its own; the rows come out as JSON.
"""

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict

from measure import PLAIN, ROOT, Row

sys.path.insert(0, str(ROOT / "test/e2e/world"))

import link  # noqa: E402
from e2b import Sandbox  # noqa: E402
from server import Server  # noqa: E402

PROBE, PEER = ROOT / "bench/probe.py", ROOT / "bench/peer.py"
RESOLVER, ADDRESS = "203.0.113.53", "203.0.113.1"
NAMES = {"allow_out": ["*.bench.example"], "deny_out": ["0.0.0.0/0"],
         "rules": {"ended.bench.example": [{"transform": {"headers": {"X-Bench": "1"}}}]}}
SIZE, TLS_SIZE = 384 << 20, 96 << 20
GIGABIT = 1e9 / 8
MANY = 2000
TICK = os.sysconf("SC_CLK_TCK")


# --- the world ------------------------------------------------------------------


class World:
    """peer.py in a namespace that every address leads to."""

    def __init__(self, folder):
        self.folder = folder
        self.bundle = folder / "authority/authority.pem"
        self._ready, self._failed = threading.Event(), None

    def __enter__(self):
        thread = threading.Thread(target=self._live, daemon=True)
        thread.start()
        self._ready.wait(20)
        if self._failed or not self._ready.is_set():
            raise RuntimeError("the peer does not start") from self._failed
        link.join_world()
        link.use_resolver(RESOLVER, self.folder)
        os.environ |= {"TOMBOLO_CA_BUNDLE": str(self.bundle), "SSL_CERT_FILE": str(self.bundle)}
        return self

    def _live(self):
        try:
            link.enter_world()
            self._peer = subprocess.Popen([sys.executable, PEER, self.folder / "authority"], stdout=subprocess.PIPE)
            assert self._peer.stdout.readline() == b"ready\n", "it said nothing"
        except BaseException as failure:
            self._failed = failure
        self._ready.set()

    def __exit__(self, *_):
        self._peer.terminate()
        self._peer.wait()


class Host:
    """Runs the probe on the machine itself."""

    def probe(self, measure, *arguments):
        done = subprocess.run([sys.executable, PROBE, measure, *map(str, arguments)], stdout=subprocess.PIPE, check=True, timeout=120)
        return json.loads(done.stdout)

    def processor_seconds(self):
        """What the probes took."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


class Inside:
    """Runs it in a sandbox."""

    def __init__(self, server, sandbox):
        self.server, self.sandbox = server, sandbox
        sandbox.files.write("/tmp/probe.py", PROBE.read_text(), user="root")
        self.sentry = sentry_of(sandbox)

    def probe(self, measure, *arguments):
        command = f"python3 /tmp/probe.py {measure} {' '.join(map(str, arguments))}"
        return json.loads(self.sandbox.commands.run(command, user="root", timeout=120).stdout)

    def processor_seconds(self):
        """What the server and the kernel of the sandbox took; what programs inside did is
        not in it."""
        return sum(used(pid) for pid in (self.server.process.pid, self.sentry))


def sentry_of(sandbox):
    """The process that is the sandbox's kernel."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments[0] == b"runsc-sandbox" and sandbox.sandbox_id.encode() in arguments:
            return int(process.name)
    raise RuntimeError(f"the sandbox {sandbox.sandbox_id} has no kernel")


def used(pid):
    """Processor seconds of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def resident(pid):
    """Bytes of memory of a process."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- measures -------------------------------------------------------------------


def carry(where, measure, size, *arguments, rounds=3):
    """Gbit/s, and processor seconds for a gigabit; what it takes to start the probe is
    not in them."""
    host, *more = arguments
    before = where.processor_seconds()
    where.probe(measure, host, 0, *more)
    start = where.processor_seconds() - before
    speeds, costs = [], []
    for _ in range(rounds):
        before = where.processor_seconds()
        took = where.probe(measure, host, size, *more) / 1000
        costs.append((where.processor_seconds() - before - start) / (size / GIGABIT))
        speeds.append(size / GIGABIT / took)
    return statistics.median(speeds), statistics.median(costs)


def throughput(free, ruled, host):
    """Rows of bytes carried in all ways."""
    rows = []
    for way, name in ("out", "take"), ("in", "give"):
        plain = way, SIZE, ADDRESS
        unseen = way, SIZE, f"{name}.bench.example", "greeting"
        ended = f"tls-{way}", TLS_SIZE, "ended.bench.example"
        direct, direct_tls = carry(host, *plain), carry(host, *ended)
        for what, where, measure, (speed, cost), target in [
            ("plain", free, plain, direct, 3), ("TLS passed unseen", ruled, unseen, direct, 3), ("TLS ended", ruled, ended, direct_tls, None),
        ]:
            carried, processor = carry(where, *measure)
            on_host = "TLS on the host" if measure is ended else "the same bytes on the host"
            rows.append(Row(f"{what}, {way}", carried, "Gbit/s", speed, on_host, target, higher_is_better=True))
            rows.append(Row("  processor", processor, "s/Gbit", cost, "the program's own on the host"))
    return rows


ALLOWANCE = 2  # ms that a first connection may take more than a direct one


PARTS = "look-up", "connect", "greeting"


def firsts(free, ruled, host, turns=3, rounds=20):
    """Rows of the first connection to a destination. By name all take turns, so that they
    meet the same noise."""
    connect, plain = (where.probe("first", turns * rounds, start) for where, start in [(host, 1), (free, 101)])
    named = {where: [] for where in (host, free, ruled)}
    for turn in range(turns):
        for start, where in zip((1, 101, 201), named):
            named[where] += where.probe("first-by-name", rounds, start + turn * rounds)
    direct, rows = named[host], [Row("first connection, no rules", plain, "ms", connect, "connect() on the host", connect + ALLOWANCE)]
    for what, times in ("no rules", named[free]), ("name rules", named[ruled]):
        whole, on_host = (statistics.median(map(sum, some)) for some in (times, direct))
        rows.append(Row(f"first by name, {what}", whole, "ms", on_host, "name, connect, first answer on the host", on_host + ALLOWANCE))
        rows += [Row(f"  {part}", statistics.median(took), "ms", statistics.median(alone), "the same on the host")
                 for part, took, alone in zip(PARTS, zip(*times), zip(*direct))]
    return rows


def interception(ruled, host, rounds=200):
    direct = host.probe("requests", "unseen.bench.example", rounds)
    rows = []
    for name, arguments in [("passed unseen", ["unseen.bench.example", rounds]), ("intercepted", ["ended.bench.example", rounds]),
                            ("with a secret", ["secret.bench.example", rounds, "TOKEN"])]:
        took = ruled.probe("requests", *arguments)
        rows += [Row(f"HTTPS request, {name}", took["kept"], "ms", direct["kept"], "from the host, connection kept"),
                 Row(f"HTTPS connection, {name}", took["new"], "ms", direct["new"], "from the host, new connection")]
    return rows


def many(free, host):
    """Rows of so many open connections."""
    pids = free.server.process.pid, free.sentry
    before = [resident(pid) for pid in pids]
    handle = free.sandbox.commands.run(f"python3 /tmp/probe.py many {ADDRESS} {MANY} /tmp/enough", user="root", background=True, timeout=120)
    took = json.loads(next(out for out, _, _ in handle if out))
    memory = [(resident(pid) - was) / MANY / 1024 for pid, was in zip(pids, before)]
    free.sandbox.files.write("/tmp/enough", "", user="root")
    handle.wait()
    direct = host.probe("many", ADDRESS, MANY)
    return [
        Row(f"{MANY} connections, opened", took["opened"], "ms", direct["opened"], "the same on the host"),
        Row("  echo on each", took["echo"], "ms", direct["echo"], "the same on the host"),
        Row("  one more, with its echo", took["beside"], "ms", took["alone"], "the same with none open"),
        Row("  memory of the server, each", memory[0], "KiB", memory[1], "memory of the sandbox's kernel, each"),
    ]


def measure(data):
    host = Host()
    server = Server(data, "--on-stop", "end").start()
    try:
        options = server.client_options()
        subprocess.run([server.binary, "secret", "set", "bench", "--host", "secret.bench.example", "--in", "authorization", "--data", str(data)],
                       input=b"a-value-of-some-length", check=True, capture_output=True)
        with Sandbox.create(PLAIN, timeout=600, **options) as free, \
             Sandbox.create(PLAIN, timeout=600, network=NAMES, envs={"TOKEN": "${e2b.secrets.bench}"}, **options) as ruled:
            free, ruled = Inside(server, free), Inside(server, ruled)
            return [*throughput(free, ruled, host), *firsts(free, ruled, host), *interception(ruled, host), *many(free, host)]
    finally:
        server.kill_sandboxes()
        server.stop()


def main():
    if not link.alone():
        sys.exit("start it in a network namespace of its own, as run.py does")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, World(pathlib.Path(folder)):
        json.dump([asdict(row) for row in measure(sys.argv[1])], sys.stdout)


if __name__ == "__main__":
    main()
