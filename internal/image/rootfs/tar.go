package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names that mean something in a layer, by the OCI image specification (layer.md).
const (
	whiteout       = ".wh."
	whiteoutOpaque = ".wh..wh..opq"
	whiteoutMeta   = ".wh..wh." // what aufs kept for itself
)

// opaque is set on a folder that hides what is below it, by an overlay.
const opaque = "SCHILY.xattr.trusted.overlay.opaque"

// ApplyLayer applies a layer of an OCI image: a tar archive that is not compressed
// any more. After an error the tree is of no use.
func (t *Tree) ApplyLayer(ctx context.Context, r io.Reader) error {
	counted := &bounded{t: t, r: r}
	if err := t.applyTar(ctx, counted, t.layerMember); err != nil {
		return err
	}
	// What follows the end is read too: who checks the archive's hash wants all of it.
	_, err := io.Copy(io.Discard, counted)
	return err
}

// ApplyUpper applies what a sandbox wrote over its image: a tar archive in which a
// character device 0/0 stands for what was removed (engine.Instance.WriteDisk). The
// contents stay where they are: the file must be open until the tree has been written.
// After an error the tree is of no use.
func (t *Tree) ApplyUpper(ctx context.Context, archive *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(archive.Fd()), &st); err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	source := &Source{file: archive, path: archive.Name(), sparse: st.Blocks*512 < st.Size}
	removed := map[string]bool{}
	return t.applyTar(ctx, archive, func(m member) error {
		if m.Typeflag == tar.TypeReg && !m.isSparse() && m.Size > 0 {
			// The archive is read from the file itself, so that is where the content begins.
			at, err := archive.Seek(0, io.SeekCurrent)
			if err == nil && m.Size > st.Size-at {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
			m.content = Content{Source: source, Offset: at, Size: m.Size}
		}
		return t.upperMember(m, removed)
	})
}

type member struct {
	ctx context.Context
	*tar.Header
	name    string // cleaned, without a leading slash; empty for the root
	body    io.Reader
	content Content // where the body is, if it can stay there
}

// isSparse tells that the body in the archive is not what it stands for.
func (m member) isSparse() bool {
	for key := range m.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

func (t *Tree) applyTar(ctx context.Context, r io.Reader, apply func(member) error) error {
	t.layer++
	archive := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if t.members++; t.members > t.limits.Members {
			return &LimitError{"members of archives", int64(t.limits.Members)}
		}
		m := member{ctx: ctx, Header: h, body: archive}
		if m.name, err = cleanName(h.Name); err == nil {
			err = apply(m)
		}
		if err != nil {
			return fmt.Errorf("entry %q: %w", short(h.Name), err)
		}
	}
}

// bounded counts what is read from archives, all those of a tree together.
type bounded struct {
	t *Tree
	r io.Reader
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.t.read += int64(n); b.t.read > b.t.limits.Bytes {
		return 0, &LimitError{"bytes after decompression", b.t.limits.Bytes}
	}
	return n, err
}

// cleanName makes an absolute name a relative one. One that leads out of the root
// by its text is refused: no program writes such an archive by accident.
func cleanName(name string) (string, error) {
	if len(name) > maxPath {
		return "", fmt.Errorf("a path of %d bytes; %d are allowed", len(name), maxPath)
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("a zero byte in the name")
	}
	name = path.Clean(strings.TrimLeft(name, "/"))
	if name == ".." || strings.HasPrefix(name, "../") {
		return "", errors.New("leads out of the root")
	}
	if name == "." {
		name = ""
	}
	return name, nil
}

func short(name string) string {
	if len(name) > 200 {
		return name[:200] + "…"
	}
	return name
}

func (t *Tree) layerMember(m member) error {
	base := path.Base(m.name)
	if !strings.HasPrefix(base, whiteout) {
		_, err := t.add(m)
		return err
	}
	if strings.HasPrefix(base, whiteoutMeta) && base != whiteoutOpaque {
		return nil
	}
	in, err := t.folderAt(path.Dir(m.name))
	if in == nil || err != nil {
		return err
	}
	if base == whiteoutOpaque {
		t.clearLower(in)
		return nil
	}
	gone := strings.TrimPrefix(base, whiteout)
	if gone == "" || gone == "." || gone == ".." {
		return errors.New("removes what is not a name")
	}
	t.dropLower(in, gone)
	return nil
}

// folderAt is the folder that path leads to, nil when there is none: nothing to
// remove from it.
func (t *Tree) folderAt(path string) (*Inode, error) {
	_, _, n, err := t.find(path, true, false)
	if errors.Is(err, errLoop) {
		return nil, err
	}
	if err != nil || n == nil || !n.IsDir() {
		return nil, nil
	}
	return n, nil
}

// upperMember applies one member. removed has the names of those before that stand
// for what was removed: gVisor's marks share one inode, so that all but the first are
// hard links to it.
func (t *Tree) upperMember(m member, removed map[string]bool) error {
	if marksRemoved(m, removed) {
		if !removed[m.name] {
			if err := t.addText(int64(len(m.name))); err != nil {
				return err
			}
			removed[strings.Clone(m.name)] = true
		}
		in, name, n, err := t.find(m.name, false, false)
		if err != nil || n == nil {
			return nil // nothing below it either
		}
		if name == "" {
			return errors.New("removes the root")
		}
		t.dropLower(in, name)
		return nil
	}
	n, err := t.add(m)
	if err == nil && n.IsDir() && m.PAXRecords[opaque] == "y" {
		t.clearLower(n)
	}
	return err
}

func marksRemoved(m member, removed map[string]bool) bool {
	if m.Typeflag == tar.TypeLink {
		target, err := cleanName(m.Linkname)
		return err == nil && removed[target]
	}
	return m.Typeflag == tar.TypeChar && m.Devmajor == 0 && m.Devminor == 0
}

// add puts a member that is none of the special ones where it belongs.
func (t *Tree) add(m member) (*Inode, error) {
	in, name, old, err := t.find(m.name, false, true)
	if err != nil {
		return nil, err
	}
	if name == "" && m.Typeflag != tar.TypeDir {
		return nil, errors.New("the root is a folder")
	}
	var n *Inode
	if m.Typeflag == tar.TypeLink {
		n, err = t.linked(m)
	} else {
		n, err = m.inode()
	}
	if err != nil {
		return nil, err
	}
	if n.IsDir() && old != nil && old.IsDir() {
		old.Mode, old.UID, old.GID, old.Sec, old.Nsec = n.Mode, n.UID, n.GID, n.Sec, n.Nsec
		t.touch(old)
		return old, nil
	}
	if n.IsRegular() && n.Nlink == 0 {
		n.Content = m.content
		if m.content.Source == nil {
			if err := t.checkSize(m.Size); err != nil {
				return nil, err
			}
			if n.Content, err = t.spool.add(m.ctx, m.body, m.Size); err != nil {
				return nil, err
			}
		}
	}
	return n, t.put(in, name, n)
}

// checkSize refuses a file before anything of it is read.
func (t *Tree) checkSize(size int64) error {
	switch {
	case size < 0:
		return errors.New("a negative size")
	case size > t.limits.FileBytes:
		return &LimitError{"bytes of one file", t.limits.FileBytes}
	case size > t.limits.Bytes-t.bytes, t.spool != nil && size > t.limits.Bytes-t.spool.end:
		return &LimitError{"bytes of files", t.limits.Bytes}
	default:
		return nil
	}
}

// linked is what a hard link names. It is looked for in the tree, as names are.
func (t *Tree) linked(m member) (*Inode, error) {
	target, err := cleanName(m.Linkname)
	if err != nil {
		return nil, fmt.Errorf("hard link to %q: %w", short(m.Linkname), err)
	}
	_, _, n, err := t.find(target, false, false)
	switch {
	case err != nil || n == nil:
		return nil, fmt.Errorf("hard link to %q, which is not there", short(m.Linkname))
	case n.IsDir():
		return nil, fmt.Errorf("hard link to the folder %q", short(m.Linkname))
	}
	return n, nil
}

var types = map[byte]uint32{
	tar.TypeReg: unix.S_IFREG, tar.TypeGNUSparse: unix.S_IFREG, tar.TypeCont: unix.S_IFREG,
	tar.TypeDir: unix.S_IFDIR, tar.TypeSymlink: unix.S_IFLNK, tar.TypeFifo: unix.S_IFIFO,
	tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK,
}

// lastSecond is the last of the year 9999: programs fail on later ones.
const lastSecond = 253402300799

func (m member) inode() (*Inode, error) {
	kind, ok := types[m.Typeflag]
	switch {
	case !ok:
		return nil, fmt.Errorf("unknown type %q", m.Typeflag)
	case m.Uid < 0 || m.Gid < 0 || int64(m.Uid) >= 1<<32-1 || int64(m.Gid) >= 1<<32-1:
		return nil, fmt.Errorf("owner %d:%d is none", m.Uid, m.Gid)
	}
	n := &Inode{Mode: kind | uint32(m.Mode)&0o7777, UID: uint32(m.Uid), GID: uint32(m.Gid)}
	n.setTime(m.ModTime)
	if n.IsSymlink() {
		if m.Linkname == "" || len(m.Linkname) > maxTarget || strings.ContainsRune(m.Linkname, 0) {
			return nil, fmt.Errorf("a link to %d bytes; it must be 1 to %d, none of them zero", len(m.Linkname), maxTarget)
		}
		n.Target = strings.Clone(m.Linkname) // as with names, see put
		n.Mode = unix.S_IFLNK | 0o777
	}
	if n.isDevice() {
		if m.Devmajor < 0 || m.Devmajor >= 1<<12 || m.Devminor < 0 || m.Devminor >= 1<<20 {
			return nil, fmt.Errorf("device %d/%d is none", m.Devmajor, m.Devminor)
		}
		n.Rdev = packDevice(uint32(m.Devmajor), uint32(m.Devminor))
	}
	return n, nil
}

func (n *Inode) setTime(at time.Time) {
	n.Sec, n.Nsec = at.Unix(), uint32(at.Nanosecond())
	if n.Sec < 0 || n.Sec > lastSecond {
		n.Sec, n.Nsec = min(max(n.Sec, 0), lastSecond), 0
	}
}

// packDevice is Linux's new_encode_dev.
func packDevice(major, minor uint32) uint32 { return minor&0xff | major<<8 | minor&^0xff<<12 }
