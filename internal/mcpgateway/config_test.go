package mcpgateway_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/mcpgateway"
)

func TestConfigurations(t *testing.T) {
	for _, c := range []struct{ config, command, env string }{
		{`{"time": {}}`, "mcp-server-time --local-timezone Etc/UTC", ""},
		{`{"time": null}`, "mcp-server-time --local-timezone Etc/UTC", ""},
		{`{"filesystem": {"paths": ["/a", "/b c"]}}`, "mcp-server-filesystem /a /b c", ""},
		{`{"filesystem": {"paths": "/a"}}`, "mcp-server-filesystem /a", ""},
		{`{"git": {"paths": ["/a"]}}`, "mcp-server-git --repository /a", ""},
		{`{"git": {"paths": ["/a", "/b"]}}`, "mcp-server-git", ""},
		{`{"brave": {"apiKey": "k"}}`, "brave-search-mcp-server --transport stdio", "BRAVE_API_KEY=k"},
		{`{"firecrawl": {"apiKey": "k", "retryMax": 3}}`, "firecrawl-mcp", "FIRECRAWL_RETRY_MAX_ATTEMPTS=3"},
		{`{"x": {"command": ["a", "b"], "env": {"A": "1"}}}`, "a b", "A=1"},
		{`{"time": {"command": ["mine"]}}`, "mine", ""},
		{`{"github/o/r": {"runCmd": "run me", "installCmd": "i", "envs": {"A": "1"}}}`, "bash -c run me", "A=1"},
		{`{"github/o/r": {"run_cmd": "run me", "install_cmd": "i"}}`, "bash -c run me", ""},
	} {
		servers, err := mcpgateway.ParseConfig([]byte(c.config))
		require.NoError(t, err, c.config)
		require.Len(t, servers, 1)
		got := servers[0].Command
		got[0] = got[0][strings.LastIndexByte(got[0], '/')+1:]
		assert.Equal(t, c.command, strings.Join(got, " "), c.config)
		if name, value, ok := strings.Cut(c.env, "="); ok {
			assert.Equal(t, value, servers[0].Env[name], c.config)
		}
	}
}

func TestMistakesOfConfigurations(t *testing.T) {
	for config, says := range map[string]string{
		``:                                      "not a JSON object",
		`[]`:                                    "not a JSON object",
		`{}`:                                    "names no server",
		`{"nobody": {}}`:                        `"nobody": not in the catalogue`,
		`{"time": []}`:                          "not a JSON object",
		`{"time": {"x": 1}}`:                    "x is not a key of it; the keys are none",
		`{"filesystem": {"paths": []}}`:         "paths is missing",
		`{"brave": {"apiKey": {}}}`:             "apiKey: is neither text",
		`{"x": {"command": []}}`:                "command is empty",
		`{"x": {"command": "a"}}`:               "its configuration",
		`{"x": {"command": ["a"], "y": 1}}`:     `unknown field "y"`,
		`{"x": {"command": ["a"], "cwd": "b"}}`: "not an absolute path",
		`{"x": {"command": ["a"], "env": {"A=B": "1"}}}`:             "is not a variable",
		`{"github/o": {"runCmd": "x"}}`:                              "OWNER/REPO",
		`{"github/../..": {"runCmd": "x"}}`:                          "OWNER/REPO",
		`{"github/o/..": {"runCmd": "x"}}`:                           "OWNER/REPO",
		`{"github/-o/r": {"runCmd": "x"}}`:                           "OWNER/REPO",
		`{"github/o/r": {"installCmd": "x"}}`:                        "runCmd is missing",
		`{"x": {"command": "python3 server.py"}}`:                    "command: string where a list of strings has to be",
		`{"x": {"command": ["` + strings.Repeat("a", 1<<20) + `"]}}`: "longer than",
	} {
		_, err := mcpgateway.ParseConfig([]byte(config))
		require.ErrorContains(t, err, says, "%.100s", config)
	}
}

func TestTheCatalogueDescribesItself(t *testing.T) {
	require.Len(t, mcpgateway.Describe(), len(mcpgateway.Names()))
	require.Contains(t, strings.Join(mcpgateway.Describe(), "\n"), "keys: apiKey")
}
