// Package volume keeps volumes: folders with a quota that outlive sandboxes and
// are seen in several of them at once. A volume is a sparse file with an ext4 file
// system, mounted through a loop device while something uses it. It owns the
// folder volumes/ of a data folder, its mounts and its loop devices; it knows no
// records, no keys and no sandboxes.
package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Sizes of a volume, bytes. What its file system keeps for itself, some 3 %, is
// part of them.
const (
	MinSize     = 16 << 20
	MaxSize     = 1 << 40
	DefaultSize = 10 << 30
)

// Errors of the package; what happened is wrapped around them.
var (
	ErrNotFound = errors.New("there is no such volume")
	ErrInUse    = errors.New("the volume is in use")
	// ErrUnsupported says that this machine cannot have volumes, and why.
	ErrUnsupported = errors.New("volumes are not possible on this machine")
)

const (
	diskName  = "disk.ext4"
	mountName = "mnt"
	// filesName is the folder of the file system that is the volume; beside it is only
	// lost+found.
	filesName = "files"
	// owner has the folder of a new volume: the default user of E2B's templates and of
	// ours. Others may write in it too, for a volume is shared by sandboxes whose
	// users may differ.
	owner      = 1000
	filesMode  = 0o777
	inodeBytes = 16 << 10 // one file for each so many bytes, as mkfs.ext4 has it
)

// Volumes are those of one data folder. Safe for concurrent use, and beside other
// processes on the same folder.
type Volumes struct {
	dir string
	log *slog.Logger

	mu   sync.Mutex
	uses map[string]int // open roots, by id
}

// Open takes the folder that holds the volumes, and makes it.
func Open(dir string, log *slog.Logger) (*Volumes, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of volumes: %w", err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // the kernel names mounts so
		return nil, err
	}
	return &Volumes{dir: dir, log: log, uses: map[string]int{}}, nil
}

// Check tells whether this machine can have volumes; the error wraps
// ErrUnsupported and says what is missing.
func Check() error {
	for _, program := range []string{"mkfs.ext4", "e2fsck"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: the program %s is missing: install e2fsprogs", ErrUnsupported, program)
		}
	}
	if err := checkLoop(); err != nil {
		return err
	}
	known, err := os.ReadFile("/proc/filesystems")
	if err == nil && !strings.Contains(string(known), "\text4\n") {
		// It may be a module that the first mount loads.
		if exec.Command("modprobe", "ext4").Run() != nil {
			return fmt.Errorf("%w: the kernel has no ext4 file system", ErrUnsupported)
		}
	}
	return nil
}

// Hold keeps volumes from being made and removed meanwhile: shared by those who
// begin to use one, exclusive for who makes or removes one. It holds for other
// processes too.
func (v *Volumes) Hold(exclusive bool) (release func(), err error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	return lockFile(filepath.Join(v.dir, ".lock"), how)
}

// Create makes a volume of a size in bytes. What a failure leaves is removed.
func (v *Volumes) Create(ctx context.Context, id string, size int64) (err error) {
	if err := checkID(id); err != nil {
		return err
	}
	if size < MinSize || size > MaxSize {
		return fmt.Errorf("a volume has %d MiB to %d MiB, not %d bytes", MinSize>>20, MaxSize>>20, size)
	}
	if err := Check(); err != nil {
		return err
	}
	dir := v.path(id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make volume %s: %w", id, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make volume %s: %w", id, err), v.remove(id))
		}
	}()
	unlock, err := v.lock(id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Mkdir(filepath.Join(dir, mountName), 0o700); err != nil {
		return err
	}
	partial := filepath.Join(dir, diskName+".partial")
	if err := makeDisk(ctx, partial, size); err != nil {
		return err
	}
	return os.Rename(partial, filepath.Join(dir, diskName))
}

func makeDisk(ctx context.Context, file string, size int64) error {
	disk, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(disk.Truncate(size), disk.Close()); err != nil {
		return err
	}
	return runTool(ctx, 0, "mkfs.ext4", "-q", "-F", "-m", "0", "-i", strconv.Itoa(inodeBytes),
		"-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", file)
}

// Delete removes a volume and all that is in it. ErrInUse while a sandbox sees it.
// That there is none is no error.
func (v *Volumes) Delete(_ context.Context, id string) error {
	if checkID(id) != nil || !exists(v.path(id)) {
		return nil
	}
	unlock, err := v.lock(id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := v.unmount(id); err != nil {
		return fmt.Errorf("delete volume %s: %w", id, err)
	}
	return v.remove(id)
}

func (v *Volumes) remove(id string) error { return RemoveAll(v.path(id)) }

// Prune removes every volume that keep does not claim.
func (v *Volumes) Prune(ctx context.Context, keep func(id string) bool) error {
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if entry.IsDir() && !keep(entry.Name()) {
			errs = append(errs, v.Delete(ctx, entry.Name()))
		}
	}
	return errors.Join(errs...)
}

// Has tells whether there is a volume.
func (v *Volumes) Has(id string) bool { return checkID(id) == nil && exists(v.disk(id)) }

// DiskBytes is what a volume takes on the host's disk.
func (v *Volumes) DiskBytes(id string) int64 { return DiskBytes(v.dir, id) }

// DiskBytes is what a volume in a folder of volumes takes on the host's disk.
func DiskBytes(dir, id string) int64 {
	var stat unix.Stat_t
	if checkID(id) != nil || unix.Stat(filepath.Join(dir, id, diskName), &stat) != nil {
		return 0
	}
	return stat.Blocks * 512
}

// Show makes a volume seen at a folder of the host, which is made.
func (v *Volumes) Show(ctx context.Context, id, at string) error {
	if err := v.show(ctx, id, at); err != nil {
		return fmt.Errorf("mount volume %s: %w", id, err)
	}
	return nil
}

func (v *Volumes) show(ctx context.Context, id, at string) error {
	unlock, err := v.ready(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	// The flags of the mount (nosuid, nodev) go with it.
	return unix.Mount(v.files(id), at, "", unix.MS_BIND, "")
}

// Root opens a volume's folder; nothing that is done through it leaves the volume.
// done lets go of it.
func (v *Volumes) Root(ctx context.Context, id string) (_ *os.Root, done func(), err error) {
	unlock, err := v.ready(ctx, id)
	if err != nil {
		return nil, nil, fmt.Errorf("open volume %s: %w", id, err)
	}
	defer unlock()
	root, err := os.OpenRoot(v.files(id))
	if err != nil {
		return nil, nil, fmt.Errorf("open volume %s: %w", id, err)
	}
	v.use(id, 1)
	return root, sync.OnceFunc(func() {
		root.Close()
		v.use(id, -1)
	}), nil
}

func (v *Volumes) use(id string, n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.uses[id] += n; v.uses[id] == 0 {
		delete(v.uses, id)
	}
}

// Rest unmounts the volumes that nothing uses.
func (v *Volumes) Rest() error {
	mounts, err := mountsBelow(v.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range mounts {
		id := filepath.Base(filepath.Dir(m.point))
		if m.point == v.mount(id) {
			errs = append(errs, v.restOne(id))
		}
	}
	return errors.Join(errs...)
}

func (v *Volumes) restOne(id string) error {
	unlock, err := v.lock(id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := v.unmount(id); err != nil && !errors.Is(err, ErrInUse) {
		return fmt.Errorf("unmount volume %s: %w", id, err)
	}
	return nil
}

// restEvery is how often RestUntil looks for volumes that nothing uses.
const restEvery = time.Minute

// RestUntil has volumes unmounted when nothing uses them, until ctx ends.
func (v *Volumes) RestUntil(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(restEvery):
		}
		if err := v.Rest(); err != nil {
			v.log.Warn("a volume that nothing uses was not unmounted", "error", err)
		}
	}
}

// ready locks a volume and sees that it is mounted. The caller unlocks it.
func (v *Volumes) ready(ctx context.Context, id string) (unlock func(), err error) {
	if checkID(id) != nil {
		return nil, ErrNotFound
	}
	unlock, err = v.lock(id)
	if err != nil {
		return nil, err
	}
	if !exists(v.disk(id)) { // deleted just now
		unlock()
		return nil, ErrNotFound
	}
	if err := v.ensureMounted(ctx, id); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// ensureMounted mounts a volume unless it is. It is locked.
func (v *Volumes) ensureMounted(ctx context.Context, id string) error {
	m, err := mountAt(v.mount(id))
	if err != nil || m != nil {
		return err
	}
	device, err := v.attach(ctx, id)
	if err != nil {
		return err
	}
	defer device.Close() // the mount keeps the device
	// noinit_itable: the file stays sparse. discard: what is deleted inside is given
	// back to the host's disk.
	err = unix.Mount(device.Name(), v.mount(id), "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "noinit_itable,discard,errors=remount-ro")
	if err != nil {
		return fmt.Errorf("mount %s: %w", device.Name(), err)
	}
	// Whoever makes mounts of this one seen elsewhere does so by other mounts.
	if err := unix.Mount("", v.mount(id), "", unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return makeFiles(v.mount(id))
}

// attach gives the loop device of a volume's file. One that has it already, because
// something still uses it, is taken again: two devices on one file would destroy
// it. Else the file is repaired when it was not left clean.
func (v *Volumes) attach(ctx context.Context, id string) (*os.File, error) {
	device, err := loopOf(v.disk(id))
	if device != nil || err != nil {
		return device, err
	}
	// 1: there was something to repair, and it is.
	if err := runTool(ctx, 1, "e2fsck", "-p", v.disk(id)); err != nil {
		return nil, fmt.Errorf("its file system is damaged, and has to be repaired by hand (e2fsck %s): %w", v.disk(id), err)
	}
	return attachLoop(v.disk(id))
}

// makeFiles makes the folder of a new volume.
func makeFiles(mount string) error {
	files := filepath.Join(mount, filesName)
	if exists(files) {
		return nil
	}
	partial := files + ".partial"
	err := os.Mkdir(partial, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(os.Chown(partial, owner, owner), os.Chmod(partial, filesMode), os.Rename(partial, files))
}

// unmount unmounts a volume, ErrInUse when a sandbox or a caller of Root has it.
// It is locked.
func (v *Volumes) unmount(id string) error {
	v.mu.Lock()
	used := v.uses[id] > 0
	v.mu.Unlock()
	if used {
		return fmt.Errorf("%w: its files are being read or written", ErrInUse)
	}
	m, err := mountAt(v.mount(id))
	if err != nil {
		return err
	}
	if m == nil {
		return nil
	}
	others, err := mountsOf(m.device)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.point != m.point {
			return fmt.Errorf("%w: it is mounted at %s", ErrInUse, other.point)
		}
	}
	if err := unix.Unmount(m.point, unix.UMOUNT_NOFOLLOW); err != nil {
		if errors.Is(err, unix.EBUSY) { // another process has a root of it
			return fmt.Errorf("%w: its files are being read or written", ErrInUse)
		}
		return err
	}
	return nil
}

// lock keeps other goroutines and processes from mounting, unmounting or removing
// a volume meanwhile.
func (v *Volumes) lock(id string) (unlock func(), err error) {
	unlock, err = lockFile(filepath.Join(v.path(id), "lock"), unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	return unlock, err
}

func lockFile(name string, how int) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if err != unix.EINTR {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
	}
}

func (v *Volumes) path(id string) string  { return filepath.Join(v.dir, id) }
func (v *Volumes) disk(id string) string  { return filepath.Join(v.dir, id, diskName) }
func (v *Volumes) mount(id string) string { return filepath.Join(v.dir, id, mountName) }
func (v *Volumes) files(id string) string { return filepath.Join(v.dir, id, mountName, filesName) }

var idPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// checkID keeps a name from being a path.
func checkID(id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("%.80q cannot be the id of a volume", id)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// toolTime bounds a run of mkfs or e2fsck: to replay a journal takes seconds.
const toolTime = 2 * time.Minute

// runTool runs a program of e2fsprogs; exit codes up to fine are none. It comes to
// its end when the caller gives up: half of it helps nobody.
func runTool(ctx context.Context, fine int, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), toolTime)
	defer cancel()
	output, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 && exit.ExitCode() <= fine {
		return nil
	}
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w: the program %s is missing: install e2fsprogs", ErrUnsupported, name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %.400s", name, err, strings.TrimSpace(string(output)))
	}
	return nil
}
