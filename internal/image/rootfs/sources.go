package rootfs

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/erofs"
)

const noFollow = unix.O_NOFOLLOW

// AddFolder makes the tree what a folder of this machine holds. Nobody may change
// the folder until the tree has been written. Sockets are left out.
func (t *Tree) AddFolder(ctx context.Context, folder string) error {
	t.layer++
	byIno := map[[2]uint64]*Inode{}
	dirs := map[string]*Inode{folder: t.root}
	return filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: path, Err: err}
		}
		n := &Inode{
			Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec),
			Rdev: packDevice(unix.Major(st.Rdev), unix.Minor(st.Rdev)),
		}
		if path == folder {
			t.root.Mode, t.root.UID, t.root.GID, t.root.Sec, t.root.Nsec = n.Mode, n.UID, n.GID, n.Sec, n.Nsec
			return nil
		}
		in, name := dirs[filepath.Dir(path)], filepath.Base(path)
		switch {
		case n.Mode&unix.S_IFMT == unix.S_IFSOCK:
			return nil
		case n.IsDir():
			dirs[path] = n
		case st.Nlink > 1:
			key := [2]uint64{st.Dev, st.Ino}
			if first := byIno[key]; first != nil {
				return t.put(in, name, first)
			}
			byIno[key] = n
		}
		if n.IsSymlink() {
			if n.Target, err = os.Readlink(path); err != nil {
				return err
			}
		}
		if n.IsRegular() && st.Size > 0 {
			if err := t.checkSize(st.Size); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			n.Content = Content{Source: &Source{path: path, sparse: st.Blocks*512 < st.Size}, Size: st.Size}
		}
		return t.put(in, name, n)
	})
}

// AddImage makes the tree what a root image holds, one that this program made. The
// contents stay where they are: the file must be open until the tree has been written.
func (t *Tree) AddImage(ctx context.Context, file *os.File) error {
	t.layer++
	mapped, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return err
	}
	image, err := erofs.OpenImage(mapped)
	if err != nil {
		mapped.Close()
		return fmt.Errorf("%s is not an image: %w", file.Name(), err)
	}
	defer image.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return err
	}
	r := imageReader{
		ctx: ctx, tree: t, image: image, made: map[uint64]*Inode{},
		source: &Source{file: file, path: file.Name(), sparse: st.Blocks*512 < st.Size-spoolBuffer},
	}
	root, err := r.inode(image.RootNid())
	if err != nil {
		return fmt.Errorf("%s: %w", file.Name(), err)
	}
	t.root.Mode, t.root.UID, t.root.GID, t.root.Sec, t.root.Nsec = root.Mode, root.UID, root.GID, root.Sec, root.Nsec
	if err := r.folder(image.RootNid(), t.root); err != nil {
		return fmt.Errorf("%s: %w", file.Name(), err)
	}
	return nil
}

type imageReader struct {
	ctx    context.Context
	tree   *Tree
	image  *erofs.Image
	source *Source
	made   map[uint64]*Inode // by number, those with several names
}

// folder puts what is in the folder number nid into dir.
func (r *imageReader) folder(nid uint64, dir *Inode) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	inode, err := r.image.Inode(nid)
	if err != nil {
		return err
	}
	return inode.IterDirents(func(name string, _ uint8, nid uint64) error {
		if name == "." || name == ".." {
			return nil
		}
		n, err := r.inode(nid)
		if err == nil {
			err = r.tree.put(dir, name, n)
		}
		if err == nil && n.IsDir() {
			return r.folder(nid, n)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

func (r *imageReader) inode(nid uint64) (*Inode, error) {
	if n := r.made[nid]; n != nil {
		return n, nil
	}
	inode, err := r.image.Inode(nid)
	if err != nil {
		return nil, err
	}
	n := &Inode{
		Mode: uint32(inode.Mode()), UID: inode.UID(), GID: inode.GID(),
		Sec: int64(inode.Mtime()), Nsec: inode.MtimeNsec(),
	}
	switch {
	case n.IsSymlink():
		n.Target, err = inode.Readlink()
	case n.IsRegular() && inode.Size() > 0:
		var ranges [2]erofs.FileRange
		ranges, err = inode.DataRanges()
		if err == nil && ranges[1].Size > 0 {
			err = fmt.Errorf("inode %d has its content beside it; images are made with it in blocks", nid)
		}
		n.Content = Content{Source: r.source, Offset: int64(ranges[0].Off), Size: int64(inode.Size())}
	case n.isDevice():
		var at uint64
		at, err = inode.DataOffset() // a device's number is where a file has its first block
		n.Rdev = uint32(at / uint64(r.image.BlockSize()))
	}
	if err != nil {
		return nil, err
	}
	if !n.IsDir() && inode.Nlink() > 1 {
		r.made[nid] = n
	}
	return n, nil
}
