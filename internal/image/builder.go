package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
)

// DefaultCABundle is where Debian and its relatives keep the certificates a
// machine trusts.
const DefaultCABundle = "/etc/ssl/certs/ca-certificates.crt"

// buildSpace is how much must be free for a build besides the image it begins
// with, bytes.
const buildSpace = 3 << 30

// Builder builds root images into one folder. It is safe for concurrent use,
// also by several processes on the same folder: a build waits for another of
// the same image and leaves the others alone.
type Builder struct {
	// Dir holds the images, and under build/ the trees of builds that run, their
	// locks and the logs. It is made when missing.
	Dir string
	// CABundle is a PEM file with the certificates this machine trusts. Those
	// the image does not have are added to its own. Empty is DefaultCABundle,
	// when there is such a file.
	CABundle string
	// Mirror has Debian at /debian and /debian-security. Empty is Debian's own.
	Mirror string
	// Progress is told what happens, from one goroutine at a time; nil is fine.
	Progress func(Event)

	// Refuse says what an address is that an import must not connect to, or "".
	// Who chooses a reference chooses where this process connects to, so an import
	// from a registry needs it.
	Refuse func(netip.Addr) string
	// PrivateRegistries lists registries, as host or host:port, that imports may
	// reach whatever Refuse says, and by plain http where they speak no https.
	PrivateRegistries []string
	// Limits bound images that are imported and committed; zeros are
	// rootfs.DefaultLimits.
	Limits rootfs.Limits
	// MayImport is asked before an image is fetched that is not there; its error is
	// that of the import. Nil lets all be.
	MayImport func() error
}

// Event is one step of a build, or one line worth showing of a step.
type Event struct {
	Template string
	Elapsed  time.Duration // since the build began
	Text     string
}

// Image is a root image in the folder.
type Image struct {
	Name      string // of the file in the folder
	Path      string
	Hash      string // the recipe's ImageHash; empty for one that no recipe made
	SizeBytes int64
	DiskBytes int64 // what the file takes on the disk; less than its size if it has holes
	Made      time.Time
	Cached    bool // it was there before
}

// BuildError is a failed step of a build. It has the last lines of what the
// step printed and the file with all of it.
type BuildError struct {
	Template string
	Step     string
	LogPath  string
	Tail     string
	Err      error
}

func (e *BuildError) Error() string {
	text := fmt.Sprintf("build template %s: %s: %v", e.Template, e.Step, e.Err)
	if e.Tail != "" {
		text += "\n" + e.Tail
	}
	return text + "\nThe whole log is in " + e.LogPath
}

func (e *BuildError) Unwrap() error { return e.Err }

// Build returns the recipe's image, building it and those it is made from when
// they are not there. When ctx ends, its processes are killed and what it made so
// far is removed. Errors: *MissingToolsError, *SpaceError, *BuildError.
func (b Builder) Build(ctx context.Context, r Recipe) (Image, error) {
	var err error
	if b.Dir, err = filepath.Abs(b.Dir); err != nil {
		return Image{}, fmt.Errorf("find the folder for images: %w", err)
	}
	if image, err := b.Find(r); !errors.Is(err, fs.ErrNotExist) {
		return image, err
	}
	if err := checkTools(r); err != nil {
		return Image{}, err
	}
	var parent Image
	if r.parent != nil {
		if parent, err = b.Build(ctx, *r.parent); err != nil {
			return Image{}, err
		}
	}
	// Mode 0700: a tree has setuid programs that no user of this machine may run.
	if err := os.MkdirAll(filepath.Join(b.Dir, "build"), 0o700); err != nil {
		return Image{}, fmt.Errorf("make the folder for builds: %w", err)
	}
	held, err := lock(ctx, b.lockPath(r), func() { b.tell(r, 0, "waiting for another build of it") })
	if err != nil {
		return Image{}, fmt.Errorf("build template %s: %w", r.Name, err)
	}
	defer held.Close()
	if image, err := b.Find(r); !errors.Is(err, fs.ErrNotExist) {
		return image, err // the other build made it
	}
	if err := b.Sweep(); err != nil {
		return Image{}, err
	}
	return b.make(ctx, r, parent, held)
}

// Find returns the recipe's image if it has been built, else fs.ErrNotExist.
func (b Builder) Find(r Recipe) (Image, error) {
	image, err := b.stat(r.fileName() + extension)
	if err != nil {
		return Image{}, fmt.Errorf("image of template %s: %w", r.Name, err)
	}
	image.Hash = r.ImageHash()
	return image, nil
}

// stat returns the image in the file of that name, as one that was there before.
func (b Builder) stat(name string) (Image, error) {
	path := filepath.Join(b.Dir, name)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Image{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Image{
		Name: name, Path: path, SizeBytes: st.Size, DiskBytes: st.Blocks * 512,
		Made: time.Unix(st.Mtim.Unix()).UTC(), Cached: true,
	}, nil
}

// make builds the image under the lock.
func (b Builder) make(ctx context.Context, r Recipe, parent Image, held *os.File) (Image, error) {
	if err := b.checkSpace(parent.SizeBytes * 2); err != nil {
		return Image{}, err
	}
	work := b.workPath(r)
	if err := os.RemoveAll(work); err != nil {
		return Image{}, fmt.Errorf("remove a build that was cut off: %w", err)
	}
	if err := os.Mkdir(work, 0o700); err != nil {
		return Image{}, fmt.Errorf("make the folder of the build: %w", err)
	}
	defer os.RemoveAll(work)

	log, err := os.Create(work + ".log")
	if err != nil {
		return Image{}, fmt.Errorf("make the log of the build: %w", err)
	}
	defer log.Close()

	run := &build{
		Builder: b, recipe: r, parent: parent,
		root: filepath.Join(work, "root"), output: filepath.Join(work, "image"),
		log: log, held: held, began: time.Now(),
	}
	if err := run.steps(ctx); err != nil {
		return Image{}, err
	}
	// Before the image is brought to the disk: the tree would be, with it.
	if err := os.RemoveAll(run.root); err != nil {
		return Image{}, fmt.Errorf("build template %s: remove its tree: %w", r.Name, err)
	}
	if err := publish(run.output, b.imagePath(r)); err != nil {
		return Image{}, fmt.Errorf("build template %s: %w", r.Name, err)
	}
	image, err := b.Find(r)
	if err != nil {
		return Image{}, err
	}
	image.Cached = false
	b.tell(r, time.Since(run.began), fmt.Sprintf("done, %d MB", image.SizeBytes/1e6))
	return image, nil
}

// publish gives the file its name once all of it is on the disk.
func publish(from, to string) error {
	for _, path := range []string{from, filepath.Dir(to)} {
		if path != from {
			if err := os.Rename(from, to); err != nil {
				return err
			}
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = errors.Join(f.Sync(), f.Close())
		if err != nil {
			return fmt.Errorf("write %s to the disk: %w", path, err)
		}
	}
	return nil
}

// Sweep removes what imports, commits and builds of recipes left that did not end by
// themselves. One that lives holds its lock.
func (b Builder) Sweep() error {
	entries, err := os.ReadDir(filepath.Join(b.Dir, "build"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for builds that were cut off: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := b.sweepOne(filepath.Join(b.Dir, "build", e.Name())); err != nil {
			return fmt.Errorf("remove a build that was cut off: %w", err)
		}
	}
	return nil
}

func (b Builder) lockPath(r Recipe) string  { return b.workPath(r) + ".lock" }
func (b Builder) workPath(r Recipe) string  { return filepath.Join(b.Dir, "build", r.fileName()) }
func (b Builder) imagePath(r Recipe) string { return filepath.Join(b.Dir, r.fileName()+extension) }

func (r Recipe) fileName() string { return r.Name + "-" + r.ImageHash()[:32] }

func (b Builder) tell(r Recipe, elapsed time.Duration, text string) {
	if b.Progress != nil {
		b.Progress(Event{Template: r.Name, Elapsed: elapsed, Text: text})
	}
}

// SpaceError says that the disk is too full to build.
type SpaceError struct {
	Dir        string
	Free, Need int64 // bytes
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("%s has %d MB free and a build needs %d MB; make room there or choose another data folder",
		e.Dir, e.Free/1e6, e.Need/1e6)
}

func (b Builder) checkSpace(more int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(b.Dir, &st); err != nil {
		return fmt.Errorf("see how much space %s has: %w", b.Dir, err)
	}
	free, need := int64(st.Bavail)*st.Bsize, buildSpace+more
	if free < need {
		return &SpaceError{b.Dir, free, need}
	}
	return nil
}
