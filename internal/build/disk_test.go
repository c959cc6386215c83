package build

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// newShop makes builds that run their steps, and the key "ci" with limits.
func newShop(t *testing.T, limits store.Key) (*sandboxtest.World, *Builds) {
	w := sandboxtest.New(t)
	limits.ID, limits.Name, limits.CreatedAt = "ci", "ci", time.Now()
	require.NoError(t, w.Store.AddKey(t.Context(), limits))
	b, err := New(t.Context(), Config{
		DataDir: w.Dir, Manager: w.Manager, Store: w.Store, Log: slog.New(slog.DiscardHandler),
		Images: image.Builder{Dir: filepath.Join(w.Dir, "images")},
	})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	return w, b
}

// made runs a build of the key "ci" to its end.
func made(t *testing.T, b *Builds, alias string, plan Plan) store.Build {
	t.Helper()
	r, err := b.Request(t.Context(), Request{KeyID: "ci", Alias: alias, CPUs: 1, MemoryBytes: 256 << 20, DiskBytes: MinDisk})
	require.NoError(t, err)
	require.NoError(t, b.Start(t.Context(), r.ID, plan))
	ended, err := b.Wait(t.Context(), r.ID)
	require.NoError(t, err)
	return ended
}

// probe is a step that runs a command of the probe, as root.
func probe(args ...string) Step {
	return Step{Kind: Run, Argv: append([]string{"/bin/probe"}, args...), Text: "RUN " + args[0], User: "root"}
}

// manyStages are n stages that each write a file /i with their number, and a last one
// that copies them.
func manyStages(n int) Plan {
	var plan Plan
	last := Stage{From: From{Template: sandboxtest.Cold}}
	for i := 1; i <= n; i++ {
		name := fmt.Sprintf("/%d", i)
		plan.Stages = append(plan.Stages, Stage{From: From{Template: sandboxtest.Cold}, Steps: []Step{probe("write", name, name)}})
		last.Steps = append(last.Steps, Step{Kind: Copy, From: &From{Stage: i}, Sources: []string{name}, Path: name, Text: "COPY " + name})
	}
	plan.Stages = append(plan.Stages, last)
	return plan
}

func TestStagesThatRestAreTheBuildsOwnWhereLayersHaveNoRoom(t *testing.T) {
	for _, tt := range []struct {
		name   string
		room   int64
		layers int // that are left
	}{
		{"room", layersBytes, 2 * (workshopsMost + 2)},
		{"no room", 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, b := newShop(t, store.Key{})
			b.layersMost = tt.room
			ended := made(t, b, "stages", manyStages(workshopsMost+2))
			require.Equal(t, store.BuildReady, ended.State, ended.Reason)
			layers, err := os.ReadDir(b.dir(layersDir))
			require.NoError(t, err)
			require.Len(t, layers, tt.layers)
			left, err := filepath.Glob(filepath.Join(b.dir(logsDir), partialPrefix+"*"))
			require.NoError(t, err)
			require.Empty(t, left)
			info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{KeyID: "ci", Template: "stages", Timeout: time.Minute})
			require.NoError(t, err)
			for i := 1; i <= workshopsMost+2; i++ {
				name := fmt.Sprintf("/%d", i)
				require.Equal(t, name, w.Run(t, info, "cat", name))
			}
		})
	}
}

func TestTheStagesOfABuildShareWhatItMayWrite(t *testing.T) {
	for _, tt := range []struct {
		name string
		room int64 // of layers
	}{
		{"layers", layersBytes},
		{"no layers", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, b := newShop(t, store.Key{MaxDisk: MinDisk})
			b.layersMost = tt.room
			plan := manyStages(3)
			plan.Stages[1].Steps = []Step{probe("fill", "/2")}
			for range 2 { // the second time with the layers of the first
				ended := made(t, b, "large", plan)
				require.Equal(t, store.BuildError, ended.State)
				require.Equal(t, "the steps write more than 268 MB, in all stages together", ended.Reason)
			}
		})
	}
}

// onDisk makes a file that takes room and was used last some time ago.
func onDisk(t *testing.T, path string, bytes int, ago time.Duration) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, make([]byte, bytes), 0o600))
	used := time.Now().Add(-ago)
	require.NoError(t, os.Chtimes(path, used, used))
}

func TestImportedImagesHaveASizeTogether(t *testing.T) {
	w, b := newShop(t, store.Key{})
	b.importsMost = 200 << 10
	record := sandboxtest.Template("has")
	record.ID, record.BuildID, record.Image = "has", "has", "oci-had.erofs"
	_, _, err := w.Store.PutTemplate(t.Context(), record)
	require.NoError(t, err)
	stays := map[string]bool{}
	for _, tt := range []struct {
		name  string
		ago   time.Duration
		stays bool
		why   string
	}{
		{"oci-had.erofs", 60 * 24 * time.Hour, true, "a template has it, so it does not count"},
		{"oci-now.erofs", time.Minute, true, "a build may be about to use it; it counts"},
		{"oci-lately.erofs", 20 * time.Minute, true, "of the rest it was used last"},
		{"oci-hour.erofs", time.Hour, false, "with the two before it is too much"},
		{"oci-day.erofs", 24 * time.Hour, false, "and so is what is older"},
		{"base-recipe.erofs", 24 * time.Hour, true, "a recipe's image was not imported"},
	} {
		onDisk(t, b.imagePath(tt.name), 100<<10, tt.ago)
		stays[tt.name] = tt.stays
	}
	gone, err := b.Prune(t.Context(), false, true)
	require.NoError(t, err)
	require.Len(t, gone, 2, "it is told before")
	_, err = b.Prune(t.Context(), false, false)
	require.NoError(t, err)
	for name, stays := range stays {
		_, err := os.Stat(b.imagePath(name))
		require.Equal(t, stays, err == nil, name)
	}
}

// layoutOf is a folder with an image whose one layer has a file of so many bytes.
func layoutOf(t *testing.T, size int64) string {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		from, to := io.Pipe()
		go func() {
			w := tar.NewWriter(to)
			err := w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: size, Typeflag: tar.TypeReg})
			for left := size; err == nil && left > 0; left -= 1 << 20 {
				_, err = w.Write(bytes.Repeat([]byte{1}, int(min(left, 1<<20))))
			}
			to.CloseWithError(errors.Join(err, w.Close()))
		}()
		return from, nil
	})
	require.NoError(t, err)
	made, err := mutate.AppendLayers(empty.Image, layer)
	require.NoError(t, err)
	config, err := made.ConfigFile()
	require.NoError(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	made, err = mutate.ConfigFile(made, config)
	require.NoError(t, err)
	dir := t.TempDir()
	index, err := layout.Write(dir, empty.Index)
	require.NoError(t, err)
	require.NoError(t, index.AppendImage(made))
	return dir
}

func planOfImage(path string) Plan { return Plan{Stages: []Stage{{From: From{Archive: path}}}} }

func TestNothingIsImportedWhereImportsTakeTooMuch(t *testing.T) {
	_, b := newShop(t, store.Key{})
	plan := planOfImage(layoutOf(t, 1<<10))
	lately := b.imagePath("oci-lately.erofs")
	onDisk(t, lately, 100<<10, time.Minute)
	b.importsMost = 40 << 10
	ended := made(t, b, "refused", plan)
	require.Equal(t, store.BuildError, ended.State)
	require.Contains(t, ended.Reason, "the images that builds brought in lately, and use, take")
	require.Equal(t, StepBase, ended.Step)
	files, err := filepath.Glob(b.imagePath(importPrefix + "*"))
	require.NoError(t, err)
	require.Equal(t, []string{lately}, files)

	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(lately, long, long))
	ended = made(t, b, "taken", plan)
	require.Equal(t, store.BuildReady, ended.State, ended.Reason)
	require.NoFileExists(t, lately, "it gave way")

	onDisk(t, lately, 100<<10, time.Minute)
	ended = made(t, b, "again", plan)
	require.Equal(t, store.BuildReady, ended.State, "what is there takes nothing more: %s", ended.Reason)
}

func TestAnImportIsNoLargerThanItsKeyMayHave(t *testing.T) {
	_, b := newShop(t, store.Key{MaxDisk: MinDisk})
	ended := made(t, b, "large", planOfImage(layoutOf(t, MinDisk+1)))
	require.Equal(t, store.BuildError, ended.State)
	require.Contains(t, ended.Reason, "more than 268435456 bytes of files, which is the key's --max-disk")
}

func TestWhatAKeyKeepsOnTheDiskIsBounded(t *testing.T) {
	w, b := newShop(t, store.Key{MaxDisk: 1 << 30})
	limit := func(bytes int64) sandbox.Quota {
		k, err := w.Store.UpdateKey(t.Context(), "ci", func(k *store.Key) error { k.MaxDisk = bytes; return nil })
		require.NoError(t, err)
		return sandbox.QuotaOf(k)
	}
	plan := planOfImage(layoutOf(t, 300<<20))
	require.Equal(t, store.BuildReady, made(t, b, "web", plan).State)
	templates, err := w.Store.Templates(t.Context())
	require.NoError(t, err)
	has := sandbox.KeptBytes(w.Dir, "ci", templates)
	require.Greater(t, has, int64(300<<20))

	limit(has + 1<<20)
	plan.Stages[0].Steps = []Step{{Kind: Env, Vars: []Var{{Name: "A", Value: "1"}}, Text: "ENV A"}}
	ended := made(t, b, "other", plan)
	require.Equal(t, store.BuildError, ended.State, "its snapshot has no room")
	require.Equal(t, StepFinalize, ended.Step)
	require.Contains(t, ended.Reason, "of disk in templates, snapshots and uploads")
	require.Contains(t, ended.Reason, "--max-disk")
	_, err = w.Store.Template(t.Context(), "other")
	require.ErrorIs(t, err, store.ErrNotFound)
	ended = made(t, b, "web", plan)
	require.Equal(t, store.BuildReady, ended.State, "it takes the place of the one before: %s", ended.Reason)

	hash := strings.Repeat("ab", 32)
	var full *sandbox.LimitError
	require.ErrorAs(t, b.Upload(t.Context(), "ci", hash, strings.NewReader(strings.Repeat("x", 2<<20))), &full)
	require.Equal(t, "max-disk", full.Flag)
	require.False(t, b.HasUpload("ci", hash))
	require.NoError(t, b.Upload(t.Context(), "ci", hash, strings.NewReader("x")))

	q := limit(MinDisk)
	_, err = b.Request(t.Context(), Request{KeyID: "ci", Alias: "third", Quota: q, DiskBytes: MinDisk})
	require.ErrorAs(t, err, &full, "nothing of it could be kept")
	_, err = b.Request(t.Context(), Request{KeyID: "ci", Alias: "web", Quota: q, DiskBytes: MinDisk})
	require.NoError(t, err, "it may become smaller")
}
