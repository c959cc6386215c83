package kernel_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBashRunsCode(t *testing.T) {
	b := newBox(t, "/nonexistent/python3")
	r := b.in("bash", "echo out; echo err >&2; x='it''s'\ncd /tmp; f() { echo \"f $x\"; }")
	require.Equal(t, "out\n", r.text("stdout"), "%v", r.lines)
	require.Equal(t, "err\n", r.text("stderr"))
	require.Empty(t, r.find("error"))
	r = b.in("bash", "f; pwd; cat; ls /nonexistent")
	require.Equal(t, "f its\n/tmp\n", r.text("stdout"))
	require.Equal(t, "2", r.find("error")[0]["value"])
	require.EqualValues(t, 2, r.find("number_of_executions")[0]["execution_count"])
	last := r.lines[len(r.lines)-2]
	require.Equal(t, "error", last["type"], "the output comes first: %v", r.lines)

	for _, c := range [][2]string{
		{"if true; then\n  echo a\nfi # comment", "a\n"},
		{"cat <<'END'\n$x `y` \\ 'z'\nEND", "$x `y` \\ 'z'\n"},
		{"for i in 1 2; do echo $i; done | tac", "2\n1\n"},
		{"printf 'no line end'", "no line end"},
		{"echo ä😀; printf '\\xff' | wc -c", "ä😀\n1\n"},
		{"", ""},
		{"echo 'echo hi' | bash", "hi\n"},
		{"read -t 1 y; echo $?", "1\n"},
		{"shopt -s extglob; alias q='echo aliased'", ""},
		{"q", "aliased\n"},
		{"sleep 0 & wait; exec 7>/dev/null; echo ok", "ok\n"},
	} {
		code, out := c[0], c[1]
		r := b.in("bash", code)
		require.Equal(t, out, r.text("stdout"), "%s: %v", code, r.lines)
		require.Empty(t, r.find("error"), "%s: %v", code, r.lines)
	}
	r = b.in("bash", "if then")
	require.Contains(t, r.text("stderr"), "syntax error")
	require.Len(t, r.find("error"), 1)
	require.Equal(t, "ok\n", b.in("bash", "echo ok").text("stdout"))
}

func TestBashHasTheVariablesOfTheRun(t *testing.T) {
	b := newBox(t, "/nonexistent/python3")
	with := func(vars map[string]string) string {
		return b.execute(body{"code": "bash -c 'echo \"$A|$B\"'", "language": "bash", "env_vars": vars}).text("stdout")
	}
	require.Equal(t, "|\n", with(nil))
	tricky := "it's \"ä\" \\n 😀 ${x}\nend"
	require.Equal(t, tricky+"|\n", with(map[string]string{"A": tricky}))
	require.Equal(t, "|2\n", with(map[string]string{"B": "2", "no name": "x", "_": "x", "PWD": "/x"}))
	b.setEnv(t, "A=global")
	require.Equal(t, "global|\n", with(nil))
	require.Equal(t, "mine|\n", with(map[string]string{"A": "mine"}))
	require.Equal(t, "global|\n", with(nil))
	b.in("bash", "B='of the code'; declare -a C=(1 2)")
	require.Equal(t, "|", b.execute(body{"code": "printf \"${B%x}|\"", "language": "bash", "env_vars": map[string]string{"B": "x", "C": "y"}}).text("stdout"))
	require.Equal(t, "of the code 2 \n", b.in("bash", `echo "$B ${C[1]} $(printenv B)"`).text("stdout"))
	b.mu.Lock()
	b.env = b.env[:len(b.env)-1]
	b.mu.Unlock()
	b.setEnv(t, "OTHER=1")
	require.Equal(t, "|\n", with(nil), "a variable that the sandbox no longer has")
}

func TestBashOptionsOfUsersDoNotBreakTheKernel(t *testing.T) {
	b := newBox(t, "/nonexistent/python3")
	for _, code := range []string{"set -u", "set -x", "set +x; IFS=:", "set -f", "set -eu", "set +e; set -C", "printf() { :; }; read() { :; }"} {
		b.in("bash", code)
		r := b.execute(body{"code": "echo ok", "language": "bash", "env_vars": map[string]string{"A": "1"}})
		require.Equal(t, "ok\n", r.text("stdout"), "%s: %v", code, r.lines)
		require.Empty(t, r.find("error"), code)
		b.setEnv(t, "X=1")
	}
	r := b.in("bash", "set -e; false; echo not here")
	require.Equal(t, "KernelDied", r.errorName(), "%v", r.lines)
	require.Contains(t, r.find("error")[0]["value"], "exited with code 1")
	require.Equal(t, "new\n", b.in("bash", "echo new").text("stdout"))
}

func TestBashIsInterruptedWhenItsClientLeaves(t *testing.T) {
	t.Parallel()
	b := newBox(t, "/nonexistent/python3")
	b.in("bash", "x=kept")
	for _, code := range []string{"echo on; sleep 1000", "echo on; while :; do :; done", "echo on; sleep 1000 | cat; echo no"} {
		b.leave("bash", code)
		require.Equal(t, "kept\n", b.in("bash", "echo $x").text("stdout"), code)
	}
	b = newImpatientBox(t, "/nonexistent/python3")
	b.in("bash", "x=lost")
	b.leave("bash", "trap '' INT; echo on; while :; do :; done")
	require.Equal(t, "\n", b.in("bash", "echo $x").text("stdout"), "the kernel must be another")
}

func TestBashThatEnds(t *testing.T) {
	b := newBox(t, "/nonexistent/python3")
	for code, says := range map[string]string{
		"echo last; exit 3":                       "exited with code 3",
		"echo last; kill -9 $$":                   "signal 9",
		"echo last; exec true":                    "",
		"echo last; sleep 2345678 & exit 0":       "exited with code 0",
		"echo last; echo nonsense >/proc/$$/fd/3": "",
	} {
		r := b.in("bash", code)
		if says != "" {
			require.Equal(t, "KernelDied", r.errorName(), "%s: %v", code, r.lines)
			require.Contains(t, r.find("error")[0]["value"], says)
			require.Equal(t, "last\n", r.text("stdout"), code)
		}
		require.Equal(t, "2\n", b.in("bash", "echo $((1+1))").text("stdout"))
	}
	require.NotContains(t, commandLines(t), "sleep\x002345678")
	r := b.in("bash", "yes | head -c 30000000")
	require.InDelta(t, 16<<20, len(r.text("stdout")), 1<<20)
	require.Contains(t, r.text("stderr"), "has passed 16 MiB")
	require.Empty(t, r.find("error"))
	require.Equal(t, "4000000\n", b.in("bash", "x='"+strings.Repeat("y", 4000000)+"'; echo ${#x}").text("stdout"))
}
