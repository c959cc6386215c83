package volume

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is one line of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	device string // major:minor
	point  string
}

func mounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []mount
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 {
			all = append(all, mount{device: fields[2], point: unescape.Replace(fields[4])})
		}
	}
	return all, lines.Err()
}

// unescape undoes what the kernel does to names in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountAt is what is mounted at a folder, nil when nothing is.
func mountAt(point string) (*mount, error) {
	all, err := mounts()
	if err != nil {
		return nil, err
	}
	for _, m := range slices.Backward(all) {
		if m.point == point {
			return &m, nil
		}
	}
	return nil, nil
}

func mountsOf(device string) ([]mount, error) {
	all, err := mounts()
	return slices.DeleteFunc(all, func(m mount) bool { return m.device != device }), err
}

// mountsBelow are the mounts at a folder or below it, in the order they were made.
func mountsBelow(dir string) ([]mount, error) {
	all, err := mounts()
	return slices.DeleteFunc(all, func(m mount) bool {
		return m.point != dir && !strings.HasPrefix(m.point, strings.TrimSuffix(dir, "/")+"/")
	}), err
}

// UnmountAll unmounts what is mounted at a folder and below it, also what is in
// use: who has a file of it open keeps that file. Nothing mounted is no error.
func UnmountAll(dir string) error {
	dir, err := resolved(dir)
	if err != nil {
		return err
	}
	below, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(below) {
		err := unix.Unmount(m.point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // it went with the one above
			errs = append(errs, fmt.Errorf("unmount %s: %w", m.point, err))
		}
	}
	return errors.Join(errs...)
}

// RemoveAll is os.RemoveAll for a folder in which nothing is mounted; while
// something is it removes nothing and says so.
func RemoveAll(dir string) error {
	real, err := resolved(dir)
	if err != nil {
		return err
	}
	below, err := mountsBelow(real)
	if err != nil {
		return err
	}
	if len(below) > 0 {
		return fmt.Errorf("%s is not removed, for something is mounted at %s", dir, below[0].point)
	}
	return os.RemoveAll(dir)
}

// resolved is a path as the kernel shows it in mountinfo. The last element may be
// missing.
func resolved(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if errors.Is(err, os.ErrNotExist) {
		return dir, nil
	}
	return filepath.Join(parent, filepath.Base(dir)), err
}
