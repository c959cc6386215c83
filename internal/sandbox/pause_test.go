package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// startRemembering starts a program that keeps what remember tells it in memory.
func startRemembering(t *testing.T, w *sandboxtest.World, info sandbox.Info) {
	t.Helper()
	p := w.Start(t, info, "remember", "0.0.0.0:7000")
	p.Expect("listening")
	p.Close()
}

// remember tells the program something and returns all it was told so far.
func remember(t *testing.T, w *sandboxtest.World, id, text string) string {
	t.Helper()
	conn, err := w.Manager.Dial(t.Context(), id, 7000)
	require.NoError(t, err)
	return sandboxtest.Ask(t, conn, text)
}

func resume(t *testing.T, w *sandboxtest.World, id string) sandbox.Info {
	t.Helper()
	info, resumed, err := w.Manager.Resume(t.Context(), id, sandbox.ResumeRequest{Timeout: time.Minute})
	require.NoError(t, err)
	require.True(t, resumed)
	return info
}

func TestPauseKeepsMemoryAndDiskOverManyRounds(t *testing.T) {
	w := sandboxtest.New(t)
	stopped := make(chan string, 100)
	w.Manager.OnStop(func(id string) { stopped <- id })
	first, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{
		Template: sandboxtest.Warm, Timeout: time.Minute, Metadata: map[string]string{"a": "b"}, EnvVars: map[string]string{"E": "1"},
	})
	require.NoError(t, err)
	startRemembering(t, w, first)
	want := ""
	var sizes []int64
	for round := range 20 {
		want += fmt.Sprintf("%d,", round)
		require.Equal(t, want, remember(t, w, first.ID, fmt.Sprintf("%d,", round)))
		w.Run(t, first, "write", "/home/user/round", want)

		require.NoError(t, w.Manager.Pause(t.Context(), first.ID, false))
		require.Equal(t, first.ID, receive(t, stopped))
		require.ErrorIs(t, w.Manager.Pause(t.Context(), first.ID, false), sandbox.ErrPaused)
		_, err := w.Manager.Dial(t.Context(), first.ID, 7000)
		require.ErrorIs(t, err, sandbox.ErrPaused)
		require.False(t, sandboxtest.EngineRuns(w.Dir), "a paused sandbox has no process")
		paused, err := w.Manager.Get(first.ID)
		require.NoError(t, err)
		require.Equal(t, sandbox.Paused, paused.State)
		sizes = append(sizes, diskUse(t, filepath.Join(w.Dir, "sandboxes", first.ID)))

		info := resume(t, w, first.ID)
		require.Equal(t, sandbox.Running, info.State)
		require.NotEqual(t, first.ExecutionID, info.ExecutionID)
		info.ExecutionID, info.StartedAt, info.EndAt = first.ExecutionID, first.StartedAt, first.EndAt
		require.Equal(t, first, info, "all else is kept")
		require.Equal(t, want, w.Run(t, first, "cat", "/home/user/round"))
		require.Contains(t, w.Run(t, first, "env"), "E=1")
		conn, err := w.Manager.Dial(t.Context(), first.ID, 8000) // it listens since the snapshot
		require.NoError(t, err)
		require.Equal(t, "HI", sandboxtest.Ask(t, conn, "hi"))
	}
	require.Less(t, sizes[19], sizes[0]*3/2, "what is kept of a paused sandbox grows: %v", sizes)
	require.NoError(t, w.Manager.Kill(t.Context(), first.ID, "enough"))
	require.Empty(t, w.Leftovers())
}

func diskUse(t *testing.T, dir string) (total int64) {
	t.Helper()
	require.NoError(t, filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return err
	}))
	return total
}

func TestPauseOfTheDiskAloneBootsAfresh(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, info)
	for round := range 3 {
		w.Run(t, info, "write", fmt.Sprintf("/home/user/%d", round), "kept")
		w.Run(t, info, "write", "/dev/shm/gone", "memory")
		require.NoError(t, w.Manager.Pause(t.Context(), info.ID, true))
		resume(t, w, info.ID)
		for earlier := range round + 1 {
			require.Equal(t, "kept", w.Run(t, info, "cat", fmt.Sprintf("/home/user/%d", earlier)))
		}
		p := w.Start(t, info, "exists", "/dev/shm/gone")
		require.NotZero(t, p.Wait().GetExitCode())
		_, err := w.Manager.Dial(t.Context(), info.ID, 7000)
		require.ErrorIs(t, err, sandbox.ErrPortClosed, "processes are gone")
	}
}

func TestRebootDropsTheMemoryThatWasSaved(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, info)
	w.Run(t, info, "write", "/home/user/file", "kept")
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	_, resumed, err := w.Manager.Resume(t.Context(), info.ID, sandbox.ResumeRequest{Timeout: time.Minute, Reboot: true})
	require.NoError(t, err)
	require.True(t, resumed)
	require.Equal(t, "kept", w.Run(t, info, "cat", "/home/user/file"))
	_, err = w.Manager.Dial(t.Context(), info.ID, 7000)
	require.ErrorIs(t, err, sandbox.ErrPortClosed)
}

type failingCheckpoint struct {
	engine.Instance
	err *atomic.Pointer[error]
}

func (i failingCheckpoint) Checkpoint(ctx context.Context, to string) error {
	if err := i.err.Load(); err != nil {
		os.Mkdir(to, 0o700)
		os.WriteFile(filepath.Join(to, "half"), nil, 0o600)
		return *err
	}
	return i.Instance.Checkpoint(ctx, to)
}

func TestPauseThatFailsLeavesTheSandboxRunning(t *testing.T) {
	var broken atomic.Pointer[error]
	w := sandboxtest.New(t, afterRestore(func(i engine.Instance) (engine.Instance, error) { return failingCheckpoint{i, &broken}, nil }))
	info := w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, info)
	full := errors.New("no space left on device")
	broken.Store(&full)
	require.ErrorIs(t, w.Manager.Pause(t.Context(), info.ID, false), full)
	after, err := w.Manager.Get(info.ID)
	require.NoError(t, err)
	require.Equal(t, info, after)
	require.Equal(t, "still here", remember(t, w, info.ID, "still here"))
	_, err = w.Manager.Fork(t.Context(), info.ID, sandbox.ForkRequest{Count: 2, Timeout: time.Minute})
	require.ErrorIs(t, err, full)
	_, err = w.Manager.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{})
	require.ErrorIs(t, err, full)
	require.Len(t, w.Manager.List(sandbox.Filter{}), 1)
	for _, pattern := range []string{"sandboxes/*/state-*", "snapshots/fork-*", "snapshots/of-*"} {
		left, err := filepath.Glob(filepath.Join(w.Dir, pattern))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	broken.Store(nil)
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	resume(t, w, info.ID)
	require.Equal(t, "still here", remember(t, w, info.ID, ""))
}

func TestRecordThatCannotBeWrittenUndoesPauseAndResume(t *testing.T) {
	var broken atomic.Bool
	w := sandboxtest.New(t, beforePut(func(r store.Sandbox) error {
		if broken.Load() && (r.State == "paused" || r.State == "running") {
			return errors.New("the disk is full")
		}
		return nil
	}))
	info := w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, info)
	broken.Store(true)
	require.ErrorContains(t, w.Manager.Pause(t.Context(), info.ID, false), "the disk is full")
	require.Equal(t, "a", remember(t, w, info.ID, "a"))
	broken.Store(false)
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	broken.Store(true)
	_, _, err := w.Manager.Resume(t.Context(), info.ID, sandbox.ResumeRequest{Timeout: time.Minute})
	require.ErrorContains(t, err, "the disk is full")
	require.False(t, sandboxtest.EngineRuns(w.Dir))
	broken.Store(false)
	resume(t, w, info.ID)
	require.Equal(t, "a", remember(t, w, info.ID, ""))
}

func TestResumeThatFailsLeavesTheSandboxPaused(t *testing.T) {
	var fail atomic.Bool
	w := sandboxtest.New(t, afterRestore(func(i engine.Instance) (engine.Instance, error) {
		if fail.Load() {
			return i, errors.Join(errors.New("broken for the test"), i.Stop(context.Background()))
		}
		return i, nil
	}))
	info := w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, info)
	remember(t, w, info.ID, "kept")
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	fail.Store(true)
	_, _, err := w.Manager.Resume(t.Context(), info.ID, sandbox.ResumeRequest{Timeout: time.Minute})
	require.ErrorContains(t, err, "broken for the test")
	paused, err := w.Manager.Get(info.ID)
	require.NoError(t, err)
	require.Equal(t, sandbox.Paused, paused.State)
	require.False(t, sandboxtest.EngineRuns(w.Dir))
	fail.Store(false)
	resume(t, w, info.ID)
	require.Equal(t, "kept", remember(t, w, info.ID, ""))
}

func TestManyResumesAndPausesAtOnce(t *testing.T) {
	w := sandboxtest.New(t)
	info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{
		Template: sandboxtest.Warm, Timeout: time.Minute, Lifecycle: sandbox.Lifecycle{PauseOnTimeout: true, AutoResume: true},
	})
	require.NoError(t, err)
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	var resumes atomic.Int64
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			_, resumed, err := w.Manager.Resume(t.Context(), info.ID, sandbox.ResumeRequest{Timeout: time.Minute})
			require.NoError(t, err)
			if resumed {
				resumes.Add(1)
			}
		})
		all.Go(func() { require.NoError(t, w.Manager.Wake(t.Context(), info.ID)) })
	}
	all.Wait()
	require.LessOrEqual(t, resumes.Load(), int64(1))
	var pauses atomic.Int64
	for range 5 {
		all.Go(func() {
			if err := w.Manager.Pause(t.Context(), info.ID, false); err == nil {
				pauses.Add(1)
			} else {
				require.ErrorIs(t, err, sandbox.ErrPaused)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, pauses.Load())
}

func TestKillOfOneThatIsPaused(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	require.NoError(t, w.Manager.Kill(t.Context(), info.ID, "not wanted"))
	require.Empty(t, w.Leftovers())
	_, _, err := w.Manager.Resume(t.Context(), info.ID, sandbox.ResumeRequest{Timeout: time.Minute})
	require.ErrorIs(t, err, sandbox.ErrNotFound)
	require.ErrorContains(t, err, "not wanted")
}

// slowCheckpoint waits until its context ends, as a long one would be interrupted.
type slowCheckpoint struct {
	engine.Instance
	begun chan struct{}
}

func (i slowCheckpoint) Checkpoint(ctx context.Context, _ string) error {
	close(i.begun)
	<-ctx.Done()
	return ctx.Err()
}

func TestKillDoesNotWaitForAPause(t *testing.T) {
	begun := make(chan struct{})
	w := sandboxtest.New(t, afterRestore(func(i engine.Instance) (engine.Instance, error) { return slowCheckpoint{i, begun}, nil }))
	info := w.Create(t, sandboxtest.Warm)
	paused := make(chan error)
	go func() { paused <- w.Manager.Pause(t.Context(), info.ID, false) }()
	receive(t, begun)
	state, err := w.Manager.Get(info.ID)
	require.NoError(t, err)
	require.Equal(t, sandbox.Pausing, state.State)
	require.NoError(t, w.Manager.Kill(t.Context(), info.ID, "at once"))
	err = receive(t, paused)
	require.ErrorIs(t, err, sandbox.ErrNotFound)
	require.ErrorContains(t, err, "at once")
	require.Empty(t, w.Leftovers())
}

func TestTimeoutPausesAndTrafficWakes(t *testing.T) {
	w := sandboxtest.New(t)
	stopped := make(chan string, 10)
	w.Manager.OnStop(func(id string) { stopped <- id })
	create := func(l sandbox.Lifecycle) sandbox.Info {
		info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: 300 * time.Millisecond, Lifecycle: l})
		require.NoError(t, err)
		require.Equal(t, info.ID, receive(t, stopped))
		paused, err := w.Manager.Get(info.ID)
		require.NoError(t, err)
		require.Equal(t, sandbox.Paused, paused.State)
		return info
	}
	asleep := create(sandbox.Lifecycle{PauseOnTimeout: true})
	require.ErrorIs(t, w.Manager.Wake(t.Context(), asleep.ID), sandbox.ErrAsleep)
	info := create(sandbox.Lifecycle{PauseOnTimeout: true, AutoResume: true})
	require.NoError(t, w.Manager.Wake(t.Context(), info.ID))
	woken, err := w.Manager.Get(info.ID)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(sandbox.MinWake), woken.EndAt, 10*time.Second)
	require.NoError(t, w.Manager.Wake(t.Context(), info.ID))
	again, err := w.Manager.Get(info.ID)
	require.NoError(t, err)
	require.Equal(t, woken.EndAt, again.EndAt, "traffic gives a running sandbox no more time")
}

func TestForksAreTwinsWithIdentitiesOfTheirOwn(t *testing.T) {
	w := sandboxtest.New(t)
	parent, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{
		Template: sandboxtest.Warm, KeyID: "k", Timeout: time.Minute, EnvVars: map[string]string{"E": "1"}, Metadata: map[string]string{"a": "b"},
		Network: sandbox.NetworkOptions{PrivateTraffic: true},
	})
	require.NoError(t, err)
	startRemembering(t, w, parent)
	remember(t, w, parent.ID, "common,")
	w.Run(t, parent, "write", "/home/user/file", "common")

	// With the parent there is room for three more.
	forks, err := w.Manager.Fork(t.Context(), parent.ID, sandbox.ForkRequest{Count: 5, Timeout: 2 * time.Minute, Quota: sandbox.Quota{Sandboxes: 4}})
	require.NoError(t, err)
	require.Len(t, forks, 5)
	seen := map[string]bool{parent.ID: true, parent.AccessToken: true, parent.TrafficToken: true}
	var made []sandbox.Info
	for _, fork := range forks {
		if fork.Err != nil {
			var limit *sandbox.LimitError
			require.ErrorAs(t, fork.Err, &limit)
			continue
		}
		made = append(made, fork.Info)
		for _, own := range []string{fork.Info.ID, fork.Info.AccessToken, fork.Info.TrafficToken} {
			require.False(t, seen[own], "two have %s", own)
			seen[own] = true
		}
		require.Equal(t, parent.Metadata, fork.Info.Metadata)
		require.WithinDuration(t, time.Now().Add(2*time.Minute), fork.Info.EndAt, 20*time.Second)
	}
	require.Len(t, made, 3)
	for _, info := range append(made, parent) {
		require.Equal(t, "common,"+info.ID, remember(t, w, info.ID, info.ID))
		w.Run(t, info, "write", "/home/user/own", info.ID)
		environment := w.Run(t, info, "env")
		require.Contains(t, environment, "E=1")
		require.Contains(t, environment, "E2B_SANDBOX_ID="+info.ID)
	}
	for _, info := range append(made, parent) {
		require.Equal(t, info.ID, w.Run(t, info, "cat", "/home/user/own"))
	}
	_, err = w.TryStart(t, sandbox.Info{ID: made[0].ID, AccessToken: parent.AccessToken}, "echo")
	require.ErrorContains(t, err, "unauthenticated")
	left, err := filepath.Glob(filepath.Join(w.Dir, "snapshots", "fork-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = w.Manager.Fork(t.Context(), parent.ID, sandbox.ForkRequest{Count: 1, Timeout: time.Minute, Quota: sandbox.Quota{Sandboxes: 4}})
	var limit *sandbox.LimitError
	require.ErrorAs(t, err, &limit)
	for _, count := range []int{0, -1, sandbox.MaxForks + 1} {
		_, err := w.Manager.Fork(t.Context(), parent.ID, sandbox.ForkRequest{Count: count, Timeout: time.Minute})
		var invalid *sandbox.InvalidError
		require.ErrorAs(t, err, &invalid)
	}
}

func TestSnapshotsAreTemplates(t *testing.T) {
	w := sandboxtest.New(t)
	create := func(template, key string) (sandbox.Info, error) {
		return w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: template, KeyID: key, Timeout: time.Minute})
	}
	source, err := create(sandboxtest.Warm, "k")
	require.NoError(t, err)
	startRemembering(t, w, source)
	remember(t, w, source.ID, "one,")
	snapshot, err := w.Manager.Snapshot(t.Context(), source.ID, sandbox.SnapshotRequest{Name: "saved", Quota: sandbox.Quota{Snapshots: 1}})
	require.NoError(t, err)
	require.Equal(t, source.ID, snapshot.SourceSandbox)
	require.Equal(t, "one,two,", remember(t, w, source.ID, "two,"), "it goes on")
	require.NoError(t, w.Manager.Kill(t.Context(), source.ID, ""))

	_, err = create(snapshot.ID, "another")
	require.ErrorIs(t, err, sandbox.ErrTemplateNotFound)
	for _, name := range []string{snapshot.ID, "saved"} {
		info, err := create(name, "k")
		require.NoError(t, err)
		require.NotEqual(t, source.AccessToken, info.AccessToken)
		require.Equal(t, "one,three,", remember(t, w, info.ID, "three,"))
		_, err = w.Manager.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{Name: "more", Quota: sandbox.Quota{Snapshots: 1}})
		var limit *sandbox.LimitError
		require.ErrorAs(t, err, &limit)
		_, err = w.Manager.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{Name: "saved", Quota: sandbox.Quota{DiskBytes: 1 << 20}})
		require.ErrorAs(t, err, &limit, "it is larger than the key's disk")
		require.Equal(t, "max-disk", limit.Flag)
		again, err := w.Manager.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{Name: "saved", Quota: sandbox.Quota{Snapshots: 1}})
		require.NoError(t, err, "it takes the place of the one of that name")
		require.Equal(t, snapshot.ID, again.ID)
		_, err = os.Stat(filepath.Join(w.Dir, "snapshots", snapshot.Snapshot))
		require.ErrorIs(t, err, os.ErrNotExist, "the superseded state is gone")
		require.NoError(t, w.Manager.Kill(t.Context(), info.ID, ""))
		break
	}
	other, err := create(sandboxtest.Warm, "another")
	require.NoError(t, err)
	for _, taken := range []string{"saved", sandboxtest.Warm} {
		_, err = w.Manager.Snapshot(t.Context(), other.ID, sandbox.SnapshotRequest{Name: taken})
		var invalid *sandbox.InvalidError
		require.ErrorAs(t, err, &invalid, taken)
	}
	require.NoError(t, w.Manager.DeleteTemplate(t.Context(), "saved"))
	require.ErrorIs(t, w.Manager.DeleteTemplate(t.Context(), "saved"), sandbox.ErrTemplateNotFound)
	_, err = create("saved", "k")
	require.ErrorIs(t, err, sandbox.ErrTemplateNotFound)
	left, err := filepath.Glob(filepath.Join(w.Dir, "snapshots", "of-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestASnapshotGoesWithItsLastTag(t *testing.T) {
	w := sandboxtest.New(t)
	source := w.Create(t, sandboxtest.Warm)
	files := map[string]string{}
	for _, name := range []string{"saved:v1", "saved:v2"} {
		snapshot, err := w.Manager.Snapshot(t.Context(), source.ID, sandbox.SnapshotRequest{Name: name})
		require.NoError(t, err)
		files[name] = filepath.Join(w.Dir, "snapshots", snapshot.Snapshot)
	}
	tagged, err := w.Manager.TagTemplate(t.Context(), "saved:v1", []string{"default", "kept"})
	require.NoError(t, err)
	require.Equal(t, []string{"default", "kept", "v1"}, tagged.Tags)
	_, err = w.Manager.TagTemplate(t.Context(), "saved:v2", []string{"default"})
	require.NoError(t, err)
	require.NoError(t, w.Manager.UntagTemplate(t.Context(), "saved", []string{"v1"}))
	require.DirExists(t, files["saved:v1"], "a tag is left")
	w.Create(t, "saved:kept")
	require.NoError(t, w.Manager.UntagTemplate(t.Context(), "saved", []string{"kept"}))
	require.NoDirExists(t, files["saved:v1"])
	require.DirExists(t, files["saved:v2"])

	var invalid *sandbox.InvalidError
	require.ErrorAs(t, w.Manager.UntagTemplate(t.Context(), "saved", []string{"default"}), &invalid)
	_, err = w.Manager.TagTemplate(t.Context(), "saved:v1", []string{"x"})
	require.ErrorIs(t, err, sandbox.ErrTemplateNotFound)
	require.NoError(t, w.Manager.DeleteTemplate(t.Context(), "saved"))
	require.NoDirExists(t, files["saved:v2"])
}

func TestSnapshotsOfTheDiskAlone(t *testing.T) {
	w := sandboxtest.New(t)
	source := w.Create(t, sandboxtest.Warm)
	startRemembering(t, w, source)
	w.Run(t, source, "write", "/home/user/file", "kept")
	snapshot, err := w.Manager.Snapshot(t.Context(), source.ID, sandbox.SnapshotRequest{DiskOnly: true})
	require.NoError(t, err)
	require.True(t, snapshot.DiskOnly)
	require.Equal(t, "a", remember(t, w, source.ID, "a"), "it goes on")
	require.NoError(t, w.Manager.Kill(t.Context(), source.ID, ""))
	for range 2 {
		info := w.Create(t, snapshot.ID)
		require.Equal(t, "kept", w.Run(t, info, "cat", "/home/user/file"))
		_, err = w.Manager.Dial(t.Context(), info.ID, 7000)
		require.ErrorIs(t, err, sandbox.ErrPortClosed)
		require.NoError(t, w.Manager.Pause(t.Context(), info.ID, true))
		paused, err := w.Manager.Get(info.ID)
		require.NoError(t, err)
		require.True(t, paused.DiskOnly)
		resume(t, w, info.ID)
		require.Equal(t, "kept", w.Run(t, info, "cat", "/home/user/file"))
	}
	require.NoError(t, w.Manager.DeleteTemplate(t.Context(), snapshot.ID))
}

func TestForkOfOneThatIsPausedLeavesNoTrace(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	_, err := w.Manager.Fork(t.Context(), info.ID, sandbox.ForkRequest{Count: 3, Timeout: time.Minute})
	require.ErrorIs(t, err, sandbox.ErrPaused)
	records, err := w.Store.Sandboxes(t.Context(), true)
	require.NoError(t, err)
	require.Empty(t, records)
	require.Len(t, w.Manager.List(sandbox.Filter{}), 1)
}

func TestWhatWasSavedFitsTheVeryImageItRanFrom(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	snapshot, err := w.Manager.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{})
	require.NoError(t, err)
	used, err := w.Manager.ImagesInUse(t.Context())
	require.NoError(t, err)
	require.True(t, used[snapshot.Image])
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	image := filepath.Join(w.Dir, "images", snapshot.Image)
	was, err := os.Stat(image)
	require.NoError(t, err)
	again := filepath.Join(w.Dir, "again")
	raw, err := os.ReadFile(image)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(again, raw, 0o644))
	require.NoError(t, os.Chtimes(again, time.Now(), was.ModTime().Add(time.Hour)))
	require.NoError(t, os.Rename(image, image+".old"))
	require.NoError(t, os.Rename(again, image))

	_, _, err = w.Manager.Resume(t.Context(), info.ID, sandbox.ResumeRequest{Timeout: time.Minute})
	require.ErrorContains(t, err, "made again")
	_, err = w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: snapshot.ID, Timeout: time.Minute})
	require.ErrorContains(t, err, "made again")
	require.NoError(t, os.Rename(image+".old", image))
	resume(t, w, info.ID)
	w.Run(t, w.Create(t, snapshot.ID), "echo")
}

func TestSavedStatesAreForRootOnly(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	_, err := w.Manager.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{})
	require.NoError(t, err)
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	for _, pattern := range []string{"snapshots/of-*", "sandboxes/*/state-*"} {
		found, err := filepath.Glob(filepath.Join(w.Dir, pattern))
		require.NoError(t, err)
		require.Len(t, found, 1)
		about, err := os.Stat(found[0])
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), about.Mode().Perm(), found[0])
	}
}

func TestQuotas(t *testing.T) {
	w := sandboxtest.New(t)
	create := func(q sandbox.Quota) (sandbox.Info, error) {
		return w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, KeyID: "k", Timeout: time.Minute, Quota: q})
	}
	first, err := create(sandbox.Quota{CPUs: 1, MemoryBytes: 256 << 20, DiskBytes: 64 << 20})
	require.NoError(t, err, "what is allowed")
	for _, test := range []struct {
		quota sandbox.Quota
		flag  string
	}{
		{sandbox.Quota{CPUs: 1}, "max-cpus"},
		{sandbox.Quota{MemoryBytes: 511 << 20}, "max-memory"},
		{sandbox.Quota{DiskBytes: 127 << 20}, "max-disk"},
		{sandbox.Quota{Sandboxes: 1}, "max-sandboxes"},
	} {
		_, err := create(test.quota)
		var limit *sandbox.LimitError
		require.ErrorAs(t, err, &limit)
		require.Equal(t, test.flag, limit.Flag)
		require.Zero(t, limit.RetryAfter, "waiting alone does not help")
	}
	require.NoError(t, w.Manager.Pause(t.Context(), first.ID, false))
	second, err := create(sandbox.Quota{Sandboxes: 1, CPUs: 1, MemoryBytes: 256 << 20})
	require.NoError(t, err, "a paused one takes no place")
	_, _, err = w.Manager.Resume(t.Context(), first.ID, sandbox.ResumeRequest{Timeout: time.Minute, Quota: sandbox.Quota{Sandboxes: 1}})
	var limit *sandbox.LimitError
	require.ErrorAs(t, err, &limit)
	require.NoError(t, w.Manager.Kill(t.Context(), second.ID, ""))
	resume(t, w, first.ID)

	rate := sandbox.Quota{CreateRate: 0.01}
	third, err := create(rate)
	require.NoError(t, err)
	_, err = create(rate)
	require.ErrorAs(t, err, &limit)
	require.InDelta(t, 100, limit.RetryAfter.Seconds(), 15)
	require.True(t, strings.Contains(err.Error(), "max-create-rate"))
	require.NoError(t, w.Manager.Kill(t.Context(), third.ID, ""))
}

// A snapshot takes its time; a timer that fires meanwhile must not win over the
// time that was given before its turn came.
func TestTimeGivenWhileTheTimerWaitsForItsTurnCounts(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	w := sandboxtest.New(t, afterRestore(func(i engine.Instance) (engine.Instance, error) { return waitingCheckpoint{i, begun, goOn}, nil }))
	for _, lifecycle := range []sandbox.Lifecycle{{}, {PauseOnTimeout: true}} {
		info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute, Lifecycle: lifecycle})
		require.NoError(t, err)
		saved := make(chan error, 1)
		go func() {
			_, err := w.Manager.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{})
			saved <- err
		}()
		receive(t, begun)
		if lifecycle.PauseOnTimeout { // a kill does not wait
			_, err = w.Manager.SetTimeout(t.Context(), info.ID, time.Millisecond, false)
			require.NoError(t, err)
			time.Sleep(50 * time.Millisecond) // the timer fires
		}
		_, err = w.Manager.SetTimeout(t.Context(), info.ID, time.Hour, true)
		require.NoError(t, err)
		goOn <- struct{}{}
		require.NoError(t, receive(t, saved))
		now, err := w.Manager.Get(info.ID)
		require.NoError(t, err)
		require.Equal(t, sandbox.Running, now.State)
		require.WithinDuration(t, time.Now().Add(time.Hour), now.EndAt, time.Minute)
		w.Run(t, info, "echo")
	}
}

type waitingCheckpoint struct {
	engine.Instance
	begun, goOn chan struct{}
}

func (i waitingCheckpoint) Checkpoint(ctx context.Context, to string) error {
	i.begun <- struct{}{}
	<-i.goOn
	return i.Instance.Checkpoint(ctx, to)
}
