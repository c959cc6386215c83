package rootfs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/image/erofs"
	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
)

// entry is a member of an archive.
type entry struct {
	tar.Header
	body string
}

func dir(name string) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}}
}
func file(name, body string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(body))}, body}
}
func link(name, to string) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}}
}
func hard(name, to string) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}}
}
func device(name string, major, minor int64) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: major, Devminor: minor}}
}
func opaqueDir(name string) entry {
	e := dir(name)
	e.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
	return e
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		require.NoError(t, w.WriteHeader(&e.Header))
		_, err := io.WriteString(w, e.body)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

// raw is an archive with one member whose header says what the library would not
// write: the ustar fields in their places.
func raw(typeflag byte, name, linkname, size string) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], size)
	copy(b[136:], "00000000000\x00        ")
	b[156] = typeflag
	copy(b[157:], linkname)
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return append(b, make([]byte, 1024)...)
}

// sparse is an old GNU archive with one file that claims size bytes, all of them a
// hole.
func sparse(name string, size int64) []byte {
	octal := func(n int64, width int) string { return fmt.Sprintf("%0*o\x00", width-1, n) }
	if size >= 1<<33 {
		octal = func(n int64, width int) string { // in base 256
			b := make([]byte, width)
			for i := width - 1; i > 0; i, n = i-1, n>>8 {
				b[i] = byte(n)
			}
			b[0] = 0x80
			return string(b)
		}
	}
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], "00000000000\x00")
	copy(b[136:], "00000000000\x00        ")
	b[156] = tar.TypeGNUSparse
	copy(b[257:], "ustar  \x00")
	copy(b[386:], octal(size, 12)+"00000000000\x00") // one part at the end, of 0 bytes
	copy(b[483:], octal(size, 12))
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return append(b, make([]byte, 1024)...)
}

// memory is a file without a place.
func memory(t testing.TB) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "memory")
	t.Cleanup(func() { f.Close() })
	return f
}

type world struct {
	t     testing.TB
	tree  *rootfs.Tree
	spool *os.File
}

func newWorld(t testing.TB, limits rootfs.Limits) world {
	t.Helper()
	f := memory(t)
	return world{t, rootfs.New(rootfs.NewSpool(f), limits), f}
}

func (w world) layer(text []byte) error {
	return w.tree.ApplyLayer(context.Background(), bytes.NewReader(text))
}

func (w world) upper(text []byte) error {
	f := memory(w.t)
	_, err := f.Write(text)
	require.NoError(w.t, err)
	_, err = f.Seek(0, io.SeekStart)
	require.NoError(w.t, err)
	return w.tree.ApplyUpper(context.Background(), f)
}

// list is what is in the tree, one line each: "path content", "path/", "path -> target".
func (w world) list() []string {
	var lines []string
	var visit func(n *rootfs.Inode, at string)
	visit = func(n *rootfs.Inode, at string) {
		for _, name := range n.Names() {
			child, path := n.Child(name), at+name
			switch {
			case child.IsDir():
				if child.Len() == 0 {
					lines = append(lines, path+"/")
				}
				visit(child, path+"/")
			case child.IsSymlink():
				lines = append(lines, path+" -> "+child.Target)
			case child.IsRegular():
				text, err := w.tree.ReadFile(path, 1<<20)
				require.NoError(w.t, err)
				lines = append(lines, strings.TrimSpace(path+" "+string(text)))
			default:
				lines = append(lines, fmt.Sprintf("%s %o %d", path, child.Mode, child.Rdev))
			}
		}
	}
	visit(w.tree.Root(), "")
	return lines
}

// small limits are met by small archives.
var small = rootfs.Limits{Entries: 2000, Members: 3000, FileBytes: 1 << 20, Bytes: 4 << 20, TextBytes: 200_000}

// TestHostileLayers has a row for each attack: it ends with an error that says what is
// wrong, or lands in the tree as the list says. Nothing may appear beside it.
func TestHostileLayers(t *testing.T) {
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "victim"), []byte("intact"), 0o600))
	t.Chdir(outside)
	secret := filepath.Join(outside, "victim")
	long := strings.Repeat("n", 256)
	many := func(n int, each func(int) entry) []entry {
		var all []entry
		for i := range n {
			all = append(all, each(i))
		}
		return all
	}
	for _, test := range []struct {
		name   string
		layers [][]byte
		err    string
		list   []string
	}{
		{"dots lead out", [][]byte{archive(t, file("../victim", "x"))}, "leads out of the root", nil},
		{"dots lead out on the way", [][]byte{archive(t, file("a/../../victim", "x"))}, "leads out of the root", nil},
		{"dots within", [][]byte{archive(t, file("a/../b", "x"))}, "", []string{"b x"}},
		{"an absolute name", [][]byte{archive(t, file(secret, "x"))}, "", []string{strings.TrimPrefix(secret, "/") + " x"}},
		{"many slashes", [][]byte{archive(t, file("///a//b", "x"))}, "", []string{"a/b x"}},
		{"a link out, and a file through it", [][]byte{archive(t, link("out", outside), file("out/victim", "x"))}, "",
			[]string{"out -> " + outside, strings.TrimPrefix(secret, "/") + " x"}},
		{"a link up, and a file through it", [][]byte{archive(t, link("up", "../../../.."), file("up/victim", "x"))}, "",
			[]string{"up -> ../../../..", "victim x"}},
		{"a link out from a lower layer", [][]byte{archive(t, link("out", outside)), archive(t, file("out/victim", "x"))}, "",
			[]string{"out -> " + outside, strings.TrimPrefix(secret, "/") + " x"}},
		{"a file in the place of a link", [][]byte{archive(t, link("victim", secret)), archive(t, file("victim", "x"))}, "", []string{"victim x"}},
		{"a folder in the place of a link", [][]byte{archive(t, link("d", outside)), archive(t, dir("d"), file("d/f", "x"))}, "", []string{"d/f x"}},
		{"a folder through a link, in its place", [][]byte{archive(t, link("a", "."), dir("a/a"), file("a/f", "x"))}, "", []string{"a/f x"}},
		{"links in a circle", [][]byte{archive(t, link("a", "b"), link("b", "a"), file("a/x", "x"))}, "too many symbolic links", nil},
		{"a link to itself", [][]byte{archive(t, link("a", "a/a/a"), file("a/x", "x"))}, "too many symbolic links", nil},
		{"a link that leads through itself for long", [][]byte{archive(t,
			append(many(39, func(i int) entry {
				return link(fmt.Sprint("l", i), strings.Repeat("d/../", 700)+fmt.Sprint("l", i+1))
			}), dir("d"), file("l0/x", "x"))...)}, "too many symbolic links", nil},
		{"a hard link out", [][]byte{archive(t, hard("a", "../victim"))}, "leads out of the root", nil},
		{"a hard link to an absolute name", [][]byte{archive(t, hard("a", secret))}, "is not there", nil},
		{"a hard link through a link out", [][]byte{archive(t, link("out", outside), hard("a", "out/victim"))}, "is not there", nil},
		{"a hard link to a link out", [][]byte{archive(t, link("out", secret), hard("a", "out"))}, "", []string{"a -> " + secret, "out -> " + secret}},
		{"a hard link to what comes later", [][]byte{archive(t, hard("a", "b"), file("b", "x"))}, "is not there", nil},
		{"a hard link to a folder", [][]byte{archive(t, dir("d"), hard("a", "d"))}, "to the folder", nil},
		{"a hard link to the root", [][]byte{archive(t, hard("a", "/"))}, "to the folder", nil},
		{"a hard link to itself", [][]byte{archive(t, file("a", "x"), hard("a", "a"))}, "", []string{"a x"}},
		{"a hard link in the place of its folder", [][]byte{archive(t, file("d/f", "x"), hard("d", "d/f"))}, "", []string{"d x"}},
		{"a file below a file", [][]byte{archive(t, file("a", "x"), file("a/b", "y"))}, "/a is no folder", nil},
		{"a file below a device", [][]byte{archive(t, device("a", 1, 3), file("a/b", "y"))}, "/a is no folder", nil},
		{"a file in the place of a folder", [][]byte{archive(t, file("a/b", "y")), archive(t, file("a", "x"))}, "", []string{"a x"}},
		{"a file in the place of the root", [][]byte{raw('0', "/", "", "00000000000\x00")}, "the root is a folder", nil},
		{"a link in the place of the root", [][]byte{raw('2', ".", "x", "00000000000\x00")}, "the root is a folder", nil},
		{"a name twice", [][]byte{archive(t, file("a", "x"), file("a", "y"), file("./a", "z"))}, "", []string{"a z"}},
		{"a folder twice", [][]byte{archive(t, dir("a"), file("a/b", "y"), dir("a"))}, "", []string{"a/b y"}},
		{"a name of 256 bytes", [][]byte{archive(t, file(long, "x"))}, "a name of 256 bytes", nil},
		{"a path of 5001 bytes", [][]byte{archive(t, file(strings.Repeat("d/", 2500)+"f", "x"))}, "a path of 5001 bytes", nil},
		{"a link to 5000 bytes", [][]byte{archive(t, link("a", strings.Repeat("d/", 2500)))}, "a link to 5000 bytes", nil},
		{"a link to nothing", [][]byte{raw('2', "a", "", "00000000000\x00")}, "a link to 0 bytes", nil},
		{"folders without end", [][]byte{archive(t,
			file(strings.Repeat("d/", 900)+"x", "x"), link("l", strings.Repeat("d/", 900)), file("l/"+strings.Repeat("e/", 900)+"y", "y"))},
			"more than 1024 folders in one another", nil},
		{"a device", [][]byte{archive(t, device("dev/sda", 8, 0))}, "", []string{"dev/sda 20666 2048"}},
		{"a device that is none", [][]byte{archive(t, device("a", 1<<20, 0))}, "is none", nil},
		{"the whiteout of overlays is only a device", [][]byte{archive(t, file("a", "x")), archive(t, device("a", 0, 0))}, "", []string{"a 20666 0"}},
		{"an owner that is none", [][]byte{archive(t, entry{Header: tar.Header{Name: "a", Typeflag: tar.TypeReg, Uid: 1<<32 - 1}})}, "owner 4294967295:0 is none", nil},
		{"an unknown type", [][]byte{raw('V', "a", "", "00000000000\x00")}, "unknown type", nil},
		{"a whiteout", [][]byte{archive(t, file("d/a", "x"), file("d/b", "y")), archive(t, file("d/.wh.a", ""))}, "", []string{"d/b y"}},
		{"a whiteout of what this layer has", [][]byte{archive(t, file("d/a", "x")), archive(t, file("d/a", "y"), file("d/.wh.a", ""))}, "", []string{"d/a y"}},
		{"a whiteout of a folder with something new", [][]byte{archive(t, file("d/a", "x")), archive(t, file("d/b", "y"), file(".wh.d", ""))}, "", []string{"d/b y"}},
		{"a whiteout of the root", [][]byte{archive(t, file("a", "x")), archive(t, file(".wh..", ""))}, "removes what is not a name", nil},
		{"a whiteout of what is above", [][]byte{archive(t, file("d/a", "x")), archive(t, file("d/.wh...", ""))}, "removes what is not a name", nil},
		{"a whiteout of no name", [][]byte{archive(t, file("d/a", "x")), archive(t, file("d/.wh.", ""))}, "removes what is not a name", nil},
		{"a whiteout through a link out", [][]byte{archive(t, link("out", outside), file("a", "x")), archive(t, file("out/.wh.victim", ""))}, "",
			[]string{"a x", "out -> " + outside}},
		{"a whiteout of nothing", [][]byte{archive(t, file("no/such/.wh.x", ""), file("a", "x"))}, "", []string{"a x"}},
		{"a whiteout below a file", [][]byte{archive(t, file("a", "x")), archive(t, file("a/.wh.b", ""))}, "", []string{"a x"}},
		{"an opaque root", [][]byte{archive(t, file("d/a", "x"), file("b", "y")), archive(t, file("d/new", "z"), file(".wh..wh..opq", ""))}, "", []string{"d/new z"}},
		{"what aufs kept for itself", [][]byte{archive(t, file("a", "x"), file(".wh..wh.plnk/1", ""), file(".wh..wh.aufs", ""))}, "", []string{".wh..wh.plnk/1", "a x"}},
		{"more entries than allowed", [][]byte{archive(t, many(2001, func(i int) entry { return file(fmt.Sprint(i), "") })...)}, "more than 2000 entries", nil},
		{"more members than allowed", [][]byte{archive(t, many(3001, func(int) entry { return file("a", "") })...)}, "more than 3000 members", nil},
		{"a larger file than allowed", [][]byte{raw('0', "a", "", "00004000001\x00")}, "more than 1048576 bytes of one file", nil},
		{"more bytes than allowed", [][]byte{archive(t, many(5, func(i int) entry { return file(fmt.Sprint(i), strings.Repeat("x", 1<<20)) })...)}, "more than 4194304 bytes", nil},
		{"more bytes than allowed under one name", [][]byte{archive(t, many(5, func(i int) entry { return file("a", strings.Repeat("x", 1<<20)) })...)}, "more than 4194304 bytes", nil},
		{"more bytes of names than allowed", [][]byte{archive(t, many(801, func(i int) entry { return file(fmt.Sprintf("%0250d", i), "") })...)}, "more than 200000 bytes of names and links", nil},
		{"more bytes of links than allowed", [][]byte{archive(t, many(50, func(i int) entry { return link(fmt.Sprint(i), strings.Repeat("x", 4095)) })...)}, "more than 200000 bytes of names and links", nil},
		{"links in the place of others", [][]byte{archive(t, many(100, func(int) entry { return link("a", strings.Repeat("x", 4095)) })...),
			archive(t, file(".wh.a", "")), archive(t, file("b", "x"))}, "", []string{"b x"}},
		{"a file that ends early", [][]byte{raw('0', "a", "", "00000400000\x00")}, "unexpected EOF", nil},
		{"a negative size", [][]byte{raw('0', "a", "", "-0000400000\x00")}, "read the archive", nil},
		{"a hole of a terabyte", [][]byte{sparse("a", 1<<40)}, "more than 1048576 bytes of one file", nil},
		{"no archive", [][]byte{bytes.Repeat([]byte("x"), 4096)}, "read the archive", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, small)
			var err error
			for i, text := range test.layers {
				require.NoError(t, err, "only the last layer may be refused, not layer %d", i)
				err = w.layer(text)
			}
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
			} else {
				require.NoError(t, err)
				slices.Sort(test.list)
				got := w.list()
				slices.Sort(got)
				assert.Equal(t, test.list, slices.DeleteFunc(got, func(s string) bool { return s == "" }))
				assert.NoError(t, writes(w))
			}
			left, err := os.ReadDir(outside)
			require.NoError(t, err)
			require.Len(t, left, 1, "something appeared outside")
			victim, err := os.ReadFile(secret)
			require.NoError(t, err)
			require.Equal(t, "intact", string(victim))
		})
	}
}

// writes writes the tree as an image and reads it back.
func writes(w world) error {
	f := memory(w.t)
	if err := erofs.Write(context.Background(), f, w.tree, erofs.Options{}); err != nil {
		return err
	}
	return rootfs.New(nil, rootfs.Limits{}).AddImage(context.Background(), f)
}

// removed are marks for n long names that are not there.
func removed(n int) []entry {
	var all []entry
	for i := range n {
		all = append(all, device(strings.Repeat("d/", 2000)+fmt.Sprint(i), 0, 0))
	}
	return all
}

func TestHostileUppers(t *testing.T) {
	base := archive(t, file("etc/a", "x"), file("etc/b", "y"), link("l", "etc"), link("out", "/../.."))
	for _, test := range []struct {
		name  string
		upper []byte
		err   string
		list  []string
	}{
		{"as gVisor writes it", archive(t, dir("./"), dir("./etc/"), device("./etc/a", 0, 0), file("./etc/c", "z")), "",
			[]string{"etc/b y", "etc/c z", "l -> etc", "out -> /../.."}},
		{"an opaque folder", archive(t, dir("./"), opaqueDir("./etc/"), file("./etc/c", "z")), "", []string{"etc/c z", "l -> etc", "out -> /../.."}},
		{"an opaque root", archive(t, opaqueDir("./"), file("./c", "z")), "", []string{"c z"}},
		{"opaque after its contents", archive(t, file("./etc/c", "z"), opaqueDir("./etc/")), "", []string{"etc/c z", "l -> etc", "out -> /../.."}},
		{"a removed link", archive(t, device("./l", 0, 0)), "", []string{"etc/a x", "etc/b y", "out -> /../.."}},
		{"removed through a link", archive(t, device("./l/a", 0, 0)), "", []string{"etc/b y", "l -> etc", "out -> /../.."}},
		{"removed what was not there", archive(t, device("./no/such", 0, 0)), "", []string{"etc/a x", "etc/b y", "l -> etc", "out -> /../.."}},
		{"the root removed", raw('3', ".", "", "00000000000\x00"), "removes the root", nil},
		{"names of layers mean nothing", archive(t, file("./etc/.wh.a", "")), "", []string{"etc/.wh.a", "etc/a x", "etc/b y", "l -> etc", "out -> /../.."}},
		{"a hard link to the image's", archive(t, hard("./c", "./etc/a")), "", []string{"c x", "etc/a x", "etc/b y", "l -> etc", "out -> /../.."}},
		{"a link replaced by a folder", archive(t, dir("./l/"), file("./l/f", "z")), "", []string{"etc/a x", "etc/b y", "l/f z", "out -> /../.."}},
		{"through a link that leads out", archive(t, file("./out/c", "z")), "", []string{"c z", "etc/a x", "etc/b y", "l -> etc", "out -> /../.."}},
		{"dots", archive(t, file("./../c", "z")), "leads out of the root", nil},
		{"more bytes of removed names than allowed", archive(t, removed(60)...), "more than 200000 bytes of names and links", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, small)
			require.NoError(t, w.layer(base))
			err := w.upper(test.upper)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.list, w.list())
		})
	}
}

// TestLargeFilesOfSandboxes: what a sandbox wrote is bounded by its disk, and the holes
// in it by what an image can have.
func TestLargeFilesOfSandboxes(t *testing.T) {
	const large = 1 << 40
	f, err := os.Create(filepath.Join(t.TempDir(), "upper"))
	require.NoError(t, err)
	defer f.Close()
	header := tar.NewWriter(f)
	require.NoError(t, header.WriteHeader(&tar.Header{Name: "./large", Typeflag: tar.TypeReg, Mode: 0o644, Size: large}))
	body, err := f.Seek(0, io.SeekCurrent)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("end"), body+large-3)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(body+large+1024))
	_, err = f.Seek(0, io.SeekStart)
	require.NoError(t, err)
	tree := rootfs.New(nil, rootfs.Limits{})
	require.NoError(t, tree.ApplyUpper(t.Context(), f))
	image, err := os.Create(filepath.Join(t.TempDir(), "image"))
	require.NoError(t, err)
	defer image.Close()
	require.NoError(t, erofs.Write(t.Context(), image, tree, erofs.Options{}))
	assert.Less(t, diskBytes(t, image), int64(1<<20))

	back := rootfs.New(nil, rootfs.Limits{})
	require.NoError(t, back.AddImage(t.Context(), image), "others are made from it")
	content := back.Lstat("large").Content
	require.EqualValues(t, large, content.Size)
	var end [3]byte
	_, err = image.ReadAt(end[:], content.Offset+large-3)
	require.NoError(t, err)
	require.Equal(t, "end", string(end[:]))
}

func TestHolesCostNoDisk(t *testing.T) {
	w := newWorld(t, rootfs.Limits{})
	require.NoError(t, w.layer(sparse("hole", 1<<30)))
	require.NoError(t, w.layer(archive(t, file("zeros", strings.Repeat("\x00", 1<<20)+"end"))))
	assert.EqualValues(t, 1<<30, w.tree.Lstat("hole").Content.Size)
	require.NoError(t, w.tree.Flush())
	assert.Less(t, diskBytes(t, w.spool), int64(1<<20))

	image := memory(t)
	require.NoError(t, erofs.Write(t.Context(), image, w.tree, erofs.Options{}))
	assert.Less(t, diskBytes(t, image), int64(1<<20))
	back := rootfs.New(nil, rootfs.Limits{})
	require.NoError(t, back.AddImage(t.Context(), image))
	text, err := back.ReadFile("zeros", 2<<20)
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("\x00", 1<<20)+"end", string(text))
}

// TestHeadersAreNotKept: an extended header may have a mebibyte beside the name and the
// target in it.
func TestHeadersAreNotKept(t *testing.T) {
	read, write := io.Pipe()
	go func() {
		w := tar.NewWriter(write)
		more := map[string]string{"comment": strings.Repeat("x", 1<<20-1000)}
		var err error
		for i := range 64 {
			e := link(fmt.Sprint("ä", i), fmt.Sprint("ö", i))
			e.PAXRecords = more
			err = errors.Join(err, w.WriteHeader(&e.Header))
		}
		write.CloseWithError(errors.Join(err, w.Close()))
	}()
	w := newWorld(t, rootfs.Limits{})
	before := heap()
	require.NoError(t, w.tree.ApplyLayer(t.Context(), read))
	require.Equal(t, 64, w.tree.Entries())
	require.Less(t, heap()-before, int64(4<<20))
	runtime.KeepAlive(w.tree)
}

// heap is the bytes in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAFullDiskEndsWhatIsSpooled(t *testing.T) {
	f := memory(t)
	spool := rootfs.NewSpool(f)
	spool.Room = func() error { return fmt.Errorf("no room") }
	tree := rootfs.New(spool, rootfs.Limits{})
	body := strings.Repeat("x", 70<<20)
	require.ErrorContains(t, tree.ApplyLayer(t.Context(), bytes.NewReader(archive(t, file("a", body)))), "no room")
}

func FuzzLayer(f *testing.F) {
	f.Add([]byte("\x00\x01a\x02\x11\x12\x03\x01\x21"))
	f.Fuzz(func(t *testing.T, program []byte) { fuzz(t, program, world.layer) })
}

func FuzzUpper(f *testing.F) {
	f.Add([]byte("\x00\x01a\x02\x11\x12\x03\x01\x21"))
	f.Fuzz(func(t *testing.T, program []byte) { fuzz(t, program, world.upper) })
}

// fuzz applies a layer and then another archive, whose members the program says. A
// tree that took them must count right, and be written and read back as it was.
func fuzz(t *testing.T, program []byte, apply func(world, []byte) error) {
	one, two := members(program[:len(program)/2]), members(program[len(program)/2:])
	w := newWorld(t, small)
	if w.layer(one) != nil || apply(w, two) != nil {
		return
	}
	require.Equal(t, w.tree.Entries(), countNames(w.tree.Root()), "the count of entries is wrong")
	f := memory(t)
	require.NoError(t, erofs.Write(context.Background(), f, w.tree, erofs.Options{}))
	back := rootfs.New(nil, rootfs.Limits{})
	require.NoError(t, back.AddImage(context.Background(), f))
	require.Equal(t, w.list(), world{t, back, nil}.list())
}

// members makes an archive of a program: for each member a byte for its kind, and two
// paths of up to three parts.
func members(program []byte) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	next := func() int {
		if len(program) == 0 {
			return 0
		}
		b := program[0]
		program = program[1:]
		return int(b)
	}
	parts := []string{"a", "b", "c", "..", ".", "", ".wh.a", ".wh.b", ".wh..wh..opq"}
	path := func() string {
		n := next()
		name := parts[n%len(parts)]
		for range n / len(parts) % 3 {
			name += "/" + parts[next()%len(parts)]
		}
		return name
	}
	for len(program) > 0 {
		kind := next()
		h := tar.Header{
			Typeflag: "0123456"[kind%7], Name: path(), Linkname: path(), Mode: int64(next()), Format: tar.FormatPAX,
			Devmajor: int64(kind >> 7), ModTime: time.Unix(int64(next()), 0),
		}
		if kind&0x40 != 0 {
			h.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
		}
		body := h.Name
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		if w.WriteHeader(&h) == nil && h.Typeflag == tar.TypeReg {
			io.WriteString(w, body)
		}
	}
	w.Close()
	return buf.Bytes()
}

func countNames(n *rootfs.Inode) int {
	count := n.Len()
	for _, name := range n.Names() {
		count += countNames(n.Child(name))
	}
	return count
}
