package kernel_test

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What code may do to its own kernel, and what comes of it: the run ends with a
// result or with an error that says what happened, and a later run works, in
// the same kernel or in a new one.
func TestCodeThatHurtsItsKernel(t *testing.T) {
	t.Parallel()
	b := start(t)
	const died = "KernelDied"
	for _, c := range []struct {
		name, code string
		err        string // name of the error, empty for none
		fresh      bool   // the next run has a new kernel
	}{
		{"SIGSEGV", "import ctypes; ctypes.string_at(0)", died, true},
		{"SIGABRT", "import os; os.abort()", died, true},
		{"SIGALRM", "import signal, time; signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(100)", died, true},
		{"processor limit", "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True: pass", died, true},
		{"descriptors 0 to 10", "import os; os.closerange(0, 11)", died, true},
		{"every descriptor", "import os; os.closerange(0, 1000)", died, true},
		{"C stack", "a = []\nfor i in range(10**6): a = [a]\nimport sys; sys.setrecursionlimit(10**8); repr(a)", died, true},
		{"len", "import builtins; builtins.len = None", died, true},
		{"memory", "bytearray(10**14)", "MemoryError", false},
		{"recursion", "def f(): f()\nf()", "RecursionError", false},
		{"print", "print = None; import builtins; builtins.print = lambda *a, **k: None", "", false},
		{"json, os", "import json, os\njson.dumps = json.loads = None; os.getpid = lambda: 1", "", false},
		{"stdout gone", "import sys; del sys.stdout; sys.stderr = None", "AttributeError", false},
		{"stdout closed", "import sys; sys.stdout = open('/dev/null', 'w'); sys.stdout.close()", "", false},
		{"loop stopped", "import asyncio; asyncio.get_event_loop().stop()", "", false},
		{"loop closed", "asyncio.get_event_loop().close()", "RuntimeError", false},
		{"tasks cancelled", "for t in asyncio.all_tasks(): t.cancel()\nawait asyncio.sleep(10)", "CancelledError", false},
		{"signals blocked", "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})", "", false},
		{"tracing", "import sys; sys.settrace(lambda *a: 1/0)\ndef f(): pass\nf()", "ZeroDivisionError", false},
		{"folder gone", "import os, tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)", "", false},
		{"__main__ gone", "import sys; os.chdir('/'); del sys.modules['__main__']", "", false},
		{"get_ipython gone", "del get_ipython", "", false},
		{"no files", "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))", "", false},
		{"repr raises", "class R:\n    def __repr__(self): 1/0\nR()", "ZeroDivisionError", false},
		{"repr exits", "class R:\n    def __repr__(self): raise SystemExit\nR()", "SystemExit", false},
		{"str raises", "class E(Exception):\n    def __str__(self): 1/0\nraise E", "E", false},
		{"name raises", "class M(type):\n    __name__ = property(lambda c: 1/0)\nclass E(Exception, metaclass=M): pass\nraise E", "Exception", false},
		{"any attribute", "class R:\n    def __getattr__(self, n): return R()\n    def __call__(self, *a, **k): return self\nR()", "", false},
		{"odd bundle", "class R:\n    def _repr_mimebundle_(self, **k): return {5: object(), 'text/html': 7, 'image/png': b'x', 'text/plain': None}\nR()", "", false},
		{"endless bundle", "a = []; a.append(a)\ndisplay({'application/json': a}, raw=True)", "", false},
	} {
		b.run("kept = 'kept'")
		r := b.run(c.code)
		require.Equal(t, c.err, r.errorName(), "%s: %.2000v", c.name, r.lines)
		after := b.run("import sys; n = sys.stdout.write('out\\n'); kept")
		if c.fresh {
			require.Equal(t, "NameError", after.errorName(), "%s: %.2000v", c.name, after.lines)
			continue
		}
		require.NotNil(t, after.main(), "%s: %.2000v", c.name, after.lines)
		require.Equal(t, "kept", after.main()["text"], c.name)
		require.Equal(t, "out\n", after.text("stdout"), c.name)
	}
}

// Code that takes its kernel's inside apart gets an error for each run; a
// restart of the context repairs it.
func TestBrokenIPythonEndsEachRunWithAnError(t *testing.T) {
	for _, code := range []string{
		"get_ipython().events = None",
		"get_ipython().run_cell_async = None",
		"import sys; sys.modules.clear()",
	} {
		b := start(t)
		b.run(code)
		for range 2 {
			require.NotEmpty(t, b.run("1+1").errorName(), code)
		}
		status, answer := b.ask("POST", "/contexts/"+b.list()[0]["id"].(string)+"/restart", "", "")
		require.Equal(t, 200, status, answer)
		require.Equal(t, "2", b.run("1+1").main()["text"], code)
	}
}

func TestLongTracebacksLoseTheirMiddle(t *testing.T) {
	b := start(t)
	b.run("import sys\nsys.setrecursionlimit(10**6)\ndef f(n):\n    if not n: 1/0\n    f(n - 1)")
	e := b.run("f(100_000)").find("error")[0]
	require.Equal(t, "ZeroDivisionError", e["name"])
	require.Contains(t, e["traceback"], "division by zero")
	require.Equal(t, "100002", b.run("import traceback\ntry: f(100_000)\nexcept Exception as e: n = len(list(traceback.walk_tb(e.__traceback__)))\nn").main()["text"])
	r := b.run("try:\n    f(200)\nexcept Exception as e:\n    kept = e\n    raise")
	require.Equal(t, "ZeroDivisionError", r.errorName())
	require.Equal(t, "203", b.run("len(list(traceback.walk_tb(kept.__traceback__)))").main()["text"], "the exception itself is whole")
}

// What a run leaves behind goes on, and what it prints is part of the run that
// is open then, or of none.
func TestWhatOutlivesARun(t *testing.T) {
	b := start(t)
	b.run(`
import threading, time, subprocess, asyncio, os
go = threading.Event()
def late():
    go.wait(); print("from the thread", flush=True)
t = threading.Thread(target=late); t.start()
async def ticking():
    while True:
        await asyncio.sleep(0.01)
task = asyncio.create_task(ticking())
child = subprocess.Popen(["sh", "-c", "read x; echo from the child"], stdin=subprocess.PIPE)
holder = subprocess.Popen(["sleep", "1000"])`)
	r := b.run("go.set(); t.join(); child.communicate(b'x\\n'); task.done()")
	require.Equal(t, "False", r.main()["text"])
	require.ElementsMatch(t, []string{"from the thread", "from the child"}, strings.Split(strings.TrimSpace(r.text("stdout")), "\n"))

	// Children that hold the pipes do not hold the run.
	b.run("holder = subprocess.Popen(['sh', '-c', 'while :; do echo spam; sleep 0.01; done'])")
	require.Equal(t, "2", b.run("holder.kill(); 1+1").main()["text"])
}

// A task of the code's own that never yields keeps its run from ending, or the
// next one from starting. The client that leaves interrupts it; the state stays.
func TestTaskThatHogsTheLoopIsInterrupted(t *testing.T) {
	t.Parallel()
	for _, opened := range []bool{false, true} { // a run is open when the task begins to hog
		b := start(t)
		folder := t.TempDir()
		b.run("kept = 'kept'\nimport asyncio, os\nasync def hog():\n    while not os.path.exists(" + quote(folder+"/go") + "): await asyncio.sleep(0.01)\n" +
			"    open(" + quote(folder+"/on") + ", 'w')\n    while True: pass\ntask = asyncio.create_task(hog())")
		on := func() bool { _, err := os.Stat(folder + "/on"); return err == nil }
		ctx, leave := context.WithCancel(t.Context())
		if opened {
			resp, err := b.post(ctx, "/execute", body{"code": "await asyncio.sleep(1000)"})
			require.NoError(t, err) // its first event is here, so it runs
			defer resp.Body.Close()
		}
		require.NoError(t, os.WriteFile(folder+"/go", nil, 0o600))
		require.Eventually(t, on, soon, 10*time.Millisecond)
		leave()
		b.insist("kept, task.done()", "('kept', True)")
	}
}

// insist runs code that gives want, again and again: each time it leaves what does
// not end, and waits longer.
func (b *box) insist(code, want string) {
	b.t.Helper()
	for wait := time.Second; wait < soon; wait *= 2 {
		ctx, cancel := context.WithTimeout(b.t.Context(), wait)
		resp, err := b.post(ctx, "/execute", body{"code": code})
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		cancel()
		if err == nil {
			require.Equal(b.t, want, b.run(code).main()["text"])
			return
		}
	}
	b.t.Fatalf("%s never ended", code)
}

func TestBlockedSignalsDoNotOutliveTheirRun(t *testing.T) {
	b := start(t)
	b.run("import signal; kept = 'kept'; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}); signal.signal(signal.SIGINT, signal.SIG_IGN);")
	b.leave("python", "print('on')\nwhile True: pass")
	require.Equal(t, "kept", b.run("kept").main()["text"])
}

func TestChildrenDoNotSpeakForTheKernel(t *testing.T) {
	b := start(t)
	b.run("import os, sys, time, signal")
	for name, code := range map[string]string{
		"returns":     "pid = os.fork()\nif pid: x = os.waitpid(pid, 0)\n'parent' if pid else 'child'",
		"raises":      "pid = os.fork()\nif pid == 0: 1/0\nos.waitpid(pid, 0); 'parent'",
		"exits":       "pid = os.fork()\nif pid == 0: sys.exit(3)\nos.waitpid(pid, 0); 'parent'",
		"is killed":   "pid = os.fork()\nif pid == 0: os.kill(os.getpid(), 9)\nos.waitpid(pid, 0); 'parent'",
		"forks again": "pid = os.fork()\nif pid == 0: os.fork(); os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0); 'parent'",
		"displays":    "pid = os.fork()\nif pid == 0: display('child')\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0); 'parent'",
		"outlives":    "pid = os.fork()\nif pid == 0: time.sleep(0.2); os._exit(0)\n'parent'",
	} {
		r := b.run(code)
		require.Empty(t, r.errorName(), "%s: %v", name, r.lines)
		require.NotNil(t, r.main(), "%s: %v", name, r.lines)
		require.Equal(t, "parent", r.main()["text"], name)
		require.Len(t, r.find("result"), 1, name)
		require.Equal(t, "2", b.run("1+1").main()["text"], name)
	}
	for _, method := range []string{"spawn", "forkserver", "fork"} {
		r := b.run("import multiprocessing, math\nwith multiprocessing.get_context('" + method + "').Pool(2) as p: print(p.map(math.sqrt, [1, 4]))")
		require.Equal(t, "[1.0, 2.0]\n", r.text("stdout"), "%s: %v", method, r.lines)
	}
}

func TestSavedPicturesAreShown(t *testing.T) {
	b := start(t)
	folder := t.TempDir()
	r := b.run("from PIL import Image\nim = Image.new('RGB', (2, 2))\nim.save(" + quote(folder+"/a.png") + ")")
	require.Len(t, r.find("result"), 1, "%v", r.lines)
	require.NotEmpty(t, r.find("result")[0]["png"])
	_, err := os.Stat(folder + "/a.png")
	require.NoError(t, err)
	require.Empty(t, b.run("import io; im.save(io.BytesIO(), 'png')").find("result"))
	require.Len(t, b.run("for _ in range(100): im.save("+quote(folder+"/b.png")+")").find("result"), 20)
	require.NotEmpty(t, b.run("im.save('/nonexistent/x.png')").errorName())
	r = b.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.savefig(" + quote(folder+"/c.png") + "); plt.close()")
	require.Len(t, r.find("result"), 1)
	require.Len(t, b.run("im.show()").find("result"), 1)
}

// An interrupt comes at any instruction of the kernel's program; none may
// split a frame or lose the count of acknowledgements.
func TestInterruptsNeverBreakTheKernel(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.run("kept = 'kept'; import os, sys, asyncio, traceback")
	codes := []string{
		"while True: print('on'); print('on', file=sys.stderr)",
		"while True: print('on'); os.write(1, b'low\\n')",
		"while True: print('on'); display('shown'); os.write(2, b'low\\n')",
		"async def spin():\n    while True:\n        print('on'); await asyncio.sleep(0)\nawait asyncio.gather(spin(), spin())",
		"while True:\n    try: print('on'); 1/0\n    except ZeroDivisionError: traceback.print_exc()",
	}
	for i := range 25 {
		code := codes[i%len(codes)]
		b.leave("python", code)
		r := b.run("print('x'); kept")
		require.NotNil(t, r.main(), "after %s: %v", code, r.lines)
		require.Equal(t, "kept", r.main()["text"], code)
		require.Equal(t, "x\n", r.text("stdout"), "after %s", code)
	}
}
