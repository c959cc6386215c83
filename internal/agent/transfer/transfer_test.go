package transfer_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/transfer"
)

const passwd = "root:x:0:0:root:/root:/bin/sh\napp:x:1200:1300::/home/app:/bin/sh\n"

const group = "root:x:0:\nstaff:x:50:\n"

// when is the time of every entry of the tests' archives.
var when = time.Unix(1_600_000_000, 0)

// entry is written "name", "name=content", "name -> link", "name => hard link",
// with a "/" at the end for a folder, and an octal mode before it all.
func entry(text string) (*tar.Header, string) {
	h := &tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, ModTime: when, Uid: 77, Gid: 78}
	var mode int64
	if n, _ := fmt.Sscanf(text, "%o ", &mode); n == 1 {
		h.Mode = mode
		_, text, _ = strings.Cut(text, " ")
	}
	if name, to, ok := strings.Cut(text, " -> "); ok {
		h.Typeflag, h.Name, h.Linkname = tar.TypeSymlink, name, to
		return h, ""
	}
	if name, to, ok := strings.Cut(text, " => "); ok {
		h.Typeflag, h.Name, h.Linkname = tar.TypeLink, name, to
		return h, ""
	}
	name, content, _ := strings.Cut(text, "=")
	h.Name, h.Size = name, int64(len(content))
	if strings.HasSuffix(name, "/") {
		h.Typeflag = tar.TypeDir
		if mode == 0 {
			h.Mode = 0o755
		}
	}
	return h, content
}

func archive(t testing.TB, entries ...string) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, text := range entries {
		h, content := entry(text)
		require.NoError(t, w.WriteHeader(h))
		_, err := io.WriteString(w, content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return buffer.Bytes()
}

func zipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w := gzip.NewWriter(&buffer)
	_, err := w.Write(content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return buffer.Bytes()
}

// tree lists what is below dir in the notation of entry, with modes that are not
// the usual ones and owners that are not root.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	found := []string{}
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		name, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		if name == "." {
			return nil
		}
		info, err := d.Info()
		require.NoError(t, err)
		stat := info.Sys().(*syscall.Stat_t)
		usual := uint32(0o644)
		line := name
		switch {
		case d.IsDir():
			usual = 0o755
			line += "/"
		case d.Type()&fs.ModeSymlink != 0:
			usual = 0o777
			to, err := os.Readlink(path)
			require.NoError(t, err)
			line += " -> " + to
		case stat.Nlink > 1 && inodes[stat.Ino] != "":
			line += " => " + inodes[stat.Ino]
		default:
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			line += "=" + string(content)
			inodes[stat.Ino] = name
		}
		if mode := stat.Mode & 0o7777; mode != usual {
			line = fmt.Sprintf("%o %s", mode, line)
		}
		if stat.Uid != 0 || stat.Gid != 0 {
			line += fmt.Sprintf(" of %d:%d", stat.Uid, stat.Gid)
		}
		found = append(found, line)
		return nil
	})
	require.NoError(t, err)
	return found
}

func accounts(t testing.TB) *account.Database {
	t.Helper()
	dir := t.TempDir()
	users, groups := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	require.NoError(t, os.WriteFile(users, []byte(passwd), 0o644))
	require.NoError(t, os.WriteFile(groups, []byte(group), 0o644))
	return account.Open(users, groups)
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the agent copies as root")
	}
}

func TestCopy(t *testing.T) {
	needRoot(t)
	mode := func(m uint32) *uint32 { return &m }
	for name, test := range map[string]struct {
		there   []string // before, made by the shell's words
		copy    hostapi.Copy
		archive []string
		want    []string
		fails   string
	}{
		"a file gets the path": {
			copy: hostapi.Copy{Source: "a.txt", Destination: "/x/b.txt"}, archive: []string{"a.txt=1"},
			want: []string{"x/", "x/b.txt=1"},
		},
		"a file goes into a folder with a slash": {
			copy: hostapi.Copy{Source: "in/a.txt", Destination: "/x/"}, archive: []string{"in/a.txt=1"},
			want: []string{"x/", "x/a.txt=1"},
		},
		"a file goes into a folder that is there": {
			there: []string{"mkdir x"},
			copy:  hostapi.Copy{Source: "./a.txt", Destination: "/x"}, archive: []string{"a.txt=1"},
			want: []string{"x/", "x/a.txt=1"},
		},
		"a file replaces a file and does not write through its other names": {
			there: []string{"echo -n old > a", "ln a b"},
			copy:  hostapi.Copy{Source: "f", Destination: "/a"}, archive: []string{"600 f=new"},
			want: []string{"600 a=new", "b=old"},
		},
		"a file is not put over a file as a folder": {
			there: []string{"echo -n old > a"},
			copy:  hostapi.Copy{Source: "f", Destination: "/a/"}, archive: []string{"f=new"},
			fails: "cannot copy to non-directory", want: []string{"a=old"},
		},
		"a folder's contents go to the destination, with modes": {
			copy:    hostapi.Copy{Source: "app/", Destination: "/srv/x"},
			archive: []string{"700 app/", "755 app/run=1", "700 app/sub/", "4755 app/sub/s=2"},
			want:    []string{"srv/", "srv/x/", "755 srv/x/run=1", "700 srv/x/sub/", "4755 srv/x/sub/s=2"},
		},
		"a folder without an entry of its own": {
			copy: hostapi.Copy{Source: "app", Destination: "/x/"}, archive: []string{"app/a/b=1"},
			want: []string{"x/", "x/a/", "x/a/b=1"},
		},
		"folders are merged, and keep what they are": {
			there: []string{"mkdir -m 711 x x/sub", "echo -n 0 > x/sub/keep", "echo -n 0 > x/sub/b"},
			copy:  hostapi.Copy{Source: ".", Destination: "/x"}, archive: []string{"./", "sub/", "sub/b=1"},
			want: []string{"711 x/", "711 x/sub/", "x/sub/b=1", "x/sub/keep=0"},
		},
		"everything": {
			copy: hostapi.Copy{Source: ".", Destination: "/"}, archive: []string{"./", "a=1", "d/", "d/b=2"},
			want: []string{"a=1", "d/", "d/b=2"},
		},
		"a pattern's matches go into the destination": {
			copy: hostapi.Copy{Source: "*.txt", Destination: "/x"}, archive: []string{"a.txt=1", "b.txt=2"},
			want: []string{"x/", "x/a.txt=1", "x/b.txt=2"},
		},
		"a deep pattern keeps paths below its fixed part": {
			copy: hostapi.Copy{Source: "src/**/*.py", Destination: "/x/"}, archive: []string{"src/a.py=1", "src/d/b.py=2"},
			want: []string{"x/", "x/a.py=1", "x/d/", "x/d/b.py=2"},
		},
		"a name with marks of a pattern": {
			copy: hostapi.Copy{Source: "app/[id].ts", Destination: "/x/"}, archive: []string{"app/[id].ts=1"},
			want: []string{"x/", "x/[id].ts=1"},
		},
		"links are copied as links": {
			copy:    hostapi.Copy{Source: "d", Destination: "/x", User: "5:6"},
			archive: []string{"d/", "d/f=1", "d/in -> f", "d/out -> /etc/passwd", "d/none -> ../../..", "d/hard => d/f"},
			want: []string{"x/ of 5:6", "x/f=1 of 5:6", "x/hard => x/f of 5:6", "x/in -> f of 5:6", "x/none -> ../../.. of 5:6",
				"x/out -> /etc/passwd of 5:6"},
		},
		"a link alone": {
			copy: hostapi.Copy{Source: "l", Destination: "/x/"}, archive: []string{"l -> f"},
			want: []string{"x/", "x/l -> f"},
		},
		"a link at the destination is followed": {
			there: []string{"mkdir real", "ln -s real x"},
			copy:  hostapi.Copy{Source: "d", Destination: "/x"}, archive: []string{"d/f=1"},
			want: []string{"real/", "real/f=1", "x -> real"},
		},
		"a link to nothing at the destination is followed": {
			there: []string{"ln -s real/f x"},
			copy:  hostapi.Copy{Source: "f", Destination: "/x"}, archive: []string{"f=1"},
			want: []string{"real/", "real/f=1", "x -> real/f"},
		},
		"a link to a folder that is there stays one": {
			there: []string{"mkdir -p usr/lib", "ln -s usr/lib lib"},
			copy:  hostapi.Copy{Source: ".", Destination: "/"}, archive: []string{"lib/", "lib/f=1"},
			want: []string{"lib -> usr/lib", "usr/", "usr/lib/", "usr/lib/f=1"},
		},
		"a link to a file that is there is replaced": {
			there: []string{"mkdir x", "echo -n 0 > x/a", "ln -s a x/b"},
			copy:  hostapi.Copy{Source: "d", Destination: "/x"}, archive: []string{"d/b=1"},
			want: []string{"x/", "x/a=0", "x/b=1"},
		},
		"nothing is written through a link of the archive": {
			there: []string{"mkdir other x"},
			copy:  hostapi.Copy{Source: ".", Destination: "/x"}, archive: []string{"l -> ../other", "l/f=1"},
			fails: "as a link and as a folder", want: []string{"other/", "x/", "x/l -> ../other"},
		},
		"nor deeper below it": {
			there: []string{"mkdir -p other/d x"},
			copy:  hostapi.Copy{Source: ".", Destination: "/x"}, archive: []string{"l -> ../other", "l/d/f=1"},
			fails: "as a link and as a folder", want: []string{"other/", "other/d/", "x/", "x/l -> ../other"},
		},
		"a folder is not put over a file": {
			there: []string{"mkdir x", "echo -n 0 > x/a"},
			copy:  hostapi.Copy{Source: "d", Destination: "/x"}, archive: []string{"d/a/", "d/a/f=1"},
			fails: "cannot copy to non-directory", want: []string{"x/", "x/a=0"},
		},
		"a file is not put over a folder": {
			there: []string{"mkdir -p x/a"},
			copy:  hostapi.Copy{Source: "d", Destination: "/x"}, archive: []string{"d/a=1"},
			fails: "cannot copy a file over the directory", want: []string{"x/", "x/a/"},
		},
		"owner and mode, folders on the way too": {
			copy:    hostapi.Copy{Source: "d", Destination: "/x/y", User: "app:staff", Mode: mode(0o750)},
			archive: []string{"d/", "777 d/f=1", "d/s/"},
			want:    []string{"x/ of 1200:50", "x/y/ of 1200:50", "750 x/y/f=1 of 1200:50", "750 x/y/s/ of 1200:50"},
		},
		"the group of an account": {
			copy: hostapi.Copy{Source: "f", Destination: "/f", User: "app"}, archive: []string{"f=1"},
			want: []string{"f=1 of 1200:1300"},
		},
		"a number alone is the group too": {
			copy: hostapi.Copy{Source: "f", Destination: "/f", User: "42"}, archive: []string{"f=1"},
			want: []string{"f=1 of 42:42"},
		},
		"an unknown user": {
			copy: hostapi.Copy{Source: "f", Destination: "/f", User: "nobody2"}, archive: []string{"f=1"},
			fails: "invalid username: 'nobody2'", want: []string{},
		},
		"an unknown group": {
			copy: hostapi.Copy{Source: "f", Destination: "/f", User: "app:none"}, archive: []string{"f=1"},
			fails: "invalid group: 'none'", want: []string{},
		},
		"an archive of ours keeps owners, and gives what folders hold": {
			copy: hostapi.Copy{Destination: "/x/"}, archive: []string{"dist/", "dist/f=1", "g=2"},
			want: []string{"x/", "x/f=1 of 77:78", "x/g=2 of 77:78"},
		},
		"several things need a folder": {
			copy: hostapi.Copy{Destination: "/x"}, archive: []string{"f=1", "g=2"},
			fails: `must be a folder and end with a "/"`, want: []string{},
		},
		"an absolute name": {
			copy: hostapi.Copy{Source: ".", Destination: "/"}, archive: []string{"a=1", "/b=2"},
			fails: `an entry named "/b"`, want: []string{},
		},
		"a name that leads out": {
			copy: hostapi.Copy{Source: ".", Destination: "/x"}, archive: []string{"a=1", "a/../../b=2"},
			fails: "must be relative and stay in the archive", want: []string{},
		},
		"a hard link out": {
			copy: hostapi.Copy{Source: ".", Destination: "/x"}, archive: []string{"a => ../../etc/passwd"},
			fails: "must be relative", want: []string{"x/"},
		},
		"a hard link to what is not there": {
			copy: hostapi.Copy{Source: ".", Destination: "/x"}, archive: []string{"a => b"},
			fails: "which is no file", want: []string{"x/"},
		},
		"a source that is not in the archive": {
			copy: hostapi.Copy{Source: "b", Destination: "/x"}, archive: []string{"a=1"},
			fails: `holds nothing named "b"`, want: []string{},
		},
		"an empty archive": {
			copy:  hostapi.Copy{Source: "b", Destination: "/x"},
			fails: "is empty", want: []string{},
		},
		"a destination below a file": {
			there: []string{"echo -n 0 > x"},
			copy:  hostapi.Copy{Source: "a", Destination: "/x/y/z"}, archive: []string{"a=1"},
			fails: "cannot copy to non-directory", want: []string{"x=0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			shell(t, root, test.there...)
			slash := strings.HasSuffix(test.copy.Destination, "/")
			test.copy.Destination = filepath.Join(root, test.copy.Destination)
			if slash {
				test.copy.Destination += "/"
			}
			body := archive(t, test.archive...)
			if len(name)%2 == 0 {
				body = zipped(t, body)
			}
			err := transfer.Copy(context.Background(), bytes.NewReader(body), test.copy, accounts(t))
			if test.fails != "" {
				require.ErrorContains(t, err, test.fails)
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, test.want, tree(t, root))
		})
	}
}

func TestCopyKeepsTimes(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	body := archive(t, "d/", "d/s/", "d/s/f=1", "d/s/l -> f")
	err := transfer.Copy(context.Background(), bytes.NewReader(body), hostapi.Copy{Source: "d", Destination: root + "/x"}, accounts(t))
	require.NoError(t, err)
	for _, name := range []string{"x/s", "x/s/f", "x/s/l"} {
		info, err := os.Lstat(filepath.Join(root, name))
		require.NoError(t, err)
		require.Equal(t, when, info.ModTime().Round(0), name)
	}
}

func TestCopyRefusesSpecialEntries(t *testing.T) {
	needRoot(t)
	for name, h := range map[string]tar.Header{
		"device":     {Typeflag: tar.TypeChar, Name: "d/null", Devmajor: 1, Devminor: 3},
		"named pipe": {Typeflag: tar.TypeFifo, Name: "d/p"},
	} {
		root := t.TempDir()
		var body bytes.Buffer
		w := tar.NewWriter(&body)
		require.NoError(t, w.WriteHeader(&h))
		require.NoError(t, w.Close())
		err := transfer.Copy(context.Background(), &body, hostapi.Copy{Source: "d", Destination: root + "/x"}, accounts(t))
		require.ErrorContains(t, err, name)
		require.Empty(t, tree(t, root))
	}
}

// A sparse entry says it has more bytes than any disk.
func TestCopyRefusesWhatCannotFit(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	var body bytes.Buffer
	w := tar.NewWriter(&body)
	require.NoError(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "huge", Size: 3 << 50, Mode: 0o644, Format: tar.FormatGNU}))
	block := body.Bytes()[:512]
	sparse(block, 3<<50)
	err := transfer.Copy(context.Background(), bytes.NewReader(append(block, make([]byte, 1024)...)),
		hostapi.Copy{Source: "huge", Destination: root + "/x"}, accounts(t))
	require.ErrorContains(t, err, "not enough disk space")
	require.Empty(t, tree(t, root))
}

// sparse makes the header of an old GNU sparse file of size bytes without data.
func sparse(block []byte, size int64) {
	block[156] = tar.TypeGNUSparse
	copy(block[124:136], "00000000000\x00")
	number := make([]byte, 12)
	number[0] = 0x80
	for i := range 8 {
		number[11-i] = byte(size >> (8 * i))
	}
	copy(block[386:398], number)            // offset of the only piece, at the end
	copy(block[398:410], "00000000000\x00") // and its length
	copy(block[483:495], number)            // the size of the file
	copy(block[148:156], "        ")        // the checksum counts itself as blanks
	sum := 0
	for _, b := range block {
		sum += int(b)
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

func TestCopyUnpacks(t *testing.T) {
	needRoot(t)
	inner := archive(t, "./", "bin/", "755 bin/tool=x", "bin/other => bin/tool", "/abs=1", "lib -> usr/lib")
	for name, file := range map[string][]byte{"plain": inner, "gzip": zipped(t, inner)} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			body := archive(t, "rootfs.tar="+string(file), "note.gz="+string(zipped(t, []byte("no archive"))))
			err := transfer.Copy(context.Background(), bytes.NewReader(body),
				hostapi.Copy{Destination: root + "/x/", Unpack: true}, accounts(t))
			require.NoError(t, err)
			note, err := os.ReadFile(root + "/x/note.gz")
			require.NoError(t, err)
			require.Equal(t, zipped(t, []byte("no archive")), note)
			require.NoError(t, os.Remove(root+"/x/note.gz"))
			require.Equal(t, []string{"abs=1 of 77:78", "bin/ of 77:78", "755 bin/other=x of 77:78",
				"755 bin/tool => bin/other of 77:78", "lib -> usr/lib of 77:78"}, tree(t, root+"/x"))
		})
	}
	root := t.TempDir()
	err := transfer.Copy(context.Background(), bytes.NewReader(archive(t, "a.tar="+string(archive(t, "../../out=1")))),
		hostapi.Copy{Source: "a.tar", Destination: root + "/x", Unpack: true}, accounts(t))
	require.ErrorContains(t, err, `unpack "a.tar"`)
	err = transfer.Copy(context.Background(), bytes.NewReader(archive(t, "a.txz=\xfd7zXZ\x00....")),
		hostapi.Copy{Source: "a.txz", Destination: root + "/x", Unpack: true}, accounts(t))
	require.ErrorContains(t, err, "xz")
}

func TestCopyOfABrokenArchiveChangesNothing(t *testing.T) {
	needRoot(t)
	whole := archive(t, "a="+strings.Repeat("x", 2000), "b=2")
	for name, body := range map[string][]byte{
		"cut short":      whole[:1500],
		"no archive":     bytes.Repeat([]byte("x"), 2000),
		"broken gzip":    append([]byte("\x1f\x8b"), whole...),
		"cut gzip":       zipped(t, whole)[:60],
		"nothing at all": nil,
	} {
		root := t.TempDir()
		err := transfer.Copy(context.Background(), bytes.NewReader(body), hostapi.Copy{Source: ".", Destination: root + "/x"}, accounts(t))
		require.Error(t, err, name)
		require.Empty(t, tree(t, root), name)
	}
}

func TestArchiveAndCopy(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	shell(t, root, "mkdir -p a/dist/sub b", "echo -n 1 > a/dist/f", "ln a/dist/f a/dist/sub/g",
		"ln -s f a/dist/l", "chown -hR 12:13 a/dist", "chmod 4711 a/dist/f", "ln -s ../a/dist/f b/link", "mkfifo b/pipe")
	pick := func(patterns ...string) []byte {
		for i := range patterns {
			patterns[i] = filepath.Join(root, patterns[i])
		}
		picked, err := transfer.Select(patterns)
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, picked.Write(context.Background(), &out))
		return out.Bytes()
	}
	err := transfer.Copy(context.Background(), bytes.NewReader(pick("a/di*", "b/link")),
		hostapi.Copy{Destination: root + "/x/"}, accounts(t))
	require.NoError(t, err)
	require.Equal(t, []string{"4711 f=1 of 12:13", "l -> f of 12:13", "4711 link => f of 12:13", "sub/ of 12:13",
		"4711 sub/g => f of 12:13"}, tree(t, root+"/x"))

	_, err = transfer.Select([]string{root + "/none*"})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "none*")
	_, err = transfer.Select([]string{"relative"})
	require.ErrorContains(t, err, "not an absolute path")
	_, err = transfer.Select([]string{"/[a"})
	require.ErrorContains(t, err, "not a pattern")
}

func shell(t testing.TB, dir string, lines ...string) {
	t.Helper()
	cmd := exec.Command("sh", "-ec", strings.Join(lines, "\n"))
	cmd.Dir = dir
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, string(output))
}

func FuzzCopy(f *testing.F) {
	needRoot(f)
	f.Add(archive(f, "a/", "a/b=1", "a/l -> ..", "a/l/x=2", "a/h => a/b"), "a", "/x/", true)
	f.Add(zipped(f, archive(f, "a=1")), "*", "/", false)
	f.Add(archive(f, "t.tar="+string(archive(f, "x -> /", "x/y=1"))), "", "/x", true)
	users := accounts(f)
	f.Fuzz(func(t *testing.T, body []byte, source, dest string, unpack bool) {
		jail := t.TempDir()
		root := filepath.Join(jail, "root")
		require.NoError(t, os.Mkdir(root, 0o755))
		if strings.Contains(dest, "..") || strings.Contains(dest, "\x00") {
			return
		}
		_ = transfer.Copy(context.Background(), bytes.NewReader(body),
			hostapi.Copy{Source: source, Destination: root + "/" + dest, Unpack: unpack}, users)
		entries, err := os.ReadDir(jail)
		require.NoError(t, err)
		require.Len(t, entries, 1, "something was written outside")
	})
}
