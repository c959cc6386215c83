#!/usr/bin/env python3
"""Creates, writes, pauses, resumes, forks, snapshots, reboots and kills
sandboxes at random for a while, crashes the server now and then, and knows at
each moment what must be in each sandbox.

    .tombolo/clients/python/bin/python test/e2e/soak/soak.py --data DIR [--minutes 10]

DIR is a data folder that has the default templates. The exit status is 1 when
something was lost, answered wrongly or left behind. The official Python client
does all of it, without retries, so that no failure is covered up.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import socket
import statistics
import sys
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "test/e2e/python"))
os.environ.setdefault("TOMBOLO_BIN", str(ROOT / "bin/tombolo"))

import e2b_code_interpreter  # noqa: E402
from e2b import Sandbox, SandboxState  # noqa: E402

from server import Server, disk_usage, private_data_folder, traces  # noqa: E402
from wait import eventually  # noqa: E402
from witness import Witness  # noqa: E402

MIB = 1 << 20
LIFETIME = 7200  # Seconds; longer than any run.
LIFECYCLE = {"on_timeout": "pause", "auto_resume": True}
MOST_SNAPSHOTS = 4
MOST_FAILURES = 5  # After so many the run ends early.

# What the server may hold at the end above what it held after its first sandbox.
MORE_FILES = 32
MORE_MEMORY = 256 * MIB
MORE_DISK = 4 * MIB


class Resident:
    """A sandbox and what must be in it. One thread at a time acts on it."""

    def __init__(self, sandbox, witness):
        self.sandbox, self.witness = sandbox, witness
        self.lock = threading.Lock()
        self.paused = False  # None while that changes
        self.rebooting = self.dozing = False


    def awake(self):
        """Makes sure that it runs and is not paused by itself."""
        self.sandbox.connect(timeout=LIFETIME)
        self.paused = self.dozing = False

    def rebooted(self):
        """Its memory may be gone: from now on only what comes next must be there."""
        self.witness.rebooted()
        self.rebooting = False


class Gate:
    """Lets actions through, and knows which of them a crash may have cut off."""

    def __init__(self):
        self.change = threading.Condition()
        self.open, self.over, self.inside, self.crashes = True, False, 0, 0

    def enter(self):
        """Waits for the gate and returns the number of crashes until now, or None
        when the run is over."""
        with self.change:
            self.change.wait_for(lambda: self.open or self.over)
            if self.over:
                return None
            self.inside += 1
            return self.crashes

    def leave(self):
        with self.change:
            self.inside -= 1
            self.change.notify_all()

    def crash(self, kill):
        """Kills the server in the middle of what goes on, and waits until every
        action has come back."""
        with self.change:
            self.open = False
            self.crashes += 1
        kill()
        with self.change:
            assert self.change.wait_for(lambda: self.inside == 0, 120), "an action hangs after the server was killed"

    def reopen(self):
        with self.change:
            self.open = True
            self.change.notify_all()

    def finish(self):
        with self.change:
            self.over = True
            self.change.notify_all()


class Soak:
    def __init__(self, data, seed, residents):
        self.data, self.most = data, residents
        self.random = random.Random(seed)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.server = self._start()
        self.options = {**self.server.client_options(), "retries": 0}
        self.gate, self.lock = Gate(), threading.Lock()
        self.residents, self.snapshots = [], {}  # id -> witness
        self.coming = 0  # Residents that are being made.
        self.times = collections.defaultdict(list)  # action -> seconds
        self.failures, self.restarts = [], []
        self.acts = {self.create: 12, self.write: 25, self.verify: 20, self.pause: 12, self.resume: 12,
                     self.doze: 4, self.reboot: 3, self.fork: 8, self.snapshot: 3, self.create_from_snapshot: 4,
                     self.delete_snapshot: 2, self.kill: 12}

    def _start(self):
        return Server(self.data, listen=self.address).start()

    def run(self, minutes, crash_every, threads):
        """Acts at random until the time is over, then ends everything."""
        deadline = time.monotonic() + minutes * 60
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            workers = [pool.submit(self._work) for _ in range(threads)]
            try:
                while (left := deadline - time.monotonic()) > 0 and len(self.failures) < MOST_FAILURES:
                    self._wait(min(crash_every * self.random.uniform(0.5, 1.5), left))
                    if deadline - time.monotonic() > crash_every / 4:
                        self._crash()
            except Exception:
                self._fail("crash and restart")
            finally:
                self.gate.finish()
            for worker in workers:
                worker.result()

    def _wait(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until and len(self.failures) < MOST_FAILURES:
            time.sleep(0.5)

    def _work(self):
        while (crashes := self.gate.enter()) is not None:
            with self.lock:
                act, = self.random.choices(list(self.acts), self.acts.values())
            try:
                started = time.monotonic()
                if act() is not False:
                    self.times[act.__name__].append(time.monotonic() - started)
            except Exception:
                if crashes == self.gate.crashes:  # No crash is to blame.
                    self._fail(act.__name__)
            finally:
                self.gate.leave()
            if len(self.failures) >= MOST_FAILURES:
                return

    def _fail(self, what):
        self.failures.append(f"{what}: {traceback.format_exc()}")
        print(f"FAILED {self.failures[-1]}", flush=True)

    # --- actions: each returns False when there was nothing to do ----------------

    def _take(self, wanted):
        """A resident that fits, locked, or None."""
        with self.lock:
            candidates = [r for r in self.residents if wanted(r)]
            self.random.shuffle(candidates)
            return next((r for r in candidates if r.lock.acquire(blocking=False)), None)

    def _act_on(self, wanted, act):
        resident = self._take(wanted)
        if resident is None or not wanted(resident):
            if resident:
                resident.lock.release()
            return False
        try:
            return act(resident)
        finally:
            resident.lock.release()

    def _reserve(self, count):
        """Makes room for so many more residents, or answers False."""
        with self.lock:
            if len(self.residents) + self.coming + count > self.most:
                return False
            self.coming += count
            return True

    def _admit(self, *residents):
        with self.lock:
            self.residents += residents

    def _unreserve(self, count):
        with self.lock:
            self.coming -= count

    def create(self):
        if not self._reserve(1):
            return False
        try:
            kind = self.random.choice([Sandbox, e2b_code_interpreter.Sandbox])
            sandbox = kind.create(timeout=LIFETIME, lifecycle=LIFECYCLE, **self.options)
            self._admit(Resident(sandbox, Witness(sandbox).start()))
        finally:
            self._unreserve(1)

    def write(self):
        return self._act_on(running, lambda r: r.witness.add(f"n{self.random.randrange(6)}", self.random.choice([100, 64 << 10, 4 * MIB])) and None)

    def verify(self):
        return self._act_on(running, lambda r: r.witness.check())

    def pause(self):
        def act(r):
            r.paused = None  # Not known, should this be cut off.
            assert r.sandbox.pause() is True
            r.paused = True

        return self._act_on(running, act)

    def resume(self):
        def act(r):
            r.paused = None
            r.sandbox.connect(timeout=LIFETIME)
            r.paused = False
            if r.rebooting:
                r.rebooted()
            r.witness.check()
            r.witness.check_clock()

        return self._act_on(paused, act)

    def doze(self):
        """Its time runs out, it is paused, and traffic wakes it."""
        def act(r):
            r.paused, r.dozing = None, True
            r.sandbox.set_timeout(1)
            eventually(lambda: r.sandbox.get_info().state == SandboxState.PAUSED, 60, "it is paused at its time")
            r.witness.check()
            r.awake()

        return self._act_on(running, act)

    def reboot(self):
        def act(r):
            r.paused, r.rebooting = None, True
            assert r.sandbox.pause(keep_memory=False) is True
            r.sandbox.connect(timeout=LIFETIME)
            r.paused = False
            r.rebooted()
            r.witness.check()
            r.witness.start()

        return self._act_on(running, act)

    def fork(self):
        if not self._reserve(2):
            return False

        def act(r):
            copies = r.sandbox.fork(count=2, timeout=LIFETIME)
            for made in copies:
                assert not isinstance(made, Exception), made
            residents = [Resident(made, r.witness.of(made)) for made in copies]
            self._admit(*residents)
            r.witness.check()
            for resident in residents:
                with resident.lock:
                    if running(resident):
                        resident.witness.check()

        try:
            return self._act_on(running, act)
        finally:
            self._unreserve(2)

    def snapshot(self):
        if len(self.snapshots) >= MOST_SNAPSHOTS:
            return False

        def act(r):
            taken = r.sandbox.create_snapshot()
            with self.lock:
                self.snapshots[taken.snapshot_id] = r.witness.of(None)
            r.witness.check()

        return self._act_on(running, act)

    def create_from_snapshot(self):
        with self.lock:
            snapshots = list(self.snapshots.items())
        if not snapshots or not self._reserve(1):
            return False
        try:
            snapshot_id, witness = self.random.choice(snapshots)
            kind = e2b_code_interpreter.Sandbox if witness.has_kernel else Sandbox
            try:
                sandbox = kind.create(snapshot_id, timeout=LIFETIME, lifecycle=LIFECYCLE, **self.options)
            except Exception:
                if snapshot_id in self.snapshots:
                    raise
                return False  # Deleted meanwhile.
            resident = Resident(sandbox, witness.of(sandbox))
            resident.witness.check()
            self._admit(resident)
        finally:
            self._unreserve(1)

    def delete_snapshot(self):
        with self.lock:
            if not self.snapshots:
                return False
            snapshot_id = self.random.choice(list(self.snapshots))
            del self.snapshots[snapshot_id]
        assert Sandbox.delete_snapshot(snapshot_id, **self.options) is True

    def kill(self):
        def act(r):
            with self.lock:
                self.residents.remove(r)
            r.paused = None  # Who waits for it finds it gone.
            assert r.sandbox.kill() is True

        return self._act_on(lambda r: r.paused is not None, act)

    # --- crash -------------------------------------------------------------------

    def _crash(self):
        """Kills the server while actions are under way, starts it again, and
        checks that everything acknowledged is there."""
        self.gate.crash(self.server.kill)
        started = time.monotonic()
        self.server = self._start()
        self.restarts.append(time.monotonic() - started)
        self._reconcile()
        self.gate.reopen()

    def _reconcile(self):
        """Nothing that was acknowledged is lost. What a crash cut off is there or
        is not: that is found out, and removed where nobody knows it."""
        states = self._states()
        missing = [r.sandbox.sandbox_id for r in self.residents if r.sandbox.sandbox_id not in states]
        assert not missing, f"lost in a crash: {missing}"
        for r in self.residents:
            found = states.pop(r.sandbox.sandbox_id) == SandboxState.PAUSED
            assert r.paused in (None, found), f"{r.sandbox.sandbox_id} is {'paused' if found else 'running'}"
            r.paused = found
            if r.dozing:
                r.awake()
            if r.rebooting and not found:
                r.rebooted()
        for unknown in states:
            Sandbox.kill(unknown, **self.options)
        snapshots = self._snapshot_ids()
        assert set(self.snapshots) <= snapshots, "snapshots were lost in a crash"
        for unknown in snapshots - set(self.snapshots):
            Sandbox.delete_snapshot(unknown, **self.options)

    def _states(self):
        pages, found = Sandbox.list(**self.options), {}
        while pages.has_next:
            found |= {s.sandbox_id: s.state for s in pages.next_items()}
        return found

    def _snapshot_ids(self):
        pages, found = Sandbox.list_snapshots(**self.options), set()
        while pages.has_next:
            found |= {s.snapshot_id for s in pages.next_items()}
        return found

    # --- end ---------------------------------------------------------------------

    def measure(self):
        """What the server holds when no sandbox is there."""
        return {"open files": self.server.open_files(), "memory": self.server.resident_bytes(),
                "disk": disk_usage(self.data / "sandboxes") + disk_usage(self.data / "snapshots")}

    def clear(self):
        """Checks and kills all that is there."""
        for r in self.residents:
            try:
                if r.paused:
                    r.sandbox.connect(timeout=LIFETIME)
                r.witness.check()
            except Exception:
                self._fail("the last check")
            r.sandbox.kill()
        for snapshot_id in self.snapshots:
            Sandbox.delete_snapshot(snapshot_id, **self.options)
        for unknown in [*self._states()]:
            self.failures.append(f"a sandbox nobody made: {unknown}")
            Sandbox.kill(unknown, **self.options)


def running(resident):
    return resident.paused is False


def paused(resident):
    return resident.paused is True


def left_behind(data, within=20):
    """Traces of sandboxes that do not vanish in time."""
    deadline = time.monotonic() + within
    while (left := traces(data)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return sorted(left)


def growth(before, after):
    """In words, what grew beyond its bound."""
    bounds = {"open files": MORE_FILES, "memory": MORE_MEMORY, "disk": MORE_DISK}
    return [f"{name} grew from {before[name]} to {after[name]}" for name, bound in bounds.items() if after[name] > before[name] + bound]


def show(soak, before, after):
    print(f"{'action':22} {'count':>6} {'median':>8} {'95 %':>8} {'longest':>8}  ms")
    for name, seconds in sorted(soak.times.items()):
        ms = sorted(s * 1000 for s in seconds)
        print(f"{name:22} {len(ms):6} {statistics.median(ms):8.0f} {ms[int(len(ms) * 0.95)]:8.0f} {ms[-1]:8.0f}")
    if soak.restarts:
        print(f"{len(soak.restarts)} crashes; the server was ready again after {statistics.median(soak.restarts):.1f} s, {max(soak.restarts):.1f} s at most")
    print("  ".join(f"{name} {before[name]} -> {after[name]}" for name in before))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="data folder with the default templates")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--crash-every", type=float, metavar="SECONDS", default=120, help="the server is killed about so often")
    parser.add_argument("--threads", type=int, default=4, help="actions at once")
    parser.add_argument("--sandboxes", type=int, default=10, help="most at once")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"soak for {arguments.minutes:g} minutes, --seed {arguments.seed}", flush=True)

    with private_data_folder(arguments.data) as data:
        soak = Soak(data, arguments.seed, arguments.sandboxes)
        try:
            Sandbox.create(**soak.options).kill()
            before = soak.measure()
            crash_every = min(arguments.crash_every, arguments.minutes * 60 / 4)
            soak.run(arguments.minutes, crash_every, arguments.threads)
            soak.clear()
            left = left_behind(data)
            after = soak.measure()
            if status := soak.server.stop():
                soak.failures.append(f"the server ended with status {status}")
        finally:
            if soak.server.runs():
                soak.server.kill_sandboxes()
                soak.server.stop()
            if soak.failures:
                print(f"the server's log ends with:\n{soak.server.log()[-3000:]}")

    show(soak, before, after)
    problems = soak.failures + [f"left: {trace}" for trace in left] + growth(before, after)
    print(f"{len(problems)} problems" if problems else "nothing lost, nothing left")
    for problem in problems:
        print(f"- {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
