"""A Tombolo server as a child process, and what it may leave on a machine."""

import contextlib
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time

from cli import as_json

BINARY = os.environ.get("TOMBOLO_BIN", "bin/tombolo")
TEMPLATES = ["base", "code-interpreter-v1"]  # of private data folders

@contextlib.contextmanager
def private_data_folder(template_data):
    """A data folder of its own with base and code-interpreter-v1. It has the images of
    template_data as hard links, so it lies beside it, and takes its own
    snapshots of them."""
    template_data = pathlib.Path(template_data).resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="e2e-", dir=template_data.parent))
    try:
        shutil.copytree(template_data / "images", folder / "images", copy_function=os.link)
        build_templates(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def build_templates(data, binary=BINARY):
    """Makes the templates that tests of servers use; quick where their images are."""
    subprocess.run([binary, "template", "build", *TEMPLATES, "--data", str(data)], check=True, capture_output=True)


class Server:
    """`tombolo serve` on a free loopback port. Stop it with stop() or kill():
    sandboxes live on unless the flags say `--on-stop end`. binary is the program
    to run, listen the address."""

    def __init__(self, data, *flags, binary=BINARY, listen="127.0.0.1:0"):
        self.data = pathlib.Path(data)
        self.flags = flags
        self.binary = binary
        self.listen = listen
        self.process = None
        self.url = None

    def start(self, within=60):
        log = open(self.data / "server.log", "ab")
        self.process = subprocess.Popen(
            [self.binary, "serve", "--listen", self.listen, "--data", str(self.data), *self.flags],
            stdout=subprocess.PIPE, stderr=log,
        )
        log.close()
        self.url = self._ready_address(within)
        return self

    def _ready_address(self, within):
        deadline, seen = time.monotonic() + within, b""
        while time.monotonic() < deadline:
            if select.select([self.process.stdout], [], [], 0.1)[0]:
                chunk = os.read(self.process.stdout.fileno(), 4096)
                if not chunk:
                    break
                seen += chunk
            found = re.search(rb"(http://127\.0\.0\.1:\d+)\s*\n", seen)
            if found:
                return found[1].decode()
        self.process.kill()
        raise AssertionError(f"no ready line within {within} s; stdout {seen!r}, stderr {self.log()[-2000:]}")

    def log(self):
        return (self.data / "server.log").read_text(errors="replace")

    def environment(self):
        """The variables that `tombolo env` exports for this server."""
        text = subprocess.run([BINARY, "env", "--data", str(self.data)],
                              check=True, capture_output=True, text=True).stdout
        return dict(re.findall(r"""(\w+)=['"]?([^'"\s]+)""", text))

    def client_options(self):
        """The same as keyword arguments of the SDK's methods."""
        env = self.environment()
        return {"api_key": env["E2B_API_KEY"], "api_url": self.url, "sandbox_url": self.url}

    def stop(self, within=60):
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def kill(self):
        """SIGKILL, as a crash would."""
        self.process.kill()
        self.process.wait()

    def runs(self):
        return self.process is not None and self.process.poll() is None

    def kill_sandboxes(self):
        """Kills every sandbox of every key, running or paused."""
        if ids := [sandbox["id"] for sandbox in as_json("sandbox", "list", "--data", str(self.data))]:
            subprocess.run([self.binary, "sandbox", "kill", "--data", str(self.data), *ids], check=False, capture_output=True)

    def delete_templates(self):
        """Deletes every template but the default ones."""
        for template in as_json("template", "list", "--data", str(self.data)):
            if template.get("name") not in TEMPLATES:
                subprocess.run([self.binary, "template", "delete", "--data", str(self.data), template["id"]], check=False, capture_output=True)

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_bytes(self):
        """The memory the server's process holds."""
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) * 1024


def traces(data):
    """What the sandboxes of a data folder, living and ended, have on this
    machine now: processes, mounts, cgroups, network namespaces and folders.
    Other servers and their sandboxes do not count, nor does data's server and
    what it keeps ready for the next sandbox."""
    marks = [ended["id"] for ended in as_json("sandbox", "list", "--all", "--data", str(data))] + [f"{data}/sandboxes/"]
    pattern = re.compile("|".join(re.escape(mark) for mark in marks))
    found = {f"folder {name}" for name in os.listdir(data / "sandboxes") if not name.startswith(".")}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if pattern.search(command + (process / "cgroup").read_text()):
                found.add(f"process {process.name} {command}")
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        if pattern.search(line):
            found.add(f"mount {line}")
    for root in ("/sys/fs/cgroup", "/run/netns", "/var/run/netns", "/run/tombolo"):
        for folder, children, files in os.walk(root):
            found |= {f"{folder}/{name}" for name in children + (files if "cgroup" not in root else []) if pattern.search(name)}
    ready = [name for name in os.listdir(data / "sandboxes") if (data / "sandboxes" / name / "shell").exists()]
    return {trace for trace in found if not any(name in trace for name in ready)}


def expect_nothing_left(data, within=10):
    """Fails with the list of what is left when that does not vanish in time."""
    deadline = time.monotonic() + within
    while (left := traces(data)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sorted(left) == []


def disk_usage(folder):
    """Bytes that the files below a folder take on the disk."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def cgroup_folders(sandbox_id):
    """The control groups of all sandboxes of the server that has this one."""
    return {folder for folder, children, _ in os.walk("/sys/fs/cgroup") if sandbox_id in children}
