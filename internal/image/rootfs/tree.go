// Package rootfs is a root file system in memory: names, owners, modes and times,
// and for each regular file where on this machine its content is. Nothing of it is
// ever laid out on the file system of this machine, so no name, link or device in
// what it is made from can reach beyond it.
//
// A tree begins empty. What is applied to it comes from folders, root images,
// layers of OCI images and what sandboxes wrote; the last two are hostile.
package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits bound a tree and what is read for it. A zero is the default.
type Limits struct {
	// Entries is how many names a tree may have; Members how many members of
	// archives may be applied to it, those that replace and remove others included.
	Entries, Members int
	// FileBytes is the longest file that a layer may have; Bytes all of them together,
	// and what the archives may hold after decompression. Holes count as what they
	// claim. Contents that stay where they are have no limit but maxBytes.
	FileBytes, Bytes int64
	// TextBytes are of all names and targets of links, which are in memory.
	TextBytes int64
}

// DefaultLimits allow a multiple of what the largest images in public registries
// have. An entry takes some 250 bytes of memory, a folder 600, besides its name.
var DefaultLimits = Limits{
	Entries: 2_000_000, Members: 4_000_000, FileBytes: 64 << 30, Bytes: 128 << 30, TextBytes: 256 << 20,
}

func (l Limits) orDefault() Limits {
	fill := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	entries, members := int64(l.Entries), int64(l.Members)
	fill(&entries, int64(DefaultLimits.Entries))
	fill(&members, int64(DefaultLimits.Members))
	fill(&l.FileBytes, DefaultLimits.FileBytes)
	fill(&l.Bytes, DefaultLimits.Bytes)
	fill(&l.TextBytes, DefaultLimits.TextBytes)
	l.Entries, l.Members = int(entries), int(members)
	return l
}

// What Linux takes: bytes of a name, of a path and of a link's target; links
// followed for one path. Ours are maxDepth, for what walks a tree recurses, and
// maxSteps, how many folders one path may lead through by way of links.
const (
	maxName   = 255
	maxPath   = 4096
	maxTarget = 4095
	maxLinks  = 40
	maxDepth  = 1024
	maxSteps  = 2 * maxDepth
	maxBytes  = 16 << 40 // of all files, holes included: what a root image can have
)

// LimitError says which limit was met.
type LimitError struct {
	What  string
	Limit int64
}

func (e *LimitError) Error() string { return fmt.Sprintf("more than %d %s", e.Limit, e.What) }

// Tree is a root file system. It is not safe for concurrent use.
type Tree struct {
	root   *Inode
	spool  *Spool
	limits Limits

	entries int   // names there are
	members int   // members of archives applied
	bytes   int64 // of the files there are
	text    int64 // of names and targets
	read    int64 // from archives
	layer   uint32
}

// New returns a tree with an empty root folder. What has no place of its own on
// this machine goes into the spool, which may be nil for a tree of folders and images.
func New(spool *Spool, limits Limits) *Tree {
	root := &Inode{Mode: unix.S_IFDIR | 0o755, Nlink: 1}
	return &Tree{root: root, spool: spool, limits: limits.orDefault(), layer: 1}
}

// Inode is what a name, or several, stand for.
type Inode struct {
	Mode     uint32 // type and permission bits, as in st_mode
	UID, GID uint32
	Nlink    uint32 // names of it; of a folder always 1
	Rdev     uint32 // of a device, as Linux packs it
	Nsec     uint32
	Sec      int64 // time of modification, since 1970
	// Number counts the inodes of a tree from 0, after Tree.Inodes.
	Number  uint32
	Content Content // of a regular file
	Target  string  // of a symbolic link

	// Of a folder. It has one name, so it knows where it is.
	parent *Inode // nil for the root
	depth  uint32
	layer  uint32 // the last that put something into it or below
	clear  uint32 // the last that hid what earlier ones put there
	names  map[string]entry
}

// entry is a name in a folder.
type entry struct {
	inode *Inode
	layer uint32 // that put it there; a folder has its own
}

func (n *Inode) IsDir() bool     { return n.Mode&unix.S_IFMT == unix.S_IFDIR }
func (n *Inode) IsRegular() bool { return n.Mode&unix.S_IFMT == unix.S_IFREG }
func (n *Inode) IsSymlink() bool { return n.Mode&unix.S_IFMT == unix.S_IFLNK }
func (n *Inode) isDevice() bool {
	return n.Mode&unix.S_IFMT == unix.S_IFCHR || n.Mode&unix.S_IFMT == unix.S_IFBLK
}

// Parent is the folder that holds this one; the root is in itself.
func (n *Inode) Parent() *Inode {
	if n.parent == nil {
		return n
	}
	return n.parent
}

// Names lists what is in a folder, in the order of bytes.
func (n *Inode) Names() []string { return slices.Sorted(maps.Keys(n.names)) }

// Child is what a name in a folder stands for, nil for nothing.
func (n *Inode) Child(name string) *Inode { return n.names[name].inode }

// Len is the number of names in a folder.
func (n *Inode) Len() int { return len(n.names) }

// Root is the root folder.
func (t *Tree) Root() *Inode { return t.root }

// Entries is how many names there are.
func (t *Tree) Entries() int { return t.entries }

// Inodes lists every inode once, a folder before what is in it, and numbers them.
func (t *Tree) Inodes() []*Inode {
	all := make([]*Inode, 0, t.entries+1)
	var visit func(n *Inode)
	visit = func(n *Inode) {
		if k := int(n.Number); k < len(all) && all[k] == n {
			return // another name of it came first
		}
		n.Number = uint32(len(all))
		all = append(all, n)
		for _, name := range n.Names() {
			visit(n.names[name].inode)
		}
	}
	visit(t.root)
	return all
}

// SetTimes gives everything the same time, seconds since 1970.
func (t *Tree) SetTimes(sec int64) {
	for _, n := range t.Inodes() {
		n.Sec, n.Nsec = sec, 0
	}
}

// Flush makes what was spooled readable.
func (t *Tree) Flush() error { return t.spool.flush() }

var (
	errLoop   = errors.New("too many symbolic links, one leads to another")
	errNotDir = errors.New("is no folder")
)

// find returns the folder and the name in it that path means, and what is there,
// nil for nothing. Links are followed as if the tree were the machine's root, so
// none leads out; the last one is with follow only. Folders that are not there are
// made with make; the error is else fs.ErrNotExist. For the root the name is empty.
func (t *Tree) find(path string, follow, make bool) (dir *Inode, name string, n *Inode, err error) {
	at := t.root
	rest := split(path)
	links := 0
	for steps := 0; len(rest) > 0; steps++ {
		if steps > maxSteps {
			return nil, "", nil, errLoop
		}
		name, rest = rest[0], rest[1:]
		if name == ".." {
			at = at.Parent()
			continue
		}
		last := len(rest) == 0
		child := at.Child(name)
		if child != nil && child.IsSymlink() && (follow || !last) {
			if links++; links > maxLinks {
				return nil, "", nil, errLoop
			}
			if strings.HasPrefix(child.Target, "/") {
				at = t.root
			}
			rest = append(split(child.Target), rest...)
			continue
		}
		if last {
			return at, name, child, nil
		}
		if child == nil {
			if !make {
				return nil, "", nil, fs.ErrNotExist
			}
			if child, err = t.newDir(at, name); err != nil {
				return nil, "", nil, err
			}
		}
		if !child.IsDir() {
			return nil, "", nil, fmt.Errorf("/%s %w", at.pathOf(name), errNotDir)
		}
		at = child
	}
	return at.Parent(), "", at, nil
}

func split(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(s string) bool { return s == "" || s == "." })
}

// pathOf is the path of a name in the folder, for messages.
func (n *Inode) pathOf(name string) string {
	var parts []string
	for at := n; at.parent != nil; at = at.parent {
		for other, e := range at.parent.names {
			if e.inode == at {
				parts = append(parts, other)
				break
			}
		}
	}
	slices.Reverse(parts)
	return strings.Join(append(parts, name), "/")
}

// newDir makes a folder as mkdir -p would.
func (t *Tree) newDir(in *Inode, name string) (*Inode, error) {
	n := &Inode{Mode: unix.S_IFDIR | 0o755, Sec: in.Sec, Nsec: in.Nsec}
	return n, t.put(in, name, n)
}

// put gives an inode a name, in place of what has it. A folder must be a new one.
func (t *Tree) put(in *Inode, name string, n *Inode) error {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("%q is not a name", name)
	case len(name) > maxName:
		return fmt.Errorf("a name of %d bytes; %d are allowed", len(name), maxName)
	case n.IsDir() && in.depth >= maxDepth:
		return &LimitError{"folders in one another", maxDepth}
	}
	if old, ok := in.names[name]; ok {
		if old.inode == n {
			return nil
		}
		t.drop(in, name)
	}
	size, text := int64(0), int64(len(name))
	if n.Nlink == 0 {
		size, text = n.Content.Size, text+int64(len(n.Target))
	}
	if t.entries >= t.limits.Entries {
		return &LimitError{"entries", int64(t.limits.Entries)}
	}
	if err := t.addText(text); err != nil {
		return err
	}
	if size > maxBytes-t.bytes {
		return &LimitError{"bytes of files", maxBytes}
	}
	if n.IsDir() {
		n.parent, n.depth = in, in.depth+1
	}
	if in.names == nil {
		in.names = map[string]entry{}
	}
	// A name of an archive's is a part of its whole extended header, and would keep it.
	in.names[strings.Clone(name)] = entry{n, t.layer}
	n.Nlink++
	t.entries++
	t.bytes += size
	touched := in
	if n.IsDir() {
		touched = n
	}
	t.touch(touched)
	return nil
}

// addText counts bytes of names and targets.
func (t *Tree) addText(n int64) error {
	if n > t.limits.TextBytes-t.text {
		return &LimitError{"bytes of names and links", t.limits.TextBytes}
	}
	t.text += n
	return nil
}

// touch notes that this layer has something in the folder.
func (t *Tree) touch(dir *Inode) {
	for at := dir; at != nil && at.layer != t.layer; at = at.parent {
		at.layer = t.layer
	}
}

// drop takes a name away with all below it.
func (t *Tree) drop(in *Inode, name string) {
	n := in.names[name].inode
	delete(in.names, name)
	t.forget(name, n)
}

func (t *Tree) forget(name string, n *Inode) {
	t.entries--
	t.text -= int64(len(name))
	n.Nlink--
	if n.Nlink == 0 {
		t.bytes -= n.Content.Size
		t.text -= int64(len(n.Target))
	}
	for name, e := range n.names {
		t.forget(name, e.inode)
	}
}

// dropLower takes away a name as far as earlier layers put it, and what is below,
// there: what this layer has put stays.
func (t *Tree) dropLower(in *Inode, name string) {
	e, ok := in.names[name]
	switch {
	case !ok:
	case !e.inode.IsDir():
		if e.layer != t.layer {
			t.drop(in, name)
		}
	case e.inode.layer != t.layer:
		t.drop(in, name)
	default:
		t.clearLower(e.inode)
	}
}

// clearLower empties a folder of what earlier layers put there.
func (t *Tree) clearLower(dir *Inode) {
	if dir.clear == t.layer {
		return // an archive that says so often costs no more than once
	}
	dir.clear = t.layer
	for name := range dir.names {
		t.dropLower(dir, name)
	}
}
