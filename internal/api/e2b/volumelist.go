package e2b

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"syscall"
	"time"
)

// listBatch is how many names are read of a folder at a time.
const listBatch = 1024

// lister lists folders of a volume, which may hold more than memory does.
type lister struct {
	ctx     context.Context
	root    *os.Root
	entries []entryStat
	waiting int // names that were read and are not entries yet
	bytes   int // of paths
}

// list adds what is in a folder, by name, and below it down to a depth. Links are
// listed and not followed.
func (l *lister) list(name string, depth int) error {
	names, err := l.names(name)
	if err != nil {
		return err
	}
	for _, n := range names {
		l.waiting--
		below := path.Join(name, n)
		e, err := statEntry(l.root, below)
		if errors.Is(err, fs.ErrNotExist) { // removed just now
			continue
		}
		if err != nil {
			return err
		}
		if l.bytes += len(e.Path) + len(e.Target); l.bytes > maxVolumeList {
			return invalid("the paths of the entries are more than %d MiB together: list a folder below, or less deep", maxVolumeList>>20)
		}
		l.entries = append(l.entries, e)
		if e.Type != "directory" || depth == 1 {
			continue
		}
		err = l.list(below, depth-1)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return err
		}
	}
	return nil
}

// names are those in a folder, in order.
func (l *lister) names(name string) ([]string, error) {
	f, err := l.root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []string
	for {
		if err := l.ctx.Err(); err != nil {
			return nil, err
		}
		names, err := f.Readdirnames(listBatch)
		all = append(all, names...)
		if l.waiting += len(names); l.waiting+len(l.entries) > maxVolumeEntries {
			return nil, invalid("there are more than %d entries: list a folder below, or less deep", maxVolumeEntries)
		}
		if errors.Is(err, io.EOF) {
			slices.Sort(all)
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// answer writes the entries one by one: as one text they would be several times as
// much. A client that takes nothing for long is given up.
func (l *lister) answer(w http.ResponseWriter) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	defer http.NewResponseController(w).SetWriteDeadline(time.Time{})
	out := bufio.NewWriterSize(patientWriter{w}, 64<<10)
	out.WriteByte('[')
	encoder := json.NewEncoder(out)
	for i := range l.entries {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := encoder.Encode(&l.entries[i]); err != nil {
			return nil // the client has gone
		}
	}
	out.WriteByte(']')
	_ = out.Flush()
	return nil
}
