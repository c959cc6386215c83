package filesystem

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
)

// Entry describes what is at an absolute path. Of a link it describes the link
// itself, but for its type, which is that of the target.
func Entry(path string, accounts *account.Database) (*pb.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	entry := &pb.EntryInfo{
		Name:         info.Name(),
		Type:         entryType(info.Mode()),
		Path:         path,
		Size:         info.Size(),
		Mode:         uint32(info.Mode().Perm()),
		Permissions:  permissions(info.Mode()),
		ModifiedTime: timestamppb.New(info.ModTime()),
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		entry.Owner = accounts.UserName(stat.Uid)
		entry.Group = accounts.GroupName(stat.Gid)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		describeLink(entry)
		return entry, nil
	}
	if info.Mode().IsRegular() || info.IsDir() {
		entry.Metadata = Metadata(path)
	}
	return entry, nil
}

func describeLink(entry *pb.EntryInfo) {
	entry.IsSymlink = true
	entry.Type = pb.FileType_FILE_TYPE_SYMLINK
	if target, err := filepath.EvalSymlinks(entry.Path); err == nil {
		entry.SymlinkTarget = &target
	} else if target, err := os.Readlink(entry.Path); err == nil {
		entry.SymlinkTarget = &target
	}
	if target, err := os.Stat(entry.Path); err == nil {
		entry.Type = entryType(target.Mode())
	}
}

func entryType(mode fs.FileMode) pb.FileType {
	switch {
	case mode.IsDir():
		return pb.FileType_FILE_TYPE_DIRECTORY
	case mode&fs.ModeSymlink != 0:
		return pb.FileType_FILE_TYPE_SYMLINK
	case mode.IsRegular():
		return pb.FileType_FILE_TYPE_FILE
	}
	return pb.FileType_FILE_TYPE_UNSPECIFIED
}

// permissions writes a mode as ls does: "drwxr-xr-x".
func permissions(mode fs.FileMode) string {
	text := []byte("-rwxrwxrwx")
	for i := range 9 {
		if mode&(1<<(8-i)) == 0 {
			text[i+1] = '-'
		}
	}
	switch {
	case mode.IsDir():
		text[0] = 'd'
	case mode&fs.ModeSymlink != 0:
		text[0] = 'l'
	case mode&fs.ModeNamedPipe != 0:
		text[0] = 'p'
	case mode&fs.ModeSocket != 0:
		text[0] = 's'
	case mode&fs.ModeCharDevice != 0:
		text[0] = 'c'
	case mode&fs.ModeDevice != 0:
		text[0] = 'b'
	}
	special := func(bit fs.FileMode, at int, with, without byte) {
		if mode&bit == 0 {
			return
		}
		if text[at] == 'x' {
			text[at] = with
		} else {
			text[at] = without
		}
	}
	special(fs.ModeSetuid, 3, 's', 'S')
	special(fs.ModeSetgid, 6, 's', 'S')
	special(fs.ModeSticky, 9, 't', 'T')
	return string(text)
}

// MakeDirs makes a directory and its missing parents, and gives those it made
// to an account.
func MakeDirs(path string, owner account.Account) error {
	info, err := os.Stat(path)
	if err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: path, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if parent := filepath.Dir(path); parent != path {
		if err := MakeDirs(parent, owner); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
			return nil // another request was faster
		}
		return err
	}
	return Own(path, owner)
}

// Own gives what is at a path to an account; a link itself, not its target. An
// agent that is not root leaves the owner.
func Own(path string, owner account.Account) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := os.Lchown(path, int(owner.UID), int(owner.GID)); err != nil {
		return fmt.Errorf("give %s to %s: %w", path, owner.Name, err)
	}
	return nil
}
