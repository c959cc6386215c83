package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/secret"
)

func TestSecrets(t *testing.T) {
	dir := t.TempDir()
	const value = "the value of it"
	run := func(code int, stdin string, args ...string) outcome {
		t.Helper()
		got := tombolo(t, dir, stdin, append([]string{"secret"}, args...)...)
		require.Equal(t, code, got.code, "%v: %s", args, got.stderr)
		require.NotContains(t, got.stdout+got.stderr, value, "%v", args)
		return got
	}
	show := func(args ...string) (s secret.Secret) {
		t.Helper()
		require.NoError(t, json.Unmarshal([]byte(run(0, "", append([]string{"show", "--json", "--key", "ci"}, args...)...).stdout), &s))
		return s
	}

	require.Contains(t, run(1, value, "set", "openai").stderr, "tombolo serve", "there is no key default yet")
	require.Zero(t, tombolo(t, dir, "", "key", "create", "ci").code)
	require.Contains(t, run(1, value, "set", "openai", value[:3], "--key", "ci").stderr, "accepts 1 arg", "a value is no argument")
	require.Contains(t, run(1, "short\n", "set", "openai", "--key", "ci").stderr, "8 at least")
	require.Contains(t, run(1, value, "set", "openai", "--key", "ci", "--path", "/v1").stderr, "--host is missing")
	require.Contains(t, run(1, value, "set", "openai", "--key", "ci", "--host", "*").stderr, "name the hosts")
	require.Contains(t, run(0, value+"\n", "set", "Unbound", "--key", "ci").stderr, "bound to no host")
	require.Contains(t, run(0, value+"\r\n", "set", "openai", "--key", "ci", "--host", "a.example.com,b.example.com", "--in", "authorization",
		"--placeholder-prefix", "sk-", "--metadata", "team=a").stdout, "sk-tombolo_openai_")

	made := show("openai")
	require.Equal(t, []secret.Binding{{Host: []string{"a.example.com", "b.example.com"}, In: []string{"authorization"}}}, made.Bindings)
	require.Equal(t, map[string]string{"team": "a"}, made.Metadata)
	require.Contains(t, run(1, value, "set", "openai", "--key", "ci", "--placeholder-prefix", "x").stderr, "stays what it is")
	run(0, value, "set", "OPENAI", "--key", "ci")
	changed := show(made.ID)
	require.Equal(t, 2, changed.Version)
	require.Equal(t, made.Placeholder, changed.Placeholder)
	require.Equal(t, made.Bindings, changed.Bindings, "what is not given stays")
	require.Equal(t, made.Metadata, changed.Metadata)

	require.Contains(t, run(1, "", "bind", "openai", "--key", "ci").stderr, "--nowhere")
	require.Contains(t, run(1, "", "bind", "openai", "--key", "ci", "--nowhere", "--host", "a.example.com").stderr, "--nowhere")
	require.Contains(t, run(0, "", "bind", "openai", "--key", "ci", "--also", "--host", "c.example.com", "--method", "post", "--path", "/v1/**").stdout,
		"a.example.com,b.example.com in authorization; c.example.com method post path /v1/**")
	require.Len(t, show("openai").Bindings, 2)
	run(0, "", "bind", "openai", "--key", "ci", "--nowhere")
	require.Empty(t, show("openai").Bindings)

	listed := run(0, "", "list").stdout
	require.Contains(t, listed, "openai")
	require.Contains(t, listed, "nowhere")
	var list []secret.Secret
	require.NoError(t, json.Unmarshal([]byte(run(0, "", "list", "--json").stdout), &list))
	require.Len(t, list, 2)
	for _, args := range [][]string{{"show"}, {"delete"}, {"bind", "--host", "a.example.com"}} {
		require.Contains(t, run(1, "", append(args, "none", "--key", "ci")...).stderr, "tombolo secret list", "%v", args)
	}
	require.Contains(t, run(0, "", "delete", "openai", "--key", "ci").stdout, "deleted openai")
	require.Zero(t, tombolo(t, dir, "", "key", "delete", "ci").code)
	require.JSONEq(t, "[]", run(0, "", "list", "--json").stdout, "secrets go with their key")

	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.True(t, err != nil || !strings.Contains(string(content), value), file)
	}
}
