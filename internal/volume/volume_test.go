package volume_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/volume"
)

const id = "v0000000000000000001"

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests mount file systems and need root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// open makes a folder for volumes; what is mounted below it goes with the test.
func open(t *testing.T) (*volume.Volumes, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "with space", "volumes")
	v, err := volume.Open(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, volume.UnmountAll(filepath.Dir(dir))) })
	return v, dir
}

func create(t *testing.T, v *volume.Volumes, size int64) {
	t.Helper()
	require.NoError(t, v.Create(t.Context(), id, size))
}

func show(t *testing.T, v *volume.Volumes) string {
	t.Helper()
	at := filepath.Join(t.TempDir(), "shown")
	require.NoError(t, v.Show(t.Context(), id, at))
	t.Cleanup(func() { require.NoError(t, volume.UnmountAll(at)) })
	return at
}

func mounted(t *testing.T, below string) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	return strings.Count(string(raw), " "+strings.ReplaceAll(below, " ", `\040`)+"/")
}

func write(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

func read(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(raw)
}

func TestVolumeIsSeenAtSeveralPlacesAndOutlivesThem(t *testing.T) {
	v, dir := open(t)
	create(t, v, volume.MinSize)
	one, two := show(t, v), show(t, v)
	write(t, filepath.Join(one, "file"), "hello")
	require.Equal(t, "hello", read(t, filepath.Join(two, "file")))

	require.NoError(t, volume.UnmountAll(one))
	require.NoError(t, volume.UnmountAll(two))
	require.NoError(t, v.Rest())
	require.Zero(t, mounted(t, dir), "nothing uses the volume and it is mounted still")
	require.Equal(t, "hello", read(t, filepath.Join(show(t, v), "file")))
}

func TestNewVolumeIsEmptyAndAnybodysInside(t *testing.T) {
	v, _ := open(t)
	create(t, v, volume.MinSize)
	at := show(t, v)
	entries, err := os.ReadDir(at)
	require.NoError(t, err)
	require.Empty(t, entries, "lost+found is no part of it")
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(at, &stat))
	require.Equal(t, []uint32{1000, 1000, 0o777}, []uint32{stat.Uid, stat.Gid, stat.Mode & 0o7777})
}

func TestQuotaIsForBytesAndFiles(t *testing.T) {
	v, _ := open(t)
	create(t, v, volume.MinSize)
	at := show(t, v)
	f, err := os.Create(filepath.Join(at, "large"))
	require.NoError(t, err)
	defer f.Close()
	written := 0
	for block := make([]byte, 1<<20); err == nil && written < 2*volume.MinSize; {
		var n int
		n, err = f.Write(block)
		written += n
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Greater(t, written, volume.MinSize/2, "bytes that fit")
	require.NoError(t, os.Remove(f.Name()))

	for n := 0; err == nil || n == 0; n++ {
		err = os.WriteFile(filepath.Join(at, fmt.Sprint(n)), nil, 0o600)
		require.Less(t, n, 20_000, "there is no limit on files")
	}
	require.ErrorIs(t, err, unix.ENOSPC)
}

func TestVolumeTakesWhatIsInItOnTheDisk(t *testing.T) {
	v, _ := open(t)
	create(t, v, volume.DefaultSize)
	at := show(t, v)
	empty := v.DiskBytes(id)
	require.Less(t, empty, int64(32<<20), "of an empty one")
	write(t, filepath.Join(at, "file"), strings.Repeat("x", 32<<20))
	syncAll(t, at)
	require.Greater(t, v.DiskBytes(id), empty+30<<20)
	require.NoError(t, os.Remove(filepath.Join(at, "file")))
	syncAll(t, at)
	require.Eventually(t, func() bool { return v.DiskBytes(id) < empty+16<<20 }, 30*time.Second, 20*time.Millisecond,
		"what was removed is given back, by work that ext4 does in the background")
}

func syncAll(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Open(dir)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Syncfs(int(f.Fd())))
}

func TestMountHoldsNoDevicesAndNoSetuid(t *testing.T) {
	v, _ := open(t)
	create(t, v, volume.MinSize)
	at := show(t, v)
	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(at, &stat))
	require.NotZero(t, stat.Flags&unix.MS_NOSUID, "nosuid")
	require.NotZero(t, stat.Flags&unix.MS_NODEV, "nodev")
	require.NoError(t, unix.Mknod(filepath.Join(at, "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	_, err := os.Open(filepath.Join(at, "zero"))
	require.ErrorIs(t, err, unix.EACCES)
}

func TestAnotherProcessFindsTheMount(t *testing.T) {
	v, dir := open(t)
	create(t, v, volume.MinSize)
	at := show(t, v)
	before := mounted(t, dir)
	again, err := volume.Open(dir, slog.New(slog.DiscardHandler)) // as after kill -9
	require.NoError(t, err)
	write(t, filepath.Join(at, "file"), "kept")
	require.Equal(t, "kept", read(t, filepath.Join(show(t, again), "file")))
	require.Equal(t, before, mounted(t, dir), "it was mounted once more")
	require.ErrorIs(t, again.Delete(t.Context(), id), volume.ErrInUse)
}

// One file in two loop devices would be two file systems that destroy each other.
func TestVolumeWhoseMountWasLostWhileItIsSeenHasOneDevice(t *testing.T) {
	v, dir := open(t)
	create(t, v, volume.MinSize)
	at := show(t, v)
	write(t, filepath.Join(at, "file"), "one")
	require.NoError(t, unix.Unmount(filepath.Join(dir, id, "mnt"), 0))
	other := show(t, v)
	require.Equal(t, "one", read(t, filepath.Join(other, "file")))
	write(t, filepath.Join(other, "file"), "two")
	require.Equal(t, "two", read(t, filepath.Join(at, "file")))
}

func TestVolumeThatWasNotLeftCleanIsRepaired(t *testing.T) {
	v, dir := open(t)
	create(t, v, volume.MinSize)
	at := show(t, v)
	write(t, filepath.Join(at, "file"), "before the power was lost")
	syncAll(t, at)
	// What is on the disk at this moment is what a loss of power leaves.
	crashed := filepath.Join(dir, "crashed")
	require.NoError(t, os.MkdirAll(filepath.Join(crashed, "mnt"), 0o700))
	require.NoError(t, exec.Command("cp", "--sparse=always", filepath.Join(dir, id, "disk.ext4"), crashed).Run())
	there := filepath.Join(t.TempDir(), "there")
	t.Cleanup(func() { volume.UnmountAll(there) })
	require.NoError(t, v.Show(t.Context(), "crashed", there))
	require.Equal(t, "before the power was lost", read(t, filepath.Join(there, "file")))
}

func TestVolumeThatCannotBeRepairedIsNotMounted(t *testing.T) {
	v, dir := open(t)
	create(t, v, volume.MinSize)
	require.NoError(t, os.WriteFile(filepath.Join(dir, id, "disk.ext4"), bytes.Repeat([]byte("x"), 1<<20), 0o600))
	err := v.Show(t.Context(), id, filepath.Join(t.TempDir(), "shown"))
	require.ErrorContains(t, err, "damaged")
	require.NoError(t, v.Delete(t.Context(), id))
}

func TestDeleteRefusesWhatIsInUse(t *testing.T) {
	v, dir := open(t)
	create(t, v, volume.MinSize)
	at := show(t, v)
	require.ErrorIs(t, v.Delete(t.Context(), id), volume.ErrInUse)
	require.NoError(t, volume.UnmountAll(at))

	root, done, err := v.Root(t.Context(), id)
	require.NoError(t, err)
	require.ErrorIs(t, v.Delete(t.Context(), id), volume.ErrInUse)
	f, err := root.Create("file")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	done()

	require.NoError(t, v.Delete(t.Context(), id))
	require.NoFileExists(t, filepath.Join(dir, id))
	require.NoError(t, v.Delete(t.Context(), id), "deleted before")
	require.ErrorIs(t, v.Show(t.Context(), id, at), volume.ErrNotFound)
	_, _, err = v.Root(t.Context(), id)
	require.ErrorIs(t, err, volume.ErrNotFound)
	require.NotContains(t, loops(t), dir, "its loop device is there still")
}

func loops(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	require.NoError(t, err)
	var all strings.Builder
	for _, file := range files {
		raw, _ := os.ReadFile(file)
		all.Write(raw)
	}
	return all.String()
}

func TestRestLeavesWhatIsInUse(t *testing.T) {
	v, dir := open(t)
	create(t, v, volume.MinSize)
	at := show(t, v)
	require.NoError(t, v.Rest())
	require.NotZero(t, mounted(t, dir))
	require.NoError(t, volume.UnmountAll(at))
	_, done, err := v.Root(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, v.Rest())
	require.NotZero(t, mounted(t, dir))
	done()
	require.NoError(t, v.Rest())
	require.Zero(t, mounted(t, dir))
}

func TestRootLetsNothingOut(t *testing.T) {
	v, _ := open(t)
	create(t, v, volume.MinSize)
	at := show(t, v)
	for link, target := range map[string]string{
		"absolute": "/etc/passwd", "up": "../../../../../../../../../etc/passwd", "over": "../lost+found", "proc": "/proc/self/root",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(at, link)))
	}
	root, done, err := v.Root(t.Context(), id)
	require.NoError(t, err)
	defer done()
	for _, path := range []string{
		"absolute", "up", "over", "proc", "proc/etc/passwd", "../lost+found", "../../disk.ext4", "/etc/passwd",
	} {
		_, err := root.Open(path)
		require.Error(t, err, path)
		require.Error(t, root.WriteFile(path, []byte("x"), 0o644), path)
	}
	require.NoError(t, root.RemoveAll("absolute"))
	require.FileExists(t, "/etc/passwd")
}

func TestRemoveAllNeverWalksIntoAMount(t *testing.T) {
	v, _ := open(t)
	create(t, v, volume.MinSize)
	dir := t.TempDir()
	sandbox := filepath.Join(dir, "sandbox")
	at := filepath.Join(sandbox, "a", "b")
	require.NoError(t, v.Show(t.Context(), id, at))
	t.Cleanup(func() { volume.UnmountAll(dir) })
	write(t, filepath.Join(at, "precious"), "x")
	write(t, filepath.Join(sandbox, "other"), "x")

	require.ErrorContains(t, volume.RemoveAll(sandbox), at)
	require.FileExists(t, filepath.Join(sandbox, "other"), "half of it was removed")
	require.NoError(t, os.Symlink(dir, filepath.Join(dir, "link")))
	require.Error(t, volume.RemoveAll(filepath.Join(dir, "link", "sandbox")), "by a link")

	// Mounted over and over, and in use.
	require.NoError(t, v.Show(t.Context(), id, at))
	open, err := os.Open(filepath.Join(at, "precious"))
	require.NoError(t, err)
	require.NoError(t, volume.UnmountAll(sandbox))
	require.NoError(t, open.Close())
	require.NoError(t, volume.RemoveAll(sandbox))
	require.NoFileExists(t, sandbox)
	require.FileExists(t, filepath.Join(show(t, v), "precious"))
	require.NoError(t, volume.RemoveAll(sandbox), "removed before")
	require.NoError(t, volume.UnmountAll(sandbox))
}

func TestPruneRemovesWhatNobodyClaims(t *testing.T) {
	v, dir := open(t)
	create(t, v, volume.MinSize)
	require.NoError(t, v.Create(t.Context(), "half", volume.MinSize))
	require.NoError(t, os.Remove(filepath.Join(dir, "half", "disk.ext4"))) // as when it is killed
	require.NoError(t, v.Prune(t.Context(), func(name string) bool { return name == id }))
	require.True(t, v.Has(id))
	require.NoFileExists(t, filepath.Join(dir, "half"))
}

func TestCreateLeavesNothingWhenItCannotBe(t *testing.T) {
	v, dir := open(t)
	for name, size := range map[string]int64{
		"small": volume.MinSize - 1, "large": volume.MaxSize + 1, "../out": volume.MinSize, "": volume.MinSize, "a/b": volume.MinSize,
	} {
		require.Error(t, v.Create(t.Context(), name, size), "%q of %d bytes", name, size)
	}
	create(t, v, volume.MinSize)
	require.ErrorIs(t, v.Create(t.Context(), id, volume.MinSize), fs.ErrExist)
	require.True(t, v.Has(id), "the one there was is gone")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, v.Create(ctx, "hurry", volume.MinSize), "what is begun comes to its end")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2)
}

func TestManyAtOnce(t *testing.T) {
	v, dir := open(t)
	create(t, v, volume.MinSize)
	base := t.TempDir()
	t.Cleanup(func() { volume.UnmountAll(base) })
	errs := make(chan error)
	for n := range 8 {
		go func() {
			at := filepath.Join(base, fmt.Sprint(n))
			for range 20 {
				if err := v.Show(t.Context(), id, at); err != nil {
					errs <- err
					return
				}
				if err := os.WriteFile(filepath.Join(at, fmt.Sprint(n)), []byte("x"), 0o600); err != nil {
					errs <- err
					return
				}
				if err := volume.UnmountAll(at); err != nil {
					errs <- err
					return
				}
				if err := v.Rest(); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range 8 {
		require.NoError(t, <-errs)
	}
	at := show(t, v)
	for n := range 8 {
		require.FileExists(t, filepath.Join(at, fmt.Sprint(n)))
	}
	_ = dir
}
