package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	ownapi "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// noSandboxes has none that live.
type noSandboxes struct{ sandbox.Sandboxes }

func (noSandboxes) Get(string) (sandbox.Info, error) { return sandbox.Info{}, sandbox.ErrNotFound }

// approvals is a desk with its API, for the command line.
type approvals struct {
	t       *testing.T
	desk    *approval.Desk
	url     string
	keyFile string
}

func newApprovalsServer(t *testing.T) *approvals {
	dir := t.TempDir()
	records, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	require.NoError(t, records.PutSandbox(t.Context(), store.Sandbox{ID: "i1", KeyID: "agents", CreatedAt: time.Now()}))
	key, secret, err := store.NewKey("carol", time.Now())
	require.NoError(t, err)
	key.Roles = []store.Role{store.RoleApprove}
	require.NoError(t, records.AddKey(t.Context(), key))
	desk, err := approval.Open(t.Context(), approval.Config{Store: records})
	require.NoError(t, err)
	api := ownapi.New(ownapi.Options{Store: records, Sandboxes: noSandboxes{}, Desk: desk})
	server := httptest.NewServer(api.ForKeys())
	a := &approvals{t: t, desk: desk, url: server.URL, keyFile: filepath.Join(dir, "key")}
	require.NoError(t, os.WriteFile(a.keyFile, []byte(secret+"\n"), 0o600))
	t.Cleanup(func() {
		api.Close()
		server.Close()
		desk.Close()
		records.Close()
	})
	return a
}

func (a *approvals) run(code int, args ...string) outcome {
	a.t.Helper()
	got := tombolo(a.t, a.t.TempDir(), "", append([]string{"approvals", "--url", a.url, "--key-file", a.keyFile}, args...)...)
	require.Equal(a.t, code, got.code, "%v: %s", args, got.stderr)
	return got
}

// ask has a sandbox ask for an action, and returns the id of the hold.
func (a *approvals) ask(action policy.Action) (id string, done <-chan approval.Hold) {
	a.t.Helper()
	ended := make(chan approval.Hold, 1)
	subject := policy.Subject{SandboxID: "i1", KeyID: "agents"}
	go func() {
		h, _ := a.desk.Ask(a.t.Context(), subject, action, policy.Verdict{Decision: policy.Ask, Rule: "ask-first"}, time.Hour)
		ended <- h
	}()
	require.Eventually(a.t, func() bool {
		holds, err := a.desk.List(context.Background(), approval.Filter{States: []approval.State{approval.Pending}})
		require.NoError(a.t, err)
		for _, h := range holds {
			if h.Hash == approval.Hash(subject, action) {
				id = h.ID
			}
		}
		return id != ""
	}, patience, time.Millisecond)
	return id, ended
}

func connectTo(name string) policy.Action {
	return policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: name, Port: 443}
}

func TestApprovals(t *testing.T) {
	a := newApprovalsServer(t)
	require.Contains(t, a.run(1, "show", "apr_none").stderr, "apr_none")

	id, done := a.ask(connectTo("once.example"))
	listed := a.run(0, "list").stdout
	require.Contains(t, listed, id)
	require.Contains(t, listed, "once.example:443")
	require.Contains(t, listed, "ask-first")
	shown := a.run(0, "show", id).stdout
	require.Contains(t, shown, "i1")
	require.Contains(t, shown, "hash")
	said := a.run(0, "approve", id, "--reason", "as agreed").stdout
	require.Contains(t, said, "approved once: egress tcp once.example:443")
	h := <-done
	require.Equal(t, approval.Approved, h.State)
	require.Equal(t, "as agreed", h.Answer.Reason)
	require.Contains(t, h.Answer.Approver, "key:")
	require.Contains(t, a.run(1, "deny", id).stderr, "approved by", "it is decided")

	id, done = a.ask(connectTo("no.example"))
	require.Contains(t, a.run(0, "deny", id, "--reason", "never").stdout, "denied")
	require.Equal(t, approval.Denied, (<-done).State)

	id, done = a.ask(connectTo("wide.example"))
	require.Contains(t, a.run(1, "approve", id, "--for", "2h", "--match", "host=other.example").stderr, "does not fit")
	require.Contains(t, a.run(1, "approve", id, "--for", "2h", "--match", "hots=wide.example").stderr, "hots")
	require.Contains(t, a.run(1, "approve", id, "--for", "ever").stderr, "--for")
	require.Contains(t, a.run(1, "approve", id, "--for", "rule", "--scope", "server").stderr, "policy", "an approver changes nothing for others")
	require.Contains(t, a.run(1, "approve", id, "--for", "2h", "--as-proposed", "prp_none").stderr, "proposed")
	require.Contains(t, a.run(1, "approve", id, "--for", "2h", "--as-proposed", "").stderr, "proposal")
	require.Contains(t, a.run(0, "approve", id, "--for", "2h", "--match", "host=*.example,port=443").stdout, "for 2h")
	<-done

	id, done = a.ask(connectTo("proposed.test"))
	propose := func(m policy.Match) string {
		h, err := a.desk.Propose(t.Context(), id, approval.Proposal{Match: m, Reason: "the tests"})
		require.NoError(t, err)
		return h.Proposed.ID
	}
	read := propose(policy.Match{Host: []string{"proposed.test"}, Port: []string{"443"}})
	require.Contains(t, a.run(0, "show", id).stdout, read)
	wider := propose(policy.Match{Host: []string{"proposed.test"}})
	require.Contains(t, a.run(1, "approve", id, "--for", "2h", "--as-proposed", read).stderr, "not any more")
	require.Contains(t, a.run(0, "approve", id, "--for", "2h", "--as-proposed", wider).stdout, `{"host":["proposed.test"]} for 2h`)
	<-done

	id, done = a.ask(policy.Action{Kind: policy.Exec, Command: "rm -rf \u202e/", User: "user"})
	require.Contains(t, a.run(0, "list").stdout, `\u202e`, "what turns text around is seen")
	a.run(0, "approve", id, "--for", "rule")
	<-done

	var grants []approval.Grant
	require.NoError(t, json.Unmarshal([]byte(a.run(0, "grants", "--json").stdout), &grants))
	require.Len(t, grants, 3)
	require.Equal(t, []string{"*.example"}, grants[0].Match.Host)
	require.Equal(t, policy.Scope{Kind: policy.SandboxScope, ID: "i1"}, grants[2].Scope)
	require.Equal(t, []string{"user"}, grants[2].Match.User, "just like what was asked")
	require.Contains(t, a.run(0, "grants").stdout, "*.example")
	a.run(0, "revoke", grants[0].ID)
	require.Contains(t, a.run(1, "revoke", grants[0].ID).stderr, grants[0].ID)

	require.NotContains(t, a.run(0, "list").stdout, "example")
	require.Contains(t, a.run(0, "list", "--all").stdout, "no.example")
}

func TestApprovalsAreWatched(t *testing.T) {
	a := newApprovalsServer(t)
	first, _ := a.ask(connectTo("first.example"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := command(ctx, t.TempDir(), "approvals", "watch", "--url", a.url, "--key-file", a.keyFile)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	next := func(id, what string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), id) && strings.Contains(lines.Text(), what) {
				return
			}
		}
		require.FailNow(t, "the stream ended before "+what)
	}
	next(first, "first.example")
	second, _ := a.ask(connectTo("second.example"))
	next(second, "waiting")
	a.run(0, "deny", second)
	next(second, "denied")
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), "to interrupt it is how it ends")
}

func TestApprovalsNeedAKeyFromElsewhere(t *testing.T) {
	got := tombolo(t, t.TempDir(), "", "approvals", "list", "--url", "http://127.0.0.1:1")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "TOMBOLO_API_KEY")
}

// TestServerTakesAnswersForAnotherProcess has this process ask, on the data folder of
// a server, as `tombolo run` does.
func TestServerTakesAnswersForAnotherProcess(t *testing.T) {
	needAgent(t)
	dir := sandboxtest.NewDir(t)
	heard := make(chan string, 16)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		heard <- string(body)
	}))
	t.Cleanup(receiver.Close)
	startServer(t, dir, "--approval-webhook", receiver.URL, "--webhook-allow-private")
	require.Contains(t, tombolo(t, dir, "", "webhook", "list").stdout, "(all)")

	records, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	t.Cleanup(func() { records.Close() })
	require.NoError(t, records.PutSandbox(t.Context(), store.Sandbox{ID: "i1", KeyID: "agents", CreatedAt: time.Now()}))
	desk, err := approval.Open(t.Context(), approval.Config{Store: records})
	require.NoError(t, err)
	t.Cleanup(desk.Close)
	a := &approvals{t: t, desk: desk}
	id, done := a.ask(connectTo("a.example"))
	require.Contains(t, tombolo(t, dir, "", "approvals", "list").stdout, id)
	got := tombolo(t, dir, "", "approvals", "approve", id, "--reason", "as agreed")
	require.Zero(t, got.code, got.stderr)
	h := <-done
	require.Equal(t, approval.Approved, h.State)
	require.Equal(t, "owner", h.Answer.Approver)
	select {
	case body := <-heard:
		require.Contains(t, body, "tombolo.approval.decided")
		require.Contains(t, body, id)
		require.Contains(t, body, "as agreed")
	case <-time.After(patience):
		require.Fail(t, "the webhook is told nothing")
	}
}

// TestAnswersWithoutAServer has this process ask, on a data folder that no server has, as
// `tombolo run` does.
func TestAnswersWithoutAServer(t *testing.T) {
	dir := t.TempDir()
	records, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	t.Cleanup(func() { records.Close() })
	require.NoError(t, records.PutSandbox(t.Context(), store.Sandbox{ID: "i1", KeyID: "agents", CreatedAt: time.Now()}))
	desk, err := approval.Open(t.Context(), approval.Config{Store: records})
	require.NoError(t, err)
	t.Cleanup(desk.Close)
	a := &approvals{t: t, desk: desk}
	do := func(args ...string) string {
		t.Helper()
		got := tombolo(t, dir, "", append([]string{"approvals"}, args...)...)
		require.Zero(t, got.code, "%v: %s", args, got.stderr)
		return got.stdout
	}

	id, done := a.ask(connectTo("a.example"))
	require.Contains(t, do("list"), id)
	require.Contains(t, do("show", id), "a.example")
	do("approve", id, "--for", "sandbox", "--reason", "as agreed")
	h := <-done
	require.Equal(t, approval.Approved, h.State)
	require.Equal(t, "owner", h.Answer.Approver)
	require.Contains(t, tombolo(t, dir, "", "audit", "tail", "--kind", "approval").stdout, "as agreed")

	var grants []approval.Grant
	require.NoError(t, json.Unmarshal([]byte(do("grants", "--json")), &grants))
	require.Len(t, grants, 1)
	do("revoke", grants[0].ID)

	id, done = a.ask(connectTo("b.example"))
	do("deny", id)
	require.Equal(t, approval.Denied, (<-done).State)
}
