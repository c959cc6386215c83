package sandbox_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/volume"
)

const volumesKey = "key-of-volumes"

func makeVolume(t *testing.T, w *sandboxtest.World, name string) store.Volume {
	t.Helper()
	v, err := w.Manager.CreateVolume(t.Context(), volumesKey, sandbox.Quota{}, name, volume.MinSize)
	require.NoError(t, err)
	return v
}

func createWith(t *testing.T, w *sandboxtest.World, template string, mounts ...sandbox.VolumeMount) sandbox.Info {
	t.Helper()
	info, err := w.Manager.Create(t.Context(), withVolumes(template, mounts...))
	require.NoError(t, err)
	return info
}

func withVolumes(template string, mounts ...sandbox.VolumeMount) sandbox.CreateRequest {
	return sandbox.CreateRequest{Template: template, KeyID: volumesKey, Timeout: time.Minute, Volumes: mounts}
}

// hostFile puts a file on a volume by the host.
func hostFile(t *testing.T, w *sandboxtest.World, v store.Volume, name, text string) {
	t.Helper()
	root, done, err := w.Manager.VolumeRoot(t.Context(), v.ID)
	require.NoError(t, err)
	defer done()
	require.NoError(t, root.WriteFile(name, []byte(text), 0o666))
	require.NoError(t, root.Chmod(name, 0o666))
}

func removeHostFile(t *testing.T, w *sandboxtest.World, v store.Volume, name string) {
	t.Helper()
	root, done, err := w.Manager.VolumeRoot(t.Context(), v.ID)
	require.NoError(t, err)
	defer done()
	require.NoError(t, root.Remove(name))
}

// mountsBelow counts what is mounted below a folder.
func mountsBelow(t *testing.T, dir string) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	return strings.Count(string(raw), " "+dir+"/")
}

func TestSandboxesShareAVolume(t *testing.T) {
	w := sandboxtest.New(t, withPool)
	v := makeVolume(t, w, "shared")
	for _, template := range []string{sandboxtest.Cold, sandboxtest.Warm, sandboxtest.Warm} { // the last ones in shells
		one := createWith(t, w, template, sandbox.VolumeMount{Name: "shared", Path: "/home/user/a/b"})
		two := createWith(t, w, template, sandbox.VolumeMount{Name: v.ID, Path: "/data"}, sandbox.VolumeMount{Name: "shared", Path: "/again"})
		require.Equal(t, []sandbox.VolumeMount{{ID: v.ID, Name: "shared", Path: "/home/user/a/b"}}, one.Volumes)
		w.Run(t, one, "write", "/home/user/a/b/file", "from one")
		require.Equal(t, "from one", w.Run(t, two, "cat", "/data/file"))
		w.Run(t, two, "write", "/again/file", "from two, and longer")
		require.Equal(t, "from two, and longer", w.Run(t, one, "cat", "/home/user/a/b/file"))
		w.Run(t, one, "write", "/home/user/a/of-user", "the folders on the way are the user's")

		err := w.Manager.DeleteVolume(t.Context(), v.ID)
		used := (*sandbox.VolumeInUseError)(nil)
		require.ErrorAs(t, err, &used)
		require.ElementsMatch(t, []string{one.ID, two.ID}, used.Sandboxes)
		for _, info := range []sandbox.Info{one, two} {
			require.NoError(t, w.Manager.Kill(t.Context(), info.ID, "test"))
		}
	}
	require.NoError(t, w.Manager.DeleteVolume(t.Context(), v.ID))
	require.ErrorIs(t, w.Manager.DeleteVolume(t.Context(), v.ID), sandbox.ErrVolumeNotFound)
	require.Zero(t, mountsBelow(t, filepath.Join(w.Dir, "volumes")))
}

func TestQuotaOfAVolumeHoldsInside(t *testing.T) {
	w := sandboxtest.New(t)
	makeVolume(t, w, "small")
	info := createWith(t, w, sandboxtest.Warm, sandbox.VolumeMount{Name: "small", Path: "/data"})
	require.Contains(t, w.Run(t, info, "fill", "/data/large"), "no space left")
}

func TestFolderOfVolumesIsNobodysInside(t *testing.T) {
	w := sandboxtest.New(t)
	makeVolume(t, w, "own")
	info := createWith(t, w, sandboxtest.Warm, sandbox.VolumeMount{Name: "own", Path: "/data"})
	p := w.Start(t, info, "exists", "/.volumes/x")
	p.Wait()
	require.Contains(t, p.Stderr.String(), "permission denied")
	// What root inside writes there would be on the host's disk, without a limit.
	dir := filepath.Join(w.Dir, "sandboxes", info.ID, "volumes")
	require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "x"), nil, 0o600), unix.EROFS)
}

func TestLinksOnAVolumeStayInTheSandbox(t *testing.T) {
	w := sandboxtest.New(t)
	v := makeVolume(t, w, "links")
	info := createWith(t, w, sandboxtest.Warm, sandbox.VolumeMount{Name: "links", Path: "/data"})
	root, done, err := w.Manager.VolumeRoot(t.Context(), v.ID)
	require.NoError(t, err)
	defer done()
	require.NoError(t, root.Symlink("/etc/passwd", "passwd"))
	require.NoError(t, root.Symlink("../../../../../../../../etc/passwd", "up"))
	inside := w.Run(t, info, "cat", "/etc/passwd")
	for _, link := range []string{"passwd", "up"} {
		require.Equal(t, inside, w.Run(t, info, "cat", "/data/"+link), "the sandbox's own")
		_, err := root.ReadFile(link)
		require.ErrorContains(t, err, "escapes")
	}
}

func TestMountsThatCannotBe(t *testing.T) {
	w := sandboxtest.New(t)
	makeVolume(t, w, "one")
	makeVolume(t, w, "two")
	for _, path := range []string{
		"", "data", "/", "/data/", "/a//b", "/a/../b", "/a/./b", "/proc", "/proc/x", "/sys/fs", "/dev/shm/x", "/.tombolo", "/.volumes",
		"/.volumes/x", "/a\x00b", "/" + strings.Repeat("x", 2000),
	} {
		_, err := w.Manager.Create(t.Context(), withVolumes(sandboxtest.Warm, sandbox.VolumeMount{Name: "one", Path: path}))
		invalid := (*sandbox.InvalidError)(nil)
		require.ErrorAs(t, err, &invalid, "%.50q", path)
	}
	for _, paths := range [][2]string{{"/a", "/a"}, {"/a", "/a/b"}, {"/a/b", "/a"}} {
		_, err := w.Manager.Create(t.Context(), withVolumes(sandboxtest.Warm,
			sandbox.VolumeMount{Name: "one", Path: paths[0]}, sandbox.VolumeMount{Name: "two", Path: paths[1]}))
		require.ErrorContains(t, err, "hides", paths)
	}
	_, err := w.Manager.Create(t.Context(), withVolumes(sandboxtest.Warm, sandbox.VolumeMount{Name: "none", Path: "/a"}))
	require.ErrorIs(t, err, sandbox.ErrVolumeNotFound)
	other := withVolumes(sandboxtest.Warm, sandbox.VolumeMount{Name: "one", Path: "/a"})
	other.KeyID = "another"
	_, err = w.Manager.Create(t.Context(), other)
	require.ErrorIs(t, err, sandbox.ErrVolumeNotFound, "of another key")

	// What only the sandbox knows: there is a file.
	_, err = w.Manager.Create(t.Context(), withVolumes(sandboxtest.Warm, sandbox.VolumeMount{Name: "one", Path: "/etc/passwd"}))
	invalid := (*sandbox.InvalidError)(nil)
	require.ErrorAs(t, err, &invalid)
	require.ErrorContains(t, err, "/etc/passwd")
	require.Empty(t, w.Manager.List(sandbox.Filter{}))
	require.Zero(t, mountsBelow(t, filepath.Join(w.Dir, "sandboxes")))
}

func TestVolumesThatCannotBe(t *testing.T) {
	w := sandboxtest.New(t)
	makeVolume(t, w, "taken")
	for name, size := range map[string]int64{
		"": 0, "a b": 0, "ä": 0, "../a": 0, strings.Repeat("n", sandbox.MaxVolumeName+1): 0, "taken": 0, "small": 1, "large": 1 << 62,
	} {
		_, err := w.Manager.CreateVolume(t.Context(), volumesKey, sandbox.Quota{}, name, size)
		invalid := (*sandbox.InvalidError)(nil)
		require.ErrorAs(t, err, &invalid, "%q %d", name, size)
	}
	v, err := w.Manager.CreateVolume(t.Context(), "another", sandbox.Quota{}, "taken", 0)
	require.NoError(t, err, "names are a key's own")
	require.EqualValues(t, volume.DefaultSize, v.SizeBytes)
	require.Less(t, w.Manager.VolumeDiskBytes(v.ID), int64(16<<20), "it takes what is in it")

	quota := sandbox.Quota{DiskBytes: 3 * volume.MinSize / 2}
	_, err = w.Manager.CreateVolume(t.Context(), "third", quota, "one", volume.MinSize)
	require.NoError(t, err)
	_, err = w.Manager.CreateVolume(t.Context(), "third", quota, "two", volume.MinSize)
	limit := (*sandbox.LimitError)(nil)
	require.ErrorAs(t, err, &limit)
}

func TestVolumeOverPausesForksAndSnapshots(t *testing.T) {
	w := sandboxtest.New(t, withPool)
	v := makeVolume(t, w, "kept")
	info := createWith(t, w, sandboxtest.Warm, sandbox.VolumeMount{Name: "kept", Path: "/data"})
	w.Run(t, info, "write", "/data/file", "before")
	for range 2 { // the second time in a shell
		require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
		require.Error(t, w.Manager.DeleteVolume(t.Context(), v.ID), "a paused sandbox has it")
		require.Zero(t, mountsBelow(t, filepath.Join(w.Dir, "sandboxes", info.ID)))
		hostFile(t, w, v, "meanwhile", "x")
		info = resume(t, w, info.ID)
		require.Equal(t, "before", w.Run(t, info, "cat", "/data/file"))
		require.Equal(t, "x", w.Run(t, info, "cat", "/data/meanwhile"))
	}
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, true))
	info = resume(t, w, info.ID)
	require.Equal(t, "before", w.Run(t, info, "cat", "/data/file"), "booted from its disk")

	forks, err := w.Manager.Fork(t.Context(), info.ID, sandbox.ForkRequest{Count: 1, Timeout: time.Minute})
	require.NoError(t, err)
	require.NoError(t, forks[0].Err)
	require.Equal(t, info.Volumes, forks[0].Info.Volumes)
	w.Run(t, forks[0].Info, "write", "/data/file", "by the fork")
	require.Equal(t, "by the fork", w.Run(t, info, "cat", "/data/file"))

	// A program that has a file open is in the snapshot.
	open := w.Start(t, info, "append", "/data/open")
	open.Expect("appending")
	snapshot, err := w.Manager.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{Name: "snap"})
	require.NoError(t, err)
	without := createWith(t, w, snapshot.ID)
	require.Empty(t, without.Volumes)
	p := w.Start(t, without, "exists", "/data/file")
	require.NotZero(t, p.Wait().GetExitCode(), "nobody asked for the volume")
	elsewhere := createWith(t, w, snapshot.ID, sandbox.VolumeMount{Name: "kept", Path: "/elsewhere"})
	require.Equal(t, "by the fork", w.Run(t, elsewhere, "cat", "/elsewhere/file"))
	makeVolume(t, w, "another")
	another := createWith(t, w, snapshot.ID, sandbox.VolumeMount{Name: "another", Path: "/data"})
	w.Run(t, another, "write", "/data/file", "of another")
	require.Equal(t, "by the fork", w.Run(t, info, "cat", "/data/file"))
	require.NoError(t, w.Manager.Pause(t.Context(), another.ID, false))
	require.Equal(t, "of another", w.Run(t, resume(t, w, another.ID), "cat", "/data/file"))
}

// gVisor restores nothing whose open files are not there any more.
func TestFilesThatWereRemovedDuringAPause(t *testing.T) {
	w := sandboxtest.New(t, withPool)
	v := makeVolume(t, w, "open")
	info := createWith(t, w, sandboxtest.Warm, sandbox.VolumeMount{Name: "open", Path: "/data"})
	for _, name := range []string{"one", "two"} {
		w.Start(t, info, "append", "/data/"+name).Expect("appending")
	}
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	removeHostFile(t, w, v, "one")
	removeHostFile(t, w, v, "two")
	hostFile(t, w, v, "two", "another file")
	info = resume(t, w, info.ID)
	p := w.Start(t, info, "exists", "/data/one")
	require.NotZero(t, p.Wait().GetExitCode(), "it stays removed")
	require.Contains(t, w.Run(t, info, "cat", "/data/two"), "another file")

	// Now the sandbox knows that it is gone, and has it open.
	err := w.Manager.Pause(t.Context(), info.ID, false)
	stale := (*sandbox.StaleFileError)(nil)
	require.ErrorAs(t, err, &stale)
	require.Equal(t, v.ID+"/one", stale.Path)
	w.Run(t, info, "echo", "it runs on")
}

func TestKilledServersVolumesAreFoundAgain(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	child := sandboxtest.StartChild(t, "volumes", dir)
	id, paused, volumeID := child.Line(), child.Line(), child.Line()
	child.Kill()
	t.Cleanup(func() { volume.UnmountAll(filepath.Join(dir, "volumes")) })

	w := reopen(t, dir)
	info, err := w.Manager.Get(id)
	require.NoError(t, err)
	require.Equal(t, "of the child", w.Run(t, info, "cat", "/data/file"))
	require.Equal(t, volumeID, info.Volumes[0].ID)
	v, err := w.Store.VolumeByID(t.Context(), volumeID)
	require.NoError(t, err)
	hostFile(t, w, v, "host", "of the host")
	require.Equal(t, "of the host", w.Run(t, info, "cat", "/data/host"))
	require.Equal(t, "of the host", w.Run(t, resume(t, w, paused), "cat", "/data/host"))
	entries, err := os.ReadDir(filepath.Join(dir, "volumes"))
	require.NoError(t, err)
	require.Len(t, dirs(entries), 1, "half of a volume is there still")

	// What nobody adopts is unmounted and removed, and the volume stays.
	require.NoError(t, w.Close(t.Context()))
	other, err := sandboxtest.Open(t.Context(), dir)
	require.NoError(t, err)
	require.NoError(t, other.Close(t.Context()))
	require.Zero(t, mountsBelow(t, dir))
}

func dirs(entries []fs.DirEntry) (names []string) {
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// volumesChild leaves a running and a paused sandbox with a volume, and half of
// another volume.
func volumesChild(ctx context.Context, dir string) error {
	w, err := sandboxtest.Open(ctx, dir, sandboxtest.Keep)
	if err != nil {
		return err
	}
	v, err := w.Manager.CreateVolume(ctx, volumesKey, sandbox.Quota{}, "kept", volume.MinSize)
	if err != nil {
		return err
	}
	root, done, err := w.Manager.VolumeRoot(ctx, v.ID)
	if err != nil {
		return err
	}
	if err := root.WriteFile("file", []byte("of the child"), 0o644); err != nil {
		return err
	}
	done()
	for n := range 2 {
		info, err := w.Manager.Create(ctx, withVolumes(sandboxtest.Warm, sandbox.VolumeMount{Name: "kept", Path: "/data"}))
		if err != nil {
			return err
		}
		if n == 1 {
			if err := w.Manager.Pause(ctx, info.ID, false); err != nil {
				return err
			}
		}
		fmt.Println(info.ID)
	}
	if err := os.Mkdir(filepath.Join(dir, "volumes", "half"), 0o700); err != nil {
		return err
	}
	fmt.Println(v.ID)
	select {}
}

// A sandbox that is swept while a volume is mounted in its folder takes nothing of
// the volume with it.
func TestSweepUnmountsVolumes(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	child := sandboxtest.StartChild(t, "volumes", dir)
	id, _, volumeID := child.Line(), child.Line(), child.Line()
	child.Kill()
	w, err := sandboxtest.Open(t.Context(), dir)
	require.NoError(t, err)
	record, err := w.Store.Sandbox(t.Context(), id)
	require.NoError(t, err)
	record.Data = nil // of a sandbox that no server keeps
	require.NoError(t, w.Store.PutSandbox(t.Context(), record))
	require.NoError(t, w.Close(t.Context()))
	require.NotZero(t, mountsBelow(t, filepath.Join(dir, "sandboxes", id)))

	next := reopen(t, dir)
	_, err = next.Manager.Get(id)
	require.ErrorIs(t, err, sandbox.ErrNotFound)
	require.NoFileExists(t, filepath.Join(dir, "sandboxes", id))
	root, done, err := next.Manager.VolumeRoot(t.Context(), volumeID)
	require.NoError(t, err)
	defer done()
	text, err := root.ReadFile("file")
	require.NoError(t, err)
	require.Equal(t, "of the child", string(text))
}

// A crash of the machine leaves the folder, and nothing mounted in it.
func TestResumeAfterACrashOfTheMachine(t *testing.T) {
	w := sandboxtest.New(t)
	v := makeVolume(t, w, "kept")
	info := createWith(t, w, sandboxtest.Warm, sandbox.VolumeMount{Name: "kept", Path: "/data"})
	w.Run(t, info, "write", "/data/file", "kept")
	require.NoError(t, w.Manager.Pause(t.Context(), info.ID, false))
	require.NoError(t, os.MkdirAll(filepath.Join(w.Dir, "sandboxes", info.ID, "volumes", v.ID), 0o700))
	require.Equal(t, "kept", w.Run(t, resume(t, w, info.ID), "cat", "/data/file"))
}
