package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/erofs"
)

// extract unpacks an image into a new folder: files, folders and symbolic
// links with owners, modes and hard links. It reads the image as the engine
// does. The image is one that a Builder made.
func extract(ctx context.Context, path, root string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	image, err := erofs.OpenImage(f)
	if err != nil {
		f.Close()
		return fmt.Errorf("%s is not an image: %w", path, err)
	}
	defer image.Close()
	x := extraction{ctx: ctx, image: image, made: map[uint64]string{}}
	return x.node(image.RootNid(), root)
}

type extraction struct {
	ctx   context.Context
	image *erofs.Image
	made  map[uint64]string // by inode, those with several names
}

func (x *extraction) node(nid uint64, to string) error {
	if err := x.ctx.Err(); err != nil {
		return err
	}
	inode, err := x.image.Inode(nid)
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	if first, ok := x.made[nid]; ok {
		return os.Link(first, to)
	}
	if !inode.IsDir() && inode.Nlink() > 1 {
		x.made[nid] = to
	}
	if inode.IsSymlink() {
		return x.link(&inode, to)
	}
	if err := x.content(&inode, to); err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	// The owner first: changing it takes setuid away.
	if err := os.Lchown(to, int(inode.UID()), int(inode.GID())); err != nil {
		return err
	}
	return unix.Chmod(to, uint32(inode.Mode())&0o7777)
}

func (x *extraction) link(inode *erofs.Inode, to string) error {
	target, err := inode.Readlink()
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	if err := os.Symlink(target, to); err != nil {
		return err
	}
	return os.Lchown(to, int(inode.UID()), int(inode.GID()))
}

func (x *extraction) content(inode *erofs.Inode, to string) error {
	switch {
	case inode.IsDir():
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		return inode.IterDirents(func(name string, _ uint8, nid uint64) error {
			if name == "." || name == ".." {
				return nil
			}
			return x.node(nid, filepath.Join(to, name))
		})
	case inode.IsRegular():
		return x.file(inode, to)
	case inode.IsCharDev(), inode.IsBlockDev(), inode.IsFIFO(), inode.IsSocket():
		return fmt.Errorf("a device, pipe or socket has no place in an image")
	default:
		return fmt.Errorf("unknown type, mode %o", inode.Mode())
	}
}

func (x *extraction) file(inode *erofs.Inode, to string) error {
	ranges, err := inode.DataRanges()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if _, err := f.Write(r.Bytes); err != nil {
			f.Close()
			return err
		}
	}
	return f.Close()
}
