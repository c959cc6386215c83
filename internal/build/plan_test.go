package build

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

func TestPlansAreChecked(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	from := From{Template: "base"}
	one := func(step Step) Plan { return Plan{Stages: []Stage{{From: from, Steps: []Step{step}}}} }
	require.NoError(t, one(Step{Kind: Run, Argv: []string{"true"}}).check())
	require.NoError(t, one(Step{Kind: Copy, Path: "/", Sources: []string{"a"}, Files: hash}).check())
	many := Plan{Stages: []Stage{{From: from}}}
	for i := range outsideMost {
		source := From{Image: fmt.Sprint("image", i)}
		copied := Step{Kind: Copy, Path: "/", Sources: []string{"/a"}, From: &source}
		many.Stages[0].Steps = append(many.Stages[0].Steps, copied, copied)
	}
	large := Step{Kind: Run, Argv: []string{strings.Repeat("x", textBytes)}}
	for name, plan := range map[string]Plan{
		"at most 32 images":     many,
		"larger than 4 MiB":     {Stages: []Stage{{From: from, Steps: slices.Repeat([]Step{large}, 17)}}},
		"1 to":                  {},
		"exactly one":           {Stages: []Stage{{}}},
		"earlier stage":         {Stages: []Stage{{From: From{Stage: 1}}}},
		"no command":            one(Step{Kind: Run}),
		"path is missing":       one(Step{Kind: Workdir}),
		"user is missing":       one(Step{Kind: User}),
		"no variable":           one(Step{Kind: Env}),
		"name of a variable":    one(Step{Kind: Env, Vars: []Var{{Name: "A=B"}}}),
		"nothing to copy":       one(Step{Kind: Copy, Path: "/"}),
		"one of uploaded":       one(Step{Kind: Copy, Path: "/", Sources: []string{"a"}}),
		"64 hex digits":         one(Step{Kind: Copy, Path: "/", Sources: []string{"a"}, Files: "../../etc/passwd"}),
		"no step of the kind":   one(Step{Kind: "DANCE"}),
		"NUL byte in it":        one(Step{Kind: Run, Argv: []string{"echo a\x00b"}}),
		"no NUL byte":           {Stages: []Stage{{From: from}}, StartCmd: "\x00"},
		"may have 127 KiB":      {Stages: []Stage{{From: from}}, ReadyCmd: strings.Repeat("x", commandBytes+1)},
		"longer than":           one(Step{Kind: Run, Argv: []string{strings.Repeat("x", textBytes+1)}}),
		"only an earlier stage": one(Step{Kind: Copy, Path: "/", Sources: []string{"a"}, From: &From{Stage: 2}}),
	} {
		err := plan.check()
		require.ErrorContains(t, err, name)
		require.ErrorAs(t, err, new(*sandbox.InvalidError))
	}
}

func TestALayerIsKnownByAllThatShapedIt(t *testing.T) {
	a := layerKey("", "one")
	require.Equal(t, a, layerKey("", "one"))
	require.NotEqual(t, a, layerKey("", "two"))
	require.NotEqual(t, layerKey(a, "x"), layerKey(layerKey("", "two"), "x"))
}

func TestWhatWasUsedLongestAgoIsPruned(t *testing.T) {
	dir := t.TempDir()
	for name, age := range map[string]time.Duration{"old": 3 * time.Hour, "older": 5 * time.Hour, "now": 0} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(path, "data"), make([]byte, 1<<20), 0o600))
		used := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(path, used, used))
	}
	left := func() (names []string) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	freed, err := pruneFolder(dir, kept{bytes: 5 << 19, time: time.Hour * 24}, nil, true)
	require.NoError(t, err)
	require.Greater(t, freed, int64(1<<20-1))
	require.Len(t, left(), 3, "a dry run removes nothing")
	_, err = pruneFolder(dir, kept{bytes: 5 << 19, time: time.Hour * 24}, nil, false)
	require.NoError(t, err)
	require.Equal(t, []string{"now", "old"}, left())
	_, err = pruneFolder(dir, kept{}, map[string]bool{"old": true}, false)
	require.NoError(t, err)
	require.Equal(t, []string{"now", "old"}, left(), "what a build that waits wants stays")
	_, err = pruneFolder(dir, kept{}, nil, false)
	require.NoError(t, err)
	require.Equal(t, []string{"now"}, left(), "what was just used stays")
}
