package guard_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func says(kind policy.Kind, d policy.Decision) policy.Table {
	return policy.Table{Scope: server, Rules: []policy.Rule{{Name: "of-" + string(d), Kind: kind, Decision: d}}}
}

// realDesk is one over records of its own.
func realDesk(t *testing.T) *approval.Desk {
	records, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "tombolo.db"))
	require.NoError(t, err)
	d, err := approval.Open(t.Context(), approval.Config{Store: records})
	require.NoError(t, err)
	t.Cleanup(func() {
		d.Close()
		records.Close()
	})
	return d
}

// holds waits for the one hold there is to be in a state.
func holds(t *testing.T, d *approval.Desk, state approval.State) (h approval.Hold) {
	t.Helper()
	require.Eventually(t, func() bool {
		all, err := d.List(context.Background(), approval.Filter{Most: 2})
		require.NoError(t, err)
		if len(all) == 1 && all[0].State == state {
			h = all[0]
		}
		return h.ID != ""
	}, 20*time.Second, time.Millisecond)
	return h
}

// Rules of one sandbox that change decide what waits in it, and nothing else is judged anew.
func TestRulesOfASandboxThatChangeWakeWhatWaitsInIt(t *testing.T) {
	d := realDesk(t)
	g, err := guard.New(t.Context(), guard.Config{
		Store: noTemplates{}, Audit: &records{}, Desk: d, Log: slog.New(slog.DiscardHandler),
		Tables: func(context.Context) ([]policy.Table, error) {
			return []policy.Table{says(policy.Egress, policy.Ask)}, nil
		},
	})
	require.NoError(t, err)
	ownedBy := func(id string) *sandbox.Owner {
		return &sandbox.Owner{Subject: policy.Subject{SandboxID: id, KeyID: "k1"}, Log: func(bool, string) {}}
	}
	var owner atomic.Pointer[sandbox.Owner]
	owner.Store(ownedBy("i1"))
	var judged atomic.Int64
	p := g.Policy(func() *sandbox.Owner {
		judged.Add(1)
		return owner.Load()
	})
	open := func(of func() *sandbox.Owner) *guard.Network {
		n, err := g.OpenNetwork(t.Context(), sandbox.NetworkConfig{Dir: t.TempDir(), Owner: of})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		return n
	}
	other := ownedBy("i2")
	others, own := open(func() *sandbox.Owner { return other }), open(owner.Load)
	done := make(chan gateway.Verdict, 1)
	go func() {
		done <- p.Decide(context.Background(), gateway.Request{Protocol: gateway.TLS, Destination: at("93.184.216.34:443"), Name: "example.com"}).Verdict
	}()
	require.Eventually(t, func() bool { return holds(t, d, approval.Pending).Waiting == 1 && judged.Load() == 2 }, 20*time.Second, time.Millisecond)
	for range 1000 {
		others.OwnerChanged()
	}
	changed := *owner.Load()
	changed.Rules = policy.Table{Rules: []policy.Rule{{Name: "no", Kind: policy.Egress, Decision: policy.Deny}}}
	owner.Store(&changed)
	own.OwnerChanged()
	require.Equal(t, gateway.Deny, <-done)
	require.EqualValues(t, 4, judged.Load(), "when it came, before it waited, when its rules changed, and to the end")
}

// A judgement that fails denies, also the one that is made when rules change meanwhile.
func TestJudgementThatPanicsWhileAPersonIsAskedEndsNothingElse(t *testing.T) {
	d := realDesk(t)
	w := newWorld(t, d, says(policy.Egress, policy.Ask))
	var broken atomic.Bool
	p := w.Policy(func() *sandbox.Owner {
		if broken.Load() {
			panic("broken")
		}
		return w.owner
	})
	panicked := make(chan any, 1)
	go func() {
		defer func() { panicked <- recover() }() // as the gateway does
		p.Decide(context.Background(), gateway.Request{Protocol: gateway.TLS, Destination: at("93.184.216.34:443"), Name: "example.com"})
	}()
	require.Eventually(t, func() bool { return holds(t, d, approval.Pending).Waiting == 1 }, 20*time.Second, time.Millisecond)
	broken.Store(true)
	require.NoError(t, w.Reload(t.Context()))
	require.Equal(t, "broken", <-panicked)
}

// Rules that change while something waits decide it at once, and nobody is asked any more.
func TestRulesThatChangeDecideWhatWaits(t *testing.T) {
	does := map[policy.Kind]func(*world) bool{
		policy.Exec: func(w *world) bool {
			return w.Admit(context.Background(), sandbox.Info{ID: "i1", KeyID: "k1"}, policy.Action{Kind: policy.Exec, Command: "ls", User: "user"}) == nil
		},
		policy.Egress: func(w *world) bool {
			r := gateway.Request{Protocol: gateway.TLS, Destination: at("93.184.216.34:443"), Name: "example.com"}
			return w.policy.Decide(context.Background(), r).Verdict == gateway.Allow
		},
	}
	for kind, do := range does {
		for decision, want := range map[policy.Decision]bool{policy.Allow: true, policy.Deny: false} {
			t.Run(string(kind)+" becomes "+string(decision), func(t *testing.T) {
				d, tables := realDesk(t), []policy.Table{says(kind, policy.Ask)}
				w := newWorld(t, d, tables...)
				done := make(chan bool, 2)
				for range cap(done) {
					go func() { done <- do(w) }()
				}
				require.Eventually(t, func() bool { return holds(t, d, approval.Pending).Waiting == 2 }, 20*time.Second, time.Millisecond)
				require.NoError(t, w.Reload(t.Context()))
				require.Equal(t, 2, holds(t, d, approval.Pending).Waiting, "rules that still say to ask change nothing")
				tables[0] = says(kind, decision)
				require.NoError(t, w.Reload(t.Context()))
				require.Equal(t, want, <-done)
				require.Equal(t, want, <-done)
				h := holds(t, d, approval.Withdrawn)
				last := w.records.last(t)
				require.Equal(t, string(decision), last.Decision)
				require.Equal(t, "of-"+string(decision), last.Rule)
				require.Contains(t, string(last.Detail), h.ID, "the record says what it waited as")
			})
		}
	}
}

// Of several who wait for the same, one alone may see that rules decided it for a moment and
// withdraw it. The others did not hear of it: they ask again.
func TestWhatRulesDecidedForAMomentIsAskedAgain(t *testing.T) {
	d := realDesk(t)
	w := newWorld(t, d, says(policy.Exec, policy.Ask))
	done := make(chan error, 1)
	go func() {
		done <- w.Admit(context.Background(), sandbox.Info{ID: "i1", KeyID: "k1"}, policy.Action{Kind: policy.Exec, Command: "ls", User: "user"})
	}()
	pending := func(but string) (h approval.Hold) {
		require.Eventually(t, func() bool {
			all, err := d.List(context.Background(), approval.Filter{States: []approval.State{approval.Pending}})
			require.NoError(t, err)
			if len(all) == 1 && all[0].ID != but && all[0].Waiting == 1 {
				h = all[0]
			}
			return h.ID != ""
		}, 20*time.Second, time.Millisecond)
		return h
	}
	first := pending("")
	_, err := d.Withdraw(t.Context(), first.ID)
	require.NoError(t, err)
	second := pending(first.ID)
	require.Equal(t, first.Hash, second.Hash)

	w.Forget("i1")
	require.ErrorContains(t, <-done, "nobody wanted it any more", "of a sandbox that has ended nothing is asked again")
	all, err := d.List(t.Context(), approval.Filter{})
	require.NoError(t, err)
	require.Len(t, all, 2)
}

// late answers after the rules have changed.
type late struct {
	desk
	change func()
}

func (d *late) Ask(ctx context.Context, s policy.Subject, a policy.Action, v policy.Verdict, patience time.Duration) (approval.Hold, error) {
	d.change()
	return d.desk.Ask(ctx, s, a, v, patience)
}

// Whatever was approved, a rule that forbids by then still forbids.
func TestAYesIsNoneWhereRulesForbidByThen(t *testing.T) {
	for decision, want := range map[policy.Decision]bool{policy.Ask: true, policy.Allow: true, policy.Deny: false} {
		for _, state := range []approval.State{approval.Approved, approval.Denied} {
			d, tables := &late{desk: desk{state: state}}, []policy.Table{says(policy.Lifetime, policy.Ask)}
			w := newWorld(t, d, tables...)
			d.change = func() {
				tables[0] = says(policy.Lifetime, decision)
				require.NoError(t, w.Reload(t.Context()))
			}
			err := w.Admit(t.Context(), sandbox.Info{ID: "i1", KeyID: "k1"}, policy.Action{Kind: policy.Lifetime, Timeout: time.Hour})
			require.Equal(t, want && state == approval.Approved, err == nil, "%s, and %s by then: %v", state, decision, err)
		}
	}
}
