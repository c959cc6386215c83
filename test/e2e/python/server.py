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

BINARY = os.environ.get("TOMBOLO_BIN", "bin/tombolo")

@contextlib.contextmanager
def private_data_folder(template_data):
    """A data folder of its own with the same templates. It has the images of
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


def build_templates(data):
    """Makes the default templates in a data folder; quick where their images are."""
    subprocess.run([BINARY, "template", "build", "--data", str(data)], check=True, capture_output=True)


class Server:
    """`tombolo serve` on a free loopback port. Stop it with stop() or kill()."""

    def __init__(self, data, *flags):
        self.data = pathlib.Path(data)
        self.flags = flags
        self.process = None
        self.url = None

    def start(self, within=60):
        log = open(self.data / "server.log", "ab")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--listen", "127.0.0.1:0", "--data", str(self.data), *self.flags],
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

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def traces():
    """What Tombolo may leave on this machine, as a set of comparable strings:
    processes, mounts, network namespaces, network devices and cgroups."""
    found = set()
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if re.search(r"runsc|tombolo[^/ ]* (serve|boot|gofer)", command):
                found.add(f"process {proc.name} {command[:100]}")
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        device, where = line.split()[:2]
        found.add(f"mount {device} {where}")
    for folder in ("/run/netns", "/var/run/netns"):
        if os.path.isdir(folder):
            found |= {f"netns {name}" for name in os.listdir(folder)}
    found |= {f"device {name}" for name in os.listdir("/sys/class/net")}
    for folder, children, _ in os.walk("/sys/fs/cgroup"):
        found |= {f"cgroup {folder}/{child}" for child in children}
    return found
