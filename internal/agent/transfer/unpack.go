package transfer

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

const (
	gzipMagic  = "\x1f\x8b"
	bzip2Magic = "BZh"
	xzMagic    = "\xfd7zXZ\x00"
	zstdMagic  = "\x28\xb5\x2f\xfd"

	// sniffSize is how much of a file is looked at, bytes. A block of bzip2 may be
	// longer, then nothing of it can be read and it counts as an archive.
	sniffSize = 128 << 10
)

// openArchive returns the tar archive that a file is, by its content, as ADD
// does; nil when it is none.
func openArchive(name string, file *bufio.Reader) (io.Reader, error) {
	head, err := file.Peek(sniffSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %q: %w", name, err)
	}
	switch {
	case bytes.HasPrefix(head, []byte(xzMagic)), bytes.HasPrefix(head, []byte(zstdMagic)):
		return nil, fmt.Errorf("%q is compressed by xz or zstd, which ADD cannot unpack; copy it and unpack it by a RUN step", name)
	case !isTar(head):
		return nil, nil
	}
	return plain(file)
}

// isTar tells whether a file that begins with head is a tar archive.
func isTar(head []byte) bool {
	content, err := plain(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		return false
	}
	block := make([]byte, 512)
	n, _ := io.ReadFull(content, block)
	if n == 0 && bytes.HasPrefix(head, []byte(bzip2Magic)) && len(head) == sniffSize {
		return true
	}
	if n < len(block) {
		return false
	}
	_, err = tar.NewReader(bytes.NewReader(block)).Next()
	return err == nil || errors.Is(err, io.ErrUnexpectedEOF)
}

// plain undoes gzip and bzip2.
func plain(r *bufio.Reader) (io.Reader, error) {
	magic, _ := r.Peek(len(bzip2Magic))
	switch {
	case bytes.HasPrefix(magic, []byte(gzipMagic)):
		return gzip.NewReader(r)
	case bytes.HasPrefix(magic, []byte(bzip2Magic)):
		return bzip2.NewReader(r), nil
	}
	return r, nil
}
