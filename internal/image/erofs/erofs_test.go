package erofs_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	gvisor "gvisor.dev/gvisor/pkg/erofs"

	"github.com/tombolo-dev/tombolo/internal/image/erofs"
	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
)

// makeFolder makes a folder with something of every kind.
func makeFolder(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write := func(name string, size int) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte(name+"\n"), size/(len(name)+1)+1)[:size], 0o644))
	}
	for _, size := range []int{0, 1, 4095, 4096, 4097, 8192, 100_000} {
		write(fmt.Sprintf("sizes/%d", size), size)
	}
	for i := range 2000 {
		write(fmt.Sprintf("many/%05d", i), i%2)
	}
	for _, long := range []int{200, 254, 255} {
		write("names/"+strings.Repeat("n", long), 3)
		write("names/!"+strings.Repeat("m", long-1), 3) // before the dot that each folder has
	}
	for i := range 60 { // folders of every size around that of a block
		for j := range i % 25 {
			write(fmt.Sprintf("dirs/%03d/%s%02d", i, strings.Repeat("f", 4*i), j), 0)
		}
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "empty"), 0o700))
	for _, size := range []int{1, 100, 4031, 4032, 4033, 4095} {
		require.NoError(t, os.Symlink(strings.Repeat("t", size), filepath.Join(root, "empty", fmt.Sprint("link", size))))
	}
	require.NoError(t, os.Link(filepath.Join(root, "sizes/4097"), filepath.Join(root, "names/hard")))
	require.NoError(t, os.Link(filepath.Join(root, "sizes/4097"), filepath.Join(root, "hard")))
	require.NoError(t, unix.Mknod(filepath.Join(root, "fifo"), unix.S_IFIFO|0o600, 0))
	require.NoError(t, unix.Mknod(filepath.Join(root, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	require.NoError(t, unix.Mknod(filepath.Join(root, "disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 300))))
	require.NoError(t, os.Lchown(filepath.Join(root, "sizes/1"), 70_000, 4_000_000_000))
	require.NoError(t, os.Chmod(filepath.Join(root, "sizes/0"), 0o755|fs.ModeSetuid|fs.ModeSticky))
	require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(root, "sizes/4096"), []unix.Timespec{{Sec: 5_000_000_000, Nsec: 7}, {Sec: 5_000_000_000, Nsec: 7}}, 0))
	return root
}

func openImage(t *testing.T, path string) *gvisor.Image {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	image, err := gvisor.OpenImage(f)
	require.NoError(t, err)
	t.Cleanup(image.Close)
	return image
}

// lookUp finds a name as the engine does, by the order of names.
func lookUp(t *testing.T, image *gvisor.Image, path string) gvisor.Inode {
	t.Helper()
	inode, err := image.Inode(image.RootNid())
	require.NoError(t, err)
	for part := range strings.SplitSeq(path, "/") {
		if part == "." {
			continue
		}
		nid, err := inode.Lookup(part)
		require.NoError(t, err, path)
		inode, err = image.Inode(nid)
		require.NoError(t, err, path)
	}
	return inode
}

func TestImageOfAFolder(t *testing.T) {
	folder := makeFolder(t)
	t.Run("IsWhatTheFolderIs", func(t *testing.T) { isWhatTheFolderIs(t, folder) })
	t.Run("EqualTreesGiveEqualImages", func(t *testing.T) { equalTreesGiveEqualImages(t, folder) })
}

func isWhatTheFolderIs(t *testing.T, folder string) {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, erofs.WriteFolder(t.Context(), folder, path))
	image := openImage(t, path)
	names := 0
	require.NoError(t, filepath.WalkDir(folder, func(at string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)
		name, err := filepath.Rel(folder, at)
		require.NoError(t, err)
		names++
		same(t, at, name, lookUp(t, image, name))
		return nil
	}))
	listed := 1
	list(t, image, image.RootNid(), func() { listed++ })
	assert.Equal(t, names, listed, "the image has other names than the folder")
	many := lookUp(t, image, "many")
	_, err := many.Lookup("02000")
	assert.Error(t, err, "a name that is not there")

	if fsck, err := exec.LookPath("fsck.erofs"); err == nil {
		out, err := exec.Command(fsck, path).CombinedOutput()
		assert.NoError(t, err, "%s", out)
	}
}

// same compares a file of the folder with its inode.
func same(t *testing.T, at, name string, inode gvisor.Inode) {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(at, &st))
	type facts struct {
		mode, uid, gid, nlink uint32
		sec, size             int64
		nsec                  uint32
	}
	want := facts{st.Mode, st.Uid, st.Gid, uint32(st.Nlink), st.Mtim.Sec, st.Size, uint32(st.Mtim.Nsec)}
	got := facts{uint32(inode.Mode()), inode.UID(), inode.GID(), inode.Nlink(), int64(inode.Mtime()), int64(inode.Size()), inode.MtimeNsec()}
	if inode.IsDir() {
		got.size = want.size
	}
	require.Equal(t, want, got, name)
	switch {
	case inode.IsRegular():
		ranges, err := inode.DataRanges()
		require.NoError(t, err)
		text, err := os.ReadFile(at)
		require.NoError(t, err)
		require.True(t, bytes.Equal(text, ranges[0].Bytes), name)
		require.Zero(t, ranges[0].Off%4096, "the engine maps whole pages")
	case inode.IsSymlink():
		target, err := os.Readlink(at)
		require.NoError(t, err)
		read, err := inode.Readlink()
		require.NoError(t, err)
		require.Equal(t, target, read, name)
	}
}

func list(t *testing.T, image *gvisor.Image, nid uint64, each func()) {
	t.Helper()
	inode, err := image.Inode(nid)
	require.NoError(t, err)
	if !inode.IsDir() {
		return
	}
	last := ""
	require.NoError(t, inode.IterDirents(func(name string, _ uint8, child uint64) error {
		require.Less(t, last, name, "names must be in order")
		last = name
		if name == "." {
			require.Equal(t, nid, child)
		} else if name != ".." {
			each()
			list(t, image, child, each)
		}
		return nil
	}))
}

func equalTreesGiveEqualImages(t *testing.T, folder string) {
	dir := t.TempDir()
	first, second, third := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "3")
	require.NoError(t, erofs.WriteFolder(t.Context(), folder, first))
	require.NoError(t, erofs.WriteFolder(t.Context(), folder, second))
	f, err := os.Open(first)
	require.NoError(t, err)
	defer f.Close()
	tree := rootfs.New(nil, rootfs.Limits{})
	require.NoError(t, tree.AddImage(t.Context(), f))
	require.NoError(t, erofs.WriteFile(t.Context(), third, tree, erofs.Options{}))
	assert.Equal(t, hash(t, first), hash(t, second))
	assert.Equal(t, hash(t, first), hash(t, third), "an image of an image, devices included")
}

func hash(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	require.NoError(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

func TestAFullDiskEndsTheWriting(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "file"), bytes.Repeat([]byte("x"), 1<<20), 0o600))
	whole := filepath.Join(t.TempDir(), "whole")
	require.NoError(t, erofs.WriteFolder(t.Context(), folder, whole))
	image, err := os.Open(whole)
	require.NoError(t, err)
	defer image.Close()
	tree := rootfs.New(nil, rootfs.Limits{})
	require.NoError(t, tree.AddImage(t.Context(), image))
	full := errors.New("full")
	to := filepath.Join(t.TempDir(), "image")
	err = erofs.WriteFile(t.Context(), to, tree, erofs.Options{Room: func() error { return full }})
	require.ErrorIs(t, err, full)
	require.NoFileExists(t, to)
}

func TestAFileLongerThan4GiB(t *testing.T) {
	folder := t.TempDir()
	f, err := os.Create(filepath.Join(folder, "large"))
	require.NoError(t, err)
	const size = 5<<30 + 1
	_, err = f.WriteAt([]byte("beginning"), 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("end"), size-3)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, erofs.WriteFolder(t.Context(), folder, path))
	inode := lookUp(t, openImage(t, path), "large")
	require.EqualValues(t, size, inode.Size())
	ranges, err := inode.DataRanges()
	require.NoError(t, err)
	assert.Equal(t, "beginning", string(ranges[0].Bytes[:9]))
	assert.Equal(t, "end", string(ranges[0].Bytes[size-3:]))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	assert.Less(t, st.Blocks*512, int64(1<<20), "holes cost disk")
}
