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

func TestABuildDoesNotTakeTheSnapshotFromACreateThatWaits(t *testing.T) {
	var meanwhile func()
	w := sandboxtest.New(t, beforePut(func(store.Sandbox) error {
		if do := meanwhile; do != nil {
			meanwhile = nil
			do()
		}
		return nil
	}))
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
