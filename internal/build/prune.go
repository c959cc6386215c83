package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Kinds of what Prune removes.
const (
	unneededImage   = "image"
	unneededLayers  = "layers"
	unneededUploads = "uploads"
)

const (
	// imageSpared is how long an image stays that nothing refers to: what it was made
	// for may be about to.
	imageSpared = 10 * time.Minute
	// importKept is how long an imported image stays that nobody uses, to be built on.
	importKept   = 30 * 24 * time.Hour
	importPrefix = sandbox.ImportedPrefix
	pruneEvery   = time.Hour
)

// Prune removes what builds made and nothing needs: images that no template, sandbox
// or build has; layers, uploads, records and logs that nobody has used for long, or
// beyond a size. With everything it also removes those kept for later builds, but
// for what was used a moment ago (images 10 minutes, layers and uploads an hour). It
// tells what that was, or with dryRun would be.
func (b *Builds) Prune(ctx context.Context, everything, dryRun bool) ([]sandbox.Unneeded, error) {
	gone, err := b.pruneImages(ctx, everything, dryRun)
	errs := []error{err}
	layers, uploads := b.layersMost, int64(uploadsMost)
	if everything && !b.elsewhere() { // what waits in another process may need them
		layers, uploads = 0, 0
	}
	freed, err := pruneFolder(b.dir(layersDir), kept{bytes: layers, time: layersKept}, nil, dryRun)
	if freed > 0 {
		gone = append(gone, sandbox.Unneeded{Kind: unneededLayers, Name: layersDir, Bytes: freed})
	}
	ups, upsErr := b.pruneUploads(ctx, uploads, dryRun)
	gone, errs = append(gone, ups...), append(errs, err, upsErr)
	if !dryRun {
		errs = append(errs, b.pruneRecords(ctx))
	}
	return gone, errors.Join(errs...)
}

// pruneUploads leaves so many bytes of each key's uploads, and none of a key that was
// deleted; but those that builds want, or used in the last hour.
func (b *Builds) pruneUploads(ctx context.Context, bytes int64, dryRun bool) (gone []sandbox.Unneeded, err error) {
	keys, err := b.config.Store.Keys(ctx)
	if err != nil {
		return nil, err
	}
	owners, err := os.ReadDir(b.dir(uploadsDir))
	errs := []error{err}
	wanted := b.filesWanted()
	for _, owner := range owners {
		dir := filepath.Join(b.dir(uploadsDir), owner.Name())
		keep := kept{bytes: bytes, entries: uploadFiles, time: uploadKept}
		deleted := owner.Name() != machineUploads && !owned(owner.Name(), keys)
		if deleted {
			keep = kept{}
		}
		for _, k := range keys {
			if k.ID == owner.Name() && k.MaxDisk > 0 {
				most, err := b.uploadsOf(ctx, sandbox.QuotaOf(k), k.ID)
				if err != nil {
					return gone, err
				}
				keep.bytes = min(keep.bytes, uploadsKept(most))
			}
		}
		freed, err := pruneFolder(dir, keep, wanted, dryRun)
		errs = append(errs, err)
		if freed > 0 {
			gone = append(gone, sandbox.Unneeded{Kind: unneededUploads, Name: owner.Name(), Bytes: freed})
		}
		if deleted && !dryRun {
			os.Remove(dir) // unless something is in it
		}
	}
	return gone, errors.Join(errs...)
}

// filesWanted are the uploads of builds that run or wait here, by their hashes.
func (b *Builds) filesWanted() map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	wanted := map[string]bool{}
	for _, run := range b.live {
		for _, stage := range run.plan.Stages {
			for _, step := range stage.Steps {
				wanted[step.Files] = true
			}
		}
	}
	return wanted
}

// pruneRecords removes records of old builds, logs without a record, for it was
// pruned or its template deleted, and notes of roots that are gone.
func (b *Builds) pruneRecords(ctx context.Context) error {
	_, err := b.config.Store.PruneBuilds(ctx, time.Now().Add(-logsKept), buildsKept)
	errs := []error{err, b.sweepRecords(ctx)}
	logs, err := filepath.Glob(b.logPath("*"))
	errs = append(errs, err)
	for _, path := range logs {
		_, err := b.config.Store.Build(ctx, strings.TrimSuffix(filepath.Base(path), ".jsonl"))
		if errors.Is(err, store.ErrNotFound) {
			err = os.Remove(path)
		}
		if !errors.Is(err, fs.ErrNotExist) { // another process was faster
			errs = append(errs, err)
		}
	}
	notes, err := os.ReadDir(b.dir(rootsDir))
	errs = append(errs, err)
	for _, note := range notes {
		if !strings.HasPrefix(note.Name(), partialPrefix) && b.rootOf(note.Name()).Image == "" {
			errs = append(errs, os.Remove(filepath.Join(b.dir(rootsDir), note.Name())))
		}
	}
	return errors.Join(errs...)
}

// pruneImages removes files under images/. While other processes build, all are needed.
func (b *Builds) pruneImages(ctx context.Context, everything, dryRun bool) ([]sandbox.Unneeded, error) {
	if b.elsewhere() {
		return nil, nil
	}
	needed, err := b.neededImages(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(b.imagePath(""))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var gone []sandbox.Unneeded
	var errs []error
	var imports int64 // bytes of those that were used later than this one
	for _, image := range unneededImages(entries, needed) {
		name := image.Name()
		bytes := sandbox.DiskBytes(b.imagePath(name))
		if strings.HasPrefix(name, importPrefix) {
			imports += bytes
		}
		if !superfluous(name, image.unused, everything, imports > b.importsMost) {
			continue
		}
		gone = append(gone, sandbox.Unneeded{Kind: unneededImage, Name: name, Bytes: bytes})
		if dryRun {
			continue
		}
		if strings.HasSuffix(name, upperSuffix) {
			errs = append(errs, os.Remove(b.imagePath(name)))
		} else {
			errs = append(errs, b.config.Images.Remove(name))
		}
	}
	return gone, errors.Join(errs...)
}

// unneeded is a file under images/ that nothing refers to.
type unneeded struct {
	fs.FileInfo
	unused time.Duration
}

// unneededImages are those, the one that was used last first.
func unneededImages(entries []fs.DirEntry, needed map[string]bool) (images []unneeded) {
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && isRoot(e.Name()) && !needed[e.Name()] {
			images = append(images, unneeded{info, unusedFor(info)})
		}
	}
	slices.SortFunc(images, func(a, b unneeded) int { return cmp.Compare(a.unused, b.unused) })
	return images
}

// mayImport returns a *StepError when the imported images that no template and no
// sandbox has take so much that one more has to wait until some of them may go.
func (b *Builds) mayImport(ctx context.Context) error {
	if bytes, err := b.importBytes(ctx); err != nil || bytes <= b.importsMost {
		return err
	}
	if _, err := b.pruneImages(ctx, false, false); err != nil {
		return err
	}
	bytes, err := b.importBytes(ctx)
	if err == nil && bytes > 2*b.importsMost {
		err = &StepError{Step: StepBase, Message: fmt.Sprintf("the images that builds brought in lately, and use, take %d MB of the server's disk, which is too much for one more: try again in %.0f minutes", bytes/1e6, imageSpared.Minutes())}
	}
	return err
}

// importBytes is what the imported images take that no template and no sandbox has.
func (b *Builds) importBytes(ctx context.Context) (bytes int64, err error) {
	kept, err := b.keptImages(ctx)
	if err != nil {
		return 0, err
	}
	files, err := filepath.Glob(b.imagePath(importPrefix + "*"))
	for _, path := range files {
		if !kept[filepath.Base(path)] {
			bytes += sandbox.DiskBytes(path)
		}
	}
	return bytes, err
}

func isRoot(name string) bool {
	return strings.HasSuffix(name, ".erofs") || strings.HasSuffix(name, upperSuffix)
}

// superfluous tells whether an image that nothing refers to is to go; some go only in
// need. Recipes' images are what `tombolo template build` makes templates of, so they
// go last.
func superfluous(name string, unused time.Duration, everything, need bool) bool {
	switch {
	case unused < imageSpared:
		return false
	case everything, strings.HasPrefix(name, imagePrefix):
		return true
	}
	return strings.HasPrefix(name, importPrefix) && (need || unused > importKept)
}

// unusedFor is how long a file was not used: its time of access is set by use, for
// its time of change tells one image from another.
func unusedFor(info fs.FileInfo) time.Duration {
	used := info.ModTime()
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		if access := time.Unix(stat.Atim.Unix()); access.After(used) {
			used = access
		}
	}
	return time.Since(used)
}

// neededImages are the files under images/ that templates, sandboxes and builds have.
func (b *Builds) neededImages(ctx context.Context) (map[string]bool, error) {
	b.mu.Lock()
	needed := map[string]bool{}
	for name := range b.inUse {
		needed[name] = true
	}
	b.mu.Unlock()
	kept, err := b.keptImages(ctx)
	maps.Copy(needed, kept)
	return needed, err
}

// keptImages are the files under images/ that templates and sandboxes have.
func (b *Builds) keptImages(ctx context.Context) (map[string]bool, error) {
	needed, err := b.config.Manager.ImagesInUse(ctx)
	if err != nil {
		return nil, err
	}
	templates, err := b.config.Store.Templates(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range templates {
		needed[t.Image], needed[t.Upper] = true, true
	}
	return needed, nil
}

// elsewhere tells whether other processes build.
func (b *Builds) elsewhere() bool {
	for _, id := range b.others() {
		if b.running(id) == nil {
			return true
		}
	}
	return false
}

// use keeps files from being pruned while the build runs.
func (r *build) use(root rootFiles) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	for _, name := range []string{root.Image, root.Upper} {
		if name == "" {
			continue
		}
		r.b.inUse[name]++
		r.used = append(r.used, name)
		path := r.b.imagePath(name)
		if info, err := os.Stat(path); err == nil {
			os.Chtimes(path, time.Now(), info.ModTime())
		}
	}
}

// unuse takes back every use.
func (r *build) unuse() {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	for _, name := range r.used {
		if r.b.inUse[name]--; r.b.inUse[name] == 0 {
			delete(r.b.inUse, name)
		}
	}
}

// KeepPruned prunes now, every hour, and when builds have ended, until Close.
func (b *Builds) KeepPruned() {
	b.work.Go(func() {
		for {
			if _, err := b.Prune(b.ctx, false, false); err != nil && b.ctx.Err() == nil {
				b.config.Log.Error("what builds made and nothing needs was not removed", "error", err)
			}
			select {
			case <-b.ctx.Done():
				return
			case <-b.ended:
			case <-time.After(pruneEvery):
			}
		}
	})
}
