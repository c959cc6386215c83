package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

// TestChangesOnTheCommandLineAreRecorded: who may approve, and where a value may go, is
// changed here as by the API.
func TestChangesOnTheCommandLineAreRecorded(t *testing.T) {
	dir := t.TempDir()
	do := func(stdin string, args ...string) string {
		t.Helper()
		got := tombolo(t, dir, stdin, args...)
		require.Zero(t, got.code, "%v: %s", args, got.stderr)
		return strings.TrimSpace(got.stdout)
	}
	secretOfKey := do("", "key", "create", "agents")
	do("", "key", "create", "alice", "--role", "approve", "--approves", "agents")
	do("", "key", "update", "alice", "--role", "approve,audit")
	do("the-hidden-value", "secret", "set", "github", "--key", "agents", "--host", "api.github.com")
	do("", "secret", "bind", "github", "--key", "agents", "--nowhere")
	do("", "secret", "delete", "github", "--key", "agents")
	hook := strings.Fields(do("", "webhook", "create", "https://hooks.example.com/hidden-path", "--key", "agents", "--secret", "hidden-signing"))[0]
	do("", "webhook", "update", hook, "--name", "other")
	do("", "webhook", "delete", hook)
	do("", "key", "delete", "alice")
	do("", "tls", "init")
	do("", "tls", "init")
	require.Equal(t, 1, tombolo(t, dir, "", "key", "delete", "alice").code)
	do("", "key", "list")

	lines := do("", "audit", "tail", "--json", "--kind", "api")
	var whats []string
	for line := range strings.Lines(lines) {
		var r audit.Record
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Equal(t, "owner", r.Actor)
		require.Contains(t, string(r.Detail), `"api":"command line"`)
		whats = append(whats, r.What)
	}
	require.Equal(t, []string{
		"key create", "key create", "key update", "secret set", "secret bind", "secret delete",
		"webhook create", "webhook update", "webhook delete", "key delete", "tls init",
	}, whats, "what failed changed nothing, and reading is not recorded")
	require.Contains(t, lines, `"roles":["approve","audit"]`)
	require.Contains(t, lines, "api.github.com", "where the value may go")
	require.NotContains(t, lines, "hidden")
	require.NotContains(t, lines, secretOfKey)
	require.Contains(t, do("", "audit", "verify"), "the log is whole")
}

func TestWhatIsPrunedIsRecorded(t *testing.T) {
	needAgent(t)
	dir := sandboxtest.NewDir(t)
	old, long := filepath.Join(dir, "snapshots", "old"), time.Now().Add(-24*time.Hour)
	require.NoError(t, os.MkdirAll(old, 0o700))
	require.NoError(t, os.Chtimes(old, long, long))
	for _, args := range [][]string{{"prune", "--dry-run"}, {"prune"}, {"prune"}} {
		got := tombolo(t, dir, "", args...)
		require.Zero(t, got.code, got.stderr)
	}
	require.NoDirExists(t, old)
	var r audit.Record
	lines := tombolo(t, dir, "", "audit", "tail", "--json", "--kind", "api").stdout
	require.NoError(t, json.Unmarshal([]byte(lines), &r), "one line: %s", lines)
	require.Equal(t, "owner prune", r.Actor+" "+r.What)
	require.Contains(t, string(r.Detail), `"snapshot":1`)
}

// heard is a log that keeps what it is told.
type heard []audit.Record

func (h *heard) Append(r audit.Record) { *h = append(*h, r) }

func TestCommandsOfTheOwnerAreRecorded(t *testing.T) {
	var log heard
	on := trail{&log}
	on.started(sandbox.Info{ID: "i1", KeyID: "k1"}, execution{argv: []string{"sh", "-c", "echo 'a b'"}, user: "root", cwd: "/srv"})
	on.started(sandbox.Info{ID: "i1"}, execution{argv: []string{"echo", strings.Repeat("x", 1<<20)}})
	require.Equal(t, "i1 k1 owner exec start", strings.Join([]string{log[0].SandboxID, log[0].KeyID, log[0].Actor, string(log[0].Kind), log[0].What}, " "))
	require.JSONEq(t, `{"action":{"kind":"exec","command":"sh -c 'echo '\\''a b'\\'''","user":"root","cwd":"/srv"},"api":"command line"}`, string(log[0].Detail))
	require.Less(t, len(log[1].Detail), audit.MaxDetail)
	require.Contains(t, string(log[1].Detail), `"hash":"`, "what was cut is known by its hash")
	on.started(sandbox.Info{ID: "i1"}, execution{argv: []string{"echo", strings.Repeat("\x01", 4<<10)}, cwd: strings.Repeat("/\x01", 2<<10), user: "root"})
	require.Less(t, len(log[2].Detail), audit.MaxDetail)
	require.Contains(t, string(log[2].Detail), `"command":"echo `, "signs that take more in JSON are no way to hide the rest")
	require.Contains(t, string(log[2].Detail), `"hash":"`)
}

// TestNothingIsChangedUnrecorded has the log be where no log can be.
func TestNothingIsChangedUnrecorded(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "audit"), nil, 0o600))
	got := tombolo(t, dir, "", "key", "create", "agents")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "could not be recorded")
	require.JSONEq(t, "[]", tombolo(t, dir, "", "key", "list", "--json").stdout)
}
