package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

func TestWrongLifecycleCommands(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		args []string
		want string // in stderr
	}{
		{[]string{"create", "--on-timeout", "sleep"}, "use kill or pause"},
		{[]string{"create", "--auto-resume"}, "--on-timeout pause"},
		{[]string{"pause"}, "at least 1 arg"},
		{[]string{"resume"}, "at least 1 arg"},
		{[]string{"fork"}, "accepts 1 arg"},
		{[]string{"snapshot", "a", "b"}, "accepts 1 arg"},
		{[]string{"metrics"}, "accepts 1 arg"},
		{[]string{"pause", "i1"}, "no server runs"},
	} {
		got := tombolo(t, dir, "", append([]string{"sandbox"}, test.args...)...)
		require.Equal(t, 1, got.code, "%v", test.args)
		require.Contains(t, got.stderr, test.want, "%v", test.args)
		require.Empty(t, got.stdout, "%v", test.args)
	}
}

func TestLifecycleCommands(t *testing.T) {
	needAgent(t)
	dir := sandboxtest.NewDir(t)
	server := startServer(t, dir)
	run := func(args ...string) string {
		t.Helper()
		got := tombolo(t, dir, "", append([]string{"sandbox"}, args...)...)
		require.Zero(t, got.code, "%v: %s", args, got.stderr)
		return strings.TrimSpace(got.stdout)
	}
	fails := func(args ...string) string {
		t.Helper()
		got := tombolo(t, dir, "", append([]string{"sandbox"}, args...)...)
		require.Equal(t, 1, got.code, "%v", args)
		return got.stderr
	}
	var made shownSandbox
	require.NoError(t, json.Unmarshal([]byte(run("create", "-t", sandboxtest.Cold, "--on-timeout", "pause", "--auto-resume", "--private", "--offline", "--json")), &made))
	require.Equal(t, sandbox.Lifecycle{PauseOnTimeout: true, AutoResume: true}, made.Lifecycle)
	require.Equal(t, sandbox.NetworkOptions{DenyInternet: true, PrivateTraffic: true}, made.Network)
	require.True(t, made.DenyInternet)
	require.NotEmpty(t, made.TrafficToken, "whoever made it must be able to use it")
	require.Empty(t, made.AccessToken)
	require.NotContains(t, run("list", "--json"), made.TrafficToken, "a secret on the terminal")

	require.Equal(t, made.ID, run("pause", made.ID))
	require.Regexp(t, made.ID+` .* paused .* since `, run("list"))
	require.Equal(t, "tombolo: sandbox "+made.ID+" is paused already\n", fails("pause", made.ID))
	for _, args := range [][]string{{"exec", made.ID, "--", "/bin/probe", "env"}, {"fork", made.ID}, {"snapshot", made.ID}} {
		require.Contains(t, fails(args...), "`tombolo sandbox resume "+made.ID+"`", "%v", args)
	}
	require.Contains(t, run("logs", made.ID), "paused", "its log stays")

	require.Equal(t, made.ID, run("resume", made.ID, "--timeout", "1h"))
	require.Contains(t, run("exec", made.ID, "--", "/bin/probe", "echo", "back"), "back")
	var listed []shownSandbox
	require.NoError(t, json.Unmarshal([]byte(run("list", "--json")), &listed))
	require.WithinDuration(t, time.Now().Add(time.Hour), listed[0].EndAt, time.Minute)

	copies := strings.Fields(run("fork", made.ID, "--count", "2"))
	require.Len(t, copies, 2)
	require.Contains(t, run("exec", copies[0], "--", "/bin/probe", "echo", "copied"), "copied")
	require.Contains(t, fails("fork", made.ID, "--count", "101"), "1 to 100")

	require.Equal(t, "saved:v1", run("snapshot", made.ID, "--name", "Saved:v1"))
	require.Contains(t, fails("snapshot", made.ID, "--name", sandboxtest.Cold), sandboxtest.Cold)
	require.Regexp(t, `saved +v1 +snapshot .* memory `, tombolo(t, dir, "", "template", "list").stdout)
	require.NotEmpty(t, run("create", "-t", "saved:v1"))
	require.Equal(t, "deleted saved:v1\n", tombolo(t, dir, "", "template", "delete", "saved:v1").stdout)
	require.Contains(t, fails("create", "-t", "saved:v1"), "tombolo template build")
	run("snapshot", made.ID, "--name", "files", "--disk-only")
	require.Regexp(t, `files +default +snapshot .* disk `, tombolo(t, dir, "", "template", "list").stdout)
	for _, args := range [][]string{{"kill", "none"}, {"pause", "none"}, {"logs", "none"}} {
		require.Contains(t, fails(args...), "tombolo sandbox list --all", "%v", args)
	}

	require.Eventually(t, func() bool { return strings.Contains(run("metrics", made.ID), "MiB") }, patience, 100*time.Millisecond)
	var points []sandbox.Metric
	require.NoError(t, json.Unmarshal([]byte(run("metrics", made.ID, "--since", "0", "--json")), &points))
	require.NotEmpty(t, points)

	run("pause", made.ID)
	require.Contains(t, fails("kill", "--all"), "--yes", "nobody to ask")
	require.Len(t, strings.Fields(run("kill", "--all", "--yes")), 4, "paused ones too")
	require.JSONEq(t, "[]", run("list", "--json"))
	require.Empty(t, run("kill", "--all"), "nothing to ask about")
	server.stop()
	require.Empty(t, sandboxtest.Leftovers(dir))
}
