package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/embedded"
	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func TestWrongCommandLines(t *testing.T) {
	dir := t.TempDir()
	for _, test := range []struct {
		args []string
		want string // in stderr
	}{
		{[]string{"nonsense"}, "unknown command"},
		{[]string{"sandbox", "nonsense"}, "unknown command"},
		{[]string{"serve", "extra"}, "unknown command"},
		{[]string{"serve", "--nonsense"}, "unknown flag"},
		{[]string{"serve", "--pool", "-1"}, "--pool must be 0 or more"},
		{[]string{"serve", "--on-stop", "maybe"}, "use keep or end"},
		{[]string{"run"}, "at least 1 arg"},
		{[]string{"run"}, "see `tombolo run --help`"}, // where to look
		{[]string{"sandbox", "nonsense"}, "see `tombolo sandbox --help`"},
		{[]string{"sandbox", "create", "--nonsense"}, "see `tombolo sandbox create --help`"},
		{[]string{"template", "build", "none"}, "no such recipe: none; there are base"},
		{[]string{"template", "build", "--recipes", dir}, "a recipe is a folder in it"},
		{[]string{"template", "build", "--recipes", "/nowhere"}, "--recipes /nowhere"},
		{[]string{"template", "build", "--recipes", dir, "-f", "Dockerfile"}, "recipes"},
		{[]string{"run", "--timeout", "0s", "--", "true"}, "greater than zero"},
		{[]string{"sandbox", "kill"}, "--all"},
		{[]string{"sandbox", "kill", "--all", "i1"}, "--all"},
		{[]string{"sandbox", "list"}, "no server runs"},
		{[]string{"sandbox", "list"}, "tombolo serve"}, // what to do
		{[]string{"env"}, "tombolo serve"},
		{[]string{"key", "create"}, "accepts 1 arg"},
		{[]string{"key", "create", "a b"}, "key name"},
		{[]string{"key", "create", "k", "--max-sandboxes", "0"}, "--max-sandboxes"},
		{[]string{"key", "create", "k", "--max-timeout", "-1s"}, "--max-timeout"},
		{[]string{"key", "delete", "none"}, "tombolo key list"},
		{[]string{"template", "delete", "none"}, "tombolo template list"},
		{[]string{"template", "build", "base", "code", "--name", "x"}, "--name"},
	} {
		got := tombolo(t, dir, "", test.args...)
		require.Equal(t, 1, got.code, "tombolo %v", test.args)
		require.Contains(t, got.stderr, test.want, "tombolo %v", test.args)
		require.Empty(t, got.stdout, "tombolo %v", test.args)
		require.NotContains(t, got.stderr, "goroutine", "tombolo %v", test.args)
	}
}

func TestKeys(t *testing.T) {
	dir := t.TempDir()
	secret := regexp.MustCompile(`^e2b_[0-9a-f]{40}$`)

	got := tombolo(t, dir, "", "key", "create", "first")
	require.Zero(t, got.code, got.stderr)
	require.Regexp(t, secret, strings.TrimSpace(got.stdout))
	got = tombolo(t, dir, "", "key", "create", "second", "--max-sandboxes", "7", "--max-timeout", "1h", "--json")
	require.Zero(t, got.code, got.stderr)
	var made struct{ ID, Name, Key string }
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &made))
	require.Regexp(t, secret, made.Key)
	require.NotEmpty(t, made.ID)

	got = tombolo(t, dir, "", "key", "create", "first")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, `a key named "first" already`)
	require.Contains(t, got.stderr, "tombolo key update")

	got = tombolo(t, dir, "", "key", "list", "--json")
	require.NotContains(t, got.stdout, made.Key)
	var keys []struct {
		ID, Name, Prefix string
		MaxSandboxes     int
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &keys))
	require.Len(t, keys, 2)
	require.Equal(t, "second", keys[1].Name)
	require.Equal(t, 7, keys[1].MaxSandboxes)
	require.True(t, strings.HasPrefix(made.Key, keys[1].Prefix))
	table := tombolo(t, dir, "", "key", "list").stdout
	require.Contains(t, table, "second")
	require.NotContains(t, table, made.Key)

	require.Zero(t, tombolo(t, dir, "", "key", "delete", made.ID).code, "by id")
	require.Zero(t, tombolo(t, dir, "", "key", "delete", "first").code, "by name")
	require.JSONEq(t, "[]", tombolo(t, dir, "", "key", "list", "--json").stdout)
}

func TestListsOfNothingAreEmptyArrays(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{{"key", "list"}, {"template", "list"}, {"sandbox", "list", "--all"}} {
		got := tombolo(t, dir, "", append(args, "--json")...)
		require.Zero(t, got.code, got.stderr)
		require.JSONEq(t, "[]", got.stdout, "%v", args)
	}
}

func TestDoctor(t *testing.T) {
	got := tombolo(t, t.TempDir(), "", "doctor", "--json")
	var findings []finding
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &findings), got.stdout)
	seen := map[string]bool{}
	broken := 0
	for _, f := range findings {
		seen[f.What] = true
		require.NotEmpty(t, f.Found, "%v", f)
		if !f.OK {
			require.NotEmpty(t, f.Remedy, "%v", f)
			if f.Needed {
				broken = 1
			}
		}
	}
	for _, what := range []string{"root", "kernel", "control groups", "user namespaces", "TUN device"} {
		require.True(t, seen[what], "doctor does not look at %s", what)
	}
	require.Equal(t, broken, got.code)
}

func TestVersion(t *testing.T) {
	got := tombolo(t, t.TempDir(), "", "version", "--json")
	var v map[string]string
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &v))
	require.NotEmpty(t, v["version"])
	require.Equal(t, gvisor.Version(), v["engine"])
}

// needAgent is for tests of the product as it is built.
func needAgent(t *testing.T) []byte {
	t.Helper()
	agent, err := embedded.Agent()
	if err != nil {
		t.Skip(err)
	}
	return agent
}

func TestServe(t *testing.T) {
	needAgent(t)
	dir := sandboxtest.NewDir(t)
	server := startServer(t, dir)
	ready := regexp.MustCompile(`^tombolo serves on (http://127\.0\.0\.1:\d+)$`).FindStringSubmatch(server.ready)
	require.NotNil(t, ready, "%q", server.ready)

	second := tombolo(t, dir, "", "serve", "--listen", "127.0.0.1:0")
	require.Equal(t, 1, second.code)
	require.Contains(t, second.stderr, "another server has the data folder")

	env := tombolo(t, dir, "", "env").stdout
	require.Regexp(t, `(?m)^export E2B_API_KEY=e2b_[0-9a-f]{40}$`, env)
	require.Contains(t, env, "export E2B_API_URL="+ready[1]+"\n")
	require.Contains(t, env, "export E2B_SANDBOX_URL="+ready[1]+"\n")
	info, err := os.Stat(filepath.Join(dir, "keys", "default.key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	key := regexp.MustCompile(`e2b_[0-9a-f]+`).FindString(env)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ready[1]+"/v2/sandboxes", nil)
	require.NoError(t, err)
	request.Header.Set("X-API-Key", key)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	http.DefaultClient.CloseIdleConnections()

	sandboxes(t, dir)
	runs(t, dir)

	id := strings.TrimSpace(tombolo(t, dir, "", "sandbox", "create", "-t", sandboxtest.Cold).stdout)
	server.stop()
	require.NotEmpty(t, sandboxtest.Leftovers(dir), "a sandbox outlives its server")
	server = startServer(t, dir, "--on-stop=end")
	require.Contains(t, tombolo(t, dir, "", "sandbox", "list").stdout, id)
	server.stop()
	require.Empty(t, sandboxtest.Leftovers(dir))
	require.Contains(t, tombolo(t, dir, "", "sandbox", "list", "--all").stdout, "the server was stopped")
	require.Contains(t, tombolo(t, dir, "", "sandbox", "list").stderr, "no server runs")

	again := startServer(t, dir)
	require.Contains(t, tombolo(t, dir, "", "env").stdout, key, "the key outlives the server")
	again.stop()
}

// sandboxes goes through the life of one on the running server.
func sandboxes(t *testing.T, dir string) {
	got := tombolo(t, dir, "", "sandbox", "create", "-t", sandboxtest.Cold, "-e", "COLOUR=green", "-m", "a=b", "--json")
	require.Zero(t, got.code, got.stderr)
	var made struct {
		ID, AccessToken string
		Metadata        map[string]string
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &made))
	require.Equal(t, map[string]string{"a": "b"}, made.Metadata)
	require.Empty(t, made.AccessToken, "a secret on the terminal")

	require.Contains(t, tombolo(t, dir, "", "sandbox", "list").stdout, made.ID)
	require.Contains(t, tombolo(t, dir, "", "sandbox", "list", "--json").stdout, made.ID)

	require.Contains(t, tombolo(t, dir, "", "sandbox", "exec", made.ID, "--", "/bin/probe", "env").stdout, "COLOUR=green")
	got = tombolo(t, dir, "", "sandbox", "exec", made.ID, "--", "/bin/probe", "exit", "7")
	require.Equal(t, 7, got.code)
	require.Empty(t, got.stderr, "an exit code is no error of ours")
	got = tombolo(t, dir, "", "sandbox", "exec", "-u", "nobody-here", made.ID, "--", "/bin/probe", "env")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "nobody-here")
	require.Equal(t, 127, tombolo(t, dir, "", "sandbox", "exec", made.ID, "--", "/bin/none").code)

	require.Contains(t, tombolo(t, dir, "", "sandbox", "logs", made.ID).stdout, "running")
	require.Contains(t, tombolo(t, dir, "", "sandbox", "logs", made.ID, "--json").stdout, `"source": "lifecycle"`)

	require.Equal(t, made.ID+"\n", tombolo(t, dir, "", "sandbox", "kill", made.ID).stdout)
	got = tombolo(t, dir, "", "sandbox", "kill", made.ID)
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "killed on the command line")
	got = tombolo(t, dir, "", "sandbox", "logs", made.ID)
	require.Contains(t, got.stdout+got.stderr, "killed on the command line")
	require.Contains(t, tombolo(t, dir, "", "sandbox", "list", "--all", "--json").stdout, "killed on the command line")

	got = tombolo(t, dir, "", "sandbox", "create", "-t", "none")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "tombolo template build")
}

// runs are `tombolo run`, by the server or without one.
func runs(t *testing.T, dir string) {
	run := func(stdin string, args ...string) outcome {
		return tombolo(t, dir, stdin, append([]string{"run", "-t", sandboxtest.Cold}, args...)...)
	}
	require.Equal(t, outcome{stdout: "hello\n"}, run("", "--", "/bin/probe", "echo", "hello"))
	require.Equal(t, outcome{code: 3}, run("", "--", "/bin/probe", "exit", "3"))
	big := strings.Repeat("tombolo ", 1<<15)
	got := run(big, "--", "/bin/probe", "cat", "-")
	require.Zero(t, got.code, got.stderr)
	require.True(t, big == got.stdout, "stdin does not come back")
	require.Contains(t, run("", "-e", "A=b=c", "-w", "/tmp", "-u", "root", "--", "/bin/probe", "env").stdout, "A=b=c\n")
	require.JSONEq(t, "[]", listJSON(t, dir), "a sandbox outlives its command")
}

func listJSON(t *testing.T, dir string) string {
	t.Helper()
	got := tombolo(t, dir, "", "sandbox", "list", "--json")
	if got.code != 0 { // no server: nothing lives
		return "[]"
	}
	return got.stdout
}

func TestRunWithoutServer(t *testing.T) {
	agent := sha256.Sum256(needAgent(t))
	dir := sandboxtest.NewDir(t)
	got := tombolo(t, dir, "", "run", "-t", "none", "--", "/bin/probe", "env")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "none")

	// The template counts as built by this program.
	records, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	cold, err := records.Template(t.Context(), sandboxtest.Cold)
	require.NoError(t, err)
	cold.AgentHash, cold.EngineHash = hex.EncodeToString(agent[:16]), gvisor.Version()
	_, _, err = records.PutTemplate(t.Context(), cold)
	require.NoError(t, err)
	require.NoError(t, records.Close())

	runs(t, dir)
	require.Empty(t, sandboxtest.Leftovers(dir))
}
