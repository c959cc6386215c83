package gvisor

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A v2 group made of plain files, for machines that have v1: what the engine
// reads and writes there. make test-cgroup2 runs the engine on real ones.
func unifiedGroup(t *testing.T, files map[string]string) group {
	t.Helper()
	g := group{hierarchy: hierarchy{root: t.TempDir(), unified: true}, path: "/tombolo-test/isandbox"}
	dir := filepath.Join(g.root, g.path)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	return g
}

const mebibyte = 1 << 20

func TestUnifiedStats(t *testing.T) {
	g := unifiedGroup(t, map[string]string{
		"memory.current": "104857600\n",
		"memory.stat":    "anon 1\nshmem 31457280\nactive_file 10485760\ninactive_file 20971520\n",
		"cpu.stat":       "usage_usec 1500000\nuser_usec 1\n",
		"pids.current":   "42\n",
	})
	stats, err := g.stats()
	require.NoError(t, err)
	require.EqualValues(t, 30*mebibyte, stats.MemoryBytes, "what processes inside use is shared memory")
	require.EqualValues(t, 30*mebibyte, stats.CacheBytes)
	require.EqualValues(t, 40*mebibyte, stats.EngineBytes, "the rest is the engine's")
	memory, err := g.memory()
	require.NoError(t, err)
	require.EqualValues(t, 70*mebibyte, memory.inUse(), "page cache is not in use")
	require.Equal(t, 1500*time.Millisecond, stats.CPUTime)
	require.EqualValues(t, 42, stats.Processes)
}

func TestWhatPressesOnMemory(t *testing.T) {
	const limit = 240 * mebibyte
	for _, c := range []struct {
		why                   string
		inside, engine, cache int64 // MiB
		presses               bool
	}{
		{"nearly full, at rest", 231, 32, 0, false},
		{"nearly full, and the engine has its garbage of a restore", 231, 84, 0, false},
		{"nearly full, and its files are being written", 231, 32, 200, false},
		{"the processes inside took what the engine leaves", 304, 30, 0, true},
		{"the same while some page cache is left", 290, 30, 16, true},
		{"the processes inside are above their limit, and there is room", 250, 30, 50, false},
		{"the engine took more than its share for them", 200, 140, 0, true},
	} {
		m := memory{total: (c.inside + c.engine + c.cache) * mebibyte, inside: c.inside * mebibyte, cache: c.cache * mebibyte}
		require.Equal(t, c.presses, m.presses(limit), c.why)
	}
}

func TestUnifiedGroupSlowsBeforeItKills(t *testing.T) {
	g := unifiedGroup(t, map[string]string{"memory.max": "max", "memory.high": "max"})
	for _, room := range []int64{0, reserveMemory} {
		require.NoError(t, g.setRoom(512*mebibyte, room))
		high, err := readInt(g.file("memory", "memory.high"))
		require.NoError(t, err)
		most, err := readInt(g.file("memory", "memory.max"))
		require.NoError(t, err)
		require.EqualValues(t, 512*mebibyte+engineMemory+room, high)
		require.EqualValues(t, high+reserveMemory, most)
	}
}

func TestOOMKillIsSeenInBothVersions(t *testing.T) {
	unified := unifiedGroup(t, map[string]string{"memory.events": "low 0\noom 3\noom_kill 1\n"})
	require.True(t, unified.oomKilled())

	legacy := group{hierarchy: hierarchy{root: t.TempDir()}, path: "/tombolo-test/isandbox"}
	dir := filepath.Join(legacy.root, "memory", legacy.path)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	control := filepath.Join(dir, "memory.oom_control")
	require.NoError(t, os.WriteFile(control, []byte("oom_kill_disable 1\nunder_oom 0\noom_kill 0\n"), 0o644))
	require.False(t, legacy.oomKilled())
	require.NoError(t, os.WriteFile(control, []byte("oom_kill_disable 1\nunder_oom 0\noom_kill 1\n"), 0o644))
	require.True(t, legacy.oomKilled())
}

func TestGroupsOfBothVersionsAreListedAndRemoved(t *testing.T) {
	for _, unified := range []bool{true, false} {
		h := hierarchy{root: t.TempDir(), unified: unified}
		dirs := []string{filepath.Join(h.root, "tombolo-test", "isandbox")}
		if !unified {
			dirs = []string{filepath.Join(h.root, "cpu", "tombolo-test", "isandbox"), filepath.Join(h.root, "memory", "tombolo-test", "isandbox")}
		}
		for _, dir := range dirs {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "below"), 0o755))
		}
		ids, err := h.list("/tombolo-test")
		require.NoError(t, err)
		require.Equal(t, []string{"isandbox"}, ids)
		require.NoError(t, group{h, "/tombolo-test/isandbox"}.remove(t.Context()))
		for _, dir := range dirs {
			require.NoDirExists(t, dir)
		}
	}
}
