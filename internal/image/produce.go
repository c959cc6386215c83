package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/image/erofs"
	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
)

// work is the folder in which one image is made, under its lock.
type work struct {
	dir    string
	output string                 // the image, before it has its name
	room   func(more int64) error // *SpaceError when the disk has no room for so many bytes
	open   []*os.File
	spool  *os.File // of the tree; nil before there is one
}

// produce returns the image name (without .erofs), having make make it when it is not
// there. One at a time makes an image; what it leaves when it fails is removed, what
// it leaves when it is killed the next one removes. waiting, which may be nil, is
// called before it waits for another.
func (b Builder) produce(ctx context.Context, name string, waiting func(), make func(*work) error) (Image, error) {
	there := func() (Image, error) { return b.stat(name + extension) }
	if image, err := there(); !errors.Is(err, fs.ErrNotExist) {
		return image, err
	}
	if err := os.MkdirAll(filepath.Join(b.Dir, "build"), 0o700); err != nil {
		return Image{}, fmt.Errorf("make the folder for builds: %w", err)
	}
	if waiting == nil {
		waiting = func() {}
	}
	dir := filepath.Join(b.Dir, "build", name)
	held, err := lock(ctx, dir+".lock", waiting)
	if err != nil {
		return Image{}, fmt.Errorf("make the image %s: %w", name, err)
	}
	defer removeLock(held)
	if image, err := there(); !errors.Is(err, fs.ErrNotExist) {
		return image, err // the other made it
	}
	if err := b.Sweep(); err != nil {
		return Image{}, err
	}
	w := &work{dir: dir, output: filepath.Join(dir, "image"), room: b.checkSpace}
	if err := os.RemoveAll(w.dir); err != nil {
		return Image{}, fmt.Errorf("remove a build that was cut off: %w", err)
	}
	if err := os.Mkdir(w.dir, 0o700); err != nil {
		return Image{}, fmt.Errorf("make the folder of the build: %w", err)
	}
	defer w.close()
	if err := make(w); err != nil {
		return Image{}, fmt.Errorf("make the image %s: %w", name, err)
	}
	if err := publish(w.output, filepath.Join(b.Dir, name+extension)); err != nil {
		return Image{}, fmt.Errorf("make the image %s: %w", name, err)
	}
	image, err := there()
	image.Cached = false
	return image, err
}

// tree returns an empty tree that spools into the folder.
func (w *work) tree(b Builder) (*rootfs.Tree, error) {
	f, err := w.create("spool")
	if err != nil {
		return nil, err
	}
	w.spool = f
	spool := rootfs.NewSpool(f)
	spool.Room = func() error { return w.room(0) }
	return rootfs.New(spool, b.Limits), nil
}

// create makes a file in the folder that is open as long as the work goes on.
func (w *work) create(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(w.dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make a file of the build: %w", err)
	}
	w.open = append(w.open, f)
	return f, nil
}

func (w *work) addImage(ctx context.Context, tree *rootfs.Tree, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	w.open = append(w.open, f)
	return tree.AddImage(ctx, f)
}

// write writes the tree into the output.
func (w *work) write(ctx context.Context, tree *rootfs.Tree, id [16]byte, time int64) error {
	if err := tree.Flush(); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(w.spool.Fd()), &st); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	// All that was unpacked is written once more. Others write meanwhile, too.
	if err := w.room(st.Blocks * 512); err != nil {
		return err
	}
	o := erofs.Options{UUID: id, Time: time, Room: func() error { return w.room(0) }}
	if err := erofs.WriteFile(ctx, w.output, tree, o); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return nil
}

func (w *work) close() {
	for _, f := range w.open {
		f.Close()
	}
	os.RemoveAll(w.dir)
}

// imageID is a UUID for an image that has a name.
func imageID(name string) [16]byte {
	sum := sha256.Sum256([]byte(name))
	return [16]byte(sum[:])
}
