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
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import venv
from dataclasses import asdict, dataclass

from measure import COLD, PLAIN, ROOT, WARM, Row, milliseconds

from e2b import Template
from e2b_code_interpreter import Sandbox

import gate
from server import BINARY, Server, disk_usage, private_data_folder, traces

MEBIBYTE = 1 << 20
MEGABYTE = 1_000_000
FILE_SIZE = 100 * MEGABYTE
HELD = 1000  # keep-alive connections
JUPYTER_PACKAGES = ["jupyter-server==2.21.1", "ipykernel==7.4.0", "fastapi==0.165.0", "uvicorn==0.54.0", "websockets==17.4", "httpx==0.28.1"]


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


def beside_jupyter(options, sandbox, rounds):
    """ms of run_code on a sandbox that is there, and of the same cell by the same
    client through a Jupyter server and FastAPI on the host, in turns."""
    with jupyter_stack() as url:
        stack = Sandbox.connect(sandbox.sandbox_id, **{**options, "sandbox_url": url})
        ours, theirs = [], []
        for caller in (sandbox, stack):
            assert caller.run_code("21 * 2").text == "42"
        for _ in range(rounds):
            ours.append(milliseconds(lambda: sandbox.run_code("21 * 2"), 1, warm_up=0))
            theirs.append(milliseconds(lambda: stack.run_code("21 * 2"), 1, warm_up=0))
    return statistics.median(ours), statistics.median(theirs)


@contextlib.contextmanager
def jupyter_stack():
    """The address of jupyter_stack.py in front of a Jupyter server of its own."""
    programs = jupyter_programs()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        environment = {**os.environ, "HOME": folder, "IPYTHONDIR": folder, "PATH": f"{programs}:{os.environ['PATH']}"}
        jupyter, app = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        server = [programs / "jupyter-server", "--allow-root", "--no-browser", "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True", f"--port={jupyter.rpartition(':')[2]}", f"--ServerApp.root_dir={folder}"]
        stack.enter_context(program(server, f"{jupyter}/api", environment))
        uvicorn = [programs / "uvicorn", "--app-dir", ROOT / "bench", "--log-level", "warning", "--port", app.rpartition(":")[2], "jupyter_stack:app"]
        stack.enter_context(program(uvicorn, f"{app}/health", {**environment, "JUPYTER": jupyter}))
        yield app


def jupyter_programs():
    """The programs of a virtual environment with Jupyter, made once."""
    folder = ROOT / ".tombolo/bench"
    stamp = folder / ".stamp"
    if not stamp.exists() or stamp.read_text() != str(JUPYTER_PACKAGES):
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *JUPYTER_PACKAGES], check=True)
        stamp.write_text(str(JUPYTER_PACKAGES))
    return folder / "bin"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def program(arguments, url, environment, within=60):
    """Runs a program that answers at url; ended at the end."""
    with tempfile.TemporaryFile() as log, subprocess.Popen(arguments, env=environment, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + within
            while not answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{arguments[0]} does not serve {url}: {log.read().decode()[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()


def answers(url):
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


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


# --- pause, fork, snapshot ----------------------------------------------------


@dataclass
class Paused:
    """Medians of pausing and resuming one sandbox, and what a pause saved."""

    pause: float  # ms
    resume: float
    state: int  # bytes
    write: float  # ms to write as many bytes to the same disk, synced
    read: float  # ms to read them back, from the page cache


def pauses(server, options, used, rounds):
    """Pauses and resumes a plain sandbox in which a program has so many random
    bytes in memory."""
    times = {"pause": [], "resume": []}
    with Sandbox.create(PLAIN, timeout=600, **options) as sandbox:
        hold(sandbox, used)
        for _ in range(rounds):
            running = disk_usage(server.data / "sandboxes")
            started = time.perf_counter()
            sandbox.pause()
            paused = time.perf_counter()
            state = disk_usage(server.data / "sandboxes") - running
            resumed_from = time.perf_counter()
            sandbox.connect()
            resumed = time.perf_counter()
            assert sandbox.commands.run("echo on").stdout == "on\n"
            times["pause"].append((paused - started) * 1000)
            times["resume"].append((resumed - resumed_from) * 1000)
    write, read = disk_speed(server.data / "bench", state)
    return Paused(statistics.median(times["pause"]), statistics.median(times["resume"]), state, write, read)


def hold(sandbox, size):
    """Starts a program that has so many random bytes in memory."""
    if not size:
        return
    program = f"import os, time\ndata = [os.urandom(1 << 20) for _ in range({size >> 20})]\nprint(len(data), flush=True)\ntime.sleep(10000)"
    handle = sandbox.commands.run(f"exec python3 -c '{program}'", background=True, timeout=0)
    assert int(next(iter(handle))[0]) == size >> 20
    handle.disconnect()


def disk_speed(path, size):
    """ms to write and sync a file of so many bytes, and to read it."""
    block = os.urandom(MEBIBYTE)

    def write():
        with open(path, "wb", buffering=0) as file:
            for _ in range(max(1, size // MEBIBYTE)):
                file.write(block)
            os.fsync(file.fileno())

    def read():
        with open(path, "rb", buffering=0) as file:
            while file.read(MEBIBYTE):
                pass

    try:
        return milliseconds(write, 3, warm_up=0), milliseconds(read, 3)
    finally:
        path.unlink()


def forks(options, count, rounds):
    """ms until so many forks of a sandbox are done, and as many creates."""
    forked, created = [], []
    with Sandbox.create(PLAIN, timeout=600, **options) as parent:
        for _ in range(rounds):
            started = time.perf_counter()
            copies = parent.fork(count=count, timeout=600)
            forked.append((time.perf_counter() - started) * 1000)
            assert all(isinstance(copy, Sandbox) for copy in copies), copies
            for copy in copies:
                copy.kill()
            created.append(creates({**options, "template": PLAIN}, count, at_once=count))
    return statistics.median(forked), statistics.median(created)


def snapshots(options, rounds):
    """ms to take a snapshot of a plain sandbox that goes on, and to pause it."""
    with Sandbox.create(PLAIN, timeout=600, **options) as sandbox:
        taken = []

        def take():
            taken.append(sandbox.create_snapshot().snapshot_id)

        snapshot = milliseconds(take, rounds)
        for snapshot_id in taken:
            Sandbox.delete_snapshot(snapshot_id, **options)
        pause = []
        for _ in range(rounds):
            started = time.perf_counter()
            sandbox.pause()
            pause.append((time.perf_counter() - started) * 1000)
            sandbox.connect()
    return snapshot, statistics.median(pause)


def template_builds(options, command, rounds):
    """ms to build a template of one step, to build it again with nothing changed,
    and to make the same by hand: a sandbox, the command, a snapshot."""
    api = {key: value for key, value in options.items() if key != "sandbox_url"}
    built, again, by_hand = [], [], []
    for turn in range(rounds):
        step = f"{command} # {time.time()}"
        template = Template().from_template(PLAIN).run_cmd(step)
        for times in built, again:
            started = time.perf_counter()
            Template.build(template, "bench", **api)
            times.append((time.perf_counter() - started) * 1000)
        started = time.perf_counter()
        with Sandbox.create(PLAIN, **options) as sandbox:
            sandbox.commands.run(step)
            snapshot = sandbox.create_snapshot()
            by_hand.append((time.perf_counter() - started) * 1000)
        Sandbox.delete_snapshot(snapshot.snapshot_id, **options)
    urllib.request.urlopen(urllib.request.Request(
        f"{options['api_url']}/templates/bench", method="DELETE", headers={"X-API-KEY": options["api_key"]}))
    return statistics.median(built), statistics.median(again), statistics.median(by_hand)


# --- edge ----------------------------------------------------------------------

PORT = 8000

# Answers each request on a connection with the same few bytes. A request to
# upgrade makes a tunnel of the connection, in which it goes on in the same way.
TINY_SERVER = r'''
import asyncio

async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"upgrade: tunnel" in head.lower():
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tunnel\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "0.0.0.0", PORT, backlog=4096)
    await server.serve_forever()

asyncio.run(main())
'''.replace("PORT", str(PORT))


class KeepAlive:
    """A connection to a server inside, through the edge; with tunnel=True one that
    the edge has upgraded, so that it takes no part in the requests."""

    def __init__(self, server, sandbox, tunnel=False):
        address = urllib.parse.urlparse(server.url)
        self.host = f"{PORT}-{sandbox.sandbox_id}.localhost"
        self.socket = socket.create_connection((address.hostname, address.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tunnel:
            assert self.ask("Connection: Upgrade\r\nUpgrade: tunnel\r\n").startswith(b"HTTP/1.1 101 ")

    def ask(self, more=""):
        """The answer to one request."""
        self.socket.sendall(f"GET / HTTP/1.1\r\nHost: {self.host}\r\n{more}\r\n".encode())
        seen = b""
        while not (seen.endswith(b"\r\n\r\nok") or seen.startswith(b"HTTP/1.1 101 ") and seen.endswith(b"\r\n\r\n")):
            chunk = self.socket.recv(4096)
            assert chunk, f"the connection ended after {seen!r}"
            seen += chunk
        return seen

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def edge_adds(server, options, rounds, held):
    """ms of a request through the edge, of one in a tunnel, and of one on each
    of many connections that have been kept open."""
    allow_files(held + 200)
    with Sandbox.create(PLAIN, timeout=600, **options) as sandbox:
        sandbox.commands.run(f"exec python3 -c '{TINY_SERVER}'", background=True, timeout=0).disconnect()
        wait_for_server(server, sandbox)
        with KeepAlive(server, sandbox) as through, KeepAlive(server, sandbox, tunnel=True) as beside:
            routed, tunnelled = [], []
            for _ in range(rounds):  # In turns, so that both meet the same noise.
                routed.append(milliseconds(through.ask, 1, warm_up=0))
                tunnelled.append(milliseconds(beside.ask, 1, warm_up=0))
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(KeepAlive(server, sandbox)) for _ in range(held)]
            for connection in connections:
                connection.ask()
            again = [milliseconds(connection.ask, 1, warm_up=0) for connection in connections]
    return statistics.median(routed), statistics.median(tunnelled), statistics.median(again)


def allow_files(count):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(count, 4096), hard), hard))


def wait_for_server(server, sandbox, within=20):
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(AssertionError), KeepAlive(server, sandbox) as connection:
            connection.socket.settimeout(1)
            with contextlib.suppress(TimeoutError):
                return connection.ask()
        assert time.monotonic() < deadline, "the server inside does not start"
        time.sleep(0.05)


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
            code_in_turns, jupyter = beside_jupyter(options, sandbox, rounds=60)
            up, down = file_speeds(sandbox, rounds=5)
        host_code, host_command = host_calls(rounds=20)
        loopback = loopback_speed(rounds=5)
        one_by_one, at_once = creates(options, 20, at_once=1), creates(options, 20, at_once=20)
        idle, used = pauses(server, options, 0, rounds=9), pauses(server, options, 400 * MEBIBYTE, rounds=5)
        fork, as_many_creates = forks(options, 8, rounds=5)
        snapshot, pause_of_it = snapshots(options, rounds=7)
        small, small_again, small_by_hand = template_builds(options, "echo built > built", rounds=5)
        large, _, large_by_hand = template_builds(options, "head -c 100M /dev/urandom > built", rounds=3)
        routed, tunnelled, held = edge_adds(server, options, rounds=500, held=HELD)
        left, open_files = cycles_leave(server, cycles)
    finally:
        server.kill_sandboxes()
        server.stop()

    rows = [
        Row("create to first run_code result", warm, "ms", cold, "cold boot and kernel start", 400),
        Row("run_code on a live sandbox", code, "ms", host_code, "python3 -c on the host", 10),
        Row("run_code beside Jupyter", code_in_turns, "ms", jupyter, "the cell through Jupyter and FastAPI on the host", 10),
        Row('commands.run("true")', command, "ms", host_command, "bash -c true on the host", 20),
        Row("100 MB file up", up, "MB/s", loopback, "TCP on the host's loopback", 200, higher_is_better=True),
        Row("100 MB file down", down, "MB/s", loopback, "TCP on the host's loopback", 200, higher_is_better=True),
        Row("20 creates at once", at_once, "ms", one_by_one, "20 creates one by one"),
        Row("kill", kill, "ms", cold_kill, "kill of a cold-booted sandbox", 60),
        *pause_rows("idle", idle),
        *pause_rows("400 MiB in use", used),
        Row("fork of 8", fork, "ms", as_many_creates, "8 creates at once", 2000),
        Row("snapshot", snapshot, "ms", pause_of_it, "pause of the same sandbox"),
        Row("template of a small step", small, "ms", small_by_hand, "the same by hand: create, command, snapshot"),
        Row("template of a step of 100 MB", large, "ms", large_by_hand, "the same by hand"),
        Row("template built again, unchanged", small_again, "ms", small, "its first build"),
        Row("the edge adds to a request", routed - tunnelled, "ms", tunnelled, "the request in a tunnel that the edge made once", 1),
        Row(f"request on each of {HELD} held", held, "ms", routed, "request on one connection"),
    ]
    return rows, left, open_files


def network(data):
    """The rows of network.py."""
    python = ROOT / ".tombolo/clients/world/bin/python"
    done = subprocess.run(["unshare", "--net", "--mount", python, ROOT / "bench/network.py", data], stdout=subprocess.PIPE, check=True)
    return [Row(**row) for row in json.loads(done.stdout)]


def pause_rows(what, measured):
    size = f"{measured.state / MEBIBYTE:.0f} MiB"
    return [
        Row(f"pause, {what}", measured.pause, "ms", measured.write, f"writing the {size} that are saved", 1000),
        Row(f"resume, {what}", measured.resume, "ms", measured.read, f"reading the {size} from the page cache", 300),
    ]


def show(rows, left, open_files, cycles):
    print(f"{'measure':33} {'median':>14} {'target':>9}   {'baseline':>14}  ratio  of")
    for row in rows:
        target = "" if row.target is None else f"{digits(row.target)} {'ok' if row.meets_target else 'no'}"
        value, baseline = (f"{digits(number):>7} {row.unit:6}" for number in (row.value, row.baseline))
        print(f"{row.name:33} {value} {target:>9}   {baseline}  {row.ratio:5.2f}  {row.baseline_name}")
    print(f"{cycles} create/kill cycles left {len(left)} traces, {open_files:+d} open files in the server")
    for trace in left:
        print(f"  left: {trace}")


def digits(number):
    """A number with what can be told of it."""
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="data folder with the default templates")
    parser.add_argument("--cycles", type=int, default=200, help="create/kill cycles of the leak check")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()

    with private_data_folder(arguments.data) as data:
        rows, left, open_files = measure(data, arguments.cycles)
        rows += [*network(data), *gate.costs(data), *gate.judging()]
    if arguments.json:
        print(json.dumps({"rows": [{**asdict(r), "ratio": r.ratio, "meets_target": r.meets_target} for r in rows],
                          "cycles": arguments.cycles, "left": left, "open_files": open_files}, indent=2))
    else:
        show(rows, left, open_files, arguments.cycles)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
