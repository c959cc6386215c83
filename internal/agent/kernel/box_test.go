package kernel_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/kernel"
	"github.com/tombolo-dev/tombolo/internal/agent/kernel/kerneltest"
	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// A box is a server under test, as the clients see it.
type box struct {
	*kernel.Server
	t       *testing.T
	spawner *spawn.Spawner
	url     string
	token   string
	server  *httptest.Server

	mu  sync.Mutex
	env []string
}

// soon is long enough for whatever is to happen at once, on any machine.
const soon = time.Minute

// newBox returns a box whose kernels are in nobody's way: code is never too slow
// for an interrupt.
func newBox(t *testing.T, python string, env ...string) *box {
	t.Helper()
	return newBoxWith(t, kernel.Options{Python: python, Patience: soon}, env...)
}

// newImpatientBox returns a box that soon ends code which ignores an interrupt.
func newImpatientBox(t *testing.T, python string, env ...string) *box {
	t.Helper()
	return newBoxWith(t, kernel.Options{Python: python, Patience: 100 * time.Millisecond}, env...)
}

func newBoxWith(t *testing.T, opts kernel.Options, env ...string) *box {
	t.Helper()
	spawner, err := spawn.New(nil, false)
	require.NoError(t, err)
	b := &box{t: t, spawner: spawner, env: append(os.Environ(), env...)}
	opts.Spawner = spawner
	opts.Env = func() []string {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.env
	}
	opts.Token = func() string { return b.token }
	opts.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	b.Server = kernel.New(opts)
	b.server = httptest.NewServer(b.Handler())
	t.Cleanup(func() {
		b.Close()
		b.server.Close()
	})
	b.url = b.server.URL
	return b
}

// start returns a box with the test interpreter.
func start(t *testing.T) *box {
	t.Helper()
	python, err := kerneltest.Python()
	require.NoError(t, err)
	return newBox(t, python)
}

// A run is what came back from one /execute.
type run struct {
	lines []map[string]any
}

func (r run) text(kind string) string {
	var all strings.Builder
	for _, line := range r.lines {
		if line["type"] == kind {
			all.WriteString(line["text"].(string))
		}
	}
	return all.String()
}

func (r run) find(kind string) []map[string]any {
	var found []map[string]any
	for _, line := range r.lines {
		if line["type"] == kind {
			found = append(found, line)
		}
	}
	return found
}

// main is the result of the last expression, or nil.
func (r run) main() map[string]any {
	for _, line := range r.find("result") {
		if line["is_main_result"] == true {
			return line
		}
	}
	return nil
}

func (r run) errorName() string {
	if found := r.find("error"); len(found) > 0 {
		return found[0]["name"].(string)
	}
	return ""
}

func (b *box) post(ctx context.Context, path string, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", b.url+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Access-Token", b.token)
	return http.DefaultClient.Do(req)
}

type body map[string]any

// run executes code in the default context.
func (b *box) run(code string) run {
	b.t.Helper()
	return b.execute(body{"code": code})
}

func (b *box) execute(request body) run {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	defer cancel()
	resp, err := b.post(ctx, "/execute", request)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		message, _ := io.ReadAll(resp.Body)
		b.t.Fatalf("execute answered %s: %s", resp.Status, message)
	}
	r := readLines(b.t, resp.Body)
	require.NotEmpty(b.t, r.lines)
	require.Equal(b.t, "end_of_execution", r.lines[len(r.lines)-1]["type"])
	return r
}

func readLines(t *testing.T, body io.Reader) run {
	t.Helper()
	var r run
	scanner := bufio.NewScanner(body)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		var line map[string]any
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &line))
		r.lines = append(r.lines, line)
	}
	require.NoError(t, scanner.Err())
	return r
}

// ask sends one request and returns status and body.
func (b *box) ask(method, path, content, token string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, b.url+path, strings.NewReader(content))
	require.NoError(b.t, err)
	if token != "" {
		req.Header.Set("X-Access-Token", token)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	return resp.StatusCode, string(answer)
}

// leave starts code in the default context, waits for its first output and leaves.
func (b *box) leave(language, code string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), soon)
	defer cancel()
	resp, err := b.post(ctx, "/execute", body{"code": code, "language": language})
	require.NoError(b.t, err)
	defer resp.Body.Close()
	buf := make([]byte, 4096)
	for seen := ""; !strings.Contains(seen, "stdout"); {
		n, err := resp.Body.Read(buf)
		seen += string(buf[:n])
		if err == io.EOF {
			b.t.Fatalf("%s ended: %s", code, seen)
		}
		require.NoError(b.t, err)
	}
}

// newContext makes a context and returns its id.
func (b *box) newContext(language, dir string) string {
	b.t.Helper()
	status, answer := b.ask("POST", "/contexts", `{"language":"`+language+`","cwd":"`+dir+`"}`, b.token)
	require.Equal(b.t, 200, status, answer)
	var made struct{ ID, Language, Cwd string }
	decodeJSON(b.t, strings.NewReader(answer), &made)
	require.Equal(b.t, dir, made.Cwd)
	return made.ID
}

func (b *box) list() []map[string]any {
	b.t.Helper()
	resp, err := http.Get(b.url + "/contexts")
	require.NoError(b.t, err)
	defer resp.Body.Close()
	var list []map[string]any
	decodeJSON(b.t, resp.Body, &list)
	return list
}

// setEnv gives the sandbox one more variable.
func (b *box) setEnv(t *testing.T, entry string) {
	t.Helper()
	b.mu.Lock()
	b.env = append(b.env[:len(b.env):len(b.env)], entry)
	b.mu.Unlock()
	require.NoError(t, b.Init(context.Background(), hostapi.Init{Entropy: make([]byte, 64)}))
}

func (b *box) in(language, code string) run {
	b.t.Helper()
	return b.execute(body{"code": code, "language": language})
}

// ok is "true", or what went wrong.
func (r run) ok() string {
	if found := r.find("error"); len(found) > 0 {
		return found[0]["traceback"].(string)
	}
	return "true"
}

func decodeJSON(t *testing.T, from io.Reader, into any) {
	t.Helper()
	require.NoError(t, json.NewDecoder(from).Decode(into))
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func commandLines(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var all strings.Builder
	for _, path := range paths {
		data, _ := os.ReadFile(path)
		all.Write(data)
	}
	return all.String()
}

func quote(s string) string { return "'" + s + "'" }
