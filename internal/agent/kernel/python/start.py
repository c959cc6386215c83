"""The Python side of Tombolo's kernel driver: IPython without Jupyter.

The files of this folder are one program: the agent joins them in the order
start, output, results, chart, memory, shell, kernel. It runs the whole with
these descriptors and owns the other ends:

    0  /dev/null
    1  a pipe: output below Python (child processes, C code), likewise 2
    3  a stream socket: one JSON object a line, requests in, frames out
    4  a pipe: one byte for each "sync" frame the agent has dealt with
    5  this program

Python's own output goes over the socket, so that it keeps its order with
results. The agent reads the pipes itself. Before a frame is sent while bytes
wait in a pipe, a "sync" frame makes the agent read the pipe first; thus
print(), a child process and print() again arrive in that order.
"""

import sys

# The folder of this file, and never the current one, while the kernel imports
# what it needs: a user's json.py must not break it.
sys.path[:] = [p for p in sys.path if p and not p.startswith("/proc/")]

import array
import asyncio
import base64
import builtins
import codecs
import faulthandler
import fcntl
import functools
import gc
import importlib.util
import io
import json
import os
import signal
import socket
import termios
import threading
import time
import traceback
import warnings
from collections import deque
from contextlib import contextmanager, nullcontext

# Code may replace what is in these modules, for a test or by mistake. What the
# program needs to speak with the agent it has for itself.
__builtins__ = dict(vars(builtins))
dumps, loads, getpid, monotonic, sleep = json.dumps, json.loads, os.getpid, time.monotonic, time.sleep

SOCKET_FD, ACK_FD, PROGRAM_FD = 3, 4, 5
CHUNK = 32 * 1024  # characters of output in one frame
STREAM_LIMIT = 16 * 1024 * 1024 + 1  # characters a run and stream; the agent's limit is just below
BUNDLE_LIMIT = 12 * 1024 * 1024  # bytes of one result, encoded
TEXT_LIMIT = 1024 * 1024  # characters of text/plain
ERROR_LIMIT = 512 * 1024  # characters of an error's value and of its traceback
FIRST_FRAMES, LAST_FRAMES = 20, 60  # of a traceback; IPython takes 1 ms for each and more
DATA_CELLS = 500_000  # a DataFrame with more cells carries no "data"
DATA_MIME = "application/vnd.tombolo.data+json"
SAVED_IMAGES = 20  # shown of those that a run saves to files
FLUSH_AFTER = 0.02  # seconds
DIRECT_BURST, DIRECT_RATE = 64, 100  # lines sent as they are printed: at once, and a second
