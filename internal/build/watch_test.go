package build

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// waits starts a build that waits for its turn.
func waits(t *testing.T, b *Builds) (r store.Build, turn func()) {
	for i := range atOnce() {
		require.NoError(t, b.turns.take(t.Context(), fmt.Sprint("other", i), nil))
	}
	r, err := b.Request(t.Context(), Request{KeyID: "key", Alias: "mine"})
	require.NoError(t, err)
	require.NoError(t, b.Start(t.Context(), r.ID, planOfNothing))
	return r, func() {
		for i := range atOnce() {
			b.turns.give(fmt.Sprint("other", i))
		}
	}
}

func TestABuildEndsWithItsKey(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	r, turn := waits(t, b)
	defer turn()
	require.NoError(t, b.endOrphans(t.Context()))
	require.NotNil(t, b.running(r.ID))
	require.NoError(t, b.config.Store.DeleteKey(t.Context(), "key"))
	require.NoError(t, b.endOrphans(t.Context()))
	ended, err := b.Wait(t.Context(), r.ID)
	require.NoError(t, err)
	require.Equal(t, keyDeleted, ended.Reason)
}

func TestABuildEndsWithItsTemplate(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	r, turn := waits(t, b)
	defer turn()
	_, err := b.config.Store.DeleteTemplate(t.Context(), r.TemplateID) // as another process does
	require.NoError(t, err)
	require.NoError(t, b.endOrphans(t.Context()))
	_, err = b.Wait(t.Context(), r.ID)
	require.ErrorIs(t, err, ErrNotFound)
	log, err := b.Log(r.ID)
	require.NoError(t, err)
	require.Equal(t, FailedPrefix+templateDeleted, log[len(log)-1].Message)
}

// TestABuildWhoseTurnComesTooLateRunsNothing: what was deleted or given up meanwhile.
func TestABuildWhoseTurnComesTooLateRunsNothing(t *testing.T) {
	for _, tt := range []struct {
		reason    string
		meanwhile func(b *Builds, r store.Build) error
	}{
		{keyDeleted, func(b *Builds, r store.Build) error { return b.config.Store.DeleteKey(t.Context(), "key") }},
		{"the build was not started in time", func(b *Builds, r store.Build) error { return b.giveUpLeft(t.Context(), r.ID) }},
	} {
		b := newBuilds(t, t.TempDir())
		r, turn := waits(t, b)
		require.NoError(t, tt.meanwhile(b, r))
		turn()
		ended, err := b.Wait(t.Context(), r.ID)
		require.NoError(t, err)
		require.Equal(t, store.BuildError, ended.State)
		require.Equal(t, tt.reason, ended.Reason)
		require.Empty(t, b.turns.running)
	}
}

func TestUploadsOfADeletedKeyGo(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	used, unused := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	for _, key := range []string{"", "key", "other"} {
		for _, hash := range []string{used, unused} {
			require.NoError(t, b.Upload(t.Context(), key, hash, strings.NewReader("x")))
		}
		path, err := b.uploadPath(key, unused)
		require.NoError(t, err)
		old := time.Now().Add(-2 * usedLately)
		require.NoError(t, os.Chtimes(path, old, old))
	}
	require.NoError(t, b.config.Store.DeleteKey(t.Context(), "key"))
	gone, err := b.pruneUploads(t.Context(), uploadsMost, false)
	require.NoError(t, err)
	require.Len(t, gone, 1)
	require.False(t, b.HasUpload("key", unused))
	for _, key := range []string{"", "other"} {
		require.True(t, b.HasUpload(key, unused), key)
	}
	require.True(t, b.HasUpload("key", used), "a build may be using it")
}

// keysOnly has keys and no other records.
type keysOnly struct {
	store.Store
	keys func(ctx context.Context) ([]store.Key, error)
}

func (s keysOnly) Keys(ctx context.Context) ([]store.Key, error) { return s.keys(ctx) }

func waiting(t *testing.T, keys func(ctx context.Context) ([]store.Key, error)) *build {
	log, err := newJournal(filepath.Join(t.TempDir(), "log"), nil)
	require.NoError(t, err)
	b := &Builds{turns: newQueue(2), config: Config{Store: keysOnly{keys: keys}, Manager: &sandbox.Manager{}, Log: slog.New(slog.DiscardHandler)}}
	r := &build{b: b, record: store.Build{KeyID: "key", MemoryBytes: 2 << 30}, log: log}
	r.ctx, r.cancel = context.WithCancelCause(t.Context())
	return r
}

func TestTheTimeForATurnIsNoneOfThatForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := waiting(t, func(context.Context) ([]store.Key, error) {
			return []store.Key{{ID: "key", MaxMemory: 1 << 30}}, nil
		})
		for _, key := range []string{"a", "b"} {
			require.NoError(t, r.b.turns.take(t.Context(), key, nil))
		}
		began := time.Now()
		ended := make(chan error)
		go func() { ended <- r.wait() }()
		time.Sleep(2 * patience)
		r.b.turns.give("a")
		err := <-ended
		require.ErrorAs(t, err, new(*sandbox.LimitError))
		require.Greater(t, time.Since(began), 3*patience)
	})
}

func TestABuildThatIsCancelledWhenItsTurnComesSaysSo(t *testing.T) {
	var r *build
	r = waiting(t, func(ctx context.Context) ([]store.Key, error) {
		r.cancel(&StepError{Message: "it was cancelled"})
		return nil, ctx.Err()
	})
	require.EqualError(t, r.wait(), "it was cancelled")
}

// TestABuildFromASnapshotIsHeldToItsKey: its sandboxes have the snapshot's memory, not
// what the build asked for.
func TestABuildFromASnapshotIsHeldToItsKey(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	_, _, err := b.config.Store.PutTemplate(t.Context(), store.Template{
		ID: "large", Name: "large", KeyID: "other", Public: true, BuildID: "large", SourceSandbox: "box",
		CPUs: 2, MemoryBytes: 64 << 30, DiskBytes: 10 << 30, CreatedAt: time.Now(), BuiltAt: time.Now(),
	})
	require.NoError(t, err)
	log, err := newJournal(filepath.Join(t.TempDir(), "log"), nil)
	require.NoError(t, err)
	plan := Plan{Stages: []Stage{{From: From{Template: "large"}}}}
	r := &build{b: b, record: store.Build{KeyID: "key"}, plan: plan, log: log, quota: sandbox.Quota{MemoryBytes: 1 << 30}}
	err = r.run(t.Context())
	require.ErrorAs(t, err, new(*sandbox.LimitError))
	require.ErrorContains(t, err, "template 'large'")
}
