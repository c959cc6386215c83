package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// homeOwner owns what a recipe puts under /home/user: the templates' user.
const homeOwner = 1000

// layFiles lays the recipe's files over the tree.
func (b *build) layFiles(ctx context.Context) error {
	for _, f := range b.recipe.files {
		if err := b.layFile(f); err != nil {
			return fmt.Errorf("build template %s: lay %s over the tree: %w", b.recipe.Name, f.Path, err)
		}
	}
	return nil
}

func (b *build) layFile(f file) error {
	to := filepath.Join(b.root, filepath.FromSlash(f.Path))
	if f.Dir {
		err := os.Mkdir(to, 0o755)
		if errors.Is(err, fs.ErrExist) {
			return nil // keeps its mode and owner
		}
		if err != nil {
			return err
		}
	} else {
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		if err := os.WriteFile(to, f.Content, 0o600); err != nil {
			return err
		}
	}
	if strings.HasPrefix(f.Path, "home/user/") {
		if err := os.Lchown(to, homeOwner, homeOwner); err != nil {
			return err
		}
	}
	return unix.Chmod(to, f.Mode)
}

// emptied are the folders whose contents are of no use to a sandbox.
var emptied = []string{
	"dev", "tmp", "run", "var/tmp", "var/cache", "var/log", "var/lib/apt/lists",
	"root/.cache/pip", "home/user/.cache/pip", "root/.npm", "home/user/.npm",
}

// removed are files that only record how the tree was made.
var removed = []string{
	"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-", "etc/.pwd.lock",
	"var/lib/dbus/machine-id", "var/lib/dpkg/status-old", "var/lib/dpkg/available-old", "var/lib/dpkg/diversions-old",
}

// clean removes what no sandbox needs and what differs between two builds.
func (b *build) clean(ctx context.Context) error {
	for _, dir := range emptied {
		if err := removeFiles(filepath.Join(b.root, dir)); err != nil {
			return fmt.Errorf("build template %s: empty /%s: %w", b.recipe.Name, dir, err)
		}
	}
	for _, name := range removed {
		if err := os.RemoveAll(filepath.Join(b.root, name)); err != nil {
			return fmt.Errorf("build template %s: remove /%s: %w", b.recipe.Name, name, err)
		}
	}
	if err := os.WriteFile(filepath.Join(b.root, "etc/machine-id"), nil, 0o444); err != nil {
		return fmt.Errorf("build template %s: empty the machine id: %w", b.recipe.Name, err)
	}
	return setTimes(b.root)
}

// removeFiles removes what is in dir but for folders, which programs expect.
func removeFiles(dir string) error {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Remove(path)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// setTimes gives everything under root, and root, the time Epoch.
func setTimes(root string) error {
	times := []unix.Timespec{{Sec: Epoch}, {Sec: Epoch}}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}
