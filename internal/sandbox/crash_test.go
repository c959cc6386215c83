package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

// children are processes with a manager of their own, which tests kill.
var children = map[string]func(ctx context.Context, dir string) error{
	"volumes": volumesChild,
	"two sandboxes": func(ctx context.Context, dir string) error {
		w, err := sandboxtest.Open(ctx, dir)
		if err != nil {
			return err
		}
		for _, template := range []string{sandboxtest.Cold, sandboxtest.Warm} {
			info, err := w.Manager.Create(ctx, sandbox.CreateRequest{Template: template, Timeout: time.Minute})
			if err != nil {
				return err
			}
			fmt.Println(info.ID)
		}
		select {} // until it is killed
	},
	"create": func(ctx context.Context, dir string) error {
		w, err := sandboxtest.Open(ctx, dir)
		if err != nil {
			return err
		}
		fmt.Println("begin")
		_, err = w.Manager.Create(ctx, sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute})
		fmt.Println("done", err)
		select {} // until it is killed
	},
	"kept": func(ctx context.Context, dir string) error {
		w, err := sandboxtest.Open(ctx, dir, sandboxtest.Keep)
		if err != nil {
			return err
		}
		for _, timeout := range []time.Duration{time.Minute, time.Minute, time.Second} {
			info, err := w.Manager.Create(ctx, sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: timeout})
			if err != nil {
				return err
			}
			fmt.Println(info.ID)
		}
		select {} // until it is killed
	},
	"pause and resume for ever": func(ctx context.Context, dir string) error {
		w, err := sandboxtest.Open(ctx, dir, sandboxtest.Keep)
		if err != nil {
			return err
		}
		id := w.Manager.List(sandbox.Filter{})[0].ID
		fmt.Println("begin")
		for {
			_, _, err := w.Manager.Resume(ctx, id, sandbox.ResumeRequest{Timeout: time.Minute})
			if err != nil {
				return err
			}
			if err := w.Manager.Pause(ctx, id, false); err != nil {
				return err
			}
		}
	},
	"teardown fails": func(ctx context.Context, dir string) error {
		w, err := sandboxtest.Open(ctx, dir, afterRestore(func(i engine.Instance) (engine.Instance, error) {
			return unstoppable{i}, nil
		}))
		if err != nil {
			return err
		}
		info, err := w.Manager.Create(ctx, sandbox.CreateRequest{Template: sandboxtest.Warm, Timeout: time.Minute})
		if err != nil {
			return err
		}
		fmt.Println(w.Manager.Kill(ctx, info.ID, "killed"))
		_, err = w.Manager.Get(info.ID)
		fmt.Println(err)
		return nil
	},
	"build": func(ctx context.Context, dir string) error {
		w, err := sandboxtest.Open(ctx, dir)
		if err != nil {
			return err
		}
		t := sandboxtest.Template("built")
		t.EnvVars = map[string]string{"BUILD": "second"}
		_, err = w.Manager.BuildTemplate(ctx, t, false, func(step string) {
			fmt.Println(step)
		})
		return err
	},
}

func TestManagerRemovesWhatAKilledOneLeft(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	child := sandboxtest.StartChild(t, "two sandboxes", dir)
	ids := []string{child.Line(), child.Line()}
	child.Kill()
	require.NotEmpty(t, sandboxtest.Leftovers(dir), "the sandboxes outlive the process")

	w, err := sandboxtest.Open(t.Context(), dir)
	require.NoError(t, err)
	defer w.Close(context.Background())
	require.Empty(t, w.Leftovers())
	for _, id := range ids {
		record, err := w.Store.Sandbox(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "ended", record.State)
		require.Contains(t, record.Reason, "killed")
		require.NotZero(t, record.EndedAt)
		_, err = w.Manager.Get(id)
		var gone *sandbox.GoneError
		require.ErrorAs(t, err, &gone, "the new manager knows of the old sandboxes")
	}
	w.Run(t, w.Create(t, sandboxtest.Warm), "echo")
}

// A command of the engine that is at work when its process is killed must not
// make a sandbox after the next manager has swept.
func TestManagerRemovesWhatWasHalfMade(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	for _, after := range []time.Duration{0, 10, 30, 50, 70, 100} {
		child := sandboxtest.StartChild(t, "create", dir)
		require.Equal(t, "begin", child.Line())
		time.Sleep(after * time.Millisecond) // the moment does not matter, only that there are several
		child.Kill()
		w, err := sandboxtest.Open(t.Context(), dir)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return !sandboxtest.EngineRuns(dir) }, patience, tick, "killed after %d ms", after)
		require.Empty(t, w.Leftovers(), "killed after %d ms", after)
		alive, err := w.Store.Sandboxes(t.Context(), false)
		require.NoError(t, err)
		require.Empty(t, alive)
		require.NoError(t, w.Close(t.Context()))
	}
}

func TestManagerRemovesWhatATeardownLeft(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	child := sandboxtest.StartChild(t, "teardown fails", dir)
	require.Contains(t, child.Line(), "the engine is stuck")
	require.Contains(t, child.Line(), "ended: killed")
	child.Wait()
	require.NotEmpty(t, sandboxtest.Leftovers(dir))
	w, err := sandboxtest.Open(t.Context(), dir)
	require.NoError(t, err)
	defer w.Close(context.Background())
	require.Empty(t, w.Leftovers())
}

type unstoppable struct{ engine.Instance }

func (unstoppable) Stop(context.Context) error { return errors.New("the engine is stuck") }

func TestManagersOfTwoProcessesShareAFolder(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	child := sandboxtest.StartChild(t, "two sandboxes", dir)
	first, second := child.Line(), child.Line()

	w, err := sandboxtest.Open(t.Context(), dir)
	require.NoError(t, err)
	defer w.Close(context.Background())
	mine := w.Create(t, sandboxtest.Warm)
	for _, id := range []string{first, second} {
		record, err := w.Store.Sandbox(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "running", record.State, "the second manager has ended the first's sandbox")
		pid, err := w.SentryPID(id)
		require.NoError(t, err)
		require.DirExists(t, filepath.Join("/proc", fmt.Sprint(pid)))
	}
	child.Kill()
	again, err := sandboxtest.Open(t.Context(), dir)
	require.NoError(t, err)
	defer again.Close(context.Background())
	w.Run(t, mine, "echo")
	require.NoDirExists(t, filepath.Join(dir, "sandboxes", first))
	require.NoDirExists(t, filepath.Join(dir, "sandboxes", second))
}

func TestBuildTemplateGivesARunningStartCommand(t *testing.T) {
	w := sandboxtest.New(t)
	template := sandboxtest.Template("started")
	template.StartCmd, template.ReadyCmd = "listen 0.0.0.0:5000", "exists /etc/passwd"
	template.EnvVars = map[string]string{"FROM": "template"}
	var steps []string
	built, err := w.Manager.BuildTemplate(t.Context(), template, false, func(s string) { steps = append(steps, s) })
	require.NoError(t, err)
	steps = slices.DeleteFunc(steps, func(s string) bool { return strings.HasPrefix(s, "[start] ") }) // what it printed until it was ready
	require.Equal(t, []string{"booting", "running the start command", "taking the snapshot"}, steps)
	require.NotEmpty(t, built.Snapshot)
	require.Positive(t, built.SizeBytes)
	require.True(t, w.Manager.Current(built))
	require.Empty(t, w.Leftovers())

	info := w.Create(t, "started")
	conn, err := w.Manager.Dial(t.Context(), info.ID, 5000)
	require.NoError(t, err)
	require.Equal(t, "HI", sandboxtest.Ask(t, conn, "hi"))
	require.Contains(t, w.Run(t, info, "env"), "FROM=template")

	steps = nil
	again, err := w.Manager.BuildTemplate(t.Context(), template, false, func(s string) { steps = append(steps, s) })
	require.NoError(t, err)
	require.Equal(t, []string{"snapshot is there already"}, steps)
	require.Equal(t, built.ID, again.ID)
	require.Equal(t, built.Snapshot, again.Snapshot)
	require.NotEqual(t, built.BuildID, again.BuildID)
}

func TestBuildsOfOneNameAtOnce(t *testing.T) {
	w := sandboxtest.New(t)
	template := sandboxtest.Template("twice")
	errs := make(chan error)
	for range 3 {
		go func() {
			_, err := w.Manager.BuildTemplate(t.Context(), template, false, func(string) {})
			errs <- err
		}()
	}
	for range 3 {
		require.NoError(t, receive(t, errs))
	}
	require.Empty(t, w.Leftovers())
	w.Run(t, w.Create(t, "twice"), "echo")
}

func TestBuildThatFailsLeavesTheTemplate(t *testing.T) {
	w := sandboxtest.New(t)
	first, err := w.Manager.BuildTemplate(t.Context(), sandboxtest.Template("built"), false, func(string) {})
	require.NoError(t, err)

	broken := sandboxtest.Template("built")
	broken.StartCmd = "sleep"
	broken.User = "nobody-of-this-name"
	_, err = w.Manager.BuildTemplate(t.Context(), broken, false, func(string) {})
	require.ErrorContains(t, err, "nobody-of-this-name")
	require.Empty(t, w.Leftovers())
	requireNoPartialSnapshots(t, w.Dir)
	stored, err := w.Store.Template(t.Context(), "built")
	require.NoError(t, err)
	require.Equal(t, first, stored)
	w.Run(t, w.Create(t, "built"), "echo")
}

func TestBuildThatIsKilledLeavesTheTemplate(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	w, err := sandboxtest.Open(t.Context(), dir)
	require.NoError(t, err)
	first, err := w.Manager.BuildTemplate(t.Context(), sandboxtest.Template("built"), false, func(string) {})
	require.NoError(t, err)
	require.NoError(t, w.Close(t.Context()))

	child := sandboxtest.StartChild(t, "build", dir)
	for child.Line() != "taking the snapshot" {
	}
	child.Kill()
	stored := func(w *sandboxtest.World) string {
		template, err := w.Store.Template(t.Context(), "built")
		require.NoError(t, err)
		return template.BuildID
	}
	w, err = sandboxtest.Open(t.Context(), dir)
	require.NoError(t, err)
	defer w.Close(context.Background())
	// The command that took the snapshot was the child's; it ends with the sandbox.
	require.Eventually(t, func() bool { return len(w.Leftovers()) == 0 }, patience, tick)
	require.Equal(t, first.BuildID, stored(w))
	w.Run(t, w.Create(t, "built"), "echo")

	_, err = w.Manager.BuildTemplate(t.Context(), sandboxtest.Template("another"), false, func(string) {})
	require.NoError(t, err)
	requireNoPartialSnapshots(t, dir)
}

func requireNoPartialSnapshots(t *testing.T, dir string) {
	t.Helper()
	partial, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.partial"))
	require.NoError(t, err)
	require.Empty(t, partial)
}
