package sandbox_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// reopen opens a manager that keeps sandboxes, as the next server does. In the end
// it is closed with all of them.
func reopen(t *testing.T, dir string, options ...sandboxtest.Option) *sandboxtest.World {
	t.Helper()
	w, err := sandboxtest.Open(t.Context(), dir, append(options, sandboxtest.Keep)...)
	require.NoError(t, err)
	t.Cleanup(func() { w.Close(context.Background()) })
	return w
}

func TestKilledServersSandboxesAreTakenOver(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	child := sandboxtest.StartChild(t, "kept", dir)
	ids := []string{child.Line(), child.Line(), child.Line()}
	child.Kill()

	// A process that keeps none, as the command line's, leaves them alone.
	other, err := sandboxtest.Open(t.Context(), dir)
	require.NoError(t, err)
	require.Empty(t, other.Manager.List(sandbox.Filter{}))
	require.NoError(t, other.Close(t.Context()))

	began := time.Now()
	w := reopen(t, dir)
	require.Less(t, time.Since(began), 20*time.Second)
	for _, id := range ids[:2] {
		info, err := w.Manager.Get(id)
		require.NoError(t, err)
		require.Equal(t, sandbox.Running, info.State)
		require.WithinDuration(t, info.StartedAt.Add(time.Minute), info.EndAt, time.Second)
		w.Run(t, info, "echo")
		conn, err := w.Manager.Dial(t.Context(), id, 8000)
		require.NoError(t, err)
		require.Equal(t, "HI", sandboxtest.Ask(t, conn, "hi"))
		logs, err := w.Manager.Logs(id)
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(logs, func(l sandbox.LogLine) bool { return strings.Contains(l.Text, "taken over") }))
	}
	require.Eventually(t, func() bool { // its time was over while there was no server, or soon after
		_, err := w.Manager.Get(ids[2])
		return err != nil
	}, patience, tick)
	_, err = w.Manager.Get(ids[2])
	require.ErrorContains(t, err, "timeout")

	// What dies without a server is told of.
	pid, err := w.SentryPID(ids[0])
	require.NoError(t, err)
	require.NoError(t, w.Manager.Pause(t.Context(), ids[1], false))
	leave(t, w)
	kill(t, pid)
	require.Eventually(t, func() bool { return !alive(pid) }, patience, tick)
	w = reopen(t, dir)
	_, err = w.Manager.Get(ids[0])
	require.ErrorContains(t, err, "while there was no server")
	resume(t, w, ids[1])
	require.NoError(t, w.Close(t.Context()))
	require.Empty(t, w.Leftovers())
}

// leave is how a server is stopped that keeps its sandboxes.
func leave(t *testing.T, w *sandboxtest.World) {
	t.Helper()
	require.NoError(t, w.Manager.Leave(t.Context()))
	require.NoError(t, w.Store.Close())
}

func TestServerThatLeavesKeepsMemoryAndState(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	w := reopen(t, dir)
	running := w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, running)
	remember(t, w, running.ID, "a")
	paused := w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, paused)
	remember(t, w, paused.ID, "b")
	require.NoError(t, w.Manager.Pause(t.Context(), paused.ID, false))
	for range 3 {
		leave(t, w)
		_, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute})
		require.Error(t, err)
		require.Zero(t, sandboxtest.OpenTAPs(), "it has let go of the networks")
		w = reopen(t, dir)
		require.Equal(t, "a", remember(t, w, running.ID, ""))
		same, err := w.Manager.Get(running.ID)
		require.NoError(t, err)
		require.WithinDuration(t, running.EndAt, same.EndAt, time.Millisecond)
		same.StartedAt, same.EndAt = running.StartedAt, running.EndAt
		require.Equal(t, running, same)
	}
	resume(t, w, paused.ID)
	require.Equal(t, "b", remember(t, w, paused.ID, ""))
	require.NoError(t, w.Manager.Pause(t.Context(), running.ID, false))
	require.NoError(t, w.Manager.Close(t.Context()))
	require.NoError(t, w.Store.Close())
	w = reopen(t, dir)
	_, err := w.Manager.Get(paused.ID)
	require.ErrorContains(t, err, "server was stopped", "a running one was ended by Close")
	resume(t, w, running.ID)
	require.Equal(t, "a", remember(t, w, running.ID, ""), "a paused one was not")
	require.NoError(t, w.Close(t.Context()))
	require.Empty(t, w.Leftovers())
}

func TestServerKilledAtAnyMomentOfAPauseOrResumeLosesNothing(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	w := reopen(t, dir)
	info := w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, info)
	want := "begin,"
	remember(t, w, info.ID, want)
	for _, after := range []time.Duration{5, 40, 90, 130, 170, 210, 250, 300, 350, 400} {
		require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
		leave(t, w)
		child := sandboxtest.StartChild(t, "pause and resume for ever", dir)
		require.Equal(t, "begin", child.Line())
		time.Sleep(after * time.Millisecond) // the moment does not matter, only that there are several
		child.Kill()
		w = reopen(t, dir)
		_, _, err := w.Manager.Resume(t.Context(), info.ID, sandbox.ResumeRequest{Timeout: time.Minute})
		require.NoError(t, err, "killed after %d ms", after)
		want += "more,"
		require.Equal(t, want, remember(t, w, info.ID, "more,"), "killed after %d ms", after)
		states, err := filepath.Glob(filepath.Join(dir, "sandboxes", info.ID, "state-*"))
		require.NoError(t, err)
		require.LessOrEqual(t, len(states), 1)
	}
	require.NoError(t, w.Close(t.Context()))
	require.Empty(t, w.Leftovers())
}

func kill(t *testing.T, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

func TestOneBrokenSandboxKeepsNobodyFromTheOthers(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	w := reopen(t, dir)
	broken, whole := w.Create(t, sandboxtest.Warm), w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, whole)
	remember(t, w, whole.ID, "a")
	for _, info := range []sandbox.Info{broken, whole} {
		require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	}
	leave(t, w)
	states, err := filepath.Glob(filepath.Join(dir, "sandboxes", broken.ID, "state-*"))
	require.NoError(t, err)
	require.Len(t, states, 1)
	away := filepath.Join(dir, "away")
	require.NoError(t, os.Rename(states[0], away))
	w = reopen(t, dir)
	_, err = w.Manager.Get(broken.ID)
	require.ErrorIs(t, err, sandbox.ErrNotFound)
	resume(t, w, whole.ID)
	require.Equal(t, "a", remember(t, w, whole.ID, ""))
	leave(t, w)

	require.NoError(t, os.Rename(away, states[0]))
	w = reopen(t, dir)
	resume(t, w, broken.ID)
	w.Run(t, broken, "echo")
}

func TestServerRemovesWhatAKilledOneWasSaving(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	w := reopen(t, dir)
	info := w.Create(t, sandboxtest.Warm)
	snapshot, err := w.Manager.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{})
	require.NoError(t, err)
	leave(t, w)
	snapshots := filepath.Join(dir, "snapshots")
	for _, left := range []string{"of-ikilled", "of-ikilled.partial", "fork-ikilled.partial"} {
		require.NoError(t, os.Mkdir(filepath.Join(snapshots, left), 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(snapshots, "fork-ikilled.lock"), nil, 0o600))
	w = reopen(t, dir)
	left, err := filepath.Glob(filepath.Join(snapshots, "*ikilled*"))
	require.NoError(t, err)
	require.Empty(t, left)
	again := w.Create(t, snapshot.ID)
	w.Run(t, again, "echo")
}

func TestSavedStateThatNoRecordNamesIsNotThrownAway(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	w := reopen(t, dir)
	info := w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, info)
	remember(t, w, info.ID, "a")
	before, err := w.Store.Sandbox(t.Context(), info.ID)
	require.NoError(t, err)
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	leave(t, w)
	// As if the server had been killed before it wrote down that the sandbox is paused.
	records, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	require.NoError(t, records.PutSandbox(t.Context(), before))
	require.NoError(t, records.Close())

	w = reopen(t, dir)
	paused, err := w.Manager.Get(info.ID)
	require.NoError(t, err)
	require.Equal(t, sandbox.Paused, paused.State)
	resume(t, w, info.ID)
	require.Equal(t, "ab", remember(t, w, info.ID, "b"))
}
