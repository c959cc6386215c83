package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
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

func TestKeyListSaysWhatAKeyHasOnTheDisk(t *testing.T) {
	dir := t.TempDir()
	list := func() (keys []struct {
		ID        string
		DiskBytes int64
	}) {
		got := tombolo(t, dir, "", "key", "list", "--json")
		require.Zero(t, got.code, got.stderr)
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &keys))
		return keys
	}
	require.Zero(t, tombolo(t, dir, "", "key", "create", "ci").code)
	key := list()[0]
	require.Zero(t, key.DiskBytes)
	uploads := sandbox.UploadsDir(dir, key.ID)
	require.NoError(t, os.MkdirAll(uploads, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(uploads, "archive"), make([]byte, 3<<20), 0o600))
	require.GreaterOrEqual(t, list()[0].DiskBytes, int64(3<<20))
	require.Contains(t, tombolo(t, dir, "", "key", "list").stdout, " 3 MiB ")
	require.Contains(t, occupied(dir), "images of builds 0 MiB, snapshots 0 MiB, layers 0 MiB, uploads 3 MiB")

	records, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	_, _, err = records.PutTemplate(t.Context(), store.Template{ID: "web", Name: "web", Tags: []string{"default"}, BuildID: "b", KeyID: key.ID, Image: "template-b.erofs"})
	require.NoError(t, errors.Join(err, records.Close()))
	images := filepath.Join(dir, "images")
	require.NoError(t, os.MkdirAll(images, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(images, "template-b.erofs"), make([]byte, 2<<20), 0o600))
	require.Contains(t, tombolo(t, dir, "", "key", "list").stdout, " 5 MiB ")
	require.Contains(t, occupied(dir), "images of builds 2 MiB")
	require.Regexp(t, `web +default +template +ci +web `, tombolo(t, dir, "", "template", "list").stdout)
}

func TestKeyRoles(t *testing.T) {
	dir := t.TempDir()
	type key struct {
		ID, Name        string
		Roles, Approves []string
		SelfApproval    bool
	}
	list := func() map[string]key {
		got := tombolo(t, dir, "", "key", "list", "--json")
		require.Zero(t, got.code, got.stderr)
		var keys []key
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &keys))
		named := map[string]key{}
		for _, k := range keys {
			named[k.Name] = k
		}
		return named
	}
	run := func(args ...string) string {
		got := tombolo(t, dir, "", append([]string{"key"}, args...)...)
		require.Zero(t, got.code, got.stderr)
		return got.stdout
	}

	run("create", "agents")
	run("create", "more")
	run("create", "alice", "--role", "approve,audit", "--approves", "agents")
	run("create", "ops", "--role", "policy", "--role", "approve")
	run("create", "lone", "--role", "sandboxes,approve", "--allow-self-approval")
	keys := list()
	require.Equal(t, []string{"sandboxes"}, keys["agents"].Roles)
	require.Equal(t, []string{"approve", "audit"}, keys["alice"].Roles)
	require.Equal(t, []string{keys["agents"].ID}, keys["alice"].Approves, "kept by id: another key that gets the name is another key")
	require.Equal(t, []string{"policy", "approve"}, keys["ops"].Roles)
	require.Empty(t, keys["ops"].Approves)
	require.True(t, keys["lone"].SelfApproval)
	require.Contains(t, run("list"), "approve (agents), audit")

	said := run("update", "alice", "--approves", "agents,more,agents")
	require.Contains(t, said, "agents, more")
	require.ElementsMatch(t, []string{keys["agents"].ID, keys["more"].ID}, list()["alice"].Approves)
	require.Equal(t, []string{"approve", "audit"}, list()["alice"].Roles, "what is not given stays")
	run("update", "ops", "--approves", "agents")
	run("update", "ops", "--approves", "*")
	require.Empty(t, list()["ops"].Approves)
	run("update", "lone", "--role", "sandboxes", "--allow-self-approval=false")
	run("delete", "more")
	require.Contains(t, run("list"), "deleted key "+keys["more"].ID)

	before := list()
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"create", "x", "--role", "admin"}, `no role "admin"`},
		{[]string{"create", "x", "--role", ""}, "needs a role"},
		{[]string{"create", "x", "--role", "sandboxes,approve"}, "--allow-self-approval"},
		{[]string{"create", "x", "--allow-self-approval"}, "self-approval"},
		{[]string{"create", "x", "--approves", "agents"}, "without the role approve"},
		{[]string{"create", "x", "--role", "approve", "--approves", "nobody"}, `no key "nobody"`},
		{[]string{"update", "agents", "--role", "sandboxes,approve"}, "two keys"},
		{[]string{"update", "alice", "--role", "audit"}, "without the role approve"},
		{[]string{"update", "alice", "--approves", "nobody"}, `no key "nobody"`},
		{[]string{"update", "alice", "--approves", ""}, "--approves is empty"},
		{[]string{"create", "x", "--role", "approve", "--approves", "*,agents"}, `no key "*"`},
	} {
		got := tombolo(t, dir, "", append([]string{"key"}, tt.args...)...)
		require.Equal(t, 1, got.code, "tombolo key %v", tt.args)
		require.Contains(t, got.stderr, tt.says, "tombolo key %v", tt.args)
	}
	require.Equal(t, before, list(), "what was refused changed nothing")
}
