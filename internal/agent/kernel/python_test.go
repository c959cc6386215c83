package kernel_test

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/kernel/kerneltest"
)

func TestLastExpressionIsTheMainResult(t *testing.T) {
	b := start(t)
	r := b.run("x = 20\nx + 1")
	require.Equal(t, "21", r.main()["text"])
	require.EqualValues(t, 1, r.find("number_of_executions")[0]["execution_count"])
	require.Equal(t, "42", b.run("x * 2 + 2").main()["text"], "state is kept between runs")
	require.Equal(t, `"it's"`, b.run(`"it's"`).main()["text"])
	require.Equal(t, "plain", b.run("'plain'").main()["text"], "a string value has no quotes")
	require.Nil(t, b.run("1;").main())
}

func TestMagicsAndShellCommands(t *testing.T) {
	b := start(t)
	require.Equal(t, "hello\n", b.run("!echo hello").text("stdout"))
	require.Equal(t, "oops\n", b.run("!echo oops >&2").text("stderr"))
	require.Equal(t, "3", b.run("!exit 3\n_exit_code").main()["text"])
	require.Equal(t, "['a', 'b']", b.run("files = !printf 'a\\nb\\n'\nlist(files)").main()["text"])
	require.Equal(t, "v=5\n", b.run("v=5\n!echo v=$v").text("stdout"))
	require.Equal(t, "from bash\n", b.run("%%bash\necho from bash").text("stdout"))
	require.Contains(t, b.run("%timeit -n1 -r1 pass").text("stdout"), "loop")
	require.Equal(t, "/tmp", b.run("%cd -q /tmp\nimport os\nos.getcwd()").main()["text"])
	require.Equal(t, "UsageError", b.run("%nosuchmagic").errorName())
	require.Contains(t, b.run("len?").text("stdout"), "Return the number of items")
}

func TestTopLevelAwaitAndBackgroundTasks(t *testing.T) {
	b := start(t)
	require.Equal(t, "7", b.run("import asyncio\nawait asyncio.sleep(0.01, 7)").main()["text"])
	b.run("done = asyncio.Event()\nasync def later():\n    await asyncio.sleep(0.05)\n    done.set()\ntask = asyncio.create_task(later())")
	require.Equal(t, "True", b.run("await asyncio.wait_for(done.wait(), 10)").main()["text"])
	require.Equal(t, "KeyboardInterrupt", b.run("raise KeyboardInterrupt").errorName())
	require.Equal(t, "2", b.run("1+1").main()["text"], "the loop survives")
}

func TestOutputArrivesInOrder(t *testing.T) {
	b := start(t)
	r := b.run(`
import sys, os, subprocess
print("a"); print("b", file=sys.stderr); print("c")
os.system("echo d"); print("e")
subprocess.run(["sh", "-c", "echo f >&2"]); print("g", end="")
display("h"); print("i")
!echo j
print("k", end=""); os.system("echo l"); print("m")
sys.stdout.buffer.write("ü\n".encode()); sys.stdout.flush()
os.write(2, b"n\n"); print("o")
display("p")
`)
	got, last := "", ""
	for _, line := range r.lines {
		text, ok := line["text"].(string)
		if !ok {
			continue
		}
		if line["type"] != last { // neighbours may come as one event or two
			last = line["type"].(string)
			got += " " + last + ":"
		}
		got += strings.ReplaceAll(text, "\n", "")
	}
	require.Equal(t, " stdout:a stderr:b stdout:cde stderr:f stdout:g result:h stdout:ijklmü stderr:n stdout:o result:p", got)
}

func TestSilentRunSendsWhatWasPrintedBeforeItEnds(t *testing.T) {
	b := start(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	folder := t.TempDir()
	resp, err := b.post(ctx, "/execute", body{"code": "print('first', end='')\nimport time, os\nwhile not os.path.exists(" + quote(folder+"/go") + "): time.sleep(0.01)"})
	require.NoError(t, err)
	defer resp.Body.Close()
	line := make([]byte, 4096)
	seen := ""
	for !strings.Contains(seen, "first") {
		n, err := resp.Body.Read(line)
		require.NoError(t, err)
		seen += string(line[:n])
	}
	require.NoError(t, os.WriteFile(folder+"/go", nil, 0o600))
	_, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
}

func TestEveryMIMEType(t *testing.T) {
	b := start(t)
	r := b.run(`
from IPython.display import *
display(HTML("<b>h</b>")); display(Markdown("*m*")); display(SVG("<svg xmlns='http://www.w3.org/2000/svg'></svg>"))
display(Latex("$x$")); display(JSON({"k": [1, 2]})); display(Javascript("1"))
display({"application/pdf": b"%PDF", "image/jpeg": b"\xff\xd8", "image/png": b"\x89PNG"}, raw=True)
display({"application/x-own": {"a": 1}, "text/plain": "own"}, raw=True)
`)
	want := []struct{ key, value string }{
		{"html", "<b>h</b>"}, {"markdown", "*m*"}, {"svg", "<svg"}, {"latex", "$x$"}, {"javascript", "1"},
	}
	for _, w := range want {
		found := false
		for _, line := range r.find("result") {
			if text, ok := line[w.key].(string); ok && strings.Contains(text, w.value) {
				found = true
				require.Equal(t, false, line["is_main_result"])
			}
		}
		require.True(t, found, "no result with %s: %v", w.key, r.lines)
	}
	results := r.find("result")
	require.Equal(t, map[string]any{"k": []any{1.0, 2.0}}, results[4]["json"])
	binary := results[6]
	for key, value := range map[string]string{"pdf": "%PDF", "jpeg": "\xff\xd8", "png": "\x89PNG"} {
		require.Equal(t, base64.StdEncoding.EncodeToString([]byte(value)), binary[key])
	}
	require.Equal(t, map[string]any{"application/x-own": map[string]any{"a": 1.0}}, results[7]["extra"])
}

func TestFiguresImagesAndTables(t *testing.T) {
	b := start(t)
	png := func(line map[string]any) string {
		raw, err := base64.StdEncoding.DecodeString(line["png"].(string))
		require.NoError(t, err)
		return string(raw[:4])
	}
	r := b.run("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nprint('before')")
	require.Len(t, r.find("result"), 1, "%v", r.lines)
	require.Equal(t, "\x89PNG", png(r.find("result")[0]))
	require.Empty(t, b.run("1;").find("result"), "a figure is shown once")
	require.Len(t, b.run("plt.plot([1]); plt.show()").find("result"), 1)

	r = b.run("from PIL import Image\nImage.new('RGB', (2, 2))")
	require.Equal(t, "\x89PNG", png(r.main()))

	r = b.run(`
import pandas as pd, numpy as np
pd.DataFrame({"n": [1, 2], "f": [0.5, np.nan], "s": ["x", None], "t": pd.to_datetime(["2024-01-02", None]), 3: [True, False]})`)
	require.Equal(t, map[string]any{
		"n": []any{1.0, 2.0}, "f": []any{0.5, nil}, "s": []any{"x", nil}, "t": []any{"2024-01-02T00:00:00", nil}, "3": []any{true, false},
	}, r.main()["data"])
	require.Contains(t, r.main()["html"], "<table")
	require.Contains(t, r.main()["text"], "2024")
}

func TestErrorsHaveNameValueAndColouredTraceback(t *testing.T) {
	b := start(t)
	e := b.run("def f():\n    return 1/0\nf()").find("error")
	require.Len(t, e, 1)
	require.Equal(t, "ZeroDivisionError", e[0]["name"])
	require.Equal(t, "division by zero", e[0]["value"])
	require.Contains(t, e[0]["traceback"], "\x1b[")
	require.Contains(t, e[0]["traceback"], "line 3")
	require.Contains(t, e[0]["traceback"], "division by zero")
	require.Equal(t, "SyntaxError", b.run("x = = 1").errorName())
	require.Equal(t, "IndentationError", b.run("def f():\nx").errorName())
	require.Equal(t, "ExceptionGroup", b.run("raise ExceptionGroup('g', [ValueError(1)])").errorName())
	require.Equal(t, "StdinNotImplementedError", b.run("input('name? ')").errorName())
	require.Empty(t, b.run("").find("error"))
}

func TestExitIsAnErrorAndKeepsTheKernel(t *testing.T) {
	b := start(t)
	b.run("kept = 1")
	for _, code := range []string{"import sys; sys.exit(3)", "exit()", "quit()", "raise SystemExit"} {
		r := b.run(code)
		require.Equal(t, "SystemExit", r.errorName(), "%s: %v", code, r.lines)
		require.Equal(t, "1", b.run("kept").main()["text"])
	}
}

func TestVariablesOfOneRunAreUndone(t *testing.T) {
	b := start(t)
	b.run("import os; os.environ['KEPT'] = 'user'")
	r := b.execute(body{"code": "os.environ['ONE'] + os.environ['KEPT'] + os.popen('echo $ONE').read()", "env_vars": body{"ONE": "1", "KEPT": "run"}})
	require.Equal(t, `1run1\n`, r.main()["text"])
	require.Equal(t, "(None, 'user')", b.run("os.environ.get('ONE'), os.environ['KEPT']").main()["text"])
	r = b.execute(body{"code": "import time; time.localtime(0).tm_hour", "env_vars": body{"TZ": "ABC-5"}})
	require.Equal(t, "5", r.main()["text"])
	require.Equal(t, "True", b.run("time.localtime(0).tm_hour != 5").main()["text"])
}

func TestInitSetsVariablesAndFreshRandomness(t *testing.T) {
	b := start(t)
	const draw = "import random, numpy, tempfile, uuid\nstate = random.getstate(), numpy.random.get_state()"
	b.run(draw)
	seen := map[string]bool{}
	for i := range 2 {
		b.run("random.setstate(state[0]); numpy.random.set_state(state[1])") // a clone
		b.mu.Lock()
		b.env = append(os.Environ(), "WHERE=clone"+string(rune('0'+i)))
		b.mu.Unlock()
		require.NoError(t, b.Init(context.Background(), hostapi.Init{Entropy: []byte(strings.Repeat(string(rune('a'+i)), 64))}))
		require.Equal(t, "clone"+string(rune('0'+i)), b.run("import os; os.environ['WHERE']").main()["text"])
		for _, code := range []string{"random.random()", "float(numpy.random.random())"} {
			value := b.run(code).main()["text"].(string)
			require.False(t, seen[value], "%s gave %s again", code, value)
			seen[value] = true
		}
	}
	b.mu.Lock()
	b.env = os.Environ()
	b.mu.Unlock()
	require.NoError(t, b.Init(context.Background(), hostapi.Init{Entropy: []byte("x")}))
	require.Equal(t, "(False, True)", b.run("'WHERE' in os.environ, 'MPLBACKEND' in os.environ").main()["text"])
}

func TestDisconnectInterrupts(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.run("kept = 'kept'; import time, os, asyncio, subprocess")
	for name, code := range map[string]string{
		"sleep":      "print('on')\ntime.sleep(100)",
		"loop":       "print('on')\nwhile True: pass",
		"output":     "while True: print('on')",
		"await":      "print('on')\nawait asyncio.sleep(100)",
		"await loop": "print('on')\nawait asyncio.sleep(0)\nwhile True: pass",
		"command":    "print('on')\n!sleep 100",
		"pipe":       "print('on')\n!sleep 100 | cat",
		"os.system":  "print('on')\nos.system('sleep 100')",
		"subprocess": "print('on')\nsubprocess.run(['sleep', '100'])",
		"bash":       "%%bash\necho on\nsleep 100",
	} {
		b.leave("python", code)
		require.Equal(t, "kept", b.run("kept").main()["text"], name)
	}
}

func TestCodeThatIgnoresInterruptsLosesItsKernel(t *testing.T) {
	t.Parallel()
	python, err := kerneltest.Python()
	require.NoError(t, err)
	b := newImpatientBox(t, python)
	b.run("lost = 1")
	b.leave("python", "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('on')\nwhile True: pass")
	require.Equal(t, "NameError", b.run("lost").errorName())
}

func TestLeavingTheQueueRunsNothing(t *testing.T) {
	b := start(t)
	b.run("ran = []")
	folder := t.TempDir()
	first, err := b.post(context.Background(), "/execute", body{"code": "import os, time\nprint('on')\nwhile not os.path.exists(" + quote(folder+"/go") + "): time.sleep(0.01)"})
	require.NoError(t, err) // its first event is here, so it has its turn
	defer first.Body.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err = b.post(ctx, "/execute", body{"code": "ran.append(1)"})
	require.Error(t, err)
	require.NoError(t, os.WriteFile(folder+"/go", nil, 0o600))
	readLines(t, first.Body)
	require.Equal(t, "[]", b.run("ran").main()["text"])
}

func TestDeadKernelComesBackUnderTheSameID(t *testing.T) {
	b := start(t)
	for code, why := range map[string]string{
		"import os; os._exit(7)":                                           "code 7",
		"import os; os.kill(os.getpid(), 9)":                               "signal 9",
		"import os; os.kill(os.getpid(), 11)":                              "signal 11",
		"import os; os.write(3, b'junk\\n'); import time; time.sleep(100)": "protocol",
	} {
		ids := b.list()
		b.run("lost = 1; print('x')")
		r := b.run("print('last words')\n" + code)
		require.Equal(t, "KernelDied", r.errorName(), code)
		require.Contains(t, r.find("error")[0]["value"], why)
		require.Equal(t, "last words\n", r.text("stdout"))
		require.Equal(t, "NameError", b.run("lost").errorName())
		if len(ids) > 0 {
			require.Equal(t, ids, b.list())
		}
	}
}

func TestKernelTakesItsChildrenAlong(t *testing.T) {
	b := start(t)
	pid := b.run("import subprocess; p = subprocess.Popen(['sleep', '100']); p.pid").main()["text"].(string)
	require.Equal(t, "KernelDied", b.run("import os; os._exit(1)").errorName())
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		return err != nil || strings.Contains(string(stat), ") Z")
	}, soon, 10*time.Millisecond)
}

func TestForkedChildIsNotTheKernel(t *testing.T) {
	b := start(t)
	r := b.run("import os\npid = os.fork()\nif pid == 0: print('child')\nelse: os.waitpid(pid, 0); print('parent')")
	require.Equal(t, "child\nparent\n", r.text("stdout"))
	require.Equal(t, "2", b.run("1+1").main()["text"])
	r = b.run("import multiprocessing as m\ndef f(x): print('w'); return x*x\nwith m.get_context('fork').Pool(2) as p: print(p.map(f, [1,2,3]))")
	require.Contains(t, r.text("stdout"), "[1, 4, 9]")
}

func TestOutputOfARunIsBounded(t *testing.T) {
	t.Parallel()
	b := start(t)
	for name, code := range map[string]string{
		"python":     "for _ in range(300): print('x' * 99_999)",
		"one string": "print('x' * 30_000_000)",
		"descriptor": "import os\nfor _ in range(300): os.write(1, b'x' * 99_999)",
		"command":    "!head -c 30000000 /dev/zero | tr '\\\\0' x",
	} {
		r := b.run(code)
		size := len(r.text("stdout"))
		require.LessOrEqual(t, size, 16<<20, name)
		require.Greater(t, size, 15<<20, name)
		require.Equal(t, 1, strings.Count(r.text("stderr"), "left out"), name)
	}
	r := b.run("'x' * 5_000_000")
	require.Less(t, len(r.main()["text"].(string)), 2<<20)
	r = b.run("display({'text/html': 'x' * 15_000_000, 'text/plain': 'small'}, raw=True)")
	require.Equal(t, "small", r.find("result")[0]["text"])
	require.Contains(t, r.text("stderr"), "text/html of a result left out")
}

func TestManySmallPrintsComeTogether(t *testing.T) {
	b := start(t)
	r := b.run("for i in range(100_000): print(i)")
	require.Equal(t, 100_000, strings.Count(r.text("stdout"), "\n"))
	require.Less(t, len(r.lines), 20_000)
}

func TestSlowClientHoldsTheKernelUp(t *testing.T) {
	b := start(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	resp, err := b.post(ctx, "/execute", body{"code": "for i in range(20_000): print('y' * 500)"})
	require.NoError(t, err)
	defer resp.Body.Close()
	r := readLines(t, resp.Body)
	require.Equal(t, 20_000, strings.Count(r.text("stdout"), "\n"))
}

func TestWarmKernelShowsNothingOfIt(t *testing.T) {
	b := start(t)
	require.NoError(t, b.Warm(context.Background(), []string{"python"}))
	require.Len(t, b.list(), 1)
	r := b.run("1+1")
	require.EqualValues(t, 1, r.find("number_of_executions")[0]["execution_count"])
	require.Equal(t, "['In', 'Out', '_', '__', '___', 'exit', 'get_ipython', 'open', 'quit']",
		b.run("sorted(n for n in globals() if n[0] != '_' or set(n) == {'_'})").main()["text"])
}

func TestNotebookHabits(t *testing.T) {
	b := start(t)
	require.Equal(t, "", b.run("%%capture out\nprint(42)").text("stdout"))
	require.Equal(t, "42\n", b.run("print(out.stdout, end='')").text("stdout"))
	require.Len(t, b.run("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1]);").find("result"), 1)
	require.Contains(t, b.run("%%time\n1").text("stdout"), "Wall time")
	require.Equal(t, "<b>x</b>\n", b.run("%%html\n<b>x</b>").find("result")[0]["html"])
	require.Equal(t, "3", b.run("%env A=3\nimport os; os.environ['A']").main()["text"])
	require.Equal(t, "StdinNotImplementedError", b.run("breakpoint()").errorName())
	require.Contains(t, b.run("import sys; sys.__stdout__.write('low\\n');").text("stdout"), "low")
	require.Contains(t, b.run("import logging; logging.warning('careful')").text("stderr"), "careful")
	require.Contains(t, b.run("import warnings; warnings.warn('beware')").text("stderr"), "beware")
	r := b.run("h = display('a', display_id=True); h.update('b')")
	require.Len(t, r.find("result"), 1, "%v", r.lines)
	r = b.run("'漢' * 2_000_000")
	require.Equal(t, "", r.errorName(), "%.200v", r.lines)
	require.Equal(t, "3", b.run("import asyncio\nasync def gen():\n    yield 3\n[x async for x in gen()][0]").main()["text"])
}

func TestNothingIsLeftAfterClose(t *testing.T) {
	before := openFiles(t)
	b := start(t)
	for range 3 {
		b.run("import os; os._exit(1)")
	}
	b.run("1")
	b.Close()
	b.server.Close()
	http.DefaultClient.CloseIdleConnections()
	require.Eventually(t, func() bool { return openFiles(t) <= before }, soon, 10*time.Millisecond,
		"%d files open before", before)
}

func TestReasonOfAKillIsTold(t *testing.T) {
	b := start(t)
	pid, err := strconv.Atoi(b.run("import os; os.getpid()").main()["text"].(string))
	require.NoError(t, err)
	process, ok := b.spawner.Find(pid)
	require.True(t, ok)
	process.SetReason("the sandbox ran out of memory")

	r := b.run("!kill -9 $$")
	require.Contains(t, r.text("stderr"), "a process of this run was ended: the sandbox ran out of memory")
	require.Empty(t, b.run("1").text("stderr"), "it is told once")
	r = b.run("os.kill(os.getpid(), 9)")
	require.Contains(t, r.find("error")[0]["value"], "signal 9 (killed): the sandbox ran out of memory")
}

func TestInitReachesABusyKernelAfterItsRun(t *testing.T) {
	b := start(t)
	b.run("import os, time, random; random.seed(1); state = random.getstate()")
	folder := t.TempDir()
	resp, err := b.post(context.Background(), "/execute", body{"code": "while not os.path.exists(" + quote(folder+"/go") + "): time.sleep(0.01)\nrandom.setstate(state)"})
	require.NoError(t, err)
	defer resp.Body.Close()
	b.mu.Lock()
	b.env = append(os.Environ(), "LATE=yes", "BIG="+strings.Repeat("x", 10_000))
	b.mu.Unlock()
	for range 50 { // more than the socket holds: paused and resumed often
		// It does not wait for the run, which waits for what follows.
		require.NoError(t, b.Init(context.Background(), hostapi.Init{Entropy: make([]byte, 64)}))
	}
	require.NoError(t, os.WriteFile(folder+"/go", nil, 0o600))
	readLines(t, resp.Body)
	require.Equal(t, "('yes', False)", b.run("os.environ['LATE'], random.getstate() == state").main()["text"])
}

func TestFailedStartShowsWhatWasWritten(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "python3")
	require.NoError(t, os.WriteFile(broken, []byte("#!/bin/sh\necho no such library >&2\nexit 4\n"), 0o700))
	b := newBox(t, broken)
	status, answer := b.ask("POST", "/execute", `{"code":"1"}`, "")
	require.Equal(t, 500, status)
	require.Contains(t, answer, "code 4")
	require.Contains(t, answer, "no such library")
}
