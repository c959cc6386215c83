package control_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
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

func TestErrorsKeepTheirKind(t *testing.T) {
	w, client := serve(t)
	info := w.Create(t, sandboxtest.Warm)
	create := func(req sandbox.CreateRequest) error { _, err := client.Create(t.Context(), req); return err }
	dial := func(id string, port uint16) error { _, err := client.Dial(t.Context(), id, port); return err }
	_, logs := client.Logs(t.Context(), "inone")
	_, get := client.Get(t.Context(), "inone")
	for _, test := range []struct {
		name string
		err  error
		want error
	}{
		{"unknown template", create(sandbox.CreateRequest{Template: "none", Timeout: time.Minute}), sandbox.ErrTemplateNotFound},
		{"get", get, sandbox.ErrNotFound},
		{"logs", logs, sandbox.ErrNotFound},
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
