package host

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// VolumePathError says that a volume cannot be seen at the path asked for, because
// of what is there in the sandbox.
type VolumePathError struct {
	Path string
	Err  error
}

func (e *VolumePathError) Error() string {
	return fmt.Sprintf("no volume can be mounted at %s: %v", e.Path, e.Err)
}

func (e *VolumePathError) Unwrap() error { return e.Err }

// showVolumes makes exactly these volumes seen at their paths. What the memory of
// another sandbox had mounted, of which this one was made, is unmounted. Folders
// that are made for it belong to owner. Doing it again changes nothing.
func showVolumes(volumes []hostapi.VolumeMount, owner account.Account) error {
	shown, err := shownVolumes()
	if err != nil {
		return err
	}
	for _, path := range slices.Backward(shown) {
		if !slices.ContainsFunc(volumes, func(v hostapi.VolumeMount) bool { return v.Path == path && isShown(v) }) {
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // it went with another
				return fmt.Errorf("unmount %s: %w", path, err)
			}
		}
	}
	for _, v := range volumes {
		if isShown(v) {
			continue
		}
		if err := makeFolder(v.Path, owner); err != nil {
			return &VolumePathError{Path: v.Path, Err: err}
		}
		if err := unix.Mount(filepath.Join(hostapi.VolumesDir, v.Name), v.Path, "", unix.MS_BIND, ""); err != nil {
			return &VolumePathError{Path: v.Path, Err: err}
		}
	}
	return nil
}

func isShown(v hostapi.VolumeMount) bool {
	volume, err := os.Stat(filepath.Join(hostapi.VolumesDir, v.Name))
	if err != nil {
		return false
	}
	there, err := os.Stat(v.Path)
	return err == nil && os.SameFile(volume, there)
}

// shownVolumes are the paths at which parts of [hostapi.VolumesDir] are mounted, in
// the order in which it was done.
func shownVolumes() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var points, devices []string
	volumes := ""
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // proc_pid_mountinfo(5)
		if len(fields) < 5 {
			continue
		}
		if fields[4] == hostapi.VolumesDir {
			volumes = fields[2]
			continue
		}
		points, devices = append(points, fields[4]), append(devices, fields[2])
	}
	var shown []string
	for i, point := range points {
		if volumes != "" && devices[i] == volumes {
			shown = append(shown, unescapePath.Replace(point))
		}
	}
	return shown, lines.Err()
}

// unescapePath undoes what is done to names in mountinfo.
var unescapePath = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// makeFolder makes a folder and those on the way to it.
func makeFolder(path string, owner account.Account) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return unix.ENOTDIR
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if parent := filepath.Dir(path); parent != path {
		if err := makeFolder(parent, owner); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Chown(path, int(owner.UID), int(owner.GID))
}
