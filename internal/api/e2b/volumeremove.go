package e2b

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

const (
	// removeDepth is how many folders a removal has open in one another.
	removeDepth = 32
	// removeBatch is how many names it reads of a folder at a time.
	removeBatch = 1024
	// movedPrefix begins the names that deeper folders are given meanwhile.
	movedPrefix = ".tombolo-remove-"
)

// removeTree removes what is at a path of a volume, with all below it. What is inside
// is hostile: folders in one another without end, and more names in one than memory
// holds. So a folder deeper than removeDepth is moved up into the one that is removed,
// and its turn comes there. When ctx ends it stops.
func removeTree(ctx context.Context, root *os.Root, name string) error {
	parent, err := root.OpenFile(path.Dir(name), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer parent.Close()
	base := path.Base(name)
	left, err := unlink(parent, base)
	if err != nil || !left {
		return err
	}
	top, err := openFolder(parent, base)
	if err != nil {
		return err
	}
	defer top.Close()
	r := remover{ctx: ctx, top: top}
	for left {
		before := r.done
		if err := r.pass(top, 1); err != nil {
			return err
		}
		if left, err = unlink(parent, base); err != nil {
			return err
		}
		if left && r.done == before {
			return errors.Join(r.full, fmt.Errorf("the folder does not become empty: %w", unix.ENOTEMPTY))
		}
	}
	return nil
}

type remover struct {
	ctx  context.Context
	top  *os.File // where deeper folders are moved to
	done int      // names removed and moved
	full error    // of the last folder for which there was no room in top
}

// pass goes once through a folder at a depth. What it leaves, for others put it there
// meanwhile or it could not be moved, the next pass of top comes to.
func (r *remover) pass(dir *os.File, depth int) error {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		names, err := dir.Readdirnames(removeBatch)
		for _, name := range names {
			if err := r.remove(dir, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// remove removes a name in a folder, or moves it up.
func (r *remover) remove(dir *os.File, name string, depth int) error {
	left, err := unlink(dir, name)
	if left && err == nil {
		if depth == removeDepth {
			return r.move(dir, name)
		}
		left, err = r.removeFolder(dir, name, depth)
	}
	if err == nil && !left {
		r.done++
	}
	return err
}

func (r *remover) removeFolder(dir *os.File, name string, depth int) (left bool, err error) {
	below, err := openFolder(dir, name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return true, nil // it has become something else just now
	}
	if err != nil {
		return true, err
	}
	defer below.Close()
	if err := r.pass(below, depth+1); err != nil {
		return true, err
	}
	return unlink(dir, name)
}

func (r *remover) move(dir *os.File, name string) error {
	err := unix.Renameat(int(dir.Fd()), name, int(r.top.Fd()), movedPrefix+rand.Text())
	switch {
	case err == nil:
		r.done++
	case errors.Is(err, unix.ENOSPC):
		r.full = err
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// unlink removes a file, a link or an empty folder. left tells of a folder that is not
// empty. What is gone is fine.
func unlink(dir *os.File, name string) (left bool, err error) {
	err = unix.Unlinkat(int(dir.Fd()), name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
			return true, nil
		}
	}
	return false, ignoreNotExist(err)
}

// openFolder opens a folder in another, and no link.
func openFolder(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
