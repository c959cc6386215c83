package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// homeOwner owns what a recipe puts under /home/user: the templates' user.
const homeOwner = 1000

// layFiles lays the recipe's files over the tree. What it does in the tree it
// does through an os.Root: the links in the tree are meant for a sandbox and
// may point at files of this machine.
func (b *build) layFiles(context.Context) error {
	return b.inTree(func(tree *os.Root) error {
		for _, f := range b.recipe.files {
			if err := layFile(tree, f); err != nil {
				return fmt.Errorf("lay %s over the tree: %w", f.Path, err)
			}
		}
		return nil
	})
}

func layFile(tree *os.Root, f file) error {
	if f.Dir {
		err := tree.Mkdir(f.Path, 0o755)
		if errors.Is(err, fs.ErrExist) {
			return nil // keeps its mode and owner
		}
		if err != nil {
			return err
		}
	} else {
		if err := tree.RemoveAll(f.Path); err != nil {
			return err
		}
		if err := tree.WriteFile(f.Path, f.Content, 0o600); err != nil {
			return err
		}
	}
	if strings.HasPrefix(f.Path, "home/user/") {
		if err := tree.Lchown(f.Path, homeOwner, homeOwner); err != nil {
			return err
		}
	}
	return tree.Chmod(f.Path, f.Mode)
}

// emptied are the folders whose contents are of no use to a sandbox. The
// folders in them stay: programs expect them.
var emptied = []string{
	"dev", "tmp", "run", "var/tmp", "var/cache", "var/log", "var/lib/apt/lists",
	"root/.cache/pip", "home/user/.cache/pip", "root/.npm", "home/user/.npm",
}

// removed are files that only record how the tree was made.
var removed = []string{
	"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-", "etc/.pwd.lock",
	"var/lib/dbus/machine-id", "var/lib/dpkg/status-old", "var/lib/dpkg/available-old", "var/lib/dpkg/diversions-old",
	"etc/machine-id",
}

// added is what every image has, whatever its recipe says.
var added = []file{
	{Path: "etc/machine-id", Mode: 0o444}, // empty: no two sandboxes are one machine
	// gVisor mounts a file system in memory over an empty /tmp, and what programs
	// unpack there would count as memory.
	{Path: "tmp", Dir: true, Mode: 0o777 | fs.ModeSticky},
	{Path: "tmp/.X11-unix", Dir: true, Mode: 0o777 | fs.ModeSticky},
}

// clean removes what no sandbox needs and what differs between two builds, and
// gives every file its final time, before byte code is compiled against it.
func (b *build) clean(context.Context) error {
	err := b.inTree(func(tree *os.Root) error {
		for _, dir := range emptied {
			if err := removeFiles(tree, dir); err != nil {
				return fmt.Errorf("empty /%s: %w", dir, err)
			}
		}
		for _, name := range removed {
			if err := tree.RemoveAll(name); err != nil {
				return fmt.Errorf("remove /%s: %w", name, err)
			}
		}
		for _, f := range added {
			if err := layFile(tree, f); err != nil {
				return fmt.Errorf("make /%s: %w", f.Path, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.setTimes()
}

func removeFiles(tree *os.Root, dir string) error {
	entries, err := fs.ReadDir(tree.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if e.IsDir() {
			err = removeFiles(tree, name)
		} else {
			err = tree.Remove(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// setTimes gives everything in the tree, and the tree, the time Epoch.
func (b *build) setTimes() error {
	times := []unix.Timespec{{Sec: Epoch}, {Sec: Epoch}}
	err := filepath.WalkDir(b.root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return fmt.Errorf("build template %s: set the times of files: %w", b.recipe.Name, err)
	}
	return nil
}

// inTree runs fn with the tree open.
func (b *build) inTree(fn func(*os.Root) error) error {
	tree, err := os.OpenRoot(b.root)
	if err != nil {
		return fmt.Errorf("build template %s: %w", b.recipe.Name, err)
	}
	defer tree.Close()
	if err := fn(tree); err != nil {
		return fmt.Errorf("build template %s: %w", b.recipe.Name, err)
	}
	return nil
}
