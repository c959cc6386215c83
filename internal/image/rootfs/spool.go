package rootfs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
)

// Block is the size that contents are aligned to in a spool, as in an image.
const Block = 4096

// Source is a file of this machine with contents of a tree in it.
type Source struct {
	file   *os.File // open as long as the tree is used, or nil
	path   string   // opened for each use, without following a link, where file is nil
	sparse bool     // it has holes worth looking for
}

// Content is where the bytes of a regular file are.
type Content struct {
	Source *Source // nil when Size is 0
	Offset int64
	Size   int64
}

// Open returns the file with the contents and what closes it again.
func (s *Source) Open() (*os.File, func() error, error) {
	if s.file != nil {
		return s.file, func() error { return nil }, nil
	}
	f, err := os.OpenFile(s.path, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return nil, nil, err
	}
	return f, f.Close, nil
}

// Sparse tells that the file has holes worth looking for.
func (s *Source) Sparse() bool { return s.sparse }

// Spool is the file that contents go to which have no place of their own. Long
// runs of zeros become holes, so that they cost no disk.
type Spool struct {
	// Room, if not nil, is called now and then with how many bytes the spool has
	// taken; its error ends what is spooled.
	Room func() error

	source  Source
	end     int64 // of the last content, aligned
	pending []byte
	at      int64 // where pending belongs
	written int64 // since Room was asked
	piece   []byte
}

const (
	spoolBuffer = 1 << 20
	pieceSize   = 64 << 10
	roomEvery   = 64 << 20
)

var zeros [pieceSize]byte

// NewSpool spools into f, which is empty and stays the caller's.
func NewSpool(f *os.File) *Spool {
	return &Spool{
		source:  Source{file: f, path: f.Name()},
		pending: make([]byte, 0, spoolBuffer),
		piece:   make([]byte, pieceSize),
	}
}

// add spools size bytes of r.
func (s *Spool) add(ctx context.Context, r io.Reader, size int64) (Content, error) {
	if size == 0 {
		return Content{}, nil
	}
	c := Content{Source: &s.source, Offset: s.end, Size: size}
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return Content{}, context.Cause(ctx)
		}
		piece := s.piece[:min(pieceSize, size-at)]
		if _, err := io.ReadFull(r, piece); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return Content{}, err
		}
		if err := s.put(c.Offset+at, piece); err != nil {
			return Content{}, err
		}
		at += int64(len(piece))
	}
	s.end = (c.Offset + size + Block - 1) / Block * Block
	return c, nil
}

// put writes a piece through the buffer, unless it is all zeros.
func (s *Spool) put(at int64, piece []byte) error {
	if len(piece) >= Block && bytes.Equal(piece, zeros[:len(piece)]) {
		s.source.sparse = true
		return nil
	}
	gap := at - (s.at + int64(len(s.pending)))
	if gap < 0 || gap >= Block || len(s.pending)+int(gap)+len(piece) > cap(s.pending) {
		if err := s.write(); err != nil {
			return err
		}
		s.at, gap = at, 0
	}
	s.pending = append(append(s.pending, zeros[:gap]...), piece...)
	return nil
}

func (s *Spool) write() error {
	if len(s.pending) == 0 {
		return nil
	}
	if _, err := s.source.file.WriteAt(s.pending, s.at); err != nil {
		return fmt.Errorf("keep what was unpacked: %w", err)
	}
	s.written += int64(len(s.pending))
	s.pending = s.pending[:0]
	if s.written < roomEvery || s.Room == nil {
		return nil
	}
	s.written = 0
	return s.Room()
}

// flush writes what is in the buffer, and makes the file as long as its contents.
func (s *Spool) flush() error {
	if s == nil {
		return nil
	}
	if err := s.write(); err != nil {
		return err
	}
	return s.source.file.Truncate(s.end)
}
