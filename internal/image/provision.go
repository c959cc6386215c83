package image

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
	"github.com/tombolo-dev/tombolo/internal/trust"
	"github.com/tombolo-dev/tombolo/templates"
)

// provisionVersion is in the name of every imported image. Raise it when provision
// makes another tree than before.
const provisionVersion = 1

// maxDatabase bounds files of an image that provision reads, bytes.
const maxDatabase = 4 << 20

var root = rootfs.Owner{}

// provision adds to somebody's image what sandboxes and clients count on. It runs
// nothing of the image and takes no package manager for granted, so that it does for
// an empty image too.
func provision(tree *rootfs.Tree, config Config, certificates []byte) error {
	if err := settle(tree); err != nil {
		return err
	}
	user, err := addUser(tree)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return addHome(tree, user) },
		func() error { return letSudo(tree) },
		func() error { return openFolders(tree) },
		func() error { return addSystemFiles(tree) },
		func() error { return keepPath(tree) },
		func() error { return addTrust(tree, certificates) },
		func() error { return addTools(tree, config.Env) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// The templates' user: what clients expect commands to run as.
const (
	userName = "user"
	userHome = "/home/user"
	userID   = 1000
)

// addUser makes sure that user is there, with the first number from 1000 on that
// nobody has, and that root is.
func addUser(tree *rootfs.Tree) (rootfs.Owner, error) {
	passwd, err := readLines(tree, "etc/passwd", "root:x:0:0:root:/root:"+shell(tree))
	if err != nil {
		return rootfs.Owner{}, err
	}
	group, err := readLines(tree, "etc/group", "root:x:0:")
	if err != nil {
		return rootfs.Owner{}, err
	}
	if own := passwd.find(userName); own != nil {
		return rootfs.Owner{UID: number(own, 2), GID: number(own, 3)}, nil
	}
	user := rootfs.Owner{UID: passwd.free(userID)}
	if own := group.find(userName); own != nil {
		user.GID = number(own, 2)
	} else {
		user.GID = group.free(user.UID)
		group.add(fmt.Sprintf("%s:x:%d:", userName, user.GID))
	}
	passwd.add(fmt.Sprintf("%s:x:%d:%d::%s:%s", userName, user.UID, user.GID, userHome, shell(tree)))
	err = errors.Join(passwd.write(tree, 0o644), group.write(tree, 0o644))
	// A locked password, changed on the day of Epoch.
	for file, line := range map[string]string{
		"etc/shadow":  fmt.Sprintf("%s:!:%d:0:99999:7:::", userName, Epoch/86400),
		"etc/gshadow": userName + ":!::",
	} {
		if n := tree.Stat(file); n == nil || !n.IsRegular() {
			continue
		}
		lines, failed := readLines(tree, file)
		if failed == nil && lines.find(userName) == nil {
			lines.add(line)
			failed = lines.write(tree, 0o640)
		}
		err = errors.Join(err, failed)
	}
	return user, err
}

func shell(tree *rootfs.Tree) string {
	if n := tree.Stat("bin/bash"); n != nil && n.IsRegular() {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// lines are those of a file such as /etc/passwd.
type lines struct {
	path string
	text []byte
}

// readLines reads the file; where none is it has the lines given.
func readLines(tree *rootfs.Tree, path string, otherwise ...string) (*lines, error) {
	text, err := tree.ReadFile(path, maxDatabase)
	l := &lines{path: path, text: text}
	if errors.Is(err, fs.ErrNotExist) {
		for _, line := range otherwise {
			l.add(line)
		}
		return l, nil
	}
	return l, err
}

func (l *lines) find(name string) []string {
	for line := range bytes.Lines(l.text) {
		fields := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if fields[0] == name {
			return fields
		}
	}
	return nil
}

// free is the first number from n on that no line has as its third field.
func (l *lines) free(n uint32) uint32 {
	taken := map[uint32]bool{}
	for line := range bytes.Lines(l.text) {
		taken[number(strings.Split(string(line), ":"), 2)] = true
	}
	for taken[n] {
		n++
	}
	return n
}

func number(fields []string, at int) uint32 {
	if at >= len(fields) {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(fields[at]), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func (l *lines) add(line string) {
	if len(l.text) > 0 && l.text[len(l.text)-1] != '\n' {
		l.text = append(l.text, '\n')
	}
	l.text = append(append(l.text, line...), '\n')
}

func (l *lines) write(tree *rootfs.Tree, mode uint32) error {
	return tree.WriteFile(l.path, l.text, mode, root)
}

// addHome makes the home folder of user and fills it as useradd does.
func addHome(tree *rootfs.Tree, user rootfs.Owner) error {
	home, err := tree.Mkdir(userHome, 0o755, user)
	if err != nil {
		return err
	}
	home.UID, home.GID = user.UID, user.GID
	if err := tree.CopyInto("etc/skel", userHome, user); err != nil {
		return err
	}
	_, err = tree.Mkdir("root", 0o700, root)
	return err
}

// letSudo lets user do everything without a password, where there is sudo.
func letSudo(tree *rootfs.Tree) error {
	if tree.Stat("etc/sudoers") == nil && tree.Stat("usr/bin/sudo") == nil {
		return nil
	}
	return layTemplateFile(tree, "etc/sudoers.d/user", 0o440)
}

// openFolders lets everyone write where E2B's templates do.
func openFolders(tree *rootfs.Tree) error {
	for _, dir := range []string{"code", "usr/local", "usr/local/bin"} {
		if _, err := tree.Mkdir(dir, 0o777, root); err != nil {
			return err
		}
	}
	for _, dir := range []string{"code", "usr/local"} {
		tree.Stat(dir).Walk(func(n *rootfs.Inode) {
			switch {
			case n.IsDir():
				n.Mode |= 0o777
			case n.IsRegular() && n.Mode&(unix.S_ISUID|unix.S_ISGID) == 0:
				n.Mode |= 0o666
				if n.Mode&0o111 != 0 {
					n.Mode |= 0o111
				}
			}
		})
	}
	return nil
}

// addSystemFiles lays the few files that base has too over the image's.
func addSystemFiles(tree *rootfs.Tree) error {
	for _, file := range []string{"etc/resolv.conf", "etc/hosts", "etc/hostname"} {
		if n := tree.Lstat(file); n != nil && !n.IsRegular() {
			tree.Remove(file) // a link into /run, which is empty
		}
		if err := layTemplateFile(tree, file, 0o644); err != nil {
			return err
		}
	}
	// Empty: no two sandboxes are one machine.
	tree.Remove("etc/machine-id")
	tree.Remove("var/lib/dbus/machine-id")
	return tree.WriteFile("etc/machine-id", nil, 0o444, root)
}

// layTemplateFile puts a file of the recipe of base into the tree.
func layTemplateFile(tree *rootfs.Tree, file string, mode uint32) error {
	text, err := fs.ReadFile(templates.FS, "base/files/"+file)
	if err != nil {
		return err
	}
	return tree.WriteFile(file, text, mode, root)
}

// keepPath puts base's profile in the place of Debian's and Ubuntu's, where nobody
// has changed that one. It takes away the PATH that an image sets from the login
// shells in which clients run commands, and starts processes, which costs each command
// 15 ms.
func keepPath(tree *rootfs.Tree) error {
	own, err := tree.ReadFile("etc/profile", maxDatabase)
	stock, failed := tree.ReadFile("usr/share/base-files/profile", maxDatabase)
	if err != nil || failed != nil || !bytes.Equal(own, stock) {
		return nil
	}
	return layTemplateFile(tree, "etc/profile", 0o644)
}

// addTrust makes the image trust what this machine trusts.
func addTrust(tree *rootfs.Tree, certificates []byte) error {
	if len(certificates) == 0 {
		return nil
	}
	var done []*rootfs.Inode
	for _, bundle := range trust.Bundles {
		n := tree.Stat(bundle)
		if n == nil || !n.IsRegular() || slices.Contains(done, n) {
			continue
		}
		own, err := tree.ReadFile(bundle, maxDatabase)
		if err != nil {
			return err
		}
		own = bytes.TrimRight(own, "\n")
		if len(own) > 0 {
			own = append(own, '\n')
		}
		for _, block := range trust.Missing(certificates, own) {
			own = append(own, pem.EncodeToMemory(block)...)
		}
		if err := tree.WriteFile(bundle, own, 0o644, root); err != nil {
			return err
		}
		done = append(done, tree.Stat(bundle))
	}
	if done == nil {
		var all []byte
		for block := range trust.Certificates(certificates) {
			all = append(all, pem.EncodeToMemory(block)...)
		}
		if err := tree.WriteFile(DefaultCABundle, all, 0o644, root); err != nil {
			return err
		}
	}
	return addAnchors(tree, certificates)
}

// addAnchors lays the certificates that are this machine's own where the image's
// tools find them, so that an update of its trust keeps them.
func addAnchors(tree *rootfs.Tree, certificates []byte) error {
	own := trust.Missing(certificates, distributed())
	for _, family := range slices.Sorted(maps.Keys(trust.Anchors)) {
		if tree.Stat(family) == nil {
			continue
		}
		for _, block := range own {
			name := path.Join(trust.Anchors[family], trust.Anchor(block))
			if err := tree.WriteFile(name, pem.EncodeToMemory(block), 0o644, root); err != nil {
				return err
			}
		}
	}
	return nil
}

// distributed are the certificates that came with this machine's distribution.
func distributed() []byte {
	var all []byte
	files, _ := filepath.Glob("/usr/share/ca-certificates/*/*.crt")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil {
			all = append(append(all, text...), '\n')
		}
	}
	return all
}

// tools are programs that clients call to see whether a sandbox is ready. The agent
// answers to their names.
var tools = []string{"curl", "pgrep", "ss"}

const agentProgram = "/.tombolo/agent"

// addTools adds those that the image lacks.
func addTools(tree *rootfs.Tree, env []string) error {
	folders := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	to := "/usr/bin"
	for _, v := range env {
		list, ok := strings.CutPrefix(v, "PATH=")
		own := slices.DeleteFunc(strings.Split(list, ":"), func(dir string) bool { return !path.IsAbs(dir) })
		if ok && len(own) > 0 && !slices.Contains(own, to) {
			to = own[len(own)-1] // or nobody would find them
		}
		folders = append(folders, own...)
	}
	for _, tool := range tools {
		has := slices.ContainsFunc(folders, func(dir string) bool {
			return tree.Lstat(path.Join(dir, tool)) != nil
		})
		if has {
			continue
		}
		if err := tree.Symlink(agentProgram, path.Join(to, tool)); err != nil {
			return err
		}
	}
	return nil
}
