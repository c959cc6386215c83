package build

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// rootFiles are the root of a template: names of files under images/.
type rootFiles struct {
	Image string `json:"image"`
	// Upper is what was written over Image, where that is little; see upperMost.
	Upper string `json:"upper,omitempty"`
}

// upperMost is how much may be written over an image for it to stay apart, bytes with
// the holes in files, which the start of a sandbox fills. Apart it shares the image, on
// disk and in memory, with what it was made from; but every sandbox is given a copy when
// it starts, which takes a millisecond a MB.
const upperMost = 16 << 20

// image makes the root of what the stage wrote, or finds the one that an equal
// build has made.
func (s *stage) image(ctx context.Context) (rootFiles, error) {
	r := s.build
	wrote := slices.ContainsFunc(s.tasks, task.writes)
	forced := slices.ContainsFunc(s.tasks, func(t task) bool { return t.forced && t.writes() })
	if !wrote && s.base.SourceSandbox == "" {
		s.sayCached(s.tasks)
		return rootFiles{s.base.Image, s.base.Upper}, nil
	}
	if found := r.b.rootOf(s.key); found.Image != "" && !forced {
		s.sayCached(s.tasks)
		r.use(found)
		return found, nil
	}
	if next, layer := s.cached(); next == len(s.tasks) && layer != "" {
		s.sayCached(s.tasks)
		s.saved = layer
	} else if err := s.reach(ctx); err != nil {
		return rootFiles{}, err
	}
	r.log.say(LevelInfo, StepFinalize, "[finalize] writing the image")
	made, err := s.commit(ctx)
	if err != nil {
		return rootFiles{}, err
	}
	r.use(made)
	if err := r.b.noteRoot(s.key, made); err != nil { // the next equal build makes it again
		r.b.config.Log.Warn("the root of a build was not noted", "build", r.record.ID, "error", err)
	}
	return made, nil
}

// commit writes the root of what the stage wrote.
func (s *stage) commit(ctx context.Context) (rootFiles, error) {
	r := s.build
	folder, err := r.partialFolder()
	if err != nil {
		return rootFiles{}, err
	}
	defer os.RemoveAll(folder)
	upper := filepath.Join(folder, "upper")
	if err := s.archiveDisk(ctx, upper); err != nil {
		return rootFiles{}, err
	}
	if err := s.close(ctx); err != nil {
		return rootFiles{}, err
	}
	name := imagePrefix + strings.ReplaceAll(r.record.ID, "-", "")
	info, err := os.Stat(upper)
	if err != nil {
		return rootFiles{}, err
	}
	if info.Size() <= upperMost && s.base.SourceSandbox == "" {
		made := rootFiles{s.base.Image, name + upperSuffix}
		return made, os.Rename(upper, r.b.imagePath(made.Upper))
	}
	image, err := r.b.config.Images.Commit(ctx, s.base.Image, upper, name)
	if err != nil {
		return rootFiles{}, &StepError{Step: StepFinalize, Message: "the image could not be written: " + firstLine(err.Error()), Err: err}
	}
	return rootFiles{Image: filepath.Base(image.Path)}, nil
}

// archiveDisk writes what the stage wrote as an archive, from its layer where there
// is one of the last task.
func (s *stage) archiveDisk(ctx context.Context, to string) error {
	b := s.build.b
	written := sandbox.DiskBytes(s.saved)
	if s.saved == "" {
		stats, err := s.shop.Stats(ctx)
		if err != nil {
			return err
		}
		written = stats.DiskBytes
	}
	need := written
	if s.saved == "" {
		need *= 2 // the disk is saved first, and the archive made beside it
	}
	if err := b.roomFor(need); err != nil {
		return &StepError{Step: StepFinalize, Message: err.Error(), Err: err}
	}
	write := func(ctx context.Context, to string) error { return s.shop.WriteDisk(ctx, to) }
	if s.saved != "" {
		saved, err := s.build.hold(s.saved)
		if err != nil {
			return &StepError{Step: StepFinalize, Message: "the disk of the build is gone: " + firstLine(err.Error()), Err: err}
		}
		defer os.RemoveAll(saved)
		write = func(ctx context.Context, to string) error { return b.config.Manager.ArchiveDisk(ctx, saved, to) }
	}
	if err := write(ctx, to); err != nil {
		return &StepError{Step: StepFinalize, Message: "the disk of the build could not be read: " + firstLine(err.Error()), Err: err}
	}
	return nil
}

// rootOf returns the root that was made of a stage with this key; empty when there
// is none any more.
func (b *Builds) rootOf(key string) (found rootFiles) {
	text, err := os.ReadFile(filepath.Join(b.dir(rootsDir), key))
	if err != nil || json.Unmarshal(text, &found) != nil {
		return rootFiles{}
	}
	for _, name := range []string{found.Image, found.Upper} {
		if _, err := os.Stat(b.imagePath(name)); err != nil {
			return rootFiles{}
		}
	}
	return found
}

// noteRoot notes the root of a key.
func (b *Builds) noteRoot(key string, made rootFiles) error {
	text, err := json.Marshal(made)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(b.dir(rootsDir), partialPrefix) // an equal build may write it, too
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), filepath.Join(b.dir(rootsDir), key))
	}
	if err != nil {
		os.Remove(file.Name())
	}
	return err
}
