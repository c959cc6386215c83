package cli

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyLimits(t *testing.T) {
	dir := t.TempDir()
	type limits struct {
		Name            string
		MaxSandboxes    int
		MaxTimeoutNanos int64
		MaxCreateRate   float64
		MaxCPUs         int
		MaxMemoryBytes  int64
		MaxDiskBytes    int64
		MaxSnapshots    int
	}
	list := func() (keys []limits) {
		got := tombolo(t, dir, "", "key", "list", "--json")
		require.Zero(t, got.code, got.stderr)
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &keys))
		return keys
	}
	run := func(args ...string) string {
		got := tombolo(t, dir, "", append([]string{"key"}, args...)...)
		require.Zero(t, got.code, got.stderr)
		return got.stdout
	}

	run("create", "plain")
	run("create", "bound", "--max-sandboxes", "7", "--max-timeout", "1h", "--max-create-rate", "0.5", "--max-cpus", "8",
		"--max-memory", "16GiB", "--max-disk", "1TiB", "--max-snapshots", "3")
	want := limits{"bound", 7, 3600e9, 0.5, 8, 16 << 30, 1 << 40, 3}
	require.Equal(t, []limits{{Name: "plain", MaxSandboxes: 100}, want}, list())
	table := run("list")
	require.Contains(t, table, "7 sandboxes, timeout 1h0m0s, 0.5 creates a second, 8 CPUs, 16GiB memory, 1TiB disk, 3 snapshots")

	said := run("update", "bound", "--max-memory", "512MiB", "--max-cpus", "0")
	want.MaxMemoryBytes, want.MaxCPUs = 512<<20, 0
	require.Equal(t, want, list()[1], "what is not given stays")
	require.Contains(t, said, "512MiB memory")
	require.NotContains(t, said, "CPUs")

	for _, args := range [][]string{
		{"update", "bound"},
		{"update", "nobody", "--max-cpus", "1"},
		{"update", "bound", "--max-sandboxes", "0"},
		{"update", "bound", "--max-cpus", "-1"},
		{"update", "bound", "--max-snapshots", "-1"},
		{"update", "bound", "--max-create-rate", "-0.1"},
		{"update", "bound", "--max-create-rate", "NaN"},
		{"update", "bound", "--max-memory", "16"},
		{"update", "bound", "--max-disk", "-1GiB"},
		{"create", "other", "--max-memory", "lots"},
	} {
		got := tombolo(t, dir, "", append([]string{"key"}, args...)...)
		require.Equal(t, 1, got.code, "tombolo key %v", args)
		require.NotEmpty(t, got.stderr)
	}
	require.Len(t, list(), 2)
	require.Equal(t, want, list()[1], "what was refused changed nothing")
}
