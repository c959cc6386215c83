package transfer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Pick is what an archive is made of: paths that exist.
type Pick []string

// patternsLimit bounds the patterns of one archive.
const patternsLimit = 1000

// Select finds what the patterns name. The error wraps [fs.ErrNotExist] when one
// names nothing.
func Select(patterns []string) (Pick, error) {
	if len(patterns) == 0 || len(patterns) > patternsLimit {
		return nil, fmt.Errorf("an archive is made of 1 to %d patterns, not %d", patternsLimit, len(patterns))
	}
	var found Pick
	for _, pattern := range patterns {
		if !path.IsAbs(pattern) || strings.ContainsRune(pattern, 0) {
			return nil, fmt.Errorf("%q is not an absolute path", pattern)
		}
		paths, err := filepath.Glob(path.Clean(pattern))
		if err != nil {
			return nil, fmt.Errorf("%q is not a pattern: %w", pattern, err)
		}
		if len(paths) == 0 {
			return nil, fmt.Errorf("%q: %w", pattern, fs.ErrNotExist)
		}
		for _, name := range paths {
			if _, err := os.Stat(name); err != nil {
				return nil, fmt.Errorf("%q names %s, a link to nothing: %w", pattern, name, fs.ErrNotExist)
			}
		}
		found = append(found, paths...)
	}
	return found, nil
}

// Write writes a tar archive of everything picked and what is below it. The name of
// each entry begins with the last element of its pick; a pick that is a link is
// followed. Sockets are left out, and below a folder what is mounted there.
func (p Pick) Write(ctx context.Context, to io.Writer) error {
	a := &archiver{ctx: ctx, tar: tar.NewWriter(to), names: map[inode]string{}}
	for _, name := range p {
		real, err := filepath.EvalSymlinks(name)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		base := path.Base(name)
		if base == "/" {
			base = "."
		}
		if err := a.add(real, base, nil); err != nil {
			return err
		}
	}
	if err := a.tar.Close(); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

type archiver struct {
	ctx   context.Context
	tar   *tar.Writer
	names map[inode]string // of files with several names
}

type inode struct{ device, number uint64 }

// add adds a file, or a folder with what is below it. in is the device of the
// folders around it, nil at the top.
func (a *archiver) add(file, name string, in *uint64) error {
	if err := a.ctx.Err(); err != nil {
		return err
	}
	info, err := os.Lstat(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	h := &tar.Header{
		Name: name, Mode: int64(stat.Mode & 0o7777), Uid: int(stat.Uid), Gid: int(stat.Gid),
		ModTime: time.Unix(stat.Mtim.Unix()), Format: tar.FormatPAX, PAXRecords: attributes(file),
	}
	switch stat.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		if in != nil && *in != stat.Dev {
			return nil
		}
		return a.addFolder(file, h, stat.Dev)
	case syscall.S_IFREG:
		return a.addFile(file, h, stat)
	case syscall.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(file); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
	case syscall.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	case syscall.S_IFCHR, syscall.S_IFBLK:
		h.Typeflag = tar.TypeChar
		if stat.Mode&syscall.S_IFMT == syscall.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	default:
		return nil // a socket
	}
	return a.header(h)
}

func (a *archiver) addFolder(file string, h *tar.Header, device uint64) error {
	name := h.Name
	h.Typeflag, h.Name = tar.TypeDir, name+"/"
	if err := a.header(h); err != nil {
		return err
	}
	entries, err := os.ReadDir(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	for _, entry := range entries {
		if err := a.add(path.Join(file, entry.Name()), path.Join(name, entry.Name()), &device); err != nil {
			return err
		}
	}
	return nil
}

func (a *archiver) addFile(file string, h *tar.Header, stat *syscall.Stat_t) error {
	h.Typeflag = tar.TypeReg
	if stat.Nlink > 1 {
		key := inode{stat.Dev, stat.Ino}
		if first, ok := a.names[key]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return a.header(h)
		}
		a.names[key] = h.Name
	}
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	defer f.Close()
	h.Size = stat.Size
	if err := a.header(h); err != nil {
		return err
	}
	if n, err := io.CopyN(a.tar, f, h.Size); err != nil {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: it became shorter, from %d to %d bytes", file, h.Size, n)
		}
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

func (a *archiver) header(h *tar.Header) error {
	if err := a.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("write %s into the archive: %w", h.Name, err)
	}
	return nil
}

// attributesLimit bounds the extended attributes of one file, bytes.
const attributesLimit = 64 << 10

// attributes are the extended attributes that a copy has too: those of users, and
// what a program may do.
func attributes(file string) map[string]string {
	size, err := unix.Llistxattr(file, nil)
	if err != nil || size <= 0 || size > attributesLimit {
		return nil
	}
	names := make([]byte, size)
	if size, err = unix.Llistxattr(file, names); err != nil {
		return nil
	}
	found := map[string]string{}
	value := make([]byte, attributesLimit)
	for name := range strings.SplitSeq(string(names[:size]), "\x00") {
		if name != "security.capability" && !strings.HasPrefix(name, "user.") || strings.Contains(name, "=") {
			continue
		}
		if n, err := unix.Lgetxattr(file, name, value); err == nil {
			found[attributePrefix+name] = string(value[:n])
		}
	}
	return found
}
