package approval_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
)

func TestFirstOfManyAnswersCounts(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	for round := range 20 {
		action := to(fmt.Sprintf("host%d.example", round))
		id, got := w.ask(t.Context(), alice, action)
		_, got2 := w.ask(t.Context(), alice, action)
		hash := w.get(id).Hash
		var won atomic.Int32
		var winner atomic.Pointer[approval.Hold]
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				a := approval.Answer{Approve: i%2 == 0, Hash: hash, Approver: fmt.Sprint("person ", i)}
				if a.Approve && i%4 == 0 {
					a.Reach = approval.ForSandbox
				}
				h, err := w.Answer(context.Background(), id, a)
				if err == nil {
					won.Add(1)
					winner.Store(&h)
					return
				}
				if !errors.Is(err, approval.ErrDecided) || h.Answer == nil {
					t.Errorf("answer %d: %v", i, err)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, won.Load())
		want := *winner.Load()
		require.Equal(t, want, (<-got).hold, "everybody gets the answer that counts")
		require.Equal(t, want, (<-got2).hold)
		require.Equal(t, want, w.get(id))
		_, granted := w.Granted(alice, action, "")
		require.Equal(t, want.Answer.Reach == approval.ForSandbox, granted)
	}
}

func TestGrantForOneUseIsUsedOnce(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	for round := range 10 {
		action := to(fmt.Sprintf("host%d.example", round))
		w.once(w.leave(alice, action))
		var used atomic.Int32
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if _, granted := w.Granted(alice, action, ""); granted {
					used.Add(1)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, used.Load())
	}
}

// TestUsesAndAnswersMatch has programs try one action again and again while a person
// approves it once each time: there are never more uses than those who waited or one.
func TestUsesAndAnswersMatch(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	ctx, cancel := context.WithCancel(t.Context())
	var approved, uses atomic.Int32
	var programs sync.WaitGroup
	for range 4 {
		programs.Go(func() {
			for ctx.Err() == nil {
				h, err := w.Ask(ctx, alice, to("a.example"), asks, patience)
				if err == nil && h.State == approval.Approved {
					uses.Add(1)
				}
			}
		})
	}
	for approved.Load() < 30 {
		h := w.waiting(alice, to("a.example"))
		if h.ID == "" {
			continue
		}
		_, err := w.Answer(ctx, h.ID, approval.Answer{Approve: true, Hash: h.Hash, Approver: "carol"})
		require.NoError(t, err)
		approved.Add(1)
	}
	cancel()
	programs.Wait()
	require.LessOrEqual(t, uses.Load(), 4*approved.Load())
	require.GreaterOrEqual(t, uses.Load(), approved.Load()-1, "at most the last had nobody any more")
}

func TestAnswerReachesAnotherProcess(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id, got := w.ask(t.Context(), alice, to("a.example"))
	other := &world{t: t, path: w.path}
	other.open(approval.Limits{})
	require.Equal(t, approval.Pending, other.get(id).State)
	other.once(id)
	r := <-got
	require.NoError(t, r.err)
	require.Equal(t, approval.Approved, r.hold.State)
	require.Equal(t, id, r.hold.ID)
	require.Empty(t, w.Grants(), "it was used up")
	w.eventually(func() bool { return len(other.Grants()) == 0 })

	id, got = other.ask(t.Context(), alice, to("b.example"))
	_, err := w.Answer(t.Context(), id, approval.Answer{Hash: other.get(id).Hash, Approver: "carol"})
	require.NoError(t, err)
	require.Equal(t, approval.Denied, (<-got).hold.State)

	id = w.leave(alice, to("c.example"))
	_, err = w.Answer(t.Context(), id, approval.Answer{Approve: true, Reach: approval.ForSandbox, Hash: w.get(id).Hash, Approver: "carol"})
	require.NoError(t, err)
	w.eventually(func() bool { _, granted := other.Granted(alice, to("c.example"), ""); return granted })
	_, err = w.Revoke(t.Context(), w.Grants()[0].ID)
	require.NoError(t, err)
	w.eventually(func() bool { _, granted := other.Granted(alice, to("c.example"), ""); return !granted })
}

const childStore = "TOMBOLO_TEST_STORE"

// TestKilledServerReplaysNoApproval kills, with SIGKILL, a server that has told of each
// approval when it was given and when it was used.
func TestKilledServerReplaysNoApproval(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	w.Close()
	require.NoError(t, w.store.Close())
	child := exec.Command(os.Args[0], "-test.run=^TestServerProcess$")
	child.Env = append(os.Environ(), childStore+"="+w.path)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	approved, used, waits := map[string]bool{}, map[string]bool{}, ""
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		what, host, _ := strings.Cut(lines.Text(), " ")
		switch what {
		case "approved":
			approved[host] = true
		case "used":
			used[host] = true
		case "waits":
			waits = host
		}
		if len(used) == 10 {
			break
		}
	}
	require.NoError(t, child.Process.Kill())
	for lines.Scan() { // what it told in its last moments
		if what, host, _ := strings.Cut(lines.Text(), " "); what == "used" {
			used[host] = true
		} else if what == "approved" {
			approved[host] = true
		}
	}
	require.Error(t, child.Wait())

	w.open(approval.Limits{})
	for host := range used {
		_, granted := w.Granted(alice, to(host), "")
		require.False(t, granted, "what was used is not approved again: %s", host)
	}
	var left int
	for host := range approved {
		if used[host] {
			continue
		}
		if _, granted := w.Granted(alice, to(host), ""); granted {
			left++
		}
	}
	require.NotZero(t, left, "what was approved and not used still is")
	_, granted := w.Granted(alice, to("never.example"), "")
	require.False(t, granted)
	require.Equal(t, approval.Pending, w.waiting(alice, to(waits)).State, "what waited waits")
}

// TestServerProcess is the process of TestKilledServerReplaysNoApproval.
func TestServerProcess(t *testing.T) {
	path := os.Getenv(childStore)
	if path == "" {
		t.Skip("runs as a child only")
	}
	w := &world{t: t, path: path}
	w.open(approval.Limits{PerSandbox: 1000})
	w.ask(context.Background(), alice, to("waits.example"))
	fmt.Println("waits waits.example")
	for i := range 30 { // these are not used
		host := fmt.Sprintf("kept%d.example", i)
		w.once(w.leave(alice, to(host)))
		fmt.Println("approved " + host)
	}
	for i := 0; ; i++ {
		host := fmt.Sprintf("host%d.example", i)
		w.once(w.leave(alice, to(host)))
		fmt.Println("approved " + host)
		if _, granted := w.Granted(alice, to(host), ""); !granted {
			panic("not granted")
		}
		fmt.Println("used " + host)
	}
}

func TestWatch(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	before, _ := w.ask(t.Context(), alice, to("a.example"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all := w.Watch(ctx, approval.Filter{})
	bobs := w.Watch(ctx, approval.Filter{KeyID: bob.KeyID})
	w.Watch(ctx, approval.Filter{}) // nobody reads it, which holds up nothing
	require.Equal(t, before, (<-all).ID, "what waits comes first")
	id, _ := w.ask(t.Context(), bob, to("b.example"))
	next := func(from <-chan approval.Hold, is func(approval.Hold) bool) {
		t.Helper()
		for {
			select {
			case h := <-from:
				if is(h) {
					return
				}
			case <-time.After(20 * time.Second):
				require.FailNow(t, "it is not told")
			}
		}
	}
	next(all, func(h approval.Hold) bool { return h.ID == id && h.State == approval.Pending })
	next(bobs, func(h approval.Hold) bool { require.Equal(t, id, h.ID); return h.Waiting == 1 })
	w.once(before)
	w.once(id)
	next(all, func(h approval.Hold) bool { return h.ID == before && h.State == approval.Approved })
	next(bobs, func(h approval.Hold) bool { return h.ID == id && h.State == approval.Approved })
	w.Close()
	_, open := <-bobs
	require.False(t, open)
}

// Who watches hears once of a new hold, and that somebody waits for it.
func TestANewHoldIsToldOnceWithWhoWaits(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	var watchers []<-chan approval.Hold
	for range 32 {
		watchers = append(watchers, w.Watch(t.Context(), approval.Filter{}))
	}
	for i := range 30 {
		id, _ := w.ask(t.Context(), alice, to(fmt.Sprintf("host%d.example", i)))
		for _, told := range watchers {
			h := <-told
			require.Equal(t, id, h.ID, "and of nothing twice")
			require.Equal(t, approval.Pending, h.State)
			require.Equal(t, 1, h.Waiting)
		}
	}
}

func TestAllThatAskAtOnceAreCounted(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	for i := range 30 {
		action := to(fmt.Sprintf("host%d.example", i))
		for range 8 {
			go func() { _, _ = w.Ask(t.Context(), alice, action, asks, patience) }()
		}
		w.eventually(func() bool { return w.waiting(alice, action).Count == 8 })
		require.Equal(t, 8, w.waiting(alice, action).Waiting)
		w.once(w.waiting(alice, action).ID)
	}
}

func TestChangesAreToldInOrder(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id, _ := w.ask(t.Context(), alice, to("a.example"))
	_, err := w.Propose(t.Context(), id, approval.Proposal{Match: policy.Match{Host: []string{"a.example"}}, Reason: "the package index"})
	require.NoError(t, err)
	w.once(id)
	var states []approval.State
	for _, h := range w.told() {
		require.Equal(t, id, h.ID)
		states = append(states, h.State)
	}
	require.Equal(t, []approval.State{approval.Pending, approval.Pending, approval.Approved}, states)
	notice, err := w.told()[1].Notice().JSON()
	require.NoError(t, err)
	require.Contains(t, string(notice), `"path":"/tombolo/v1/approvals/`+id+`/answer","body":{"approve":true,"hash":"`+w.get(id).Hash)
}
