package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

func TestRulesOfOneSandboxAreRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "own.yaml")
	read := func(text string) (policy.Table, error) {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return (&networkFlags{rules: file}).table()
	}
	table, err := read("default: {egress: deny}\nrules:\n  - {name: one, kind: egress, decision: allow, match: [{host: [a.example]}], matches: [\"egress https://a.example/\"]}\n")
	require.NoError(t, err)
	require.Equal(t, policy.Deny, table.Default[policy.Egress])
	require.Equal(t, "one", table.Rules[0].Name)
	require.Empty(t, table.Scope, "its scope is the sandbox, whose id is not known yet")
	for text, want := range map[string]string{
		"server: {default: {egress: deny}}": "server",
		"default: {egress: never}":          "line 1",
		"rules:\n  - {name: x, kind: exec, decision: deny, match: [{host: [a.example]}]}": "line 2",
		"": "one document",
	} {
		_, err := read(text)
		require.ErrorContains(t, err, want, text)
	}
	table, err = (&networkFlags{}).table()
	require.NoError(t, err)
	require.Empty(t, table)
}

func TestLimitsOfANetworkAreChecked(t *testing.T) {
	o, err := (&networkFlags{out: 10 << 20, connections: 7}).options()
	require.NoError(t, err)
	require.Equal(t, int64(10<<20), o.BandwidthOut)
	require.Equal(t, 7, o.Connections)
	_, err = (&networkFlags{connections: sandbox.MaxConnections + 1}).options()
	require.ErrorContains(t, err, "connections")
	_, err = (&networkFlags{connections: -1}).options()
	require.ErrorContains(t, err, "connections")
}

// TestASandboxIsHeldFromTheStart makes one with rules and limits of its own.
func TestASandboxIsHeldFromTheStart(t *testing.T) {
	needAgent(t)
	dir := sandboxtest.NewDir(t)
	server := startServer(t, dir, "--on-stop=end")
	file := filepath.Join(t.TempDir(), "own.yaml")
	require.NoError(t, os.WriteFile(file, []byte("default: {egress: deny}\n"), 0o600))
	made := tombolo(t, dir, "", "sandbox", "create", "-t", sandboxtest.Cold, "--rules", file, "--bandwidth-out", "10MiB", "--connections", "7")
	require.Zero(t, made.code, made.stderr)
	id := strings.TrimSpace(made.stdout)
	asked := tombolo(t, dir, "", "policy", "explain", "--sandbox", id, "egress", "https://example.com/")
	require.Contains(t, asked.stdout, "deny: the default of sandbox "+id, asked.stderr)

	shown := tombolo(t, dir, "", "sandbox", "network", id)
	require.Zero(t, shown.code, shown.stderr)
	require.Contains(t, shown.stdout, "10.0 MiB/s")
	require.Contains(t, shown.stdout, "7 at once")
	var n struct {
		Options      struct{ Connections int }
		Destinations []struct{ Name string }
	}
	require.NoError(t, json.Unmarshal([]byte(tombolo(t, dir, "", "sandbox", "network", id, "--json").stdout), &n))
	require.Equal(t, 7, n.Options.Connections)
	require.NotNil(t, n.Destinations)
	require.Contains(t, tombolo(t, dir, "", "sandbox", "network", "nobody").stderr, "sandbox list --all")

	later := tombolo(t, dir, "", "sandbox", "timeout", id, "2h")
	require.Zero(t, later.code, later.stderr)
	require.Contains(t, later.stdout, id)
	require.Equal(t, 1, tombolo(t, dir, "", "sandbox", "timeout", id, "soon").code)
	server.stop()
}
