package gvisor

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	fspb "gvisor.dev/gvisor/pkg/sentry/fscheckpoint/fscheckpoint_proto_go_proto"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
)

// WriteDisk has the engine save the disk and makes the archive of that here. gVisor
// has a command for it (runsc tar rootfs-upper), which takes each file into the
// sentry's memory as a whole: one that is larger than the sandbox's memory ends the
// sandbox.
func (i *instance) WriteDisk(ctx context.Context, to string) error {
	saved := to + ".saved"
	defer os.RemoveAll(saved)
	if err := i.CheckpointDisk(ctx, saved); err != nil {
		return fmt.Errorf("write the disk of %s: %w", i.spec.ID, err)
	}
	if err := i.engine.ArchiveDisk(ctx, saved, to); err != nil {
		return fmt.Errorf("write the disk of %s: %w", i.spec.ID, err)
	}
	return nil
}

// ArchiveDisk makes an archive of a saved disk, one at a time.
func (e *Engine) ArchiveDisk(ctx context.Context, saved, to string) error {
	select { // each may take as much memory as the list of its pages
	case e.archiving <- struct{}{}:
		defer func() { <-e.archiving }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := archiveDisk(ctx, saved, to)
	if err != nil {
		os.Remove(to)
	}
	return err
}

// maxDiskMetadata bounds what is read into memory of a saved disk, bytes: the list of
// its pages, some twelve for each part that was written.
const maxDiskMetadata = 256 << 20

// archiveDisk writes a saved disk (gVisor's pkg/sentry/fscheckpoint) as an archive.
// Holes of its files become holes of the archive.
func archiveDisk(ctx context.Context, saved, to string) error {
	disk, err := openDisk(saved)
	if err != nil {
		return err
	}
	defer disk.close()
	f, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	out := &holes{file: f}
	err = disk.archive(ctx, out)
	return errors.Join(err, f.Truncate(out.at), f.Close())
}

// disk is a saved one.
type disk struct {
	tree    io.Reader // the archive of names, in which a file's content is a list of pieces
	pieces  []committed
	pages   *os.File
	written uint64     // bytes of files, holes included
	open    []*os.File // that close closes
}

func (d *disk) close() {
	for _, f := range d.open {
		f.Close()
	}
}

// committed is a part of the memory that files are in, and where pages has it. The
// rest is zeros.
type committed struct{ start, end, at uint64 }

func openDisk(dir string) (_ *disk, err error) {
	d := &disk{}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	file := func(name string) (*os.File, error) {
		f, err := os.Open(filepath.Join(dir, name))
		if err == nil {
			d.open = append(d.open, f)
		}
		return f, err
	}
	text, err := os.ReadFile(filepath.Join(dir, checkpointfiles.FSCheckpointManifestFileName))
	if err != nil {
		return nil, err
	}
	var manifest fspb.Manifest
	if err := proto.Unmarshal(text, &manifest); err != nil {
		return nil, fmt.Errorf("read the manifest of the saved disk: %w", err)
	}
	if len(manifest.MemoryFiles) != 1 || len(manifest.Tmpfs) != 1 || manifest.Endian != "little" {
		return nil, fmt.Errorf("%d file systems are saved in another way than of one root", len(manifest.Tmpfs))
	}
	names, err := file(checkpointfiles.FSCheckpointMultiTarFileName)
	if err != nil {
		return nil, err
	}
	tree, err := part(names, manifest.Tmpfs[0].TarStart, manifest.Tmpfs[0].TarEnd)
	if err != nil {
		return nil, err
	}
	d.tree = bufio.NewReaderSize(tree, 1<<20)
	memory := manifest.MemoryFiles[0]
	list, err := file(checkpointfiles.PagesMetadataFileName)
	if err != nil {
		return nil, err
	}
	if d.pieces, err = readPieces(list, memory.PagesMetadataStart, memory.PagesMetadataEnd, memory.PagesStart); err != nil {
		return nil, err
	}
	d.pages, err = file(checkpointfiles.PagesFileName)
	return d, err
}

// part is a part of a file.
func part(f *os.File, from, to uint64) (*io.SectionReader, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if from > to || to > uint64(info.Size()) {
		return nil, errors.New("the saved disk is shorter than its manifest says")
	}
	return io.NewSectionReader(f, int64(from), int64(to-from)), nil
}

// readPieces reads from a part of the list which parts of the memory are saved: those
// known to be in use, one after the other from at on.
func readPieces(list *os.File, from, to, at uint64) ([]committed, error) {
	in, err := part(list, from, to)
	if err != nil {
		return nil, err
	}
	if in.Size() > maxDiskMetadata {
		return nil, fmt.Errorf("the list of the saved disk's pages has %d bytes; %d are allowed", in.Size(), maxDiskMetadata)
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	if len(text) < 8 {
		return nil, errors.New("the saved disk has no list of its pages")
	}
	length := binary.LittleEndian.Uint64(text)
	if length > uint64(len(text)-8) {
		return nil, errors.New("the list of the saved disk's pages is cut off")
	}
	pieces := piecesReader{at: at}
	if err := fields(text[8:8+length], pieces.field); err != nil {
		return nil, fmt.Errorf("read the list of the saved disk's pages: %w", err)
	}
	if pieces.version != 1 {
		return nil, fmt.Errorf("the list of the saved disk's pages is of version %d; 1 is known", pieces.version)
	}
	return pieces.found, nil
}

// piecesReader reads a pgalloc_metadata.MemoryFileMetadataProto entry by entry: the
// message as a whole takes ten times the memory.
type piecesReader struct {
	version, last, at uint64
	found             []committed
}

func (r *piecesReader) field(number protowire.Number, value uint64, text []byte) error {
	switch number {
	case 1: // version
		r.version = value
	case 3: // mem_acct, a MemAcctRangeProto
		var start, end, known uint64
		err := fields(text, func(number protowire.Number, value uint64, _ []byte) error {
			switch number {
			case 1:
				start = value
			case 2:
				end = value
			case 5: // known_committed
				known = value
			}
			return nil
		})
		if err != nil {
			return err
		}
		if start < r.last || end < start {
			return errors.New("it is not in order")
		}
		r.last = end
		if known == 0 {
			return nil
		}
		if n := len(r.found); n > 0 && r.found[n-1].end == start {
			r.found[n-1].end = end
		} else {
			r.found = append(r.found, committed{start, end, r.at})
		}
		r.at += end - start
	}
	return nil
}

// fields calls fn with the fields of a message of protocol buffers: numbers and
// messages in it, others are passed over.
func fields(text []byte, fn func(number protowire.Number, value uint64, text []byte) error) error {
	for len(text) > 0 {
		number, kind, n := protowire.ConsumeTag(text)
		if n < 0 {
			return protowire.ParseError(n)
		}
		text = text[n:]
		var value uint64
		var inner []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(text)
		case protowire.BytesType:
			inner, n = protowire.ConsumeBytes(text)
		default:
			n = protowire.ConsumeFieldValue(number, kind, text)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		text = text[n:]
		if err := fn(number, value, inner); err != nil {
			return err
		}
	}
	return nil
}

// archive writes all files.
func (d *disk) archive(ctx context.Context, out *holes) error {
	names := tar.NewReader(d.tree)
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		h, err := names.Next()
		if err == io.EOF {
			return tar.NewWriter(out).Close()
		}
		if err != nil {
			return fmt.Errorf("read the names of the saved disk: %w", err)
		}
		if err := d.member(ctx, out, h, names); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

// member writes one member, its header by a writer of its own: that one would want each
// byte of a content, and most of a large one may be a hole.
func (d *disk) member(ctx context.Context, out *holes, h *tar.Header, list io.Reader) error {
	pieces := bufio.NewReaderSize(list, 64<<10)
	size := uint64(0)
	if h.Typeflag == tar.TypeReg {
		// What stands for the content is its size and its pieces: start and end in the
		// file, and the place in memory (fsimpl/tmpfs/fscheckpoint.go).
		var text [8]byte
		if _, err := io.ReadFull(pieces, text[:]); err != nil {
			return fmt.Errorf("read its list of pieces: %w", err)
		}
		size = binary.LittleEndian.Uint64(text[:])
		if size > maxArchive || size > maxArchive-d.written {
			return fmt.Errorf("it has %d bytes, holes included; all files together may have %d", size, uint64(maxArchive))
		}
		d.written += size
		h.Size = int64(size)
	}
	h.Format = tar.FormatUnknown
	if err := tar.NewWriter(out).WriteHeader(h); err != nil {
		return err
	}
	if err := d.content(ctx, out, size, pieces); err != nil {
		return err
	}
	return out.skip((512 - size%512) % 512)
}

// maxArchive bounds the contents of files, bytes, holes included, as a root image does
// (see erofs). What is written of them is bounded by the sandbox's disk.
const maxArchive = 16 << 40

// content writes a file by the list of its pieces.
func (d *disk) content(ctx context.Context, out *holes, size uint64, list io.Reader) error {
	var at uint64
	var text [24]byte
	for {
		_, err := io.ReadFull(list, text[:])
		if err == io.EOF {
			return out.skip(size - at)
		}
		if err != nil {
			return fmt.Errorf("read its list of pieces: %w", err)
		}
		start, end, place := binary.LittleEndian.Uint64(text[:]), binary.LittleEndian.Uint64(text[8:]), binary.LittleEndian.Uint64(text[16:])
		if start < at || end < start {
			return errors.New("its pieces are not in order")
		}
		end = min(end, size) // the last page is a whole one
		if start >= end {
			continue
		}
		if err := out.skip(start - at); err != nil {
			return err
		}
		if err := d.memory(ctx, out, place, place+end-start); err != nil {
			return err
		}
		at = end
	}
}

// memory writes a part of the memory that files are in.
func (d *disk) memory(ctx context.Context, out *holes, from, to uint64) error {
	i, _ := slices.BinarySearchFunc(d.pieces, from, func(p committed, at uint64) int {
		if p.end <= at {
			return -1
		}
		return 1
	})
	for from < to {
		if i == len(d.pieces) || d.pieces[i].start >= to {
			return out.skip(to - from)
		}
		p := d.pieces[i]
		if p.start > from {
			if err := out.skip(p.start - from); err != nil {
				return err
			}
			from = p.start
		}
		end := min(p.end, to)
		if err := d.copy(ctx, out, int64(p.at+from-p.start), int64(end-from)); err != nil {
			return err
		}
		from = end
		i++
	}
	return nil
}

// copyPart is how much is copied at a time, bytes; a zero one becomes a hole.
const copyPart = 64 << 10

var zeroPart [copyPart]byte

func (d *disk) copy(ctx context.Context, w io.Writer, at, size int64) error {
	var buf [copyPart]byte
	for size > 0 {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		part := buf[:min(size, copyPart)]
		if _, err := d.pages.ReadAt(part, at); err != nil {
			return fmt.Errorf("read its content: %w", err)
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
		at, size = at+int64(len(part)), size-int64(len(part))
	}
	return nil
}

// holes writes a file in which long runs of zeros are holes. It must be made as long
// as at in the end.
type holes struct {
	file *os.File
	at   int64
}

func (h *holes) Write(p []byte) (int, error) {
	if len(p) != copyPart || !bytes.Equal(p, zeroPart[:]) {
		if _, err := h.file.WriteAt(p, h.at); err != nil {
			return 0, err
		}
	}
	h.at += int64(len(p))
	return len(p), nil
}

// skip leaves a hole.
func (h *holes) skip(n uint64) error {
	if n > math.MaxInt64-uint64(h.at) {
		return errors.New("the archive would be too long")
	}
	h.at += int64(n)
	return nil
}
