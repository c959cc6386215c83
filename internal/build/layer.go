package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// A layer is the disk of a stage after a step: a folder named by the key of that
// step, which is a hash of everything that shaped it. A later build whose steps
// begin in the same way goes on from there.

// layerKey chains the key before with what a step does.
func layerKey(before string, step any) string {
	text, err := json.Marshal(step)
	if err != nil {
		panic(err) // strings and numbers only
	}
	sum := sha256.Sum256(append([]byte(before+"\n"), text...))
	return hex.EncodeToString(sum[:16])
}

// layer returns the folder of a layer and notes that it was used; empty when there
// is none.
func (b *Builds) layer(key string) string {
	dir := filepath.Join(b.dir(layersDir), key)
	now := time.Now()
	if os.Chtimes(dir, now, now) != nil {
		return ""
	}
	return dir
}

// keepLayer has save write a folder and makes it the layer of a key, in place of
// one that is there.
func (b *Builds) keepLayer(ctx context.Context, key string, save func(ctx context.Context, to string) error) error {
	work, err := os.MkdirTemp(b.dir(layersDir), partialPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	fresh := filepath.Join(work, "disk")
	if err := save(ctx, fresh); err != nil {
		return err
	}
	b.layers.Lock()
	defer b.layers.Unlock()
	dir := filepath.Join(b.dir(layersDir), key)
	if err := os.Rename(dir, filepath.Join(work, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(fresh, dir)
}

// hold makes a folder of the files of a saved disk, which stay as they are until it is
// removed: as links, which take no room. So nobody who keeps or prunes layers waits
// for what is done with one.
func (r *build) hold(saved string) (own string, err error) {
	r.b.layers.RLock() // not half the files of one, and half of that which takes its place
	defer r.b.layers.RUnlock()
	entries, err := os.ReadDir(saved)
	if err != nil {
		return "", err
	}
	if own, err = r.partialFolder(); err != nil {
		return "", err
	}
	for _, e := range entries {
		if err := os.Link(filepath.Join(saved, e.Name()), filepath.Join(own, e.Name())); err != nil {
			return "", errors.Join(err, os.RemoveAll(own))
		}
	}
	return own, nil
}

// layerRoom tells whether one more layer of so many bytes may be kept; those that were
// used longest ago give way.
func (b *Builds) layerRoom(bytes int64) bool {
	dir := b.dir(layersDir)
	if sandbox.DiskBytes(dir)+bytes <= b.layersMost {
		return true
	}
	if _, err := pruneFolder(dir, kept{bytes: max(0, b.layersMost-bytes), time: layersKept}, nil, false); err != nil {
		b.config.Log.Error("layers that nobody needs were not removed", "error", err)
	}
	return sandbox.DiskBytes(dir)+bytes <= 2*b.layersMost
}

// kept is how much of a folder stays: entries that take so many bytes together, so many
// entries (0 is all), those that were used within a time.
type kept struct {
	bytes   int64
	entries int
	time    time.Duration
}

// pruneFolder removes the entries of a folder that were used longest ago until the rest
// is within what is kept; those that were used in the last hour stay, and those of
// the names that are wanted. It tells how many bytes were freed.
func pruneFolder(dir string, keep kept, wanted map[string]bool, dryRun bool) (freed int64, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	type item struct {
		path  string
		used  time.Time
		bytes int64
	}
	var items []item
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // it is gone
		}
		path := filepath.Join(dir, e.Name())
		items = append(items, item{path, info.ModTime(), sandbox.DiskBytes(path)})
		total += items[len(items)-1].bytes
	}
	slices.SortFunc(items, func(a, b item) int { return a.used.Compare(b.used) })
	var errs []error
	left := len(items)
	for _, i := range items {
		age := time.Since(i.used)
		within := total <= keep.bytes && (keep.entries == 0 || left <= keep.entries) && age < keep.time
		if age < usedLately || wanted[filepath.Base(i.path)] || within {
			continue
		}
		if !dryRun {
			errs = append(errs, os.RemoveAll(i.path))
		}
		left--
		total -= i.bytes
		freed += i.bytes
	}
	return freed, errors.Join(errs...)
}

// usedLately keeps from pruning what a build may be using.
const usedLately = time.Hour
