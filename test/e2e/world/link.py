"""Two network namespaces and a link: the machine's, in which the tests and the server
run, and the world's, where every address leads to.

run.sh starts the tests in a network and a mount namespace of their own, so nothing
of it is seen on the machine, and all is gone when the tests end.
"""

import ctypes
import os
import socket
import subprocess

MACHINE, WORLD = "192.0.2.1", "192.0.2.2"
MACHINE6, WORLD6 = "2001:db8:1::1", "2001:db8:1::2"
CLONE_NEWNET = 0x40000000


def alone():
    """Tells whether this process is in a network namespace that has nothing yet."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def enter_world():
    """Moves the calling thread, and the threads and processes it starts from now on,
    to a new network namespace, the world. What listens there on all addresses is
    reached by every IPv4 address."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    _ip("link set lo up",
        f"link add machine type veth peer name world netns {os.getpid()}",
        f"addr add {WORLD}/24 dev machine",
        f"addr add {WORLD6}/64 dev machine nodad",
        "link set machine up",
        "route add local default dev lo")


def join_world():
    """Leads everything from the calling thread's namespace to the world that a thread
    of this process has entered."""
    _ip("link set lo up",
        f"addr add {MACHINE}/24 dev world",
        f"addr add {MACHINE6}/64 dev world nodad",
        "link set world up",
        f"route add default via {WORLD}",
        f"-6 route add default via {WORLD6}")


def _ip(*commands):
    for command in commands:
        done = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"ip {command}: {done.stderr.strip()}")


def use_resolver(address, folder):
    """Makes address the name server of this mount namespace."""
    file = folder / "resolv.conf"
    file.write_text(f"nameserver {address}\noptions timeout:2 attempts:2\n")
    subprocess.run(["mount", "--bind", file, os.path.realpath("/etc/resolv.conf")], check=True, capture_output=True)
