package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
	"github.com/tombolo-dev/tombolo/internal/store"
)

func TestWebhooks(t *testing.T) {
	dir := t.TempDir()
	var status atomic.Int32
	status.Store(204)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(int(status.Load())) }))
	t.Cleanup(receiver.Close)
	run := func(code int, args ...string) outcome {
		t.Helper()
		got := tombolo(t, dir, "", append([]string{"webhook"}, args...)...)
		require.Equal(t, code, got.code, "%v: %s", args, got.stderr)
		return got
	}

	require.Contains(t, run(1, "create", "https://example.com").stderr, "tombolo serve", "there is no key default yet")
	require.Zero(t, tombolo(t, dir, "", "key", "create", "ci").code)
	require.Contains(t, run(1, "create", receiver.URL, "--key", "ci").stderr, "--webhook-allow-private")
	made := strings.Split(run(0, "create", receiver.URL, "--key", "ci", "--webhook-allow-private").stdout, "\n")
	id, secret := made[0], strings.TrimPrefix(made[1], "secret: ")
	require.Len(t, secret, 64)

	var hooks []store.Webhook
	listed := run(0, "list", "--json").stdout
	require.NoError(t, json.Unmarshal([]byte(listed), &hooks))
	require.Len(t, hooks, 1)
	require.Equal(t, id, hooks[0].ID)
	require.True(t, hooks[0].Enabled)
	require.Len(t, hooks[0].Kinds, 6, "all events unless said otherwise")
	require.NotContains(t, listed, secret)
	require.Contains(t, run(0, "list").stdout, "ci")

	require.Contains(t, run(0, "test", id, "--webhook-allow-private").stdout, "204")
	status.Store(500)
	require.Contains(t, run(1, "test", id, "--webhook-allow-private").stderr, "500")
	var attempt store.Attempt
	require.NoError(t, json.Unmarshal([]byte(run(1, "test", id, "--webhook-allow-private", "--json").stdout), &attempt))
	require.Equal(t, 500, attempt.StatusCode)
	require.Contains(t, run(1, "test", id).stderr, "loopback")

	run(0, "update", id, "--enabled=false", "--events", "ended", "--name", "other")
	require.NoError(t, json.Unmarshal([]byte(run(0, "list", "--json").stdout), &hooks))
	require.Equal(t, "other", hooks[0].Name)
	require.Equal(t, []string{"ended"}, hooks[0].Kinds)
	require.Equal(t, receiver.URL, hooks[0].URL, "what is not given stays")
	require.False(t, hooks[0].Enabled)
	require.JSONEq(t, "[]", run(0, "deliveries", id, "--json").stdout)
	require.Contains(t, run(1, "deliveries", id, "--state", "lost").stderr, "pending, delivered")

	for _, args := range [][]string{{"test", "none"}, {"update", "none"}, {"delete", "none"}, {"deliveries", "none"}} {
		require.Contains(t, run(1, args...).stderr, "tombolo webhook list", "%v", args)
	}
	run(0, "delete", id)
	require.JSONEq(t, "[]", run(0, "list", "--json").stdout)
}

// TestServerDeliversEvents runs the server with its flag: what a sandbox of the
// command line does reaches a webhook that was made while the server runs.
func TestServerDeliversEvents(t *testing.T) {
	received := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var event struct{ Type string }
		_ = json.NewDecoder(r.Body).Decode(&event)
		received <- event.Type
	}))
	t.Cleanup(receiver.Close)
	dir := sandboxtest.NewDir(t)
	t.Setenv("TOMBOLO_WEBHOOK_ALLOW_PRIVATE", "true")
	s := startServer(t, dir, "--on-stop=end")
	got := tombolo(t, dir, "", "webhook", "create", receiver.URL, "--events", "created,ended")
	require.Zero(t, got.code, got.stderr)
	id := strings.TrimSpace(tombolo(t, dir, "", "sandbox", "create", "-t", sandboxtest.Cold).stdout)
	require.NotEmpty(t, id)
	require.Zero(t, tombolo(t, dir, "", "sandbox", "kill", id).code)
	for _, want := range []string{"sandbox.lifecycle.created", "sandbox.lifecycle.killed"} {
		select {
		case got := <-received:
			require.Equal(t, want, got)
		case <-time.After(patience):
			t.Fatalf("no %s", want)
		}
	}
	s.stop()
}
