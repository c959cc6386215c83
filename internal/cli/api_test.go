package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	api "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

// TestOwnAPI goes to it by both ways of a real server, and from inside a sandbox.
func TestOwnAPI(t *testing.T) {
	needAgent(t)
	dir := sandboxtest.NewDir(t)
	server := startServer(t, dir, "--on-stop=end")
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
	_, err = owner.Secrets(t.Context(), "")
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

// TestAPersonIsAsked goes the whole way of a question: code inside asks, sees that it
// waits and why, proposes; a person with another key reads it on the stream and denies;
// code inside reads what the person said; the record has it all.
func TestAPersonIsAsked(t *testing.T) {
	needAgent(t)
	dir := sandboxtest.NewDir(t)
	server := startServer(t, dir, "--on-stop=end")
	address := strings.TrimPrefix(server.ready, "tombolo serves on ")
	got := tombolo(t, dir, "", "key", "create", "person", "--role", "approve,audit", "--approves", "default")
	require.Zero(t, got.code, got.stderr)
	person := api.NewClient(address, strings.TrimSpace(got.stdout), nil)
	socket, _, err := control.Dial(t.Context(), dir)
	require.NoError(t, err)
	owner := api.NewClient("http://tombolo", "", socket.HTTP())
	_, err = owner.PutPolicy(t.Context(), api.Policy{Tables: []policy.Table{{
		Scope: policy.Scope{Kind: policy.ServerScope}, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Ask},
	}}}, false)
	require.NoError(t, err)

	id := strings.TrimSpace(tombolo(t, dir, "", "sandbox", "create", "-t", sandboxtest.Cold).stdout)
	inside := func(path string) string {
		return tombolo(t, dir, "", "sandbox", "exec", id, "--", "/bin/probe", "get", "10.0.0.1:80", "tombolo.internal", path).stdout
	}
	answered := make(chan outcome, 1)
	go func() {
		// The address is never dialled: nobody approves it.
		answered <- tombolo(t, dir, "", "sandbox", "exec", id, "--", "/bin/probe", "get", "8.8.8.8:80", "8.8.8.8", "/")
	}()
	var hold approval.Hold
	found := errors.New("found")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.ErrorIs(t, person.Watch(ctx, func(c api.Change) error {
		if c.Hold != nil && c.Hold.Subject.SandboxID == id {
			hold = *c.Hold
			return found
		}
		return nil
	}, nil), found)
	require.Contains(t, inside("/holds/"+hold.ID), "8.8.8.8")
	require.Contains(t, inside("/rules"), "default")

	_, err = person.Answer(t.Context(), hold.ID, api.AnswerRequest{Hash: hold.Hash, Reason: "use the mirror"})
	require.NoError(t, err)
	refused := <-answered
	require.Contains(t, refused.stdout, "403", refused.stderr)
	require.Contains(t, refused.stdout, "use the mirror")
	require.Contains(t, refused.stdout, "http://tombolo.internal/refusals/"+hold.ID)
	require.Contains(t, inside("/refusals/"+hold.ID), "use the mirror")

	var said []string
	require.NoError(t, person.Audit(t.Context(), url.Values{"sandbox": {id}, "kind": {"approval,network"}}, func(line json.RawMessage) error {
		said = append(said, string(line))
		return nil
	}))
	require.Contains(t, strings.Join(said, "\n"), `"what":"deny"`)
	require.Contains(t, strings.Join(said, "\n"), hold.ID)
	server.stop()
}
