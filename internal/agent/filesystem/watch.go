package filesystem

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
)

const (
	// dirLimit is how many directories one recursive watch may cover.
	dirLimit = 8192
	// scannedLimit bounds the names remembered from scans of new directories.
	scannedLimit = 8192
)

var errTooLarge = fmt.Errorf("there are more than %d directories in it, which is the limit of a recursive watch", dirLimit)

// watch gathers the changes of one directory in its queue. Life: newWatch,
// start, close.
//
// The kernel watches single directories, so a recursive watch adds each new
// directory. What came into it before the kernel looked is found by listing it,
// and what both report is told once.
type watch struct {
	root      string
	recursive bool
	accounts  *account.Database // to describe entries; nil for no description
	log       *slog.Logger
	queue     *queue

	notify *fsnotify.Watcher
	done   chan struct{} // closed when run has ended

	// Of run alone, after start.
	dirs    map[string]struct{} // watched
	scanned map[string]struct{} // told as new by a scan, not yet by the kernel

	closing sync.Once
}

func newWatch(root string, recursive bool, log *slog.Logger) *watch {
	return &watch{
		root: root, recursive: recursive, log: log,
		queue: newQueue(), done: make(chan struct{}),
		dirs: map[string]struct{}{}, scanned: map[string]struct{}{},
	}
}

// start returns when every change from now on is seen.
func (w *watch) start() error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	w.notify = notify
	if err := w.cover(w.root, false); err != nil {
		_ = notify.Close()
		w.notify = nil
		return err
	}
	go w.run()
	return nil
}

// close ends the watch and returns when it has ended.
func (w *watch) close() {
	w.closing.Do(func() {
		if w.notify == nil {
			return
		}
		_ = w.notify.Close()
		<-w.done
	})
}

func (w *watch) run() {
	defer close(w.done)
	for {
		select {
		case event, open := <-w.notify.Events:
			if !open {
				return
			}
			w.handle(event)
		case err, open := <-w.notify.Errors:
			if !open {
				return
			}
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				w.queue.lose()
				continue
			}
			w.log.Warn("watch", "path", w.root, "error", err)
		}
	}
}

// kinds are the types of events in the order in which they happen to a file.
var kinds = []struct {
	op   fsnotify.Op
	kind pb.EventType
}{
	{fsnotify.Create, pb.EventType_EVENT_TYPE_CREATE},
	{fsnotify.Rename, pb.EventType_EVENT_TYPE_RENAME},
	{fsnotify.Chmod, pb.EventType_EVENT_TYPE_CHMOD},
	{fsnotify.Write, pb.EventType_EVENT_TYPE_WRITE},
	{fsnotify.Remove, pb.EventType_EVENT_TYPE_REMOVE},
}

func (w *watch) handle(event fsnotify.Event) {
	path := filepath.Clean(event.Name)
	if path == w.root {
		return // about the directory, not what is in it
	}
	if event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
		delete(w.scanned, path)
		w.uncover(path)
	}
	for _, k := range kinds {
		if !event.Has(k.op) {
			continue
		}
		if k.op == fsnotify.Create {
			w.created(path)
			continue
		}
		w.emit(path, k.kind)
	}
}

func (w *watch) created(path string) {
	if _, told := w.scanned[path]; told {
		delete(w.scanned, path)
	} else {
		w.emit(path, pb.EventType_EVENT_TYPE_CREATE)
	}
	if !w.recursive {
		return
	}
	if _, covered := w.dirs[path]; covered {
		return
	}
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return
	}
	if err := w.cover(path, true); err != nil {
		w.log.Warn("a new directory is not watched", "path", path, "error", err)
		w.queue.lose()
	}
}

// cover watches a directory, and all below it when the watch is recursive. With
// tell it reports what it finds as created. A directory that is gone already is
// no error, but for the root.
func (w *watch) cover(top string, tell bool) error {
	pending := []string{top}
	for len(pending) > 0 {
		dir := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if len(w.dirs) >= dirLimit {
			return errTooLarge
		}
		err := w.notify.Add(dir)
		if err != nil && dir == w.root {
			return err
		}
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		w.dirs[dir] = struct{}{}
		if !w.recursive {
			return nil
		}
		children, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, child := range children {
			path := filepath.Join(dir, child.Name())
			if tell {
				w.tell(path)
			}
			if child.IsDir() {
				pending = append(pending, path)
			}
		}
	}
	return nil
}

func (w *watch) tell(path string) {
	if len(w.scanned) < scannedLimit {
		w.scanned[path] = struct{}{}
	}
	w.emit(path, pb.EventType_EVENT_TYPE_CREATE)
	// What it holds was written before anybody looked.
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
		w.emit(path, pb.EventType_EVENT_TYPE_WRITE)
	}
}

// uncover forgets a directory that is gone or has another name now, and those
// below it, whose events would carry the old name.
func (w *watch) uncover(path string) {
	if _, covered := w.dirs[path]; !covered {
		return
	}
	for dir := range w.dirs {
		if dir == path || strings.HasPrefix(dir, path+"/") {
			_ = w.notify.Remove(dir)
			delete(w.dirs, dir)
		}
	}
	for name := range w.scanned {
		if strings.HasPrefix(name, path+"/") {
			delete(w.scanned, name)
		}
	}
}

func (w *watch) emit(path string, kind pb.EventType) {
	name, err := filepath.Rel(w.root, path)
	if err != nil {
		return
	}
	event := &pb.FilesystemEvent{Name: name, Type: kind}
	if w.accounts != nil {
		if entry, err := Entry(path, w.accounts); err == nil {
			event.Entry = entry
		}
	}
	w.queue.push(event)
}
