package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

const somePolicy = `server:
  default: {egress: deny}
  rules:
    - name: packages
      kind: egress
      decision: allow
      reason: packages are public
      match: [{host: [pypi.org], port: [443], method: [GET]}]
      matches: ["egress https://pypi.org/simple/"]
keys:
  ci:
    rules:
      - {name: no-root, kind: exec, decision: ask, match: [{user: [root]}]}
`

func TestPolicy(t *testing.T) {
	dir := t.TempDir()
	run := func(code int, args ...string) outcome {
		t.Helper()
		got := tombolo(t, dir, "", append([]string{"policy"}, args...)...)
		require.Equal(t, code, got.code, "%v: %s", args, got.stderr)
		return got
	}
	file := filepath.Join(dir, "rules.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }

	write(somePolicy)
	require.Contains(t, run(0, "check", file).stdout, "2 tables, 2 rules, 1 example")
	require.Contains(t, tombolo(t, dir, somePolicy, "policy", "check", "-").stdout, "2 tables")
	require.Contains(t, run(1, "apply", file).stderr, `no key "ci"; `+"`tombolo key list`", "the key must be there")
	require.Contains(t, run(0, "show").stdout, "server: {}", "nothing was applied")
	require.Zero(t, tombolo(t, dir, "", "key", "create", "ci").code)

	require.Equal(t, `+ server: default for egress: deny
+ server: rule packages: allow
+ key ci: rule no-root: ask
3 changes, not made: this was a dry run
`, run(0, "apply", file, "--dry-run").stdout)
	require.Contains(t, run(0, "show").stdout, "server: {}", "it was a dry run")
	require.Contains(t, run(0, "apply", file).stdout, "3 changes; the rules hold from the next start of the server")
	require.Equal(t, "nothing changes\n", run(0, "apply", file).stdout)

	shown := filepath.Join(dir, "shown.yaml")
	require.NoError(t, os.WriteFile(shown, []byte(run(0, "show").stdout), 0o600))
	require.Equal(t, "nothing changes\n", run(0, "apply", shown).stdout, "what show prints is what there is")

	write(strings.Replace(strings.Replace(somePolicy, "decision: ask", "decision: deny", 1), "default: {egress: deny}", "default: {exec: ask}", 1))
	require.Equal(t, `- server: default for egress: deny
+ server: default for exec: ask
~ key ci: rule no-root: ask -> deny
3 changes; the rules hold from the next start of the server
`, run(0, "apply", file).stdout)

	write(somePolicy + "  other: {}\n")
	run(1, "apply", file)
	write("server:\n  rules:\n    - {name: x, kind: exec, decision: never}\n")
	require.Contains(t, run(1, "check", file).stderr, file+`: line 3: server: rule "x": decision "never"`)
	require.Contains(t, run(1, "apply", file).stderr, "line 3")
	require.NotContains(t, run(0, "apply", shown, "--json").stdout, "nothing", "what was refused changed nothing, and this changes it back")
	var changes []struct{ What, Rule string }
	write(somePolicy + "      - {name: more, kind: port, decision: deny}\n")
	require.NoError(t, json.Unmarshal([]byte(run(0, "apply", file, "--json", "--dry-run").stdout), &changes))
	require.Equal(t, []struct{ What, Rule string }{{"added", "more"}}, changes)
}

// TestRulesHoldAtOnce changes the rules of a real server under a sandbox.
func TestRulesHoldAtOnce(t *testing.T) {
	needAgent(t)
	dir := sandboxtest.NewDir(t)
	server := startServer(t, dir, "--on-stop=end")
	file := filepath.Join(t.TempDir(), "rules.yaml")
	apply := func(text string) string {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		got := tombolo(t, dir, "", "policy", "apply", file)
		require.Zero(t, got.code, got.stderr)
		return got.stdout
	}
	create := func() outcome { return tombolo(t, dir, "", "sandbox", "create", "-t", sandboxtest.Cold) }

	id := strings.TrimSpace(create().stdout)
	require.NotEmpty(t, id)
	require.Contains(t, apply("server: {default: {resources: deny}, rules: [{name: quiet, kind: egress, decision: deny, reason: quiet please}]}\n"), "the rules hold now")
	refused := create()
	require.Equal(t, 1, refused.code)
	require.Contains(t, refused.stderr, "resources")
	asked := tombolo(t, dir, "", "policy", "explain", "--sandbox", id, "egress", "https://example.com/")
	require.Contains(t, asked.stdout, "deny: rule quiet of server (quiet please)", asked.stderr)
	require.Contains(t, tombolo(t, dir, "", "policy", "show").stdout, "quiet please")

	require.Contains(t, apply("server: {}\n"), "2 changes; the rules hold now")
	again := create()
	require.Zero(t, again.code, again.stderr)
	require.Contains(t, tombolo(t, dir, "", "audit", "tail", "--kind", "policy").stdout, "replace")
	server.stop()
}

func TestPolicyExplain(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "rules.yaml")
	require.NoError(t, os.WriteFile(file, []byte(somePolicy), 0o600))
	explain := func(args ...string) string {
		t.Helper()
		got := tombolo(t, dir, "", append([]string{"policy", "explain"}, args...)...)
		require.Zero(t, got.code, got.stderr)
		return got.stdout
	}
	require.Equal(t, `egress https://pypi.org/simple GET
  allow: rule packages of server (packages are public)
server:
  rule packages fits: allow (packages are public)
`, explain("--file", file, "egress", "https://pypi.org/simple/"))
	require.Equal(t, `egress https://pypi.org/simple POST
  deny: the default of server
server:
  no rule fits; default: deny
`, explain("--file", file, "egress", "https://pypi.org/simple/", "POST"))
	require.Equal(t, `egress pypi.org:443
  allow or deny: that depends on the request
server:
  rule packages may fit, which depends on the request: allow (packages are public)
  default, if none fits: deny
`, explain("--file", file, "egress pypi.org:443"))
	require.Equal(t, `exec user=root "rm -rf /"
  ask: rule no-root of key ci
server:
  says nothing of this
key ci:
  rule no-root fits: ask
`, explain("--file", file, "--key", "ci", "exec", "user=root", "rm -rf /"))
	require.Contains(t, explain("--file", file, "exec", "rm -rf / --no-preserve-root"), "allow: no table says anything of it")
	require.Contains(t, explain("exec", "ls", "--all"), "there are no rules for this sandbox", "no file and no server: the store's")

	got := tombolo(t, "/proc/none", "", "policy", "explain", "--file", file, "--template", "base", "egress", "https://pypi.org/simple/")
	require.Zero(t, got.code, "a file is explained without a data folder: %s", got.stderr)
	require.Contains(t, got.stdout, "allow: rule packages of server")

	var told struct {
		Verdict struct{ Decision, Rule string }
		Tables  []struct{ Rules []struct{ Name, Fit string } }
	}
	require.NoError(t, json.Unmarshal([]byte(explain("--json", "--file", file, "egress https://pypi.org/")), &told))
	require.Equal(t, "allow", told.Verdict.Decision)
	require.Equal(t, "packages", told.Tables[0].Rules[0].Name)

	for _, args := range [][]string{
		{"fly", "away"}, {"--sandbox", "s", "exec", "ls"}, {"--sandbox", "s", "--key", "ci", "exec", "ls"},
		{"--key", "nobody", "exec", "ls"}, {"--template", "none", "exec", "ls"}, {"--file", "/nowhere", "exec", "ls"}, {},
	} {
		got = tombolo(t, dir, "", append([]string{"policy", "explain"}, args...)...)
		require.Equal(t, 1, got.code, "%v", args)
		require.NotEmpty(t, got.stderr)
	}
}
