// Package transfer puts tar archives into the file system of the sandbox and makes
// archives of it, for the steps of a build that copy. It acts as root and knows
// nothing of who asks.
package transfer

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// Limits of one archive.
const (
	entriesLimit = 2_000_000
	pathLimit    = 4096 // bytes, Linux's
)

// Copy does what req says with the archive in body. Nothing is changed before the
// whole archive has arrived and was looked at; an error that comes later leaves
// what was copied until then. Errors are in words for the caller.
func Copy(ctx context.Context, body io.Reader, req hostapi.Copy, accounts *account.Database) error {
	if !path.IsAbs(req.Destination) || len(req.Destination) > pathLimit || strings.ContainsRune(req.Destination, 0) {
		return fmt.Errorf("the destination %q is not an absolute path", req.Destination)
	}
	own, err := ownerOf(req.User, accounts)
	if err != nil {
		return err
	}
	dest, err := followed(path.Clean(req.Destination))
	if err != nil {
		return err
	}
	archive, err := receive(body, dest)
	if err != nil {
		return full(err)
	}
	defer archive.Close()
	from := newSource(req.Source)
	if err := archive.each(func(h *tar.Header, _ io.Reader) error { return survey(from, h) }); err != nil {
		return err
	}
	if err := from.decide(); err != nil {
		return err
	}
	if err := roomFor(from.bytes, dest); err != nil {
		return err
	}
	c := &copier{
		req: req, own: own, from: from, writer: writer{owner: own, mode: req.Mode, keepOwner: from.each && req.User == ""},
	}
	if err := c.place(dest); err != nil {
		return err
	}
	err = archive.each(func(h *tar.Header, content io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return c.entry(h, content)
	})
	return full(errors.Join(err, c.finish()))
}

// survey looks at an entry before anything is written.
func survey(from *source, h *tar.Header) error {
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return fmt.Errorf("%q is a %s; files, folders and links can be copied", h.Name, kindOf(h.Typeflag))
	}
	from.entries++
	if from.entries > entriesLimit {
		return fmt.Errorf("the archive has more than %d entries", entriesLimit)
	}
	if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeGNUSparse {
		from.bytes += h.Size
		if from.bytes < 0 {
			return errors.New("the archive says that it holds more bytes than can be counted")
		}
	}
	return from.see(name, h.Typeflag == tar.TypeDir)
}

// entryName cleans the name of an entry, which must not lead out of the archive.
func entryName(name string) (string, error) {
	clean := path.Clean(name)
	switch {
	case name == "" || len(name) > pathLimit || strings.ContainsRune(name, 0):
		return "", errors.New("the archive has an entry whose name is empty, too long or not a path")
	case path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../"):
		return "", fmt.Errorf("the archive has an entry named %q; names must be relative and stay in the archive", name)
	}
	return clean, nil
}

func kindOf(flag byte) string {
	switch flag {
	case tar.TypeChar, tar.TypeBlock:
		return "device"
	case tar.TypeFifo:
		return "named pipe"
	}
	return fmt.Sprintf("tar entry of type %q", flag)
}

// copier does one Copy.
type copier struct {
	req    hostapi.Copy
	own    owner
	from   *source
	writer writer
	places map[string]string // where each thing goes
	into   string            // the folder that archives are unpacked in
}

// place finds out where the things of the archive go, and makes the folders that
// the destination itself needs.
func (c *copier) place(dest string) error {
	info, err := os.Stat(dest)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("look at the destination: %w", err)
	}
	isFolder := err == nil && info.IsDir()
	if err == nil && !isFolder && strings.HasSuffix(c.req.Destination, "/") {
		return fmt.Errorf("cannot copy to non-directory: %s", dest)
	}
	c.into = dest
	c.places = make(map[string]string, len(c.from.things))
	files := 0
	for thing, folder := range c.from.things {
		switch {
		case folder:
			c.places[thing] = dest
			continue
		case isFolder || strings.HasSuffix(c.req.Destination, "/"):
			c.places[thing] = path.Join(dest, path.Base(thing))
		default:
			c.places[thing] = dest
		}
		files++
	}
	if len(c.from.things) > 1 && files > 0 && !isFolder && !strings.HasSuffix(c.req.Destination, "/") {
		return fmt.Errorf("%d things are to be copied to %s: the destination must be a folder and end with a \"/\"", len(c.from.things), dest)
	}
	if files < len(c.from.things) {
		return c.writer.folder(dest)
	}
	return nil
}

func (c *copier) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	thing, rest, ok := c.from.split(name)
	if !ok {
		return nil
	}
	target := path.Join(c.places[thing], rest)
	if c.from.things[thing] && rest == "" {
		return c.writer.folder(target)
	}
	if c.req.Unpack && !c.from.things[thing] && h.Typeflag == tar.TypeReg {
		ahead := bufio.NewReaderSize(content, sniffSize)
		inner, err := openArchive(h.Name, ahead)
		if err != nil {
			return err
		}
		if inner != nil {
			return c.unpack(h.Name, inner)
		}
		content = ahead
	}
	if h.Typeflag == tar.TypeLink {
		linked, err := entryName(h.Linkname)
		if err != nil {
			return err
		}
		thing, rest, ok := c.from.split(linked)
		if !ok || c.places[thing] == "" {
			return fmt.Errorf("%q is a hard link to %q, which is not copied", h.Name, h.Linkname)
		}
		return c.writer.link(target, path.Join(c.places[thing], rest))
	}
	return c.writer.put(target, h, content)
}

// unpack puts what a tar archive among the files holds into the destination.
func (c *copier) unpack(archive string, inner io.Reader) error {
	w := c.writer
	w.keepOwner, w.devices = c.req.User == "", true
	if err := w.folder(c.into); err != nil {
		return err
	}
	reader := tar.NewReader(inner)
	for count := 0; ; count++ {
		h, err := reader.Next()
		if errors.Is(err, io.EOF) {
			c.writer = w
			return nil
		}
		if err != nil {
			return fmt.Errorf("unpack %q: %w", archive, err)
		}
		if count > entriesLimit {
			return fmt.Errorf("unpack %q: it has more than %d entries", archive, entriesLimit)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name, err := entryName(strings.TrimLeft(h.Name, "/"))
		if err != nil && strings.Trim(h.Name, "/") == "" && h.Name != "" {
			name, err = ".", nil
		}
		if err == nil {
			err = c.unpackEntry(&w, path.Join(c.into, name), h, reader)
		}
		if err != nil {
			return fmt.Errorf("unpack %q: %w", archive, err)
		}
	}
}

func (c *copier) unpackEntry(w *writer, target string, h *tar.Header, content io.Reader) error {
	if h.Typeflag != tar.TypeLink {
		return w.put(target, h, content)
	}
	linked, err := entryName(strings.TrimLeft(h.Linkname, "/"))
	if err != nil {
		return err
	}
	return w.link(target, path.Join(c.into, linked))
}

func (c *copier) finish() error { return c.writer.finish() }

// spool is an archive that has arrived, in a file without a name.
type spool struct{ file *os.File }

// receive keeps body in the file system that the destination is in.
func receive(body io.Reader, dest string) (*spool, error) {
	f, err := os.CreateTemp(existing(dest), ".tombolo-copy-*")
	if err != nil {
		return nil, fmt.Errorf("keep the archive: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("keep the archive: %w", err)
	}
	if _, err := io.Copy(f, body); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("receive the archive: %w", err)
	}
	return &spool{f}, nil
}

func (s *spool) Close() error { return s.file.Close() }

// each calls do with every entry, from the beginning.
func (s *spool) each(do func(h *tar.Header, content io.Reader) error) error {
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	ahead := bufio.NewReaderSize(s.file, bufferSize)
	var plain io.Reader = ahead
	if magic, _ := ahead.Peek(2); string(magic) == gzipMagic {
		z, err := gzip.NewReader(ahead)
		if err != nil {
			return fmt.Errorf("the archive is not gzip: %w", err)
		}
		plain = z
	}
	reader := tar.NewReader(plain)
	for {
		h, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the archive cannot be read: %w", err)
		}
		if err := do(h, reader); err != nil {
			return err
		}
	}
}

// existing is the nearest folder on the way to a path that is there.
func existing(dest string) string {
	for dir := dest; dir != "/"; dir = path.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return "/"
}

// followed resolves the links that a path is or leads over, as far as it exists.
func followed(dest string) (string, error) {
	rest := ""
	for range linksLimit {
		if real, err := filepath.EvalSymlinks(dest); err == nil {
			return path.Join(real, rest), nil
		}
		// A link whose target is missing is made by what is copied to it.
		if to, err := os.Readlink(dest); err == nil {
			if !path.IsAbs(to) {
				to = path.Join(path.Dir(dest), to)
			}
			dest = to
			continue
		}
		rest = path.Join(path.Base(dest), rest)
		dest = path.Dir(dest)
	}
	return "", fmt.Errorf("the destination %s leads over too many links or folders", path.Join(dest, rest))
}

const linksLimit = 2048

// roomFor refuses what cannot fit.
func roomFor(bytes int64, dest string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(existing(dest), &fs); err != nil || fs.Blocks == 0 || fs.Bsize <= 0 {
		return nil // to find out
	}
	if free := fs.Bavail * uint64(fs.Bsize); uint64(bytes) > free {
		return fmt.Errorf("not enough disk space: %d MiB are to be copied and %d MiB are free; give the sandbox a larger disk", bytes>>20, free>>20)
	}
	return nil
}

// full says what to do about a full disk.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("not enough disk space; give the sandbox a larger disk: %w", err)
	}
	return err
}

// owner is whom copied things belong to.
type owner struct{ uid, gid int }

// ownerOf reads "name[:group]", names or numbers. Of a name the group is the
// account's, of a number the same number, as in Docker.
func ownerOf(text string, accounts *account.Database) (owner, error) {
	if text == "" {
		return owner{}, nil
	}
	user, group, grouped := strings.Cut(text, ":")
	var own owner
	if id, err := strconv.ParseUint(user, 10, 32); err == nil {
		own = owner{int(id), int(id)}
	} else {
		found, err := accounts.Lookup(user)
		if err != nil {
			return owner{}, fmt.Errorf("invalid username: '%s'", user)
		}
		own = owner{int(found.UID), int(found.GID)}
	}
	if !grouped {
		return own, nil
	}
	if id, err := strconv.ParseUint(group, 10, 32); err == nil {
		own.gid = int(id)
		return own, nil
	}
	id, ok := accounts.Group(group)
	if !ok {
		return owner{}, fmt.Errorf("invalid group: '%s'", group)
	}
	own.gid = int(id)
	return own, nil
}
