package cli

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	api "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

// TestOwnAPI goes to it by both ways of a real server, and from inside a sandbox.
func TestOwnAPI(t *testing.T) {
	needAgent(t)
	dir := sandboxtest.NewDir(t)
	server := startServer(t, dir)
	address := strings.TrimPrefix(server.ready, "tombolo serves on ")
	secret := func(args ...string) string {
		got := tombolo(t, dir, "", append([]string{"key", "create"}, args...)...)
		require.Zero(t, got.code, got.stderr)
		return strings.TrimSpace(got.stdout)
	}
	agents, person := secret("agents"), secret("person", "--role", "approve,audit")

	_, err := api.NewClient(address, person, nil).Approvals(t.Context(), approval.Filter{})
	require.NoError(t, err)
	_, err = api.NewClient(address, agents, nil).AuditHead(t.Context())
	require.True(t, api.HasCode(err, api.CodeRole), "%v", err)
	_, err = api.NewClient(address, "", nil).Grants(t.Context())
	require.True(t, api.HasCode(err, api.CodeNoKey), "%v", err)
	require.Equal(t, 403, status(t, address+"/v2/sandboxes", person), "E2B's API is for keys with the role sandboxes")
	require.Equal(t, 200, status(t, address+"/v2/sandboxes", agents))

	socket, _, err := control.Dial(t.Context(), dir)
	require.NoError(t, err)
	owner := api.NewClient("http://tombolo", "", socket.HTTP())
	_, err = owner.Grants(t.Context())
	require.NoError(t, err)
	_, err = socket.List(t.Context())
	require.NoError(t, err, "the other API of the socket is there too")

	got := tombolo(t, dir, "", "sandbox", "create", "-t", sandboxtest.Cold)
	require.Zero(t, got.code, got.stderr)
	id := strings.TrimSpace(got.stdout)
	page := tombolo(t, dir, "", "sandbox", "exec", id, "--", "/bin/probe", "get", "10.0.0.1:80", "tombolo.internal", "/")
	require.Zero(t, page.code, page.stderr)
	require.Contains(t, page.stdout, "This is sandbox "+id)

	// A stream, which has no end, does not hold up the end of the server.
	synced, ended := make(chan struct{}, 8), make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	go func() {
		ended <- owner.Watch(ctx, func(api.Change) error { synced <- struct{}{}; return nil }, func(error) { cancel() })
	}()
	<-synced
	began := time.Now()
	server.stop()
	<-ended
	t.Log("the server stopped in", time.Since(began))
}

func status(t *testing.T, address, key string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", address, nil)
	require.NoError(t, err)
	r.Header.Set("X-API-KEY", key)
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	response.Body.Close()
	return response.StatusCode
}
