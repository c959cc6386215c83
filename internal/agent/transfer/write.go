package transfer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const bufferSize = 128 << 10 // bytes

// writer makes entries in the file system. It never writes through a link that an
// archive brought.
type writer struct {
	owner     owner   // of what is made
	mode      *uint32 // when not nil, of what is copied
	keepOwner bool    // of the entries, in place of owner
	devices   bool    // are made too, and pipes

	folders map[string]bool // known to be there
	links   map[string]bool // made by this writer
	times   []folderTime    // set in the end, for what is put into a folder changes its
	buffer  []byte
}

type folderTime struct {
	path string
	when time.Time
}

// folder sees that there is a folder, and makes it and those above it. A link to
// one that was there before counts as one.
func (w *writer) folder(dir string) error {
	_, err := w.makeFolder(dir)
	return err
}

func (w *writer) makeFolder(dir string) (made bool, err error) {
	if dir == "/" || w.folders[dir] {
		return false, nil
	}
	if err := w.folder(path.Dir(dir)); err != nil {
		return false, err
	}
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		made = true
		if err := w.mkdir(dir); err != nil {
			return false, err
		}
	case err != nil:
		return false, fmt.Errorf("look at %s: %w", dir, err)
	case info.Mode()&os.ModeSymlink != 0 && w.links[dir]:
		return false, fmt.Errorf("the archive has %s as a link and as a folder", dir)
	case info.Mode()&os.ModeSymlink != 0:
		if real, err := os.Stat(dir); err != nil || !real.IsDir() {
			return false, fmt.Errorf("cannot copy to non-directory: %s", dir)
		}
	case !info.IsDir():
		return false, fmt.Errorf("cannot copy to non-directory: %s", dir)
	}
	if w.folders == nil {
		w.folders = map[string]bool{}
	}
	w.folders[dir] = true
	return made, nil
}

func (w *writer) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	if err := os.Lchown(dir, w.owner.uid, w.owner.gid); err != nil {
		return fmt.Errorf("give %s to its owner: %w", dir, err)
	}
	return nil
}

// put makes what an entry says, in place of what is there.
func (w *writer) put(target string, h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return w.putFolder(target, h)
	}
	if err := w.clear(target); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return w.putFile(target, h, content)
	case tar.TypeSymlink:
		return w.putLink(target, h)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		if w.devices {
			return w.putDevice(target, h)
		}
	}
	return fmt.Errorf("%q is a %s, which cannot be copied", h.Name, kindOf(h.Typeflag))
}

// clear makes way for something that is no folder.
func (w *writer) clear(target string) error {
	if err := w.folder(path.Dir(target)); err != nil {
		return err
	}
	err := unix.Unlink(target)
	switch {
	case err == nil:
		delete(w.links, target)
		return nil
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.EPERM):
		if info, statErr := os.Lstat(target); statErr == nil && info.IsDir() {
			return fmt.Errorf("cannot copy a file over the directory %s", target)
		}
	}
	return fmt.Errorf("replace %s: %w", target, err)
}

// putFolder keeps what a folder that is there has.
func (w *writer) putFolder(target string, h *tar.Header) error {
	made, err := w.makeFolder(target)
	if err != nil || !made {
		return err
	}
	own := w.ownerOf(h)
	if err := os.Lchown(target, own.uid, own.gid); err != nil {
		return fmt.Errorf("give %s to its owner: %w", target, err)
	}
	if err := unix.Chmod(target, w.modeOf(h)); err != nil {
		return fmt.Errorf("set the mode of %s: %w", target, err)
	}
	setAttributes(target, h)
	w.times = append(w.times, folderTime{target, h.ModTime})
	return nil
}

func (w *writer) putFile(target string, h *tar.Header, content io.Reader) error {
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", target, err)
	}
	if w.buffer == nil {
		w.buffer = make([]byte, bufferSize)
	}
	// Only Write is shown to io.CopyBuffer, which would take another way otherwise.
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, content, w.buffer)
	own := w.ownerOf(h)
	if err == nil {
		err = f.Chown(own.uid, own.gid)
	}
	if err == nil {
		err = unix.Fchmod(int(f.Fd()), w.modeOf(h)) // after chown, which takes setuid away
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", target, err)
	}
	setAttributes(target, h)
	return setTime(target, h.ModTime)
}

func (w *writer) putLink(target string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > pathLimit || strings.ContainsRune(h.Linkname, 0) {
		return fmt.Errorf("%q is a link to nowhere", h.Name)
	}
	if err := os.Symlink(h.Linkname, target); err != nil {
		return fmt.Errorf("make the link %s: %w", target, err)
	}
	if w.links == nil {
		w.links = map[string]bool{}
	}
	w.links[target] = true
	own := w.ownerOf(h)
	if err := os.Lchown(target, own.uid, own.gid); err != nil {
		return fmt.Errorf("give %s to its owner: %w", target, err)
	}
	return setTime(target, h.ModTime)
}

// link makes target another name of a file that the archive brought before.
func (w *writer) link(target, file string) error {
	if err := w.clear(target); err != nil {
		return err
	}
	if err := w.folder(path.Dir(file)); err != nil {
		return err
	}
	info, err := os.Lstat(file)
	if err != nil || info.IsDir() {
		return fmt.Errorf("%s is a hard link to %s, which is no file", target, file)
	}
	if err := os.Link(file, target); err != nil {
		return fmt.Errorf("make the hard link %s: %w", target, err)
	}
	return nil
}

// putDevice leaves out what the sandbox is not allowed to make, as where Docker
// runs without privileges.
func (w *writer) putDevice(target string, h *tar.Header) error {
	kind := map[byte]uint32{tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO}[h.Typeflag]
	err := unix.Mknod(target, kind|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make the device %s: %w", target, err)
	}
	own := w.ownerOf(h)
	if err := os.Lchown(target, own.uid, own.gid); err != nil {
		return fmt.Errorf("give %s to its owner: %w", target, err)
	}
	if err := unix.Chmod(target, w.modeOf(h)); err != nil {
		return fmt.Errorf("set the mode of %s: %w", target, err)
	}
	return setTime(target, h.ModTime)
}

func (w *writer) ownerOf(h *tar.Header) owner {
	if w.keepOwner {
		return owner{h.Uid, h.Gid}
	}
	return w.owner
}

func (w *writer) modeOf(h *tar.Header) uint32 {
	if w.mode != nil {
		return *w.mode & 0o7777
	}
	return uint32(h.Mode) & 0o7777
}

// finish sets the times of the folders that were made.
func (w *writer) finish() error {
	for _, folder := range w.times {
		if err := setTime(folder.path, folder.when); err != nil {
			return err
		}
	}
	return nil
}

// setTime sets when something was changed last; an archive that does not say
// leaves now.
func setTime(target string, when time.Time) error {
	if when.Unix() <= 0 {
		return nil
	}
	at := unix.NsecToTimespec(when.UnixNano())
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, target, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the time of %s: %w", target, err)
	}
	return nil
}

// attributePrefix is where tar keeps extended attributes, by the convention of
// star, GNU tar and Docker.
const attributePrefix = "SCHILY.xattr."

// setAttributes sets extended attributes as far as the file system has them.
func setAttributes(target string, h *tar.Header) {
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, attributePrefix); ok {
			_ = unix.Lsetxattr(target, name, []byte(value), 0)
		}
	}
}
