// Package erofs writes root images: EROFS file systems as gVisor reads them, not
// compressed, without extended attributes, every file's content in blocks of its own
// (https://docs.kernel.org/filesystems/erofs.html). The same tree gives the same bytes.
package erofs

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
)

// The format's numbers: fs/erofs/erofs_fs.h of Linux.
const (
	blockBits   = 12
	blockSize   = 1 << blockBits
	superOffset = 1024
	superSize   = 128
	superMagic  = 0xe0f5e1e2
	inodeSize   = 64 // of the extended form, the one that holds times
	slotBits    = 5  // inodes are numbered by 32 bytes
	direntSize  = 12

	featureChecksum = 1 // of the superblock

	layoutPlain  = 0<<1 | 1 // the content in blocks; bit 0: extended
	layoutInline = 2<<1 | 1 // its end, or all of it, right behind the inode
)

// Options are what is in an image besides its tree.
type Options struct {
	UUID [16]byte
	// Time is the image's own, seconds since 1970.
	Time int64
	// Room, if not nil, is called before each part of a file's content is written; its
	// error, for a full disk, ends the writing.
	Room func() error
}

// Write writes the tree into f, which is empty. Times before 1970 become 1970.
func Write(ctx context.Context, f *os.File, tree *rootfs.Tree, o Options) error {
	if err := tree.Flush(); err != nil {
		return err
	}
	w := &writer{inodes: tree.Inodes(), room: o.Room}
	if err := w.lay(); err != nil {
		return err
	}
	out := bufio.NewWriterSize(f, 1<<20)
	if err := w.metadata(out, o); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if err := w.contents(ctx, f); err != nil {
		return err
	}
	return f.Truncate(int64(w.end) << blockBits)
}

// WriteFolder writes what a folder of this machine holds into a new file that
// everyone may read.
func WriteFolder(ctx context.Context, folder, to string) error {
	tree := rootfs.New(nil, rootfs.Limits{})
	if err := tree.AddFolder(ctx, folder); err != nil {
		return err
	}
	return WriteFile(ctx, to, tree, Options{})
}

// WriteFile writes the tree into a new file that everyone may read: the engine's
// processes do, without root's rights.
func WriteFile(ctx context.Context, to string, tree *rootfs.Tree, o Options) error {
	f, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	err = errors.Join(Write(ctx, f, tree, o), f.Chmod(0o644), f.Close())
	if err != nil {
		os.Remove(to)
	}
	return err
}

type writer struct {
	room   func() error // may be nil
	inodes []*rootfs.Inode
	places []place // by inode number
	end    uint64  // blocks of the image
}

// place is where an inode goes. Sizes of folders are of their entries.
type place struct {
	offset uint64 // of the inode, bytes
	size   uint64
	block  uint32 // first of the content
	inline bool
}

// lay gives everything its place: the inodes with what fits behind them, folders
// before what is in them; then the folders' blocks; then those of files.
func (w *writer) lay() error {
	w.places = make([]place, len(w.inodes))
	at := uint64(blockSize)
	for i, n := range w.inodes {
		p := &w.places[i]
		p.size = size(n)
		// What is behind an inode must be in the block with its beginning; the inode
		// itself is kept in one block too.
		need := uint64(inodeSize)
		if tail := p.size % blockSize; !n.IsRegular() && tail > 0 && tail <= blockSize-inodeSize {
			p.inline = true
			need += tail
		}
		if at%blockSize+need > blockSize {
			at = roundUp(at)
		}
		p.offset = at
		at = (at + need + 1<<slotBits - 1) >> slotBits << slotBits
	}
	w.end = roundUp(at) >> blockBits
	for _, files := range []bool{false, true} {
		for i, n := range w.inodes {
			p := &w.places[i]
			blocks := p.blocks()
			if n.IsRegular() != files || blocks == 0 {
				continue
			}
			p.block = uint32(w.end)
			if w.end += blocks; w.end > math.MaxUint32 {
				return &rootfs.LimitError{What: "bytes in an image", Limit: math.MaxUint32 << blockBits}
			}
		}
	}
	return nil
}

// blocks is how many blocks an inode has besides what is behind it.
func (p *place) blocks() uint64 {
	if p.inline {
		return p.size >> blockBits
	}
	return roundUp(p.size) >> blockBits
}

func (p *place) nid() uint64 { return p.offset >> slotBits }

func roundUp(n uint64) uint64 { return (n + blockSize - 1) &^ (blockSize - 1) }

func size(n *rootfs.Inode) uint64 {
	switch {
	case n.IsDir():
		return folderSize(n)
	case n.IsSymlink():
		return uint64(len(n.Target))
	case n.IsRegular():
		return uint64(n.Content.Size)
	default:
		return 0
	}
}

// metadata writes the superblock, the inodes and the folders' blocks.
func (w *writer) metadata(out *bufio.Writer, o Options) error {
	out.Write(w.superBlock(o))
	at := uint64(blockSize)
	var buf []byte
	for i, n := range w.inodes {
		p := &w.places[i]
		pad(out, p.offset-at)
		out.Write(w.inode(n, p))
		at = p.offset + inodeSize
		if p.inline {
			buf = w.content(buf[:0], n)
			tail := buf[p.size&^(blockSize-1):]
			out.Write(tail)
			at += uint64(len(tail))
		}
	}
	pad(out, roundUp(at)-at)
	for i, n := range w.inodes {
		p := &w.places[i]
		blocks := p.blocks()
		if n.IsRegular() || blocks == 0 {
			continue
		}
		buf = w.content(buf[:0], n)
		whole := min(blocks<<blockBits, uint64(len(buf)))
		out.Write(buf[:whole])
		pad(out, blocks<<blockBits-whole)
	}
	return nil // what failed, Flush says again
}

func pad(out *bufio.Writer, n uint64) {
	var zeros [blockSize]byte
	for ; n > 0; n -= min(n, blockSize) {
		out.Write(zeros[:min(n, blockSize)])
	}
}

// content is that of a link or a folder.
func (w *writer) content(buf []byte, n *rootfs.Inode) []byte {
	if n.IsSymlink() {
		return append(buf, n.Target...)
	}
	return w.folder(buf, n)
}

func (w *writer) superBlock(o Options) []byte {
	block := make([]byte, blockSize)
	b := block[superOffset:]
	le := binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	le.PutUint32(b[8:], featureChecksum)
	b[12] = blockBits
	le.PutUint16(b[14:], uint16(w.places[0].nid())) // the root is the first inode
	le.PutUint64(b[16:], uint64(len(w.inodes)))
	le.PutUint64(b[24:], uint64(max(o.Time, 0)))
	le.PutUint32(b[36:], uint32(w.end))
	copy(b[48:64], o.UUID[:])
	// Of the block from here on, begun with all ones and not inverted at the end.
	le.PutUint32(b[4:], ^crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return block
}

func (w *writer) inode(n *rootfs.Inode, p *place) []byte {
	b := make([]byte, inodeSize)
	le := binary.LittleEndian
	le.PutUint16(b[0:], layoutPlain)
	if p.inline {
		le.PutUint16(b[0:], layoutInline)
	}
	le.PutUint16(b[4:], uint16(n.Mode))
	le.PutUint64(b[8:], p.size)
	le.PutUint32(b[16:], p.block)
	if n.Rdev != 0 {
		le.PutUint32(b[16:], n.Rdev)
	}
	le.PutUint32(b[20:], n.Number+1)
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], uint64(max(n.Sec, 0)))
	le.PutUint32(b[40:], n.Nsec)
	le.PutUint32(b[44:], links(n))
	return b
}

func links(n *rootfs.Inode) uint32 {
	if !n.IsDir() {
		return n.Nlink
	}
	count := uint32(2)
	for _, name := range n.Names() {
		if n.Child(name).IsDir() {
			count++
		}
	}
	return count
}

// fileTypes are those of directory entries, by the type in the mode.
var fileTypes = map[uint32]byte{
	unix.S_IFREG: 1, unix.S_IFDIR: 2, unix.S_IFCHR: 3, unix.S_IFBLK: 4, unix.S_IFIFO: 5, unix.S_IFSOCK: 6, unix.S_IFLNK: 7,
}

// folderSize is the bytes of a folder's entries: whole blocks, but for the last.
func folderSize(n *rootfs.Inode) uint64 {
	var whole, used uint64
	for _, name := range entryNames(n) {
		if used+direntSize+uint64(len(name)) > blockSize {
			whole, used = whole+blockSize, 0
		}
		used += direntSize + uint64(len(name))
	}
	return whole + used
}

// entryNames are the names in a folder with the two that each has, in order.
func entryNames(n *rootfs.Inode) []string {
	names := append(make([]string, 0, n.Len()+2), n.Names()...)
	for _, own := range []string{".", ".."} {
		at := 0
		for at < len(names) && names[at] < own {
			at++
		}
		names = append(names, "")
		copy(names[at+1:], names[at:])
		names[at] = own
	}
	return names
}

// folder appends the blocks of a folder: entries, then their names, in each.
func (w *writer) folder(buf []byte, n *rootfs.Inode) []byte {
	names := entryNames(n)
	for len(names) > 0 {
		for len(buf)%blockSize != 0 {
			buf = append(buf, 0)
		}
		count, used := 0, 0
		for count < len(names) && used+direntSize+len(names[count]) <= blockSize {
			used += direntSize + len(names[count])
			count++
		}
		at := count * direntSize
		for _, name := range names[:count] {
			child := n
			switch name {
			case ".":
			case "..":
				child = n.Parent()
			default:
				child = n.Child(name)
			}
			var d [direntSize]byte
			binary.LittleEndian.PutUint64(d[0:], w.places[child.Number].nid())
			binary.LittleEndian.PutUint16(d[8:], uint16(at))
			d[10] = fileTypes[child.Mode&unix.S_IFMT]
			buf = append(buf, d[:]...)
			at += len(name)
		}
		for _, name := range names[:count] {
			buf = append(buf, name...)
		}
		names = names[count:]
	}
	return buf
}

// contents copies what is in files to its blocks.
func (w *writer) contents(ctx context.Context, to *os.File) error {
	var run span
	for i, n := range w.inodes {
		if !n.IsRegular() || n.Content.Size == 0 {
			continue
		}
		next := span{n.Content.Source, n.Content.Offset, int64(w.places[i].block) << blockBits, n.Content.Size}
		if run.join(next) {
			continue
		}
		if err := run.copy(ctx, to, w.room); err != nil {
			return err
		}
		run = next
	}
	return run.copy(ctx, to, w.room)
}

// span is a part of a source and where it goes, bytes.
type span struct {
	source   *rootfs.Source
	from, to int64
	size     int64
}

// maxSpan keeps a copy, which nothing interrupts, to seconds.
const maxSpan = 256 << 20

// join makes the span longer by one that follows it at both ends, as contents do
// that were in one image or one layer in this order: one copy for a thousand files.
// What is between them is a block's rest, zeros at the source as here.
func (s *span) join(next span) bool {
	whole := int64(roundUp(uint64(s.size)))
	if s.source != next.source || next.from-s.from != whole || next.to-s.to != whole || s.size > maxSpan {
		return false
	}
	s.size = whole + next.size
	return true
}

func (s *span) copy(ctx context.Context, to *os.File, room func() error) error {
	if s.size == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	f, done, err := s.source.Open()
	if err != nil {
		return err
	}
	defer done()
	for at := int64(0); at < s.size; {
		from, size := at, s.size-at
		if s.source.Sparse() {
			if from, size, err = data(f, s.from+at, s.from+s.size); err != nil {
				return err
			}
			from -= s.from
		}
		if err := copyRange(ctx, f, s.from+from, to, s.to+from, size, room); err != nil {
			return fmt.Errorf("copy %d bytes of %s at %d: %w", size, f.Name(), s.from+from, err)
		}
		at = from + size
	}
	return nil
}

// data finds the first part of a file from on that is not a hole, up to end.
func data(f *os.File, from, end int64) (at, size int64, err error) {
	at, err = unix.Seek(int(f.Fd()), from, unix.SEEK_DATA)
	if err == unix.ENXIO || err == nil && at >= end {
		return end, 0, nil // holes to the end
	}
	if err != nil {
		return 0, 0, fmt.Errorf("look for holes in %s: %w", f.Name(), err)
	}
	hole, err := unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, fmt.Errorf("look for holes in %s: %w", f.Name(), err)
	}
	return at, min(hole, end) - at, nil
}

// copyRange copies within the kernel, which shares the blocks where the file system
// can, and else through a buffer.
func copyRange(ctx context.Context, from *os.File, at int64, to *os.File, toAt, size int64, room func() error) error {
	for size > 0 {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if room != nil {
			if err := room(); err != nil {
				return err
			}
		}
		part := min(size, maxSpan)
		n, err := unix.CopyFileRange(int(from.Fd()), &at, int(to.Fd()), &toAt, int(part), 0)
		switch {
		case err == unix.EINTR:
		case err == unix.EXDEV || err == unix.ENOSYS || err == unix.EINVAL || err == unix.EOPNOTSUPP:
			if err := copyBytes(from, at, to, toAt, part); err != nil {
				return err
			}
			at, toAt, n = at+part, toAt+part, int(part)
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("it has become shorter")
		}
		size -= int64(max(n, 0))
	}
	return nil
}

func copyBytes(from *os.File, at int64, to *os.File, toAt, size int64) error {
	buf := make([]byte, min(size, 1<<20))
	for size > 0 {
		part := buf[:min(size, int64(len(buf)))]
		if _, err := from.ReadAt(part, at); err != nil {
			return err
		}
		if _, err := to.WriteAt(part, toAt); err != nil {
			return err
		}
		at, toAt, size = at+int64(len(part)), toAt+int64(len(part)), size-int64(len(part))
	}
	return nil
}
