package tombolo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/options"
	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/guard/inside"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// world is an API over a real store and a real desk, with these keys:
//
//	alice, bob   sandboxes; alice has i-alice, bob i-bob
//	ann          approve
//	ben          approve, bound to alice
//	pat          approve, policy
//	pam          approve, policy, bound to alice
//	eve          audit
//	pol          policy
//	lone         sandboxes and approve, with self-approval; has i-lone
//	twin         sandboxes and approve without, as no command makes it; has i-twin
//
// i-owner is of no key.
type world struct {
	t       *testing.T
	api     *tombolo.API
	store   *sqlite.Store
	desk    *approval.Desk
	secrets map[string]string // by name of key
	server  *httptest.Server
	owner   *httptest.Server

	core     *core
	vault    *secret.Vault
	audit    *audit.Log
	auditDir string
}

const (
	sandboxes = store.RoleSandboxes
	approve   = store.RoleApprove
	audits    = store.RoleAudit
	policies  = store.RolePolicy
)

func newWorld(t *testing.T) *world {
	t.Helper()
	records, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "tombolo.db"))
	require.NoError(t, err)
	desk, err := approval.Open(t.Context(), approval.Config{Store: records})
	require.NoError(t, err)
	w := &world{t: t, store: records, desk: desk, secrets: map[string]string{}, core: newCore(), auditDir: filepath.Join(t.TempDir(), "audit")}
	w.vault, err = secret.Open(t.Context(), t.TempDir(), records, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	w.audit, err = audit.Open(w.auditDir, audit.Options{})
	require.NoError(t, err)
	w.addKey("alice", nil, sandboxes)
	w.addKey("bob", nil, sandboxes)
	w.addKey("ann", nil, approve)
	w.addKey("ben", []string{"key-alice"}, approve)
	w.addKey("pat", nil, approve, policies)
	w.addKey("pam", []string{"key-alice"}, approve, policies)
	w.addKey("eve", nil, audits)
	w.addKey("pol", nil, policies)
	w.addKey("lone", nil, sandboxes, approve)
	w.addKey("twin", nil, sandboxes, approve)
	_, err = records.UpdateKey(t.Context(), "lone", func(k *store.Key) error { k.SelfApproval = true; return nil })
	require.NoError(t, err)
	w.api = tombolo.New(w.options())
	w.server = httptest.NewServer(record.Requests{Log: w.audit, API: "tombolo"}.Wrap(w.api.ForKeys()))
	w.owner = httptest.NewServer(record.Requests{Log: w.audit, API: "tombolo", Actor: "owner"}.Wrap(w.api.ForOwner()))
	t.Cleanup(func() {
		w.api.Close()
		w.server.Close()
		w.owner.Close()
		desk.Close()
		w.audit.Close()
		records.Close()
	})
	return w
}

func (w *world) options() tombolo.Options {
	return tombolo.Options{
		Store: w.store, Sandboxes: w.core, Desk: w.desk, Rules: &rules{core: w.core}, Networks: w.core, Vault: w.vault,
		AuditDir: w.auditDir, Log: slog.New(slog.DiscardHandler),
	}
}

func (w *world) addKey(name string, approves []string, roles ...store.Role) {
	k, secret, err := store.NewKey(name, time.Now())
	require.NoError(w.t, err)
	k.ID, k.Roles, k.Approves = "key-"+name, roles, approves
	require.NoError(w.t, w.store.AddKey(context.Background(), k))
	w.secrets[name] = secret
}

// core knows the live sandboxes, and what was set of them.
type core struct {
	sandbox.Sandboxes

	mu   sync.Mutex
	live map[string]sandbox.Info
}

func newCore() *core {
	c := &core{live: map[string]sandbox.Info{}}
	for _, name := range []string{"alice", "bob", "lone", "twin", "owner"} {
		s := of(name)
		c.live[s.SandboxID] = sandbox.Info{
			ID: s.SandboxID, KeyID: s.KeyID, TemplateID: s.TemplateID, TemplateName: s.TemplateName, State: sandbox.Running,
			Network: sandbox.NetworkOptions{AllowOut: []string{"kept.example"}},
		}
	}
	return c
}

func (c *core) Get(id string) (sandbox.Info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, ok := c.live[id]
	if !ok {
		return sandbox.Info{}, sandbox.ErrNotFound
	}
	return info, nil
}

func (c *core) change(id string, change func(*sandbox.Info)) (sandbox.Info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, ok := c.live[id]
	if !ok {
		return sandbox.Info{}, sandbox.ErrNotFound
	}
	change(&info)
	c.live[id] = info
	return info, nil
}

func (c *core) SetRules(_ context.Context, id string, rules policy.Table) (sandbox.Info, error) {
	return c.change(id, func(info *sandbox.Info) { info.Rules = rules })
}

func (c *core) SetNetwork(_ context.Context, id string, change func(*sandbox.NetworkOptions)) (sandbox.Info, error) {
	return c.change(id, func(info *sandbox.Info) { change(&info.Network) })
}

func (c *core) rules(id string) options.Rules {
	info, _ := c.Get(id)
	return options.Rules{Default: info.Rules.Default, Rules: info.Rules.Rules}
}

func (c *core) network(id string) sandbox.NetworkOptions {
	info, _ := c.Get(id)
	return info.Network
}

func (c *core) Destinations(id string) []tombolo.Destination {
	return []tombolo.Destination{{Name: "of " + id, Port: 443, Protocol: "tcp", Connections: 1}}
}

func (c *core) Refusals(id string) []inside.Refusal {
	return []inside.Refusal{{ID: "req_1", Kind: policy.Egress, What: "of " + id}}
}

// rules keeps tables in memory.
type rules struct {
	core *core

	mu     sync.Mutex
	tables []policy.Table
}

func (r *rules) Tables(context.Context) ([]policy.Table, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tables, nil
}

func (r *rules) Replace(_ context.Context, tables []policy.Table) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tables = tables
	return nil
}

func (r *rules) Explain(info sandbox.Info, a policy.Action) (policy.Verdict, []policy.TableSay) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var book policy.Book
	if err := book.Replace(r.tables); err != nil {
		panic(err)
	}
	set := book.For(info.Subject())
	return set.Judge(a), set.Explain(a)
}

func of(name string) policy.Subject {
	s := policy.Subject{SandboxID: "i-" + name, KeyID: "key-" + name, TemplateID: "base", TemplateName: "base"}
	if name == "owner" {
		s.KeyID = ""
	}
	return s
}

// answer is what came back.
type answer struct {
	code int
	body string
	head http.Header
}

// do makes a request by real HTTP, with the key of that name; "owner" is on the socket.
func (w *world) do(who, method, path, body string) answer {
	w.t.Helper()
	base := w.server.URL
	if who == "owner" {
		base = w.owner.URL
	}
	r, err := http.NewRequestWithContext(w.t.Context(), method, base+tombolo.Prefix+path, bytes.NewBufferString(body))
	require.NoError(w.t, err)
	if secret := w.secrets[who]; secret != "" {
		r.Header.Set("X-API-KEY", secret)
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(w.t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	return answer{response.StatusCode, string(raw), response.Header}
}

func (a answer) into(t *testing.T, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(a.body), v), a.body)
}

// errorCode is the code in an error's body.
func (a answer) errorCode() string {
	var body struct {
		Error struct{ Code, Message string }
	}
	_ = json.Unmarshal([]byte(a.body), &body)
	if body.Error.Message == "" {
		return ""
	}
	return body.Error.Code
}

func (w *world) client(who string) *tombolo.Client {
	if who == "owner" {
		return tombolo.NewClient(w.owner.URL, "", nil)
	}
	return tombolo.NewClient(w.server.URL, w.secrets[who], nil)
}

// ask has a sandbox of a key ask for a host, and returns the hold that waits.
func (w *world) ask(name, host string) (approval.Hold, <-chan approval.Hold) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	done := make(chan approval.Hold, 1)
	action := policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: host, Port: 443}
	go func() {
		h, _ := w.desk.Ask(ctx, of(name), action, policy.Verdict{Decision: policy.Ask, Rule: "default", Scope: policy.Scope{Kind: policy.ServerScope}, Reason: "unlisted"}, time.Hour)
		done <- h
	}()
	var found approval.Hold
	require.Eventually(w.t, func() bool {
		holds, err := w.desk.List(ctx, approval.Filter{SandboxID: "i-" + name, States: []approval.State{approval.Pending}})
		require.NoError(w.t, err)
		for _, h := range holds {
			if h.Action.Host == host {
				found = h
				return true
			}
		}
		return false
	}, 10*time.Second, time.Millisecond)
	return found, done
}

func encode(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}
