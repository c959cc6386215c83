package approval_test

import (
	"context"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// patience is longer than any test takes.
const patience = time.Hour

var (
	alice = policy.Subject{SandboxID: "i1", KeyID: "alice", TemplateID: "t1", TemplateName: "base"}
	bob   = policy.Subject{SandboxID: "i2", KeyID: "bob", TemplateID: "t1", TemplateName: "base"}
	asks  = policy.Verdict{Decision: policy.Ask, Rule: "default", Scope: policy.Scope{Kind: policy.ServerScope}, Reason: "unlisted"}
)

func to(host string) policy.Action {
	return policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: host, Port: 443}
}

// world is a desk over a store.
type world struct {
	*approval.Desk
	t     testing.TB
	path  string
	store *sqlite.Store

	mu      sync.Mutex
	changes []approval.Hold
}

func newWorld(t testing.TB, limits approval.Limits) *world {
	w := &world{t: t, path: filepath.Join(t.TempDir(), "tombolo.db")}
	w.open(limits)
	return w
}

func (w *world) open(limits approval.Limits) {
	records, err := sqlite.Open(context.Background(), w.path)
	require.NoError(w.t, err)
	desk, err := approval.Open(context.Background(), approval.Config{Store: records, Limits: limits, OnChange: func(h approval.Hold) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changes = append(w.changes, h)
	}})
	require.NoError(w.t, err)
	w.Desk, w.store = desk, records
	w.t.Cleanup(func() {
		desk.Close()
		records.Close()
	})
}

// restart ends the desk and opens another over the same records.
func (w *world) restart() {
	w.Close()
	require.NoError(w.t, w.store.Close())
	w.open(approval.Limits{})
}

func (w *world) told() []approval.Hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]approval.Hold{}, w.changes...)
}

// result is what Ask returned.
type result struct {
	hold approval.Hold
	err  error
}

// ask asks in a goroutine and waits until a hold shows that.
func (w *world) ask(ctx context.Context, s policy.Subject, a policy.Action) (id string, got <-chan result) {
	w.t.Helper()
	before := w.waiting(s, a).Waiting
	results := make(chan result, 1)
	go func() {
		h, err := w.Ask(ctx, s, a, asks, patience)
		results <- result{h, err}
	}()
	w.eventually(func() bool { return w.waiting(s, a).Waiting == before+1 })
	return w.waiting(s, a).ID, results
}

// waiting is the pending hold of an action, or a zero one.
func (w *world) waiting(s policy.Subject, a policy.Action) approval.Hold {
	w.t.Helper()
	holds, err := w.List(context.Background(), approval.Filter{SandboxID: s.SandboxID, States: []approval.State{approval.Pending}, Most: 1000})
	require.NoError(w.t, err)
	for _, h := range holds {
		if h.Hash == approval.Hash(s, a) {
			return h
		}
	}
	return approval.Hold{}
}

func (w *world) eventually(fn func() bool) {
	w.t.Helper()
	require.Eventually(w.t, fn, 20*time.Second, time.Millisecond)
}

func (w *world) get(id string) approval.Hold {
	w.t.Helper()
	h, err := w.Get(context.Background(), id)
	require.NoError(w.t, err)
	return h
}

// once approves a hold for one use.
func (w *world) once(id string) approval.Hold {
	w.t.Helper()
	h, err := w.Answer(context.Background(), id, approval.Answer{Approve: true, Hash: w.get(id).Hash, Approver: "carol"})
	require.NoError(w.t, err)
	return h
}

// leave asks, goes away, and returns the hold that stays.
func (w *world) leave(s policy.Subject, a policy.Action) string {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	id, got := w.ask(ctx, s, a)
	cancel()
	require.ErrorIs(w.t, (<-got).err, context.Canceled)
	return id
}

var addr = netip.MustParseAddr
