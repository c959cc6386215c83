package event_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

const (
	childStore = "TOMBOLO_TEST_STORE"
	childHook  = "TOMBOLO_TEST_HOOK"
	childSends = 25
)

// TestKilledServerLosesNoEvent kills, with SIGKILL, a process that has recorded
// events and is in the middle of delivering them.
func TestKilledServerLosesNoEvent(t *testing.T) {
	r := newHangingReceiver(t)
	path := filepath.Join(t.TempDir(), "tombolo.db")
	child := exec.Command(os.Args[0], "-test.run=^TestServerProcess$", "-test.v")
	child.Env = append(os.Environ(), childStore+"="+path, childHook+"="+r.URL)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "recorded" {
	}
	eventually(t, "deliveries are under way", func() bool { return len(r.requests()) >= 2 })
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	interrupted := r.requests()

	r.set(nil)
	w := newWorld(t, options{path: path})
	hooks, err := w.webhooks.List(t.Context(), "alice")
	require.NoError(t, err)
	require.Len(t, hooks, 1)
	require.Len(t, w.deliveries(hooks[0]), childSends)
	eventually(t, "all are delivered", func() bool {
		for _, d := range w.deliveries(hooks[0]) {
			if d.State != store.Delivered {
				return false
			}
		}
		return true
	})
	times := map[string]int{}
	for _, q := range r.requests() {
		times[q.header.Get("Webhook-Id")]++
	}
	require.Len(t, times, childSends, "every event, each under one id")
	for _, q := range interrupted {
		require.Equal(t, 2, times[q.header.Get("Webhook-Id")], "what was interrupted is sent again")
	}
}

// TestServerProcess is the process of TestKilledServerLosesNoEvent.
func TestServerProcess(t *testing.T) {
	path := os.Getenv(childStore)
	if path == "" {
		t.Skip("runs as a child only")
	}
	w := newWorld(t, options{path: path})
	w.webhook(os.Getenv(childHook))
	for i := range childSends {
		w.record(sandbox.EventCreated, fmt.Sprintf("i%d", i))
	}
	fmt.Println("recorded")
	select {} // until it is killed
}
