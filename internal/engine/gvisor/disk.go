package gvisor

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"
	fspb "gvisor.dev/gvisor/pkg/sentry/fscheckpoint/fscheckpoint_proto_go_proto"
	pgallocpb "gvisor.dev/gvisor/pkg/sentry/pgalloc/pgalloc_metadata_go_proto"
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

// ArchiveDisk makes an archive of a saved disk.
func (e *Engine) ArchiveDisk(ctx context.Context, saved, to string) error {
	err := archiveDisk(ctx, saved, to)
	if err != nil {
		os.Remove(to)
	}
	return err
}

// maxDiskMetadata bounds what is read of a saved disk besides contents, bytes: some
// hundred for each file and for each piece that files are in.
const maxDiskMetadata = 1 << 30

// archiveDisk writes a saved disk (gVisor's pkg/sentry/fscheckpoint) as an archive.
// Holes of its files become holes of the archive.
func archiveDisk(ctx context.Context, saved, to string) error {
	disk, err := openDisk(saved)
	if err != nil {
		return err
	}
	defer disk.pages.Close()
	f, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	out := &holes{file: f}
	err = disk.archive(ctx, tar.NewWriter(out))
	return errors.Join(err, f.Truncate(out.at), f.Close())
}

// disk is a saved one.
type disk struct {
	tree    []byte // the archive of names, in which a file's content is a list of pieces
	pieces  []committed
	pages   *os.File
	written uint64 // bytes of files
}

// committed is a part of the memory that files are in, and where pages has it. The
// rest is zeros.
type committed struct{ start, end, at uint64 }

func openDisk(dir string) (*disk, error) {
	read := func(name string) ([]byte, error) {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err == nil && info.Size() > maxDiskMetadata {
			err = fmt.Errorf("%s has %d bytes; %d are allowed", name, info.Size(), maxDiskMetadata)
		}
		if err != nil {
			return nil, err
		}
		return os.ReadFile(path)
	}
	text, err := read(checkpointfiles.FSCheckpointManifestFileName)
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
	d := &disk{}
	tree, err := read(checkpointfiles.FSCheckpointMultiTarFileName)
	if err != nil {
		return nil, err
	}
	if d.tree, err = part(tree, manifest.Tmpfs[0].TarStart, manifest.Tmpfs[0].TarEnd); err != nil {
		return nil, err
	}
	memory := manifest.MemoryFiles[0]
	text, err = read(checkpointfiles.PagesMetadataFileName)
	if err != nil {
		return nil, err
	}
	if text, err = part(text, memory.PagesMetadataStart, memory.PagesMetadataEnd); err != nil {
		return nil, err
	}
	if d.pieces, err = readPieces(text, memory.PagesStart); err != nil {
		return nil, err
	}
	d.pages, err = os.Open(filepath.Join(dir, checkpointfiles.PagesFileName))
	return d, err
}

func part(text []byte, from, to uint64) ([]byte, error) {
	if from > to || to > uint64(len(text)) {
		return nil, errors.New("the saved disk is shorter than its manifest says")
	}
	return text[from:to], nil
}

// readPieces reads which parts of the memory are saved: those known to be in use, one
// after the other from at on.
func readPieces(text []byte, at uint64) ([]committed, error) {
	if len(text) < 8 {
		return nil, errors.New("the saved disk has no list of its pages")
	}
	length := binary.LittleEndian.Uint64(text)
	if length > uint64(len(text)-8) {
		return nil, errors.New("the list of the saved disk's pages is cut off")
	}
	var memory pgallocpb.MemoryFileMetadataProto
	if err := proto.Unmarshal(text[8:8+length], &memory); err != nil {
		return nil, fmt.Errorf("read the list of the saved disk's pages: %w", err)
	}
	if memory.Version != 1 {
		return nil, fmt.Errorf("the list of the saved disk's pages is of version %d; 1 is known", memory.Version)
	}
	var pieces []committed
	var last uint64
	for _, r := range memory.MemAcct {
		if r.Start < last || r.End < r.Start {
			return nil, errors.New("the list of the saved disk's pages is not in order")
		}
		last = r.End
		if r.KnownCommitted {
			pieces = append(pieces, committed{r.Start, r.End, at})
			at += r.End - r.Start
		}
	}
	return pieces, nil
}

func (d *disk) archive(ctx context.Context, w *tar.Writer) error {
	names := tar.NewReader(bytes.NewReader(d.tree))
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		h, err := names.Next()
		if err == io.EOF {
			return w.Close()
		}
		if err != nil {
			return fmt.Errorf("read the names of the saved disk: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			h.Format = tar.FormatUnknown
			if err := w.WriteHeader(h); err != nil {
				return fmt.Errorf("%s: %w", h.Name, err)
			}
			continue
		}
		if err := d.file(ctx, w, h, names); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

// maxArchive bounds the contents of files, bytes. A file's size costs a sandbox
// nothing as long as it is a hole.
const maxArchive = 128 << 30

// fileTextLimit bounds the list of one file's pieces, bytes; a piece takes 24.
const fileTextLimit = 256 << 20

// file writes a file. What stands for its content is its size and its pieces: start
// and end in the file, and the place in memory (fsimpl/tmpfs/fscheckpoint.go).
func (d *disk) file(ctx context.Context, w *tar.Writer, h *tar.Header, list io.Reader) error {
	if h.Size < 8 || h.Size > fileTextLimit {
		return fmt.Errorf("its list of pieces has %d bytes", h.Size)
	}
	text, err := io.ReadAll(list)
	if err != nil {
		return err
	}
	size := binary.LittleEndian.Uint64(text)
	if d.written += size; size > maxArchive || d.written > maxArchive {
		return fmt.Errorf("it has %d bytes, holes included; all files together may have %d", size, uint64(maxArchive))
	}
	h.Size, h.Format = int64(size), tar.FormatUnknown
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	var at uint64
	for text = text[8:]; len(text) >= 24; text = text[24:] {
		start, end, place := binary.LittleEndian.Uint64(text), binary.LittleEndian.Uint64(text[8:]), binary.LittleEndian.Uint64(text[16:])
		if start < at || end < start {
			return errors.New("its pieces are not in order")
		}
		end = min(end, size) // the last page is a whole one
		if start >= end {
			continue
		}
		if err := writeZeros(ctx, w, start-at); err != nil {
			return err
		}
		if err := d.memory(ctx, w, place, place+end-start); err != nil {
			return err
		}
		at = end
	}
	return writeZeros(ctx, w, size-at)
}

// memory writes a part of the memory that files are in.
func (d *disk) memory(ctx context.Context, w io.Writer, from, to uint64) error {
	i, _ := slices.BinarySearchFunc(d.pieces, from, func(p committed, at uint64) int {
		if p.end <= at {
			return -1
		}
		return 1
	})
	for from < to {
		if i == len(d.pieces) || d.pieces[i].start >= to {
			return writeZeros(ctx, w, to-from)
		}
		p := d.pieces[i]
		if p.start > from {
			if err := writeZeros(ctx, w, p.start-from); err != nil {
				return err
			}
			from = p.start
		}
		end := min(p.end, to)
		if err := d.copy(ctx, w, int64(p.at+from-p.start), int64(end-from)); err != nil {
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

func writeZeros(ctx context.Context, w io.Writer, size uint64) error {
	for size > 0 {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n := min(size, copyPart)
		if _, err := w.Write(zeroPart[:n]); err != nil {
			return err
		}
		size -= n
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
