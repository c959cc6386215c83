package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
)

// Commit makes the image name (without .erofs) out of the image base, a file name in
// the folder, and upper, an archive of what a sandbox wrote over it (see
// engine.Instance.WriteDisk). When an image of that name is there, it is returned as
// it is: the name must say what is in it.
func (b Builder) Commit(ctx context.Context, base, upper, name string) (Image, error) {
	var err error
	if b.Dir, err = filepath.Abs(b.Dir); err != nil {
		return Image{}, fmt.Errorf("find the folder for images: %w", err)
	}
	for _, file := range []string{base, name + extension} {
		if err := checkName(file); err != nil {
			return Image{}, err
		}
	}
	return b.produce(ctx, name, nil, func(w *work) error {
		from, err := b.stat(base)
		if err != nil {
			return fmt.Errorf("the image it begins with: %w", err)
		}
		wrote, err := os.Open(upper)
		if err != nil {
			return fmt.Errorf("what was written over %s: %w", base, err)
		}
		w.open = append(w.open, wrote)
		var st unix.Stat_t
		if err := unix.Fstat(int(wrote.Fd()), &st); err != nil {
			return fmt.Errorf("what was written over %s: %w", base, err)
		}
		if err := b.checkSpace(from.DiskBytes + st.Blocks*512); err != nil {
			return err
		}
		tree, err := w.tree(b)
		if err != nil {
			return err
		}
		if err := w.addImage(ctx, tree, from.Path); err != nil {
			return err
		}
		if err := tree.ApplyUpper(ctx, wrote); err != nil {
			return fmt.Errorf("apply what was written over %s: %w", base, err)
		}
		if err := settle(tree); err != nil {
			return err
		}
		return w.write(ctx, tree, imageID(name), 0)
	})
}

// List lists the images in the folder, by name.
func (b Builder) List() ([]Image, error) {
	entries, err := os.ReadDir(b.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the images: %w", err)
	}
	var images []Image
	for _, e := range entries {
		if checkName(e.Name()) != nil || !e.Type().IsRegular() {
			continue
		}
		image, err := b.stat(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list the images: %w", err)
		}
		images = append(images, image)
	}
	return images, nil
}

// Remove removes an image by its file name, with the log of its build. None of that
// name is fine. Whether somebody uses it is the caller's to know.
func (b Builder) Remove(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	work := filepath.Join(b.Dir, "build", strings.TrimSuffix(name, extension))
	for _, path := range []string{filepath.Join(b.Dir, name), work + ".log"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the image %s: %w", name, err)
		}
	}
	if held, err := tryLock(work + ".lock"); err == nil { // else it is being made again
		removeLock(held)
	}
	return nil
}

const extension = ".erofs"

var imageNamePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,199}\.erofs$`)

func checkName(file string) error {
	if !imageNamePattern.MatchString(file) {
		return fmt.Errorf("%q is not the file name of an image: lower-case letters, digits, -, _ and ., then .erofs", file)
	}
	return nil
}

// settle makes a tree one that a sandbox starts from: without what was mounted or
// ran, and with the folders that are mounted over. Real folders, whatever was there:
// what is mounted must not land where a link says.
func settle(tree *rootfs.Tree) error {
	root := rootfs.Owner{}
	for _, dir := range []string{"proc", "dev", "sys", ".tombolo", ".volumes"} {
		if err := tree.Replace(dir, 0o755, root); err != nil {
			return err
		}
	}
	if n := tree.Lstat("run"); n == nil || !n.IsDir() {
		if err := tree.Replace("run", 0o755, root); err != nil {
			return err
		}
	}
	tree.Remove("run/e2b") // the agent's
	tree.RemoveFiles("run")
	// See added, about /tmp.
	for _, dir := range []string{"tmp", "tmp/.X11-unix"} {
		n, err := tree.Mkdir(dir, 0o1777, root)
		if err != nil {
			return err
		}
		n.Mode = unix.S_IFDIR | 0o1777
	}
	return nil
}
