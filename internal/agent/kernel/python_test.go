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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

func newBox(t *testing.T, python string, env ...string) *box {
	t.Helper()
	spawner, err := spawn.New(nil, false)
	require.NoError(t, err)
	b := &box{t: t, spawner: spawner, env: append(os.Environ(), env...)}
	b.Server = kernel.New(kernel.Options{
		Spawner: spawner,
		Env: func() []string {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.env
		},
		Token:  func() string { return b.token },
		Log:    slog.New(slog.NewTextHandler(io.Discard, nil)),
		Python: python,
	})
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
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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

func TestLastExpressionIsTheMainResult(t *testing.T) {
	b := start(t)
	r := b.run("x = 20\nx + 1")
	require.Equal(t, "21", r.main()["text"])
	require.EqualValues(t, 1, r.find("number_of_executions")[0]["execution_count"])
	require.Equal(t, "42", b.run("x * 2 + 2").main()["text"], "state is kept between runs")
	require.Equal(t, `"it's"`, b.run(`"it's"`).main()["text"])
	require.Equal(t, "plain", b.run("'plain'").main()["text"], "a string value has no quotes")
	require.Nil(t, b.run("1;").main())
}
