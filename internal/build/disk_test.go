package build

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

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
