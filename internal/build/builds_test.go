package build

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// newBuilds makes builds that no sandbox is needed for: their plans fail before.
func newBuilds(t *testing.T, dir string) *Builds {
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "tombolo.db"))
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	for _, id := range []string{"key", "other"} {
		require.NoError(t, s.AddKey(t.Context(), store.Key{ID: id, Name: id, Hash: id, CreatedAt: time.Now()}))
	}
	b, err := New(t.Context(), Config{DataDir: dir, Store: s, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return b
}

var planOfNothing = Plan{Stages: []Stage{{From: From{Template: "missing"}}}}

func TestRequestsThatNobodyStartsDoNotStopTheNext(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	other, err := b.Request(t.Context(), Request{KeyID: "other", Alias: "other"})
	require.NoError(t, err)
	var all []store.Build
	for i := range requestedMost + waitingMost {
		for _, key := range []string{"key", ""} { // "" is the command line
			r, err := b.Request(t.Context(), Request{KeyID: key, Alias: fmt.Sprintf("t%s%d", key, i)})
			require.NoError(t, err)
			all = append(all, r)
		}
	}
	first, err := b.Get(t.Context(), all[0].ID)
	require.NoError(t, err)
	require.Equal(t, store.BuildError, first.State)
	require.Contains(t, first.Reason, "not started")
	require.ErrorIs(t, b.Start(t.Context(), first.ID, planOfNothing), ErrStarted)
	for _, id := range []string{other.ID, all[len(all)-1].ID} {
		last, err := b.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, store.BuildWaiting, last.State)
	}
}

func TestABuildThatWaitsIsNotStartedAgain(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	for i := range atOnce() {
		require.NoError(t, b.turns.take(t.Context(), fmt.Sprint("other", i), nil))
	}
	var started []store.Build
	for i := range waitingMost + 1 {
		r, err := b.Request(t.Context(), Request{KeyID: "key", Alias: fmt.Sprintf("t%d", i)})
		require.NoError(t, err)
		started = append(started, r)
	}
	for _, r := range started[:waitingMost] {
		require.NoError(t, b.Start(t.Context(), r.ID, planOfNothing))
	}
	require.ErrorIs(t, b.Start(t.Context(), started[waitingMost].ID, planOfNothing), ErrTooMany)
	_, err := b.Request(t.Context(), Request{KeyID: "key", Alias: "more"})
	require.ErrorIs(t, err, ErrTooMany)

	require.ErrorIs(t, b.Start(t.Context(), started[0].ID, planOfNothing), ErrStarted)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		entries, err := b.Log(started[0].ID)
		require.NoError(c, err)
		require.NotEmpty(c, entries)
		require.Equal(c, "waiting for other builds to end", entries[0].Message)
	}, time.Minute, 10*time.Millisecond)
	for i := range atOnce() {
		b.turns.give(fmt.Sprint("other", i))
	}
	ended, err := b.Wait(t.Context(), started[0].ID)
	require.NoError(t, err)
	require.Equal(t, "template 'missing' not found", ended.Reason)
}

func TestABuildWhoseTemplateIsDeletedGivesItsTurnBack(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	for i := range 2 * atOnce() {
		r, err := b.Request(t.Context(), Request{KeyID: "key", Alias: fmt.Sprintf("t%d", i)})
		require.NoError(t, err)
		for range atOnce() - 1 { // all that the key may have
			require.NoError(t, b.turns.take(t.Context(), "key", nil))
		}
		require.NoError(t, b.Start(t.Context(), r.ID, planOfNothing))
		_, err = b.config.Store.DeleteTemplate(t.Context(), r.TemplateID)
		require.NoError(t, err)
		for range atOnce() - 1 {
			b.turns.give("key")
		}
		_, err = b.Wait(t.Context(), r.ID)
		require.ErrorIs(t, err, ErrNotFound)
	}
	require.Empty(t, b.turns.running)
}

// pausedReader lets a test do something while an upload is under way.
type pausedReader struct {
	strings.Reader
	pause func()
}

func (r *pausedReader) Read(p []byte) (int, error) {
	r.pause()
	return r.Reader.Read(p)
}

func TestAnotherProcessLeavesAnUploadAlone(t *testing.T) {
	dir := t.TempDir()
	b := newBuilds(t, dir)
	hash := strings.Repeat("ab", 32)
	left := filepath.Join(dir, "builds", uploadsDir, "key", partialPrefix+"left")
	archive := &pausedReader{*strings.NewReader("archive"), func() {
		require.NoError(t, os.WriteFile(left, nil, 0o600))
		newBuilds(t, dir)
	}}
	require.NoError(t, b.Upload(t.Context(), "key", hash, archive))
	require.True(t, b.HasUpload("key", hash))
	require.NoFileExists(t, left)
}

func TestAnUploadEndsWhenTheDiskIsFull(t *testing.T) {
	r := &uploadReader{ctx: t.Context(), r: strings.NewReader("archive"), room: func() error { return ErrFull }}
	_, err := r.Read(make([]byte, 10))
	require.ErrorIs(t, err, ErrFull)
}

func TestABuildThatIsNotAdmittedIsNotStarted(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	for i := range atOnce() {
		require.NoError(t, b.turns.take(t.Context(), fmt.Sprint("other", i), nil))
	}
	var asked []Command
	refuse := errors.New("not so")
	b.config.Admit = func(_ context.Context, r store.Build, commands []Command) error {
		require.Equal(t, "key", r.KeyID)
		asked = commands
		return refuse
	}
	r, err := b.Request(t.Context(), Request{KeyID: "key", Alias: "mine"})
	require.NoError(t, err)
	plan := planOfNothing
	plan.StartCmd = "serve"
	require.ErrorIs(t, b.Start(t.Context(), r.ID, plan), refuse)
	require.Equal(t, "serve", asked[len(asked)-1].Text)
	now, err := b.Get(t.Context(), r.ID)
	require.NoError(t, err)
	require.Equal(t, store.BuildWaiting, now.State)
	refuse = nil
	require.NoError(t, b.Start(t.Context(), r.ID, plan), "rules may change")
	for i := range atOnce() {
		b.turns.give(fmt.Sprint("other", i))
	}
}

func TestUploadsOfAKeyAreBoundedAtOnce(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	hash := strings.Repeat("ab", 32)
	dir := filepath.Join(b.dir(uploadsDir), "key")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	file := func(i int) string { return filepath.Join(dir, fmt.Sprint(i)) }
	for i := range uploadFiles {
		require.NoError(t, os.WriteFile(file(i), nil, 0o600))
	}
	require.ErrorIs(t, b.Upload(t.Context(), "key", hash, strings.NewReader("x")), ErrUploads)
	require.NoError(t, b.Upload(t.Context(), "other", hash, strings.NewReader("x")))

	for i := range 10 { // those make room that no build used for an hour
		ago := time.Now().Add(-time.Duration(10+i) * time.Hour)
		require.NoError(t, os.Chtimes(file(i), ago, ago))
	}
	require.NoError(t, b.Upload(t.Context(), "key", hash, strings.NewReader("x")))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, uploadFiles-10+1)
	for i := 10; i < uploadFiles; i++ {
		ago := time.Now().Add(-time.Duration(i) * time.Hour / 50)
		require.NoError(t, os.Chtimes(file(i), ago, ago))
	}
	for i := range 9 {
		require.NoError(t, os.WriteFile(file(i), nil, 0o600))
	}
	require.NoError(t, b.Upload(t.Context(), "key", strings.Repeat("cd", 32), strings.NewReader("x")))
	require.FileExists(t, file(100))
	require.NoFileExists(t, file(uploadFiles-1), "what was used longest ago goes")
	entries, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, uploadFiles/2+1)
}

func TestWhoLooksAtLocksKeepsNoBuildFromStarting(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	stop := make(chan struct{})
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		for {
			select {
			case <-stop:
				return
			default:
				b.others()
				b.sweepRecords(t.Context())
			}
		}
	}()
	for i := range 50 {
		r, err := b.Request(t.Context(), Request{KeyID: "key", Alias: fmt.Sprintf("t%d", i)})
		require.NoError(t, err)
		require.NoError(t, b.Start(t.Context(), r.ID, planOfNothing))
		ended, err := b.Wait(t.Context(), r.ID)
		require.NoError(t, err)
		require.Equal(t, "template 'missing' not found", ended.Reason)
	}
	close(stop)
	<-looked
	require.Empty(t, b.others(), "looking makes no locks")
	locks, err := filepath.Glob(b.lockPath("*"))
	require.NoError(t, err)
	require.Empty(t, locks)
}

// Another process that looks at a lock may be stopped while it has it.
func TestWhoLooksForLongKeepsNoBuildFromStarting(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	r, err := b.Request(t.Context(), Request{KeyID: "key", Alias: "t"})
	require.NoError(t, err)
	looks, err := os.Create(b.lockPath(r.ID))
	require.NoError(t, err)
	defer looks.Close()
	require.NoError(t, unix.Flock(int(looks.Fd()), unix.LOCK_SH|unix.LOCK_NB))
	started := make(chan error, 1)
	go func() { started <- b.Start(t.Context(), r.ID, planOfNothing) }()
	select {
	case err := <-started:
		require.Fail(t, "it was not waited for", "%v", err)
	case <-time.After(200 * time.Millisecond): // longer than anybody looks
	}
	require.Nil(t, b.running(r.ID), "it holds up no other builds")
	require.NoError(t, looks.Close())
	require.NoError(t, <-started)
	_, err = b.Wait(t.Context(), r.ID)
	require.NoError(t, err)
	require.ErrorIs(t, b.Start(t.Context(), r.ID, planOfNothing), ErrStarted)
}

// Who looks for builds that nobody runs may come between the making of a lock and its
// locking.
func TestABuildThatIsJustBeingStartedIsNotGivenUp(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	r, err := b.Request(t.Context(), Request{KeyID: "key", Alias: "t"})
	require.NoError(t, err)
	made, err := os.Create(b.lockPath(r.ID))
	require.NoError(t, err)
	require.NoError(t, made.Close())
	require.NoError(t, b.sweepRecords(t.Context()))
	require.FileExists(t, b.lockPath(r.ID))
	now, err := b.Get(t.Context(), r.ID)
	require.NoError(t, err)
	require.Equal(t, store.BuildWaiting, now.State)

	require.NoError(t, os.WriteFile(b.lockPath(r.ID), []byte(startedMark), 0o600)) // and its process died
	require.NoError(t, b.sweepRecords(t.Context()))
	require.NoFileExists(t, b.lockPath(r.ID))
	now, err = b.Get(t.Context(), r.ID)
	require.NoError(t, err)
	require.Equal(t, store.BuildError, now.State)
}

// However many start it, a build runs once.
func TestABuildIsStartedOnce(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	for i := range 20 {
		r, err := b.Request(t.Context(), Request{KeyID: "key", Alias: fmt.Sprintf("t%d", i)})
		require.NoError(t, err)
		started := make(chan error, 8)
		for range cap(started) {
			go func() { started <- b.Start(t.Context(), r.ID, planOfNothing) }()
		}
		once := 0
		for range cap(started) {
			if err := <-started; err == nil {
				once++
			} else {
				require.ErrorIs(t, err, ErrStarted)
			}
		}
		require.Equal(t, 1, once)
		_, err = b.Wait(t.Context(), r.ID)
		require.NoError(t, err)
	}
}

func TestARequestThatNobodyStartsGivesItsNameUp(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	old := store.Build{ID: uuid.NewString(), TemplateID: "old", KeyID: "key", Alias: "app", State: store.BuildWaiting, CreatedAt: time.Now().Add(-uploadTime)}
	_, err := b.config.Store.AddBuild(t.Context(), old)
	require.NoError(t, err)
	_, err = b.Request(t.Context(), Request{KeyID: "other", Alias: "app"})
	require.ErrorIs(t, err, store.ErrExists)
	require.NoError(t, b.pruneRecords(t.Context()))
	_, err = b.Request(t.Context(), Request{KeyID: "other", Alias: "app"})
	require.NoError(t, err)
	ended, err := b.Get(t.Context(), old.ID)
	require.NoError(t, err)
	require.Equal(t, "the build was not started in time", ended.Reason)
}
