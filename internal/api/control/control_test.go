package control_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m, nil) }

var self = control.Server{Address: "http://127.0.0.1:3000", PID: 4711, Version: "test"}

// serve serves a real core on the socket of its data folder and returns a client
// of it.
func serve(t *testing.T) (*sandboxtest.World, *control.Client) {
	t.Helper()
	w := sandboxtest.New(t)
	listener, err := control.Listen(w.Dir)
	require.NoError(t, err)
	server := &http.Server{Handler: control.New(w.Manager, self, slog.New(slog.DiscardHandler))}
	served := make(chan struct{})
	go func() { defer close(served); server.Serve(listener) }()
	t.Cleanup(func() { server.Close(); <-served })
	client, told, err := control.Dial(t.Context(), w.Dir)
	require.NoError(t, err)
	require.Equal(t, self, told)
	return w, client
}

func TestSocketIsForItsOwnerOnly(t *testing.T) {
	w, _ := serve(t)
	info, err := os.Stat(control.Socket(w.Dir))
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())
}

func TestListenTakesOverWhatAKilledServerLeft(t *testing.T) {
	dir := sandboxtest.NewDir(t)
	first, err := control.Listen(dir)
	require.NoError(t, err)
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, first.Close())
	_, _, err = control.Dial(t.Context(), dir)
	require.ErrorIs(t, err, control.ErrNoServer)
	second, err := control.Listen(dir)
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

func TestDialWithoutServer(t *testing.T) {
	_, _, err := control.Dial(t.Context(), t.TempDir())
	require.ErrorIs(t, err, control.ErrNoServer)
}

func TestLifeOfASandbox(t *testing.T) {
	w, client := serve(t)
	list, err := client.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)

	created, err := client.Create(t.Context(), sandbox.CreateRequest{
		Template: sandboxtest.Warm, Timeout: time.Minute, Metadata: map[string]string{"a": "b"}, EnvVars: map[string]string{"C": "d"},
	})
	require.NoError(t, err)
	same, err := w.Manager.Get(created.ID)
	require.NoError(t, err)
	require.Equal(t, same, created)
	got, err := client.Get(t.Context(), created.ID)
	require.NoError(t, err)
	require.Equal(t, created, got)
	list, err = client.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []sandbox.Info{created}, list)
	lines, err := client.Logs(t.Context(), created.ID)
	require.NoError(t, err)
	require.Equal(t, "running", lines[0].Text)
	require.Contains(t, w.Run(t, created, "env"), "C=d")

	require.NoError(t, client.Kill(t.Context(), created.ID))
	_, err = client.Get(t.Context(), created.ID)
	require.ErrorIs(t, err, sandbox.ErrNotFound)
	require.ErrorContains(t, err, "killed on the command line", "the reason crosses the socket")
}

func TestPauseAndResume(t *testing.T) {
	w, client := serve(t)
	info := w.Create(t, sandboxtest.Warm)
	require.NoError(t, client.Pause(t.Context(), info.ID, control.PauseRequest{}))
	paused, err := client.Get(t.Context(), info.ID)
	require.NoError(t, err)
	require.Equal(t, sandbox.Paused, paused.State)
	require.ErrorIs(t, client.Pause(t.Context(), info.ID, control.PauseRequest{}), sandbox.ErrPaused)
	_, err = client.Dial(t.Context(), info.ID, 49983)
	require.ErrorIs(t, err, sandbox.ErrPaused)
	_, err = client.Logs(t.Context(), info.ID)
	require.NoError(t, err, "its log stays")

	back, err := client.Resume(t.Context(), info.ID, sandbox.ResumeRequest{Timeout: time.Minute})
	require.NoError(t, err)
	require.True(t, back.Resumed)
	require.Equal(t, sandbox.Running, back.Info.State)
	require.Equal(t, info.AccessToken, back.Info.AccessToken)
	more, err := client.Resume(t.Context(), info.ID, sandbox.ResumeRequest{Timeout: time.Hour})
	require.NoError(t, err)
	require.False(t, more.Resumed, "it ran already")
	require.Greater(t, more.Info.EndAt, back.Info.EndAt)
}

func TestForkAndSnapshot(t *testing.T) {
	w, client := serve(t)
	info := w.Create(t, sandboxtest.Warm)
	forks, err := client.Fork(t.Context(), info.ID, sandbox.ForkRequest{Count: 2, Timeout: time.Minute})
	require.NoError(t, err)
	require.Len(t, forks, 2)
	for _, fork := range forks {
		require.Empty(t, fork.Error)
		require.Equal(t, sandbox.Running, fork.Info.State)
		require.NotEqual(t, info.AccessToken, fork.Info.AccessToken)
		require.NoError(t, client.Kill(t.Context(), fork.Info.ID))
	}
	_, err = client.Fork(t.Context(), info.ID, sandbox.ForkRequest{Count: 101, Timeout: time.Minute})
	require.ErrorContains(t, err, "1 to 100")

	snapshot, err := client.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{Name: "Mine:default"})
	require.NoError(t, err)
	require.Equal(t, "mine", snapshot.Name, "names have one form")
	require.Equal(t, info.ID, snapshot.SourceSandbox)
	made, err := client.Create(t.Context(), sandbox.CreateRequest{Template: "mine", Timeout: time.Minute, KeyID: info.KeyID})
	require.NoError(t, err)
	require.NoError(t, client.Kill(t.Context(), made.ID))
	_, err = client.Snapshot(t.Context(), info.ID, sandbox.SnapshotRequest{Name: "a b"})
	require.ErrorContains(t, err, "letters, digits")
	require.NoError(t, client.DeleteTemplate(t.Context(), "mine"))
	require.ErrorIs(t, client.DeleteTemplate(t.Context(), "mine"), sandbox.ErrTemplateNotFound)
}

func TestMetrics(t *testing.T) {
	w, client := serve(t)
	info := w.Create(t, sandboxtest.Warm)
	var points []sandbox.Metric
	require.Eventually(t, func() (ok bool) {
		var err error
		points, err = client.Metrics(t.Context(), info.ID, time.Time{})
		require.NoError(t, err)
		return len(points) > 0
	}, 30*time.Second, 50*time.Millisecond)
	require.Equal(t, info.CPUs, points[0].CPUs)
	require.Equal(t, info.MemoryBytes, points[0].MemoryTotalBytes)
	later, err := client.Metrics(t.Context(), info.ID, time.Now().Add(time.Hour))
	require.NoError(t, err)
	require.Empty(t, later)
}

func TestErrorsKeepTheirKind(t *testing.T) {
	w, client := serve(t)
	info := w.Create(t, sandboxtest.Warm)
	create := func(req sandbox.CreateRequest) error { _, err := client.Create(t.Context(), req); return err }
	dial := func(id string, port uint16) error { _, err := client.Dial(t.Context(), id, port); return err }
	_, logs := client.Logs(t.Context(), "inone")
	_, get := client.Get(t.Context(), "inone")
	_, resume := client.Resume(t.Context(), "inone", sandbox.ResumeRequest{Timeout: time.Minute})
	_, fork := client.Fork(t.Context(), "inone", sandbox.ForkRequest{Count: 1, Timeout: time.Minute})
	_, snapshot := client.Snapshot(t.Context(), "inone", sandbox.SnapshotRequest{})
	_, metrics := client.Metrics(t.Context(), "inone", time.Time{})
	for _, test := range []struct {
		name string
		err  error
		want error
	}{
		{"unknown template", create(sandbox.CreateRequest{Template: "none", Timeout: time.Minute}), sandbox.ErrTemplateNotFound},
		{"get", get, sandbox.ErrNotFound},
		{"logs", logs, sandbox.ErrNotFound},
		{"pause", client.Pause(t.Context(), "inone", control.PauseRequest{}), sandbox.ErrNotFound},
		{"resume", resume, sandbox.ErrNotFound},
		{"fork", fork, sandbox.ErrNotFound},
		{"snapshot", snapshot, sandbox.ErrNotFound},
		{"metrics", metrics, sandbox.ErrNotFound},
		{"kill", client.Kill(t.Context(), "inone"), sandbox.ErrNotFound},
		{"dial nobody", dial("inone", 8000), sandbox.ErrNotFound},
		{"closed port", dial(info.ID, 9), sandbox.ErrPortClosed},
		{"port 0", dial(info.ID, 0), sandbox.ErrPortClosed},
	} {
		require.ErrorIs(t, test.err, test.want, test.name)
	}
	require.ErrorContains(t, create(sandbox.CreateRequest{Template: sandboxtest.Warm}), "timeout must be greater than zero")
	require.ErrorContains(t, create(sandbox.CreateRequest{
		Template: sandboxtest.Warm, Timeout: time.Minute, KeyID: info.KeyID, Quota: sandbox.Quota{Sandboxes: 1},
	}), "limit of 1 sandboxes at once")
}

// An id is part of a path: one from a hostile mouth must not reach another
// resource.
func TestIDsThatAreNone(t *testing.T) {
	w, client := serve(t)
	info := w.Create(t, sandboxtest.Warm)
	for _, id := range []string{"", "..", "a/b", "a b", "a\r\nHost: x", "?", "#", "%", info.ID + "/logs", strings.Repeat("i", 100_000)} {
		_, err := client.Get(t.Context(), id)
		require.Error(t, err, "Get(%.20q)", id)
		require.Error(t, client.Kill(t.Context(), id), "Kill(%.20q)", id)
		_, err = client.Dial(t.Context(), id, 8000)
		require.Error(t, err, "Dial(%.20q)", id)
	}
	_, err := client.Get(t.Context(), info.ID)
	require.NoError(t, err)
}

func TestDialCarriesBytesAndTheEndOfEachHalf(t *testing.T) {
	w, client := serve(t)
	info := w.Create(t, sandboxtest.Warm)
	w.Start(t, info, "listen", "127.0.0.1:4000").Expect("listening")
	big := strings.Repeat("tombolo ", 1<<17) // more than any buffer on the way
	for _, port := range []uint16{8000, 4000} {
		conn, err := client.Dial(t.Context(), info.ID, port)
		require.NoError(t, err)
		require.True(t, strings.ToUpper(big) == sandboxtest.Ask(t, conn, big), "port %d: the answer differs", port)
	}
}

func TestDialledConnectionEndsWithTheSandbox(t *testing.T) {
	w, client := serve(t)
	info := w.Create(t, sandboxtest.Warm)
	conn, err := client.Dial(t.Context(), info.ID, 8000)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, client.Kill(t.Context(), info.ID))
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = io.ReadAll(conn)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection hangs")
}

func TestDialGivesUpWithItsContext(t *testing.T) {
	w, client := serve(t)
	info := w.Create(t, sandboxtest.Warm)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := client.Dial(ctx, info.ID, 8000)
	require.ErrorIs(t, err, context.Canceled)
}

func TestRequestsThatAreWrong(t *testing.T) {
	w, _ := serve(t)
	info := w.Create(t, sandboxtest.Warm)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", control.Socket(w.Dir))
	}}}
	defer client.CloseIdleConnections()
	for _, test := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/sandboxes", "no json", 400},
		{"POST", "/sandboxes", `{"template": 1}`, 400},
		{"POST", "/sandboxes", `{"template": "` + strings.Repeat("x", 2<<20) + `"}`, 400},
		{"POST", "/sandboxes/" + info.ID + "/pause", "no json", 400},
		{"POST", "/sandboxes/" + info.ID + "/resume", "{}", 400}, // no timeout
		{"POST", "/sandboxes/" + info.ID + "/fork", `{"count":0,"timeout":1}`, 400},
		{"POST", "/sandboxes/" + info.ID + "/snapshots", `{"name":"a/b"}`, 400},
		{"GET", "/sandboxes/" + info.ID + "/metrics?from=noon", "", 400},
		{"POST", "/sandboxes/" + info.ID + "/ports/70000", "", 400},
		{"POST", "/sandboxes/" + info.ID + "/ports/http", "", 400},
		{"PUT", "/sandboxes", "", 405},
		{"GET", "/nothing", "", 404},
	} {
		name := fmt.Sprintf("%s %s %.20s", test.method, test.path, test.body)
		request, err := http.NewRequestWithContext(t.Context(), test.method, "http://tombolo"+test.path, strings.NewReader(test.body))
		require.NoError(t, err)
		response, err := client.Do(request)
		require.NoError(t, err, name)
		response.Body.Close()
		require.Equal(t, test.status, response.StatusCode, name)
	}
}

// forbidding refuses what is asked of it.
type forbidding struct{ sandbox.Sandboxes }

func (forbidding) Create(context.Context, sandbox.CreateRequest) (sandbox.Info, error) {
	return sandbox.Info{}, fmt.Errorf("create: %w", &sandbox.DeniedError{What: "lifetime 3h", Rule: "short"})
}

func TestWhatARuleForbidsIsNoFailureOfTheServer(t *testing.T) {
	answer := httptest.NewRecorder()
	control.New(forbidding{}, self, slog.New(slog.DiscardHandler)).ServeHTTP(answer, httptest.NewRequest("POST", "/sandboxes", strings.NewReader("{}")))
	require.Equal(t, http.StatusForbidden, answer.Code)
	require.Contains(t, answer.Body.String(), "lifetime 3h is not allowed by the rule")
}
