package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Owner is who a file belongs to.
type Owner struct{ UID, GID uint32 }

// Stat returns what path leads to, links followed within the tree; nil for nothing.
func (t *Tree) Stat(path string) *Inode {
	_, _, n, err := t.find(path, true, false)
	if err != nil {
		return nil
	}
	return n
}

// Lstat is Stat that does not follow the last link.
func (t *Tree) Lstat(path string) *Inode {
	_, _, n, err := t.find(path, false, false)
	if err != nil {
		return nil
	}
	return n
}

// ReadFile returns the content of the file that path leads to, if it is not longer
// than limit bytes. The error is fs.ErrNotExist where no file is.
func (t *Tree) ReadFile(path string, limit int64) ([]byte, error) {
	n := t.Stat(path)
	if n == nil || !n.IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	if n.Content.Size > limit {
		return nil, fmt.Errorf("read %s: %w", path, &LimitError{"bytes", limit})
	}
	text := make([]byte, n.Content.Size)
	if len(text) == 0 {
		return text, nil
	}
	if err := t.spool.flush(); err != nil {
		return nil, err
	}
	f, done, err := n.Content.Source.Open()
	if err != nil {
		return nil, err
	}
	_, err = f.ReadAt(text, n.Content.Offset)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err = errors.Join(err, done()); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

// WriteFile puts a file with the content where path leads to, and makes the folders
// to it. A file that is there keeps its mode and owner; what is there else is
// replaced.
func (t *Tree) WriteFile(path string, content []byte, mode uint32, owner Owner) error {
	in, name, old, err := t.find(path, true, true)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	n := &Inode{Mode: unix.S_IFREG | mode&0o7777, UID: owner.UID, GID: owner.GID, Sec: in.Sec, Nsec: in.Nsec}
	if old != nil && old.IsRegular() {
		n.Mode, n.UID, n.GID = old.Mode, old.UID, old.GID
	}
	if n.Content, err = t.spool.add(context.Background(), bytes.NewReader(content), int64(len(content))); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := t.put(in, name, n); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Mkdir makes a folder with those before it, and gives it mode and owner when it is
// new. A link to a folder is one; what is there else is replaced.
func (t *Tree) Mkdir(path string, mode uint32, owner Owner) (*Inode, error) {
	in, name, old, err := t.find(path, true, true)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	if old != nil && old.IsDir() {
		return old, nil
	}
	n := &Inode{Mode: unix.S_IFDIR | mode&0o7777, UID: owner.UID, GID: owner.GID, Sec: in.Sec, Nsec: in.Nsec}
	if err := t.put(in, name, n); err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	return n, nil
}

// Replace makes path itself, and not what a link there leads to, an empty folder.
func (t *Tree) Replace(path string, mode uint32, owner Owner) error {
	in, name, old, err := t.find(path, false, true)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	n := &Inode{Mode: unix.S_IFDIR | mode&0o7777, UID: owner.UID, GID: owner.GID, Sec: in.Sec, Nsec: in.Nsec}
	if old != nil && old.IsDir() {
		n.Mode, n.UID, n.GID, n.Sec, n.Nsec = old.Mode, old.UID, old.GID, old.Sec, old.Nsec
	}
	if err := t.put(in, name, n); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return nil
}

// Symlink makes a link where nothing is.
func (t *Tree) Symlink(target, path string) error {
	in, name, old, err := t.find(path, false, true)
	if err == nil && old != nil {
		err = fs.ErrExist
	}
	if err == nil {
		err = t.put(in, name, &Inode{Mode: unix.S_IFLNK | 0o777, Target: target, Sec: in.Sec, Nsec: in.Nsec})
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", path, err)
	}
	return nil
}

// Remove takes path away, with all below it. Nothing there is fine.
func (t *Tree) Remove(path string) {
	if in, name, n, err := t.find(path, false, false); err == nil && n != nil && name != "" {
		t.drop(in, name)
	}
}

// RemoveFiles empties a folder of everything but folders, which programs expect.
func (t *Tree) RemoveFiles(path string) {
	if n := t.Lstat(path); n != nil && n.IsDir() {
		t.removeFiles(n)
	}
}

func (t *Tree) removeFiles(dir *Inode) {
	for name, e := range dir.names {
		if e.inode.IsDir() {
			t.removeFiles(e.inode)
		} else {
			t.drop(dir, name)
		}
	}
}

// CopyInto copies what is in one folder into another for a new owner; what is there
// already stays. Where one of them is no folder, or holds the other, it does nothing.
func (t *Tree) CopyInto(from, to string, owner Owner) error {
	source, dest := t.Stat(from), t.Stat(to)
	if source == nil || dest == nil || !source.IsDir() || !dest.IsDir() || dest.within(source) || source.within(dest) {
		return nil
	}
	return t.copyInto(source, dest, owner)
}

func (n *Inode) within(dir *Inode) bool {
	for at := n; at != nil; at = at.parent {
		if at == dir {
			return true
		}
	}
	return false
}

func (t *Tree) copyInto(source, dest *Inode, owner Owner) error {
	for _, name := range source.Names() {
		n, made := source.Child(name), dest.Child(name)
		if made == nil {
			made = &Inode{
				Mode: n.Mode, UID: owner.UID, GID: owner.GID, Sec: n.Sec, Nsec: n.Nsec,
				Rdev: n.Rdev, Target: n.Target, Content: n.Content,
			}
			if err := t.put(dest, name, made); err != nil {
				return fmt.Errorf("copy %s: %w", name, err)
			}
		}
		if n.IsDir() && made.IsDir() {
			if err := t.copyInto(n, made, owner); err != nil {
				return err
			}
		}
	}
	return nil
}

// Walk calls fn for an inode and all below it, some of them once for each name.
func (n *Inode) Walk(fn func(*Inode)) {
	fn(n)
	for _, e := range n.names {
		e.inode.Walk(fn)
	}
}
