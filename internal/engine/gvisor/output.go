package gvisor

import (
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/engine"
)

// outputName is the named pipe that PID 1 writes its output to. It has a name so
// that a later process can read on; what is written while nobody reads is lost.
const outputName = "output"

// output is the two ends of the pipe.
type output struct{ read, write *os.File }

// makeOutput makes the pipe; the write end is for the instance.
func makeOutput(spec engine.Spec) (output, error) {
	path := filepath.Join(spec.Dir, outputName)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return output{}, &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	read, err := openOutput(spec)
	if err != nil {
		return output{}, err
	}
	write, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		read.Close()
		return output{}, err
	}
	return output{read, write}, nil
}

// openOutput opens the read end without waiting for a writer.
func openOutput(spec engine.Spec) (*os.File, error) {
	return os.OpenFile(filepath.Join(spec.Dir, outputName), os.O_RDONLY|unix.O_NONBLOCK, 0)
}

// copyOutput copies until every writer or the reader is closed.
func copyOutput(spec engine.Spec, read *os.File) {
	to := spec.Output
	if to == nil {
		to = io.Discard
	}
	io.Copy(to, read)
}
