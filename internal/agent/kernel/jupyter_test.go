package kernel_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/kernel/kerneltest"
)

// jupyterBox is a box whose sandbox has the given kernel specs.
func jupyterBox(t *testing.T, specs map[string]any) *box {
	t.Helper()
	python, err := kerneltest.Python()
	require.NoError(t, err)
	return newBox(t, python, writeSpecs(t, specs), "PYTHONUNBUFFERED=1")
}

// writeSpecs returns the variable that has Jupyter find the specs.
func writeSpecs(t *testing.T, specs map[string]any) string {
	t.Helper()
	dir := t.TempDir()
	for name, spec := range specs {
		text, ok := spec.(string)
		if !ok {
			data, err := json.Marshal(spec)
			require.NoError(t, err)
			text = string(data)
		}
		folder := filepath.Join(dir, "kernels", name)
		require.NoError(t, os.MkdirAll(folder, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(folder, "kernel.json"), []byte(text), 0o644))
	}
	return "JUPYTER_PATH=" + dir
}

// ipykernel is a real Jupyter kernel that says it has the given language.
func ipykernel(t *testing.T, language string) map[string]any {
	t.Helper()
	python, err := kerneltest.Python()
	require.NoError(t, err)
	return map[string]any{
		"argv":     []string{python, "-m", "ipykernel_launcher", "-f", "{connection_file}"},
		"env":      map[string]string{"FROM_SPEC": "${HOME} of the spec"},
		"language": language,
	}
}

func TestJupyterKernelRunsCode(t *testing.T) {
	b := jupyterBox(t, map[string]any{"Extra": ipykernel(t, "snake")})
	r := b.in("extra", "import sys, os\nprint('out')\nprint('err', file=sys.stderr)\nx = 20\nx + 1")
	require.Equal(t, "21", r.main()["text"], "%v", r.lines)
	require.Equal(t, "out\n", r.text("stdout"))
	require.Equal(t, "err\n", r.text("stderr"))
	require.EqualValues(t, 1, r.find("number_of_executions")[0]["execution_count"])

	// The name of the spec and of its language are one context.
	require.Equal(t, "20", b.in("SNAKE", "x").main()["text"])
	require.Equal(t, "snake", b.list()[0]["language"])

	r = b.in("snake", "from IPython.display import display, HTML\ndisplay(HTML('<b>x</b>'))\n1/0")
	require.Equal(t, "<b>x</b>", r.find("result")[0]["html"])
	require.Equal(t, false, r.find("result")[0]["is_main_result"])
	require.Equal(t, "ZeroDivisionError", r.errorName())
	require.Len(t, r.find("error"), 1)
	require.Contains(t, r.find("error")[0]["traceback"], "division by zero")

	home, err := os.UserHomeDir()
	require.NoError(t, err)
	require.Equal(t, home+" of the spec", b.in("snake", "os.environ['FROM_SPEC']").main()["text"])
	require.Equal(t, "StdinNotImplementedError", b.in("snake", "input()").errorName())
}

func TestJupyterKernelHasTheVariablesOfTheRun(t *testing.T) {
	b := jupyterBox(t, map[string]any{"extra": ipykernel(t, "snake")})
	get := "import os; os.environ.get('A'), os.environ.get('B')"
	with := func(vars map[string]string) string {
		return b.execute(body{"code": get, "language": "extra", "env_vars": vars}).main()["text"].(string)
	}
	tricky := "it's \"ä\" \\n 😀 ${x}\nend"
	require.Equal(t, "(None, None)", with(nil))
	r := b.execute(body{"code": "import os; print(os.environ['A'])", "language": "extra", "env_vars": map[string]string{"A": tricky}})
	require.Equal(t, tricky+"\n", r.text("stdout"))
	require.Equal(t, "(None, '2')", with(map[string]string{"B": "2"}))

	b.setEnv(t, "A=global")
	require.Equal(t, "('global', None)", with(nil))
	require.Equal(t, "('mine', None)", with(map[string]string{"A": "mine"}))
	require.Equal(t, "('global', None)", with(nil))
}

func TestJupyterKernelIsInterruptedWhenItsClientLeaves(t *testing.T) {
	t.Parallel()
	spec := ipykernel(t, "snake")
	spec["interrupt_mode"] = "message"
	b := jupyterBox(t, map[string]any{"signal": ipykernel(t, "adder"), "message": spec})
	for _, language := range []string{"signal", "message"} {
		require.Equal(t, "1", b.in(language, "x = 1; x").main()["text"])
		b.leave(language, "import time\nprint('on', flush=True)\nwhile True: time.sleep(0.01)")
		require.Equal(t, "1", b.in(language, "x").main()["text"], "the kernel must have kept its state")
	}
}

func TestJupyterKernelThatIgnoresInterruptsIsLost(t *testing.T) {
	t.Parallel()
	b := newImpatientBox(t, "/nonexistent/python3", writeSpecs(t, map[string]any{"extra": ipykernel(t, "snake")}))
	b.in("extra", "x = 1; import time")
	b.leave("extra", "while True:\n  try:\n"+
		"    print('on', flush=True)\n    while True: time.sleep(0.01)\n  except KeyboardInterrupt: pass")
	require.Equal(t, "NameError", b.in("extra", "x").errorName(), "the kernel must be another")
}

func TestJupyterKernelThatEnds(t *testing.T) {
	t.Parallel()
	b := jupyterBox(t, map[string]any{"extra": ipykernel(t, "snake")})
	for code, says := range map[string]string{
		"import os; print('last', flush=True); os._exit(3)":                          "exited with code 3",
		"import os, signal; print('last', flush=True); os.kill(os.getpid(), 9)":      "signal 9",
		"import os; print('last', flush=True); os.closerange(3, 1000); input()":      "",
		"import subprocess, os\nsubprocess.Popen(['sleep', '1234567'])\nos._exit(0)": "exited with code 0",
	} {
		r := b.in("extra", code)
		require.Equal(t, "KernelDied", r.errorName(), "%s: %v", code, r.lines)
		require.Contains(t, r.find("error")[0]["value"], says)
		r = b.in("extra", "1+1")
		require.Equal(t, "2", r.main()["text"], "%v", r.lines)
	}
	require.NotContains(t, commandLines(t), "sleep\x001234567", "the child of a kernel that ended must not go on")
}

func TestJupyterKernelMayPrintWithoutEnd(t *testing.T) {
	b := jupyterBox(t, map[string]any{"extra": ipykernel(t, "snake")})
	r := b.in("extra", "for i in range(1000): print('x' * 100_000)")
	require.LessOrEqual(t, len(r.text("stdout")), 16<<20)
	require.Regexp(t, "has passed 16 MiB|message of more than 32 MiB", r.text("stderr"))
	require.Equal(t, "", r.errorName())

	r = b.in("extra", "from IPython.display import display\nfor i in range(3000): display({'text/plain': str(i)}, raw=True)")
	require.Greater(t, len(r.find("result")), 900, "ZeroMQ keeps 1000 when the agent gets no processor")
	require.Empty(t, r.find("error"))
	r = b.in("extra", "display({'text/plain': 'x' * (33 << 20)}, raw=True)\n'after'")
	require.Contains(t, r.text("stderr"), "a message of more than 32 MiB")
	require.Equal(t, "after", r.main()["text"])
}

func TestSpecsThatAreNoKernels(t *testing.T) {
	mute := map[string]any{"argv": []string{"sh", "-c", "echo cannot load the library >&2; exit 4"}, "language": "mute"}
	b := jupyterBox(t, map[string]any{
		"garbage": "{nonsense", "empty": "{}", "huge": strings.Repeat(" ", 300<<10) + "{}",
		"mode":    `{"argv": ["x"], "interrupt_mode": "shout"}`,
		"nowhere": map[string]any{"argv": []string{"no-such-program", "{connection_file}"}},
		"mute":    mute,
		"plain":   ipykernel(t, "plain"),
		"python":  mute, // the name is taken
	})
	for name, c := range map[string]struct {
		status int
		says   string
	}{
		"garbage": {400, "kernel.json is not the JSON expected"},
		"empty":   {400, "names no program"},
		"huge":    {400, "more than"},
		"mode":    {400, `unknown interrupt_mode, "shout"`},
		"nowhere": {500, "has no program no-such-program"},
		"mute":    {500, "cannot load the library"},
		"cobol":   {400, "typescript, mute, nowhere, plain"},
	} {
		status, answer := b.ask("POST", "/execute", fmt.Sprintf(`{"code":"1","language":%q}`, name), "")
		require.Equal(t, c.status, status, "%s: %s", name, answer)
		require.Contains(t, answer, c.says)
	}
	require.Equal(t, "2", b.in("python", "1+1").main()["text"])
}

func TestKernelOfAnUnknownLanguageHasNoVariablesOfARun(t *testing.T) {
	// The one real kernel here says that its language is Python: ask it to lie.
	spec := ipykernel(t, "plain")
	spec["argv"] = []string{spec["argv"].([]string)[0], "-c", "import sys\n" +
		"from ipykernel.ipkernel import IPythonKernel\n" +
		"IPythonKernel.language_info = {'name': 'plain'}\n" +
		"from ipykernel.kernelapp import launch_new_instance\n" +
		"launch_new_instance()", "-f", "{connection_file}"}
	b := jupyterBox(t, map[string]any{"plain": spec})
	status, answer := b.ask("POST", "/execute", `{"code":"1","language":"plain","env_vars":{"A":"1"}}`, "")
	require.Equal(t, 400, status, answer)
	require.Contains(t, answer, "cannot be given variables for one run")
	require.Equal(t, "1", b.in("plain", "1").main()["text"])
}

func TestKernelThatNeverAnswersEndsWithItsContext(t *testing.T) {
	b := jupyterBox(t, map[string]any{"deaf": map[string]any{"argv": []string{"sleep", "7654321"}}})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := b.post(ctx, "/contexts", body{"language": "deaf"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool { return !strings.Contains(commandLines(t), "sleep\x007654321") },
		soon, 20*time.Millisecond, "the process must be ended")
}

func TestAWarmJupyterKernelIsSeededAnew(t *testing.T) {
	b := jupyterBox(t, map[string]any{"extra": ipykernel(t, "snake")})
	require.NoError(t, b.Warm(t.Context(), []string{"snake", "bash"}))
	for language, code := range map[string]struct{ seed, draw string }{
		"snake": {"import random; random.seed(1)", "print(random.random())"},
		"bash":  {"RANDOM=1", "echo $RANDOM"},
	} {
		first := b.in(language, code.seed+"\n"+code.draw)
		require.EqualValues(t, 1, first.find("number_of_executions")[0]["execution_count"], "what is hidden is not counted")
		b.in(language, code.seed)
		b.setEnv(t, "ANY=1")
		require.NotEqual(t, first.text("stdout"), b.in(language, code.draw).text("stdout"), language)
	}
}
