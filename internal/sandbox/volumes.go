package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/volume"
)

// Limits of volumes.
const (
	// MaxVolumes is how many one key may have.
	MaxVolumes = 100
	// MaxVolumeName bounds a name, bytes.
	MaxVolumeName = 128
	// MaxMounts is how many volumes one sandbox may see.
	MaxMounts = 16
	// maxMountPath bounds the path of one inside, bytes.
	maxMountPath = 1024
)

// ErrVolumeNotFound: no volume has this id or name.
var ErrVolumeNotFound = errors.New("volume not found")

// VolumeInUseError says which sandboxes keep a volume from being deleted.
type VolumeInUseError struct {
	Name      string
	Sandboxes []string // none: its files are just being read or written
}

func (e *VolumeInUseError) Error() string {
	if len(e.Sandboxes) == 0 {
		return fmt.Sprintf("volume %s is in use: its files are being read or written", e.Name)
	}
	return fmt.Sprintf("volume %s is in use by %s: kill what uses it first", e.Name, strings.Join(e.Sandboxes, ", "))
}

// VolumeMount shows a volume at a path of a sandbox.
type VolumeMount struct {
	ID   string `json:"id"`
	Name string `json:"name"` // or id, in a CreateRequest, where ID is empty
	Path string `json:"path"`
}

// Volumes are folders with a quota that outlive sandboxes and are seen in several
// at once.
type Volumes interface {
	// CreateVolume makes one; sizeBytes 0 is the default. *InvalidError for a name or
	// size that cannot be or is taken, and when there are MaxVolumes; *LimitError when
	// the sizes of the key's volumes would be more than its quota of disk.
	CreateVolume(ctx context.Context, keyID string, q Quota, name string, sizeBytes int64) (store.Volume, error)
	// DeleteVolume removes one and all that is in it. ErrVolumeNotFound, or a
	// *VolumeInUseError while a sandbox has it, running or paused.
	DeleteVolume(ctx context.Context, id string) error
	// VolumeRoot opens the folder of one; what is done through it stays in the volume.
	// done lets go of it, before which it cannot be deleted.
	VolumeRoot(ctx context.Context, id string) (root *os.Root, done func(), err error)
	// VolumeDiskBytes is what one takes on the host's disk.
	VolumeDiskBytes(id string) int64
}

var _ Volumes = (*Manager)(nil)

var volumeName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`) // E2B's

// CreateVolume implements Volumes.
func (m *Manager) CreateVolume(ctx context.Context, keyID string, q Quota, name string, sizeBytes int64) (store.Volume, error) {
	if sizeBytes == 0 {
		sizeBytes = m.config.VolumeSize
	}
	switch {
	case !volumeName.MatchString(name) || len(name) > MaxVolumeName:
		return store.Volume{}, &InvalidError{fmt.Sprintf("a volume's name is 1 to %d letters, digits, - and _, not %.150q", MaxVolumeName, name)}
	case sizeBytes < volume.MinSize || sizeBytes > volume.MaxSize:
		return store.Volume{}, &InvalidError{fmt.Sprintf("a volume has %d to %d MiB, not %d", volume.MinSize>>20, volume.MaxSize>>20, sizeBytes>>20)}
	}
	release, err := m.volumes.Hold(true)
	if err != nil {
		return store.Volume{}, err
	}
	defer release()
	v := store.Volume{
		ID: newID()[1:], Name: name, KeyID: keyID, Token: newToken(), SizeBytes: sizeBytes, CreatedAt: time.Now().UTC(),
	}
	if err := m.mayAddVolume(ctx, keyID, q, sizeBytes); err != nil {
		return store.Volume{}, err
	}
	// The record comes first, so that a name that is taken makes nothing.
	err = m.config.Store.AddVolume(ctx, v, MaxVolumes)
	switch {
	case errors.Is(err, store.ErrExists):
		return store.Volume{}, &InvalidError{fmt.Sprintf("there is a volume of the name %q already", name)}
	case errors.Is(err, store.ErrFull):
		return store.Volume{}, &InvalidError{fmt.Sprintf("the key has %d volumes, and more are not possible: delete some", MaxVolumes)}
	case err != nil:
		return store.Volume{}, err
	}
	if err := m.volumes.Create(ctx, v.ID, v.SizeBytes); err != nil {
		return store.Volume{}, errors.Join(err, m.config.Store.DeleteVolume(context.WithoutCancel(ctx), v.ID))
	}
	return v, nil
}

// mayAddVolume checks the quota. Volumes are held, so that no two share the last
// place.
func (m *Manager) mayAddVolume(ctx context.Context, keyID string, q Quota, sizeBytes int64) error {
	if q.DiskBytes <= 0 {
		return nil
	}
	volumes, err := m.config.Store.Volumes(ctx, keyID)
	if err != nil {
		return err
	}
	for _, v := range volumes {
		sizeBytes += v.SizeBytes
	}
	if sizeBytes > q.DiskBytes {
		return &LimitError{What: "of disk in volumes", Limit: mebibytes(q.DiskBytes), Flag: "max-disk"}
	}
	return nil
}

// DeleteVolume implements Volumes.
func (m *Manager) DeleteVolume(ctx context.Context, id string) error {
	release, err := m.volumes.Hold(true)
	if err != nil {
		return err
	}
	defer release()
	v, err := m.volumeByID(ctx, id)
	if err != nil {
		return err
	}
	users, err := m.volumeUsers(ctx, id)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return &VolumeInUseError{Name: v.Name, Sandboxes: users}
	}
	err = m.volumes.Delete(context.WithoutCancel(ctx), id)
	if errors.Is(err, volume.ErrInUse) {
		return &VolumeInUseError{Name: v.Name}
	}
	if err != nil {
		return err
	}
	err = m.config.Store.DeleteVolume(context.WithoutCancel(ctx), id)
	if errors.Is(err, store.ErrNotFound) {
		return nil // another process was faster
	}
	return err
}

// volumeUsers are the sandboxes that have a volume, those of other processes too.
func (m *Manager) volumeUsers(ctx context.Context, id string) ([]string, error) {
	records, err := m.config.Store.Sandboxes(ctx, false)
	if err != nil {
		return nil, err
	}
	users := map[string]bool{}
	for _, record := range records {
		var d details
		if json.Unmarshal(record.Data, &d) == nil && hasVolume(d.Volumes, id) {
			users[record.ID] = true
		}
	}
	for _, s := range m.all() { // its record may be to come
		if hasVolume(s.snapshotInfo().Volumes, id) {
			users[s.id] = true
		}
	}
	return slices.Sorted(maps.Keys(users)), nil
}

func hasVolume(mounts []VolumeMount, id string) bool {
	return slices.ContainsFunc(mounts, func(v VolumeMount) bool { return v.ID == id })
}

// VolumeRoot implements Volumes.
func (m *Manager) VolumeRoot(ctx context.Context, id string) (*os.Root, func(), error) {
	root, done, err := m.volumes.Root(ctx, id)
	if errors.Is(err, volume.ErrNotFound) {
		err = fmt.Errorf("%w: %w", ErrVolumeNotFound, err)
	}
	return root, done, err
}

// VolumeDiskBytes implements Volumes.
func (m *Manager) VolumeDiskBytes(id string) int64 { return m.volumes.DiskBytes(id) }

func (m *Manager) volumeByID(ctx context.Context, id string) (store.Volume, error) {
	v, err := m.config.Store.VolumeByID(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		err = fmt.Errorf("%w: %q", ErrVolumeNotFound, id)
	}
	return v, err
}

// pruneVolumes removes what a process that was killed left of making or deleting a
// volume: files without a record, and records without files.
func (m *Manager) pruneVolumes(ctx context.Context) error {
	release, err := m.volumes.Hold(true)
	if err != nil {
		return err
	}
	defer release()
	records, err := m.config.Store.Volumes(ctx, "")
	if err != nil {
		return err
	}
	var errs []error
	known := map[string]bool{}
	for _, v := range records {
		known[v.ID] = true
		if !m.volumes.Has(v.ID) {
			errs = append(errs, m.config.Store.DeleteVolume(ctx, v.ID))
		}
	}
	return errors.Join(append(errs, m.volumes.Prune(ctx, func(id string) bool { return known[id] }))...)
}

// resolveMounts checks the mounts of a create and finds their volumes.
func (m *Manager) resolveMounts(ctx context.Context, keyID string, mounts []VolumeMount) ([]VolumeMount, error) {
	if len(mounts) > MaxMounts {
		return nil, &InvalidError{fmt.Sprintf("%d volumes are to be mounted, at most %d are possible", len(mounts), MaxMounts)}
	}
	mounts = slices.Clone(mounts)
	for i, mount := range mounts {
		if err := checkMountPath(mount.Path); err != nil {
			return nil, err
		}
		for _, other := range mounts[:i] {
			if within(mount.Path, other.Path) || within(other.Path, mount.Path) {
				return nil, &InvalidError{fmt.Sprintf("volumes cannot be mounted at %s and at %s: one hides the other", other.Path, mount.Path)}
			}
		}
		v, err := m.findVolume(ctx, keyID, mount.Name)
		if errors.Is(err, store.ErrNotFound) {
			return nil, fmt.Errorf("%w: %q", ErrVolumeNotFound, mount.Name)
		}
		if err != nil {
			return nil, err
		}
		mounts[i].ID, mounts[i].Name = v.ID, v.Name
	}
	return mounts, nil
}

// findVolume finds a volume of a key; without a key, as the machine's owner asks,
// any by its id.
func (m *Manager) findVolume(ctx context.Context, keyID, idOrName string) (store.Volume, error) {
	if keyID == "" {
		return m.config.Store.VolumeByID(ctx, idOrName)
	}
	return m.config.Store.Volume(ctx, keyID, idOrName)
}

// reservedPaths are those below which no volume is seen.
var reservedPaths = []string{"/proc", "/sys", "/dev", agentMount, hostapi.VolumesDir}

func checkMountPath(p string) error {
	switch {
	case !strings.HasPrefix(p, "/") || p != path.Clean(p) || strings.ContainsRune(p, 0):
		return &InvalidError{fmt.Sprintf("a volume's path is absolute and without \"..\", \".\" and empty parts, not %.200q", p)}
	case len(p) > maxMountPath:
		return &InvalidError{fmt.Sprintf("a volume's path has at most %d bytes, not %d", maxMountPath, len(p))}
	case p == "/":
		return &InvalidError{"a volume cannot be mounted at /: give it a folder"}
	}
	for _, reserved := range reservedPaths {
		if within(p, reserved) {
			return &InvalidError{fmt.Sprintf("a volume cannot be mounted at %.200s: %s is the system's", p, reserved)}
		}
	}
	return nil
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// volumesDir is the folder of a run that its sandbox sees as [hostapi.VolumesDir].
func (m *Manager) volumesDir(runID string) string {
	return filepath.Join(m.sandboxDir(runID), "volumes")
}

func volumesMount(dir string) engine.Mount {
	return engine.Mount{Source: dir, Target: hostapi.VolumesDir, Receive: true}
}

// volumesDirOptions: what is mounted there is the run's; root inside could write
// to the folder itself, so it is small, and read-only once it has its folders.
const volumesDirOptions = "size=64k,nr_inodes=4096,mode=0700"

// emptyVolumeOptions are of what stands in for a volume that a sandbox is not to
// see: files that its memory has open may still be written to.
const emptyVolumeOptions = "size=64k,nr_inodes=256,mode=0755"

// openVolumes makes the folder of a run in which volumes are mounted, before the
// engine is started, in shells before it is known which. Mounts made there later
// are seen inside, for which it has to be shared.
func (m *Manager) openVolumes(r *run) error {
	dir := m.volumesDir(r.id)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	mounted, err := isMounted(dir)
	if err != nil || mounted { // a shell has it
		return err
	}
	err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, volumesDirOptions)
	if err == nil {
		err = unix.Mount("", dir, "", unix.MS_SHARED, "")
	}
	if err != nil {
		return fmt.Errorf("make the folder of volumes: %w", err)
	}
	return nil
}

// isMounted tells whether a folder is on another file system than the one it is in.
func isMounted(dir string) (bool, error) {
	var at, above unix.Stat_t
	if err := errors.Join(unix.Lstat(dir, &at), unix.Lstat(filepath.Dir(dir), &above)); err != nil {
		return false, err
	}
	return at.Dev != above.Dev, nil
}

// showVolumes mounts the volumes of a sandbox in the folder of its run, and empty
// folders in place of those that the memory it starts from has seen and it is not
// to see.
func (m *Manager) showVolumes(ctx context.Context, s *sandbox, r *run) error {
	dir := m.volumesDir(r.id)
	mounts := s.snapshotInfo().Volumes
	for _, v := range mounts {
		at := filepath.Join(dir, v.ID)
		if _, err := os.Stat(at); err == nil {
			continue // at another path too
		}
		if err := m.volumes.Show(ctx, v.ID, at); err != nil {
			return err
		}
	}
	for _, id := range s.from.Seen {
		at := filepath.Join(dir, id)
		if hasVolume(mounts, id) {
			continue
		}
		err := os.Mkdir(at, 0o700)
		if err == nil {
			err = unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, emptyVolumeOptions)
		}
		if err != nil {
			return fmt.Errorf("make an empty folder in place of volume %s: %w", id, err)
		}
	}
	return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// maxStandIns bounds how often a restore is tried because of files that are missing
// on its volumes: each time one more is known.
const maxStandIns = 32

// standIn is an empty file or folder on a volume, at a path below
// [hostapi.VolumesDir], in place of one that a sandbox had open when it was saved
// and that was removed since.
type standIn struct {
	path string
	mode fs.FileMode
}

// blameVolumes adds to the error of a failed start what it may come from: gVisor
// panics, without a word, when something that was open has become another kind.
func (s *sandbox) blameVolumes(err error) error {
	if s.from.memory == "" || len(s.snapshotInfo().Volumes) == 0 {
		return err
	}
	return fmt.Errorf("%w (it has volumes: if a file on one that it has open is a folder now, or a folder a file, make that undone)", err)
}

func canStandIn(missing *engine.MissingError) bool {
	_, _, deep := strings.Cut(missing.Path, "/")
	return missing.Target == hostapi.VolumesDir && deep
}

// makeStandIns makes them in the folder of a run. remove removes what was made.
func makeStandIns(dir string, all []standIn) (remove func(), err error) {
	var undo []func()
	remove = func() {
		for _, fn := range slices.Backward(undo) {
			fn()
		}
	}
	for _, in := range all {
		id, rest, _ := strings.Cut(in.path, "/")
		// Nothing of the path may lead out of the volume.
		root, err := os.OpenRoot(filepath.Join(dir, filepath.Base(id)))
		if err != nil {
			return remove, err
		}
		undo = append(undo, func() { root.Close() })
		switch in.mode {
		case fs.ModeDir:
			err = root.Mkdir(rest, 0o700)
		case fs.ModeSymlink:
			err = root.Symlink(".", rest)
		default:
			var f *os.File
			if f, err = root.OpenFile(rest, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
				err = f.Close()
			}
		}
		if errors.Is(err, fs.ErrExist) { // it came back
			continue
		}
		if err != nil {
			return remove, fmt.Errorf("stand in for %s: %w", in.path, err)
		}
		undo = append(undo, func() { root.Remove(rest) })
	}
	return remove, nil
}

// closeVolumes unmounts all of a run's volumes. Nothing mounted is no error.
func (m *Manager) closeVolumes(runID string) error {
	dir := m.volumesDir(runID)
	if err := volume.UnmountAll(dir); err != nil {
		return err
	}
	return volume.RemoveAll(dir)
}

// seenMost is how many volumes a snapshot may have seen: for each that its sandboxes do
// not have, something is mounted in its place.
const seenMost = 1000

// seen are the volumes that the memory of a sandbox has seen.
func (s *sandbox) seen() []string {
	ids := slices.Clone(s.from.Seen)
	for _, v := range s.snapshotInfo().Volumes {
		if !slices.Contains(ids, v.ID) {
			ids = append(ids, v.ID)
		}
	}
	return ids
}

func agentMounts(mounts []VolumeMount) []hostapi.VolumeMount {
	var all []hostapi.VolumeMount
	for _, v := range mounts {
		all = append(all, hostapi.VolumeMount{Name: v.ID, Path: v.Path})
	}
	return all
}
