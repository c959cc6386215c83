"""What a sandbox and a server tell about themselves: metrics and logs by the
Python client and the command line, numbers for Prometheus, and traces."""

import datetime
import http.server
import os
import pathlib
import re
import threading
import time

import e2b_code_interpreter
import httpx
import pytest
from e2b import CommandExitException, NotFoundException, PtySize, Sandbox

from cli import as_json
from wait import eventually

MIB = 1 << 20
HOLD = "python3 -uc 'import time; b = bytearray(200 << 20); b[::4096] = b[::4096].replace(b\"\\0\", b\"x\"); print(\"held\"); time.sleep(600)'"


def awaited(sandbox, what, wanted, within=30):
    """The first list of metrics whose last point is as wanted."""
    def look():
        points = sandbox.get_metrics()
        return points if points and wanted(points[-1]) else None
    return eventually(look, within, what)


def utc():
    return datetime.datetime.now(datetime.timezone.utc)


# --- metrics of a sandbox ------------------------------------------------------


def test_metrics_show_what_runs(new_box):
    sandbox = new_box(timeout=300)
    first = awaited(sandbox, "a first point", lambda _: True, within=20)[-1]
    assert first.cpu_count == 2 and first.mem_total == 1024 * MIB
    assert first.disk_total >= 1024 * MIB and first.disk_used < 20 * MIB
    assert first.mem_used < 100 * MIB, "what the engine needs is not the sandbox's"
    assert 0 <= first.cpu_used_pct <= 100

    sandbox.commands.run("head -c 80000000 /dev/urandom >/home/user/file")
    held = sandbox.commands.run(HOLD, background=True, timeout=0)
    burn = sandbox.commands.run("while :; do :; done", background=True, timeout=0)
    points = awaited(sandbox, "it is busy", lambda p: p.cpu_used_pct > 4 and p.mem_used > first.mem_used + 180 * MIB, within=90)
    busy = points[-1]
    assert busy.cpu_used_pct < 90, "one busy loop on two processors, as far as the machine lets it"
    assert busy.mem_used < first.mem_used + 280 * MIB
    assert 75 * MIB < busy.disk_used < 120 * MIB
    burn.kill()
    held.kill()
    idle = awaited(sandbox, "it is idle", lambda p: p.cpu_used_pct < busy.cpu_used_pct / 2 and p.mem_used < first.mem_used + 60 * MIB, within=60)
    times = [point.timestamp for point in idle]
    assert times == sorted(times)
    assert all(after.timestamp() % 5 == 0 for after in times[1:]), "each 5 seconds"

    window = sandbox.get_metrics(start=busy.timestamp, end=busy.timestamp + datetime.timedelta(seconds=1))
    assert [point.timestamp for point in window] == [busy.timestamp]
    assert sandbox.get_metrics(start=utc() + datetime.timedelta(hours=1)) == []


def test_metrics_are_kept_over_a_pause(new_box):
    sandbox = new_box(timeout=300)
    before = awaited(sandbox, "a first point", lambda _: True)
    sandbox.pause()
    paused = Sandbox.get_metrics(sandbox.sandbox_id)
    assert [p.timestamp for p in paused][:len(before)] == [p.timestamp for p in before]
    sandbox.connect()
    after = awaited(sandbox, "it is measured again", lambda p: p.timestamp > paused[-1].timestamp)
    assert [p.timestamp for p in after][:len(paused)] == [p.timestamp for p in paused]


def test_metrics_of_nobody_are_not_found():
    with pytest.raises(NotFoundException):
        Sandbox.get_metrics("i" + "0" * 20)


# --- logs of a sandbox ---------------------------------------------------------


def logs(sandbox, options, **query):
    """Log entries by the API, of one level or worse."""
    answer = httpx.get(f"{options['api_url']}/v2/sandboxes/{sandbox.sandbox_id}/logs",
                       headers={"X-API-Key": options["api_key"]}, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["logs"]


def test_the_log_tells_of_processes_and_what_was_refused(serve):
    options = serve().client_options()
    sandbox = Sandbox.create(timeout=300, allow_internet_access=False, **options)
    with pytest.raises(CommandExitException):
        sandbox.commands.run("exit 7", user="root")
    with pytest.raises(CommandExitException):
        sandbox.commands.run("curl -sS --fail --max-time 5 http://1.1.1.1")

    def told():
        lines = logs(sandbox, options)
        text = "\n".join(f"{line['fields']['logger']} {line['level']}: {line['message']}" for line in lines)
        return text if "process ended" in text and "network" in text else None

    text = eventually(told, 10, "processes and the refusal are in the log")
    assert re.search(r'process info: process started pid=\d+ user=root command=".*exit 7', text)
    assert re.search(r'process info: process ended pid=\d+ status="exit status 7"', text)
    assert re.search(r"network warn: refused .*1\.1\.1\.1", text)
    assert re.search(r"lifecycle info: running", text)

    levels = {line["level"] for line in logs(sandbox, options, level="warn")}
    assert levels == {"warn"}, "the filter leaves out what is less"


def test_a_flood_of_lines_leaves_the_log_small_and_the_server_well(serve, data):
    server = serve()
    options = server.client_options()
    sandbox = Sandbox.create(timeout=300, **options)
    folder = data / "sandboxes" / sandbox.sandbox_id
    # Root inside may write where the agent does.
    sandbox.commands.run("timeout 12 sh -c 'while :; do head -c 1000000 /dev/zero | tr \"\\0\" \"x\" | fold -w 500; done >/proc/1/fd/2'; true",
                         user="root", timeout=60)
    lines = eventually(lambda: logs(sandbox, options), 10, "the log is there")
    assert any("running" in line["message"] for line in lines), "what the server says is not pushed out"
    assert sum(len(line["message"]) for line in lines) < MIB
    assert (folder / "log").stat().st_size <= 2 * MIB
    assert server.resident_bytes() < 500 * MIB
    assert sandbox.commands.run("echo well").stdout == "well\n"


# --- over servers --------------------------------------------------------------


def test_metrics_and_logs_survive_a_crash_of_the_server(serve):
    server = serve()
    sandbox = Sandbox.create(timeout=600, **server.client_options())
    sandbox.commands.run("true # the mark")

    def saved():
        log = (server.data / "sandboxes" / sandbox.sandbox_id / "log")
        return log.exists() and "the mark" in log.read_text()

    eventually(saved, 15, "the log is on disk within seconds")
    metrics = server.data / "sandboxes" / sandbox.sandbox_id / "metrics"
    eventually(metrics.exists, 90, "the metrics are on disk within a minute")
    before = sandbox.get_metrics()
    server.kill()

    options = serve().client_options()
    after = eventually(lambda: Sandbox.get_metrics(sandbox.sandbox_id, **options), 30, "metrics are there")
    known = {point.timestamp for point in before}
    assert len(known & {point.timestamp for point in after}) >= 10, "all but the last minute is kept"
    assert any("the mark" in line["message"] for line in logs(sandbox, options))
    assert any("taken over" in line["message"] for line in logs(sandbox, options))


# --- numbers of the server -----------------------------------------------------


def numbers(server):
    """What Prometheus would collect, by name with labels."""
    address = re.findall(r"Prometheus is served on (\S+)", server.log())[-1]
    answer = httpx.get(address)
    assert answer.status_code == 200
    return {name: float(value) for name, value in re.findall(r"^([a-z]\S*(?:\{[^}]*\})?) (\S+)$", answer.text, re.M)}


def test_prometheus_collects_from_a_listener_of_its_own(serve):
    server = serve("--metrics-listen", "127.0.0.1:0")
    options = server.client_options()
    assert httpx.get(server.url + "/metrics").status_code in (401, 404), "never on the public port"
    sandbox = Sandbox.create(timeout=300, **options)
    sandbox.commands.run("true")
    sandbox.pause()
    assert numbers(server)['tombolo_sandboxes{state="paused"}'] == 1
    sandbox = Sandbox.connect(sandbox.sandbox_id, **options)
    sandbox.commands.run("true")
    eventually(lambda: numbers(server)['tombolo_sandboxes_memory_bytes{kind="engine"}'] > 0, 10, "engines are measured")
    now = numbers(server)
    assert now['tombolo_sandboxes{state="running"}'] == 1
    assert now['tombolo_sandboxes_created_total{template="base"}'] == 1
    for operation in ("create", "pause", "resume"):
        assert now[f'tombolo_sandbox_operation_duration_seconds_count{{operation="{operation}",result="ok"}}'] == 1, operation
    assert now['tombolo_edge_requests_total{class="agent",code="200"}'] >= 2
    assert now['tombolo_edge_requests_total{class="control",code="201"}'] >= 1
    assert now["tombolo_edge_connections"] >= 1
    assert now['tombolo_gateway_bytes_total{direction="out"}'] > 0
    assert now['tombolo_store_duration_seconds_count{kind="write"}'] > 0
    assert now["tombolo_webhook_deliveries_pending"] == 0
    assert any(name.startswith("tombolo_build_info{") for name in now)
    assert not any(sandbox.sandbox_id in name for name in now)
    sandbox.kill()
    eventually(lambda: numbers(server)['tombolo_sandboxes{state="running"}'] == 0, 5, "it is gone")


def test_without_the_flag_nothing_listens(serve):
    server = serve()
    sockets = [os.readlink(file) for file in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()]
    listening = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = {int(line[1].split(":")[1], 16) for line in listening if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}
    assert ports == {int(server.url.rsplit(":")[-1])}


# --- traces --------------------------------------------------------------------


@pytest.fixture
def collector():
    """An OpenTelemetry collector that keeps what it is sent."""
    bodies = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()


def test_traces_go_from_the_client_through_the_edge_to_the_agent(serve, collector):
    address, bodies = collector
    server = serve("--otlp-endpoint", address)
    options = server.client_options()
    sandbox = Sandbox.create(timeout=300, **options)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    answer = httpx.get(server.url + "/health", headers={
        "E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983",
        "Traceparent": f"00-{trace}-00f067aa0ba902b7-01",
    })
    assert answer.status_code == 204 and "agent;dur=" in answer.headers["Server-Timing"]

    def received():
        everything = b"".join(body for path, body in bodies if path == "/v1/traces")
        wanted = [bytes.fromhex(trace), b"edge agent", b"sandbox create", b"engine", b"network", b"sandbox request"]
        return all(part in everything for part in wanted)

    eventually(received, 20, "the spans of the client's trace arrive")


def test_what_streams_streams_when_it_is_traced(serve, collector):
    options = serve("--otlp-endpoint", collector[0], "--metrics-listen", "127.0.0.1:0").client_options()
    sandbox = e2b_code_interpreter.Sandbox.create(timeout=300, **options)
    printed = []
    run = sandbox.run_code("import time\nfor n in range(3):\n    print(n, flush=True)\n    time.sleep(1)\n6 * 7",
                           on_stdout=lambda out: printed.append((time.monotonic(), out.line.strip())))
    assert run.text == "42" and [line for _, line in printed] == ["0", "1", "2"]
    assert printed[2][0] - printed[0][0] > 0.6, "lines come as they are printed"
    came = []
    sandbox.commands.run("for n in 1 2 3; do echo $n; sleep 1; done", on_stdout=lambda _: came.append(time.monotonic()))
    assert came[-1] - came[0] > 0.6
    body = os.urandom(20 << 20)
    sandbox.files.write("/home/user/large", body)
    assert bytes(sandbox.files.read("/home/user/large", format="bytes")) == body
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=60)
    sandbox.pty.send_stdin(terminal.pid, b"exit 5\n")
    with pytest.raises(CommandExitException) as ended:
        terminal.wait()
    assert ended.value.exit_code == 5


def test_a_collector_that_is_away_disturbs_nothing(serve):
    server = serve("--otlp-endpoint", "http://127.0.0.1:1")
    sandbox = Sandbox.create(timeout=300, **server.client_options())
    assert sandbox.commands.run("echo well").stdout == "well\n"
    assert server.stop(within=30) == 0
