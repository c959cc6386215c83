package e2b_test

import (
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// changes are requests that need a sandbox which is not on its way anywhere.
var changes = map[string]int{ // path: code of success
	"/sandboxes/i0001/pause":      204,
	"/sandboxes/i0001/fork":       201,
	"/sandboxes/i0001/snapshots":  201,
	"/v2/sandboxes/i0005/connect": 201,
	"/sandboxes/i0005/resume":     201,
}

func TestRequestsWaitForChangesUnderWay(t *testing.T) {
	for path, code := range changes {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.core.busy = 100 // 5 s
			require.Equal(t, code, w.do("alice", "POST", path, "{}").Code, path)
		})
	}
}

// A pause that was not made must not be told as one that was: clients take 409
// for "paused already".
func TestRequestsGiveUpOnEndlessChanges(t *testing.T) {
	for path := range changes {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.core.busy = 1 << 30
			begun := time.Now()
			answer := w.do("alice", "POST", path, "{}")
			require.Equal(t, map[bool]int{true: 503, false: 409}[path == "/sandboxes/i0001/pause"], answer.Code, path)
			require.Equal(t, "1", answer.Header().Get("Retry-After"))
			require.WithinDuration(t, begun.Add(30*time.Second), time.Now(), time.Second, "clients wait for 60 s")
		})
	}
}

func TestSandboxesOnTheirWayAreShownAsPaused(t *testing.T) {
	for _, state := range []sandbox.State{sandbox.Pausing, sandbox.Paused, sandbox.Resuming} {
		w := newWorld(t)
		w.core.set("i0001", state)
		require.Contains(t, w.do("alice", "GET", "/sandboxes/i0001", "").Body.String(), `"state":"paused"`)
		require.Contains(t, w.do("alice", "GET", "/v2/sandboxes?state=paused", "").Body.String(), "i0001")
		running := w.do("alice", "GET", "/v2/sandboxes?state=running", "")
		require.NotContains(t, running.Body.String(), "i0001")
		require.Equal(t, "2", running.Header().Get("X-Total-Running"))
		require.NotContains(t, w.do("alice", "GET", "/sandboxes", "").Body.String(), "i0001")
	}
}

// A key's limit of a timeout is that of a whole run.
func TestNoRunIsLongerThanTheKeyAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.core.add(sandbox.Info{ID: "inow", KeyID: "key-of-bob", StartedAt: time.Now()}) // bob has 2 min
		ask := func(path, body string) string {
			w.core.calls = nil
			require.Less(t, w.do("bob", "POST", path, body).Code, 300, path)
			require.Len(t, w.core.calls, 1)
			return w.core.calls[0]
		}
		require.Contains(t, ask("/sandboxes/inow/timeout", `{"timeout":120}`), "SetTimeout inow 2m0s,")
		time.Sleep(50 * time.Second)
		require.Contains(t, ask("/sandboxes/inow/timeout", `{"timeout":120}`), "SetTimeout inow 1m10s,")
		require.Contains(t, ask("/sandboxes/inow/timeout", `{"timeout":60}`), "SetTimeout inow 1m0s,")
		require.Contains(t, ask("/sandboxes/inow/refreshes", `{"duration":100}`), "SetTimeout inow 1m10s,")
		require.Contains(t, ask("/sandboxes/inow/connect", `{"timeout":120}`), "Resume inow for 1m10s,")
		require.Equal(t, 400, w.do("bob", "POST", "/sandboxes/inow/timeout", `{"timeout":121}`).Code)

		w.core.set("inow", sandbox.Paused)
		require.Contains(t, ask("/sandboxes/inow/connect", `{"timeout":120}`), "Resume inow for 2m0s,", "a new run")
	})
}

// serveAgent makes the core's sandboxes have an agent that answers so.
func serveAgent(t *testing.T, w *world, code int) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	agent := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(code)
		io.WriteString(w, r.URL.Path)
	})}
	go agent.Serve(listener)
	t.Cleanup(func() { agent.Close() })
	w.core.agent = func() (net.Conn, error) { return net.Dial("tcp", listener.Addr().String()) }
}

func TestAStrictPauseNeedsAnAgentThatAnswers(t *testing.T) {
	for code, want := range map[int]int{200: 204, 500: 503} {
		w := newWorld(t)
		serveAgent(t, w, code)
		require.Equal(t, want, w.do("alice", "POST", "/sandboxes/i0001/pause", `{"requireHealthyGuest":true}`).Code)
		require.Len(t, w.core.calls, map[int]int{204: 1, 503: 0}[want])
	}
}

func TestSnapshotPagesHoldEverySnapshotOnce(t *testing.T) {
	w := newWorld(t)
	first := w.do("alice", "GET", "/snapshots?limit=2", "")
	second := w.do("alice", "GET", "/snapshots?limit=2&nextToken="+first.Header().Get("X-Next-Token"), "")
	require.JSONEq(t, `[{"snapshotID":"unnamedunnamedunname:default","names":[]},{"snapshotID":"alice/snap:v2","names":["alice/snap:v2"]}]`, first.Body.String())
	require.JSONEq(t, `[{"snapshotID":"alice/snap:default","names":["alice/snap:default"]}]`, second.Body.String())
	require.Empty(t, second.Header().Get("X-Next-Token"))
}

func TestADeletedSnapshotIsGoneForEveryName(t *testing.T) {
	w := newWorld(t)
	require.Equal(t, 204, w.do("alice", "DELETE", "/templates/alice%2Fsnap%3Av2", "").Code)
	for _, name := range []string{buildID(7), snapID + ":v2", "snap:v2", "alice/snap:v2"} {
		require.Equal(t, 404, w.do("alice", "POST", "/v2/sandboxes", `{"templateID":"`+name+`"}`).Code, name)
	}
	require.NotContains(t, w.do("alice", "GET", "/snapshots", "").Body.String(), "v2")
	require.Equal(t, 404, w.do("alice", "DELETE", "/templates/alice%2Fsnap%3Av2", "").Code, "clients say false then")
	require.Equal(t, 201, w.do("alice", "POST", "/v2/sandboxes", `{"templateID":"snap"}`).Code, "another tag stays")
}

func TestSnapshotsAreNotListedAsTemplates(t *testing.T) {
	require.NotContains(t, newWorld(t).do("alice", "GET", "/templates", "").Body.String(), "snap")
}
