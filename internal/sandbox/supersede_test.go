package sandbox_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// duringCreate does something once when the next create knows what it starts from.
func duringCreate(do *func()) sandboxtest.Option {
	return beforePut(func(store.Sandbox) error {
		if now := *do; now != nil {
			*do = nil
			now()
		}
		return nil
	})
}

func TestABuildDoesNotTakeTheSnapshotFromACreateThatWaits(t *testing.T) {
	var meanwhile func()
	w := sandboxtest.New(t, duringCreate(&meanwhile))
	quiet := func(string) {}
	template := sandboxtest.Template("built")
	first, err := w.Manager.BuildTemplate(t.Context(), template, false, quiet)
	require.NoError(t, err)
	old := filepath.Join(w.Dir, "snapshots", first.Snapshot)
	meanwhile = func() { // the create knows by now which snapshot it starts from
		yesterday := time.Now().Add(-24 * time.Hour)
		require.NoError(t, os.Chtimes(old, yesterday, yesterday))
		template.EnvVars = map[string]string{"NEW": "1"}
		second, err := w.Manager.BuildTemplate(t.Context(), template, false, quiet)
		require.NoError(t, err)
		require.NotEqual(t, first.Snapshot, second.Snapshot)
	}
	w.Run(t, w.Create(t, "built"), "echo")
	require.Nil(t, meanwhile)
	require.NoDirExists(t, old, "it goes with the last that starts from it")
}

func TestASnapshotStaysThatATemplateHasAgain(t *testing.T) {
	var meanwhile func()
	w := sandboxtest.New(t, duringCreate(&meanwhile))
	quiet := func(string) {}
	template := sandboxtest.Template("built")
	first, err := w.Manager.BuildTemplate(t.Context(), template, false, quiet)
	require.NoError(t, err)
	meanwhile = func() { // the create knows by now which snapshot it starts from
		require.NoError(t, w.Manager.DeleteTemplate(t.Context(), "built"))
		second, err := w.Manager.BuildTemplate(t.Context(), template, false, quiet)
		require.NoError(t, err)
		require.Equal(t, first.Snapshot, second.Snapshot)
	}
	w.Create(t, "built")
	require.Nil(t, meanwhile)
	require.DirExists(t, filepath.Join(w.Dir, "snapshots", first.Snapshot), "the first create that ended must not remove it")
	w.Run(t, w.Create(t, "built"), "echo")
}

// TestOtherProcessesSeeThatASnapshotIsUsed: they go by the time of its folder.
func TestOtherProcessesSeeThatASnapshotIsUsed(t *testing.T) {
	var meanwhile func()
	w := sandboxtest.New(t, duringCreate(&meanwhile))
	built, err := w.Manager.BuildTemplate(t.Context(), sandboxtest.Template("built"), false, func(string) {})
	require.NoError(t, err)
	dir := filepath.Join(w.Dir, "snapshots", built.Snapshot)
	use := func(how string) {
		yesterday := time.Now().Add(-24 * time.Hour)
		require.NoError(t, os.Chtimes(dir, yesterday, yesterday))
		w.Create(t, "built")
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.WithinRange(t, info.ModTime(), yesterday.Add(23*time.Hour), time.Now().Add(time.Hour), how)
	}
	meanwhile = func() { use("while another starts from it") }
	use("alone")
	require.Nil(t, meanwhile)
}

func TestABuildThatWaitsForAnEqualSnapshotCanBeCancelled(t *testing.T) {
	w := sandboxtest.New(t)
	template := sandboxtest.Template("built")
	built, err := w.Manager.BuildTemplate(t.Context(), template, false, func(string) {})
	require.NoError(t, err)
	lock, err := os.OpenFile(filepath.Join(w.Dir, "snapshots", built.Snapshot+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	ctx, cancel := context.WithCancel(t.Context())
	_, err = w.Manager.BuildTemplate(ctx, template, false, func(step string) {
		if step == "waiting for an equal snapshot that is being made" {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
}

func TestABuildCountsForTheQuotaOfItsKey(t *testing.T) {
	w := sandboxtest.New(t)
	template, q := sandboxtest.Template(sandboxtest.Warm), sandbox.Quota{Sandboxes: 1}
	template.KeyID = "k"
	create := sandbox.CreateRequest{Template: sandboxtest.Warm, KeyID: "k", Quota: q, Timeout: time.Minute}
	release, err := w.Manager.Reserve(q, template)
	require.NoError(t, err)
	_, err = w.Manager.Reserve(q, template)
	require.ErrorAs(t, err, new(*sandbox.LimitError))
	_, err = w.Manager.Create(t.Context(), create)
	require.ErrorAs(t, err, new(*sandbox.LimitError))
	require.Empty(t, w.Manager.List(sandbox.Filter{}), "it is in no list")
	release()
	info, err := w.Manager.Create(t.Context(), create)
	require.NoError(t, err)
	_, err = w.Manager.Reserve(q, template)
	require.ErrorAs(t, err, new(*sandbox.LimitError))
	require.NoError(t, w.Manager.Kill(t.Context(), info.ID, "the test is over"))
	require.ErrorAs(t, sandbox.Quota{MemoryBytes: template.MemoryBytes - 1}.Holds(template), new(*sandbox.LimitError))
	require.NoError(t, sandbox.Quota{MemoryBytes: template.MemoryBytes}.Holds(template))
}
