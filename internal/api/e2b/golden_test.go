package e2b_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

var update = flag.Bool("update", false, "write what the server answers into testdata")

// golden is one file of testdata: a request to a new world and what must come of it.
type golden struct {
	About   string            `json:"about"`
	Key     string            `json:"key,omitempty"` // name of a key; "none" sends none, as it is otherwise
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    json.RawMessage   `json:"body,omitempty"`   // a string is sent as it is
	Denied  bool              `json:"denied,omitempty"` // a rule forbids what is asked of the core
	Want    want              `json:"want"`
}

type want struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers,omitempty"` // those that say something
	Body    json.RawMessage   `json:"body,omitempty"`    // a string when it is no JSON
	Calls   []string          `json:"calls,omitempty"`   // of the core
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			require.NoError(t, err)
			var g golden
			require.NoError(t, json.Unmarshal(raw, &g))
			got := ask(t, g)
			if *update {
				g.Want = got
				require.NoError(t, os.WriteFile(file, indent(t, g), 0o644))
				return
			}
			if diff := cmp.Diff(string(indent(t, g.Want)), string(indent(t, got))); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", g.About, diff)
			}
		})
	}
}

func ask(t *testing.T, g golden) want {
	w := newWorld(t)
	if g.Denied {
		w.core.fail = &sandbox.DeniedError{What: "what was asked for", Rule: "no-such", Reason: "see the handbook", ID: "req_1"}
	}
	r := httptest.NewRequest(g.Method, g.Path, strings.NewReader(sent(t, g.Body)))
	switch g.Key {
	case "none":
	case "alice", "bob":
		r.Header.Set("X-API-KEY", w.secrets[g.Key])
	default:
		r.Header.Set("X-API-KEY", g.Key)
	}
	for name, value := range g.Headers {
		r.Header.Set(name, value)
	}
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, r)

	got := want{Status: answer.Code, Calls: w.core.calls}
	for _, name := range []string{"X-Next-Token", "X-Total-Running", "Allow", "Retry-After", "Should-Retry"} {
		if v := answer.Header().Get(name); v != "" {
			if got.Headers == nil {
				got.Headers = map[string]string{}
			}
			got.Headers[name] = v
		}
	}
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	switch {
	case len(body) == 0:
	case answer.Header().Get("Content-Type") == "application/json":
		require.True(t, json.Valid(body))
		got.Body = bytes.TrimSpace(body)
	default:
		got.Body, err = json.Marshal(string(body))
		require.NoError(t, err)
	}
	if got.Status == http.StatusNoContent {
		require.Empty(t, body)
	}
	return got
}

func sent(t *testing.T, body json.RawMessage) string {
	if len(body) > 0 && body[0] == '"' {
		var s string
		require.NoError(t, json.Unmarshal(body, &s))
		return s
	}
	return string(body)
}

func indent(t *testing.T, v any) []byte {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	require.NoError(t, e.Encode(v))
	return buf.Bytes()
}
