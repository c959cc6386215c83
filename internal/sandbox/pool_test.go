package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

func withPool(c *sandbox.Config) { c.Pool = 1 }

// shellPID waits for the engine that waits for its sandbox, in a folder that is
// none of those known.
func shellPID(t *testing.T, w *sandboxtest.World, known ...string) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(w.Dir, "sandboxes", "*", "engine", "pid"))
		require.NoError(t, err)
		for _, file := range files {
			if strings.Contains(strings.Join(known, " "), filepath.Base(filepath.Dir(filepath.Dir(file)))) {
				continue
			}
			raw, err := os.ReadFile(file)
			if err != nil {
				return false
			}
			if n, _ := fmt.Sscan(string(raw), &pid); n == 1 {
				return true
			}
		}
		return false
	}, patience, tick)
	return pid
}

// createInShell creates a sandbox until one was started in the shell that waits,
// and returns the process of its engine.
func createInShell(t *testing.T, w *sandboxtest.World, known ...string) (sandbox.Info, int) {
	t.Helper()
	for {
		pid := shellPID(t, w, known...)
		info := w.Create(t, sandboxtest.Warm)
		if _, err := os.Stat(filepath.Join(w.Dir, "sandboxes", info.ID, "engine")); os.IsNotExist(err) {
			return info, pid
		}
		require.NoError(t, w.Manager.Kill(t.Context(), info.ID, "")) // the shell was not quite ready
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func folders(t *testing.T, w *sandboxtest.World) int {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(w.Dir, "sandboxes", "i*"))
	require.NoError(t, err)
	return len(all)
}

func TestSandboxesAreStartedInShells(t *testing.T) {
	w := sandboxtest.New(t, withPool)
	first := w.Create(t, sandboxtest.Warm)
	second, pid := createInShell(t, w, first.ID)
	require.True(t, alive(pid))
	w.Run(t, second, "echo")
	startRemembering(t, w, second)
	remember(t, w, second.ID, "a")
	require.NotZero(t, w.Start(t, second, "dial", "1.2.3.4:80").Wait().GetExitCode())
	require.Eventually(t, func() bool {
		logs, err := w.Manager.Logs(second.ID)
		require.NoError(t, err)
		return slices.ContainsFunc(logs, func(l sandbox.LogLine) bool { return strings.Contains(l.Text, "refused 1.2.3.4") })
	}, patience, tick, "its own log tells of it")
	require.NoError(t, w.Manager.Pause(t.Context(), second.ID, false))
	require.Eventually(t, func() bool { return !alive(pid) }, patience, tick, "its engine goes with it")
	resume(t, w, second.ID)
	require.Equal(t, "ab", remember(t, w, second.ID, "b"))
	require.NoError(t, w.Manager.Kill(t.Context(), second.ID, ""))
	require.NoError(t, w.Manager.Kill(t.Context(), first.ID, ""))
	require.Eventually(t, func() bool { return folders(t, w) == 1 }, patience, tick, "one shell is left")
}

func TestShellThatDiedIsNoLoss(t *testing.T) {
	w := sandboxtest.New(t, withPool)
	first := w.Create(t, sandboxtest.Warm)
	require.NoError(t, syscall.Kill(shellPID(t, w, first.ID), syscall.SIGKILL))
	w.Run(t, w.Create(t, sandboxtest.Warm), "echo")
}

func TestServerTakesOverWhatRunsInAShell(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	w := reopen(t, dir, withPool)
	first := w.Create(t, sandboxtest.Warm)
	second, pid := createInShell(t, w, first.ID)
	startRemembering(t, w, second)
	remember(t, w, second.ID, "a")
	leave(t, w)
	require.True(t, alive(pid))

	other, err := sandboxtest.Open(t.Context(), dir) // keeps none, and sweeps none of these
	require.NoError(t, err)
	require.NoError(t, other.Close(t.Context()))
	require.True(t, alive(pid))

	w = reopen(t, dir, withPool)
	require.Equal(t, "ab", remember(t, w, second.ID, "b"))
	require.NoError(t, w.Manager.Pause(t.Context(), second.ID, false))
	require.Eventually(t, func() bool { return !alive(pid) }, patience, tick)
	resume(t, w, second.ID)
	require.Equal(t, "abc", remember(t, w, second.ID, "c"))
	leave(t, w)
	w = reopen(t, dir)
	require.Equal(t, "abcd", remember(t, w, second.ID, "d"))
	require.NoError(t, w.Close(t.Context()))
	require.Empty(t, w.Leftovers())
}
