"""State of every kind put into a sandbox, and the check that none of it is lost.

A Witness is what the tests of pausing, forking and restarting have in common:
files on disk and in memory, variables of a kernel, and a program that runs.
"""

import copy
import hashlib
import json
import os
import shlex
import time
import urllib.parse

import httpx

from wait import eventually

FOLDER = "/home/user/witness"
SHARED_MEMORY = "/dev/shm/witness"
PORT = 8000

# It holds a token only its memory has, adds a row to a database each 20 ms, and
# serves what it knows on PORT: / as JSON, /stream line by line without an end.
PROGRAM = r'''
import hashlib, http.server, json, os, sqlite3, threading, time

TOKEN, STARTED = os.urandom(16).hex(), time.monotonic()
rows, ended_streams = 0, []


def write():
    global rows
    database = sqlite3.connect("rows.db")
    database.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, hash TEXT, time REAL)")
    [[rows]] = database.execute("SELECT count(*) FROM rows")
    while True:
        with database:
            database.execute("INSERT INTO rows VALUES (?, ?, ?)",
                             (rows + 1, hashlib.sha256(str(rows + 1).encode()).hexdigest(), time.time()))
        rows += 1
        time.sleep(0.02)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/stream":
            return self.stream()
        self.wfile.write(json.dumps({"pid": os.getpid(), "token": TOKEN, "rows": rows, "age": time.monotonic() - STARTED,
                                     "given": os.environ.get("GIVEN"), "folder": os.getcwd(),
                                     "ended_streams": ended_streams}).encode())

    def stream(self):
        try:
            while True:
                self.wfile.write(b"tick\n")
                time.sleep(0.05)
        except OSError as error:
            ended_streams.append(type(error).__name__)

    def log_message(self, *_):
        pass


threading.Thread(target=write, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", PORT), Handler).serve_forever()
'''.replace("PORT", str(PORT))

# Prints the first thing wrong with the rows that the program has written.
CHECK_ROWS = r'''
import hashlib, sqlite3
database = sqlite3.connect("rows.db", timeout=20)
[[verdict]] = database.execute("PRAGMA integrity_check")
if verdict != "ok":
    print(verdict)
for i, (n, hash) in enumerate(database.execute("SELECT n, hash FROM rows ORDER BY n"), 1):
    if n != i or hash != hashlib.sha256(str(i).encode()).hexdigest():
        print(f"row {i} is {n} with {hash}")
        break
'''


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def get(sandbox, path="/", port=PORT, **headers):
    """GET through the edge by the first label of the host name."""
    address = urllib.parse.urlparse(sandbox.envd_api_url)
    return httpx.get(f"http://{address.netloc}{path}", headers={"Host": f"{port}-{sandbox.sandbox_id}.localhost", **headers}, timeout=30)


class Witness:
    """What was put into a sandbox. With a code interpreter's sandbox its kernel
    has a part too."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.on_disk = {}  # path -> hash; a file that is being written is not in it
        self.in_memory = {}
        self.variables = {}  # of the kernel: name -> hash
        self.program = None  # what it last told of itself
        self.has_kernel = hasattr(sandbox, "run_code")
        self._prepare()

    def of(self, sandbox):
        """The witness of a copy that was made of the sandbox: what must be in it."""
        other = copy.copy(self)
        other.sandbox = sandbox
        for name in "on_disk", "in_memory", "variables":
            setattr(other, name, dict(getattr(self, name)))
        if self.program:
            other.program = {**self.program, "rows": 0, "age": 0}
        return other

    def rebooted(self):
        """The sandbox has lost its memory; only the disk is checked from now on."""
        self.in_memory, self.variables, self.program = {}, {}, None
        self._prepare()

    def _prepare(self):
        self.sandbox.commands.run(f"mkdir -p {FOLDER} {SHARED_MEMORY}")
        if self.has_kernel:
            self._run("import hashlib, os\nos.chdir('/tmp')\nos.environ['OF_THE_KERNEL'] = 'kept'")

    def start(self):
        """Starts the program, in its folder and with the variable GIVEN."""
        self.sandbox.files.write(f"{FOLDER}/program.py", PROGRAM)
        handle = self.sandbox.commands.run("exec python3 program.py", background=True, cwd=FOLDER, envs={"GIVEN": "to it"}, timeout=0)
        handle.disconnect()
        self.program = eventually(self._ask, 20, "the program serves")
        return self

    def add(self, name, size=1 << 20):
        """Adds random bytes: a file on disk, one in memory, a variable. What had
        the name is replaced, and unknown until the sandbox has answered."""
        for files, folder in (self.on_disk, FOLDER), (self.in_memory, SHARED_MEMORY):
            data, path = os.urandom(size), f"{folder}/{name}"
            files.pop(path, None)
            self.sandbox.files.write(path, data)
            files[path] = sha256(data)
        if self.has_kernel:
            self.variables.pop(f"v_{name}", None)
            self.variables[f"v_{name}"] = self._run(f"v_{name} = os.urandom({size})\nhashlib.sha256(v_{name}).hexdigest()")
        return self

    def check_disk(self):
        assert self._hashes(self.on_disk) == self.on_disk

    def check(self, sandbox=None):
        """Everything is there and runs on; with another sandbox, a copy of this
        one, it is there."""
        if sandbox is not None:
            return self.of(sandbox).check()
        self.check_disk()
        assert self._hashes(self.in_memory) == self.in_memory
        self._check_kernel()
        self._check_program()

    def check_clock(self):
        """The sandbox's clock is within a second of ours."""
        before = time.time()
        inside = float(self.sandbox.commands.run("date +%s.%N").stdout)
        assert before - 1 < inside < time.time() + 1

    def _check_kernel(self):
        if not self.has_kernel:
            return
        names = json.dumps(list(self.variables))
        told = self._run(f"import json\njson.dumps([{{n: hashlib.sha256(globals()[n]).hexdigest() for n in {names}}}, os.getcwd(), os.environ['OF_THE_KERNEL']])")
        assert json.loads(told) == [self.variables, "/tmp", "kept"]

    def _check_program(self):
        """It is the same process, was never started again, and writes on."""
        if self.program is None:
            return
        now = eventually(self._ask, 10, "the program serves")
        for fact in ("pid", "token", "given", "folder"):
            assert now[fact] == self.program[fact], fact
        assert now["age"] >= self.program["age"] and now["rows"] >= self.program["rows"]
        self.program = eventually(lambda: (later := self._ask()) and later["rows"] > now["rows"] and later, 10, "the program writes on")
        assert self.sandbox.commands.run(f"python3 -c {shlex.quote(CHECK_ROWS)}", cwd=FOLDER).stdout == ""

    def _ask(self):
        answer = get(self.sandbox)
        return answer.status_code == 200 and answer.json()

    def _hashes(self, files):
        if not files:
            return {}
        lines = self.sandbox.commands.run(f"sha256sum {' '.join(files)}").stdout.splitlines()
        return {path: hash for hash, path in (line.split(maxsplit=1) for line in lines)}

    def _run(self, code):
        execution = self.sandbox.run_code(code)
        assert execution.error is None, execution.error
        return execution.text
