package approval_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func TestApprovedActionGoesOnOnce(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id, got := w.ask(t.Context(), alice, to("a.example"))
	h := w.get(id)
	require.Equal(t, approval.Pending, h.State)
	require.Equal(t, "default", h.Rule)
	require.WithinDuration(t, h.CreatedAt.Add(patience), h.Deadline, 0)

	answered := w.once(id)
	r := <-got
	require.NoError(t, r.err)
	require.Equal(t, approval.Approved, r.hold.State)
	require.Equal(t, "carol", r.hold.Answer.Approver)
	require.Equal(t, answered, r.hold)
	require.Equal(t, answered, w.get(id))
	require.Empty(t, w.Grants(), "it was used by who waited")
	_, granted := w.Granted(alice, to("a.example"), "")
	require.False(t, granted)
	next, _ := w.ask(t.Context(), alice, to("a.example"))
	require.NotEqual(t, id, next, "the next attempt asks again")
}

func TestDeniedActionIsRefused(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id, got := w.ask(t.Context(), alice, to("a.example"))
	_, err := w.Answer(t.Context(), id, approval.Answer{Hash: w.get(id).Hash, Approver: "carol", Reason: "not today"})
	require.NoError(t, err)
	r := <-got
	require.NoError(t, r.err)
	require.Equal(t, approval.Denied, r.hold.State)
	require.Equal(t, "not today", r.hold.Answer.Reason)

	h, err := w.Ask(t.Context(), alice, to("a.example"), asks, patience)
	require.NoError(t, err)
	require.Equal(t, id, h.ID, "a program that tries again at once has its answer")
	other, _ := w.ask(t.Context(), bob, to("a.example"))
	require.NotEqual(t, id, other, "it was not his denial")
}

func TestDenialIsForgotten(t *testing.T) {
	w := newWorld(t, approval.Limits{DeniedFor: time.Nanosecond})
	id, _ := w.ask(t.Context(), alice, to("a.example"))
	_, err := w.Answer(t.Context(), id, approval.Answer{Hash: w.get(id).Hash, Approver: "carol"})
	require.NoError(t, err)
	next, _ := w.ask(t.Context(), alice, to("a.example"))
	require.NotEqual(t, id, next)
}

func TestEqualActionsShareAHold(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	first, got1 := w.ask(t.Context(), alice, to("a.example"))
	second, got2 := w.ask(t.Context(), alice, to("a.example"))
	other, _ := w.ask(t.Context(), bob, to("a.example"))
	elsewhere, _ := w.ask(t.Context(), alice, to("b.example"))
	require.Equal(t, first, second)
	require.NotEqual(t, first, other, "another sandbox has its own")
	require.NotEqual(t, first, elsewhere)
	require.Equal(t, 2, w.get(first).Count)
	require.Equal(t, 2, w.get(first).Waiting)

	w.once(first)
	require.Equal(t, approval.Approved, (<-got1).hold.State, "those who wait go on together")
	require.Equal(t, approval.Approved, (<-got2).hold.State)
	require.Zero(t, w.get(first).Waiting)
	require.Equal(t, 2, w.get(first).Count)
}

func TestNobodyAnswers(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	h, err := w.Ask(t.Context(), alice, to("a.example"), asks, time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, approval.Expired, h.State)
	require.Nil(t, h.Answer)
	_, err = w.Answer(t.Context(), h.ID, approval.Answer{Approve: true, Hash: h.Hash, Approver: "carol"})
	require.ErrorIs(t, err, approval.ErrExpired)
	require.Empty(t, w.Grants())
}

func TestApprovalOfAnActionThatNobodyWaitsForIsKept(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id := w.leave(alice, to("a.example"))
	require.Equal(t, approval.Pending, w.get(id).State)
	require.Zero(t, w.get(id).Waiting)
	w.once(id)
	require.Len(t, w.Grants(), 1)

	_, granted := w.Granted(alice, to("b.example"), "")
	require.False(t, granted, "another action")
	_, granted = w.Granted(bob, to("a.example"), "")
	require.False(t, granted, "another sandbox")
	g, granted := w.Granted(alice, to("a.example"), "")
	require.True(t, granted)
	require.Equal(t, id, g.HoldID)
	_, granted = w.Granted(alice, to("a.example"), "")
	require.False(t, granted, "it was for once")
	require.Empty(t, w.Grants())
}

func TestAskFindsWhatWasGranted(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id := w.leave(alice, to("a.example"))
	w.once(id)
	h, err := w.Ask(t.Context(), alice, to("a.example"), asks, patience)
	require.NoError(t, err)
	require.Equal(t, id, h.ID)
	require.Equal(t, approval.Approved, h.State)
}

func TestUnusedApprovalIsOver(t *testing.T) {
	w := newWorld(t, approval.Limits{OnceFor: time.Nanosecond})
	w.once(w.leave(alice, to("a.example")))
	_, granted := w.Granted(alice, to("a.example"), "")
	require.False(t, granted)
	require.Empty(t, w.Grants())
}

func TestApprovalForASandbox(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id, got := w.ask(t.Context(), alice, to("a.example"))
	_, err := w.Answer(t.Context(), id, approval.Answer{Approve: true, Reach: approval.ForSandbox, Hash: w.get(id).Hash, Approver: "carol"})
	require.NoError(t, err)
	require.Equal(t, approval.Approved, (<-got).hold.State)
	for range 2 {
		_, granted := w.Granted(alice, to("a.example"), "")
		require.True(t, granted)
	}
	_, granted := w.Granted(bob, to("a.example"), "")
	require.False(t, granted)
	w.Forget(alice.SandboxID)
	_, granted = w.Granted(alice, to("a.example"), "")
	require.False(t, granted, "the sandbox ended")
	w.restart()
	require.Empty(t, w.Grants())
}

func TestApprovalForATime(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	for name, d := range map[string]time.Duration{"long": time.Hour, "short": time.Nanosecond} {
		id := w.leave(alice, to(name))
		_, err := w.Answer(t.Context(), id, approval.Answer{
			Approve: true, Reach: approval.ForTime, Duration: d, Hash: w.get(id).Hash, Approver: "carol",
		})
		require.NoError(t, err)
	}
	_, granted := w.Granted(alice, to("long"), "")
	require.True(t, granted)
	_, granted = w.Granted(alice, to("short"), "")
	require.False(t, granted)
	require.Len(t, w.Grants(), 1)
}

func TestWhatWaitsSurvivesTheServer(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id, got := w.ask(t.Context(), alice, to("a.example"))
	short := w.leave(alice, to("b.example"))
	h := w.get(id)
	w.restart()
	require.ErrorIs(t, (<-got).err, approval.ErrClosed)
	require.Equal(t, approval.Pending, w.get(id).State)
	require.Zero(t, w.get(id).Waiting)
	require.Equal(t, h.Deadline, w.get(id).Deadline)

	again, got := w.ask(t.Context(), alice, to("a.example"))
	require.Equal(t, id, again, "the program that tries again waits for the same")
	require.Equal(t, 2, w.get(id).Count)
	w.once(id)
	require.Equal(t, approval.Approved, (<-got).hold.State)

	w.once(short)
	w.restart()
	_, granted := w.Granted(alice, to("b.example"), "")
	require.True(t, granted, "an answer outlives the server too")
	w.restart()
	_, granted = w.Granted(alice, to("b.example"), "")
	require.False(t, granted, "and so does that it was used")
}

func TestDeadlinePassesWhileNoServerRuns(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id := w.leave(alice, to("a.example"))
	w.Close()
	h := w.get(id)
	h.Deadline = time.Now().Add(-time.Second)
	data, err := json.Marshal(h)
	require.NoError(t, err)
	require.NoError(t, w.store.UpdateHold(t.Context(), store.Hold{
		ID: id, SandboxID: h.Subject.SandboxID, KeyID: h.Subject.KeyID, State: string(h.State), Data: data,
	}))
	require.Equal(t, approval.Pending, w.get(id).State)
	w.restart()
	w.eventually(func() bool { return w.get(id).State == approval.Expired })
}

// Of what is to be made the template is part of what is asked about.
func TestCreatesOfTwoTemplatesAreAskedAboutApart(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	base := policy.Subject{KeyID: "alice", TemplateID: "t1", TemplateName: "base"}
	tools := policy.Subject{KeyID: "alice", TemplateID: "t2", TemplateName: "prod-tools"}
	long := policy.Action{Kind: policy.Lifetime, Timeout: 3 * time.Hour}
	require.NotEqual(t, approval.Hash(base, long), approval.Hash(tools, long))
	w.once(w.leave(base, long))
	_, granted := w.Granted(tools, long, "")
	require.False(t, granted)
	_, granted = w.Granted(base, long, "")
	require.True(t, granted)
	require.Equal(t, approval.Hash(alice, long), approval.Hash(policy.Subject{SandboxID: alice.SandboxID}, long), "a sandbox is of one template anyway")
}

func TestForgottenSandboxTakesItsHoldsAlong(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id, got := w.ask(t.Context(), alice, to("a.example"))
	other, _ := w.ask(t.Context(), bob, to("a.example"))
	w.Forget(alice.SandboxID)
	require.Equal(t, approval.Withdrawn, (<-got).hold.State)
	require.Equal(t, approval.Withdrawn, w.get(id).State)
	require.Equal(t, approval.Pending, w.get(other).State)
}

// A build's sandbox has no record. What is left of it goes when the desk is opened, which tidies.
func TestWhatIsLeftOfAnUnknownSandboxGoesInTime(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	approve := func(id string) {
		_, err := w.Answer(t.Context(), id, approval.Answer{Approve: true, Reach: approval.ForSandbox, Hash: w.get(id).Hash, Approver: "carol"})
		require.NoError(t, err)
	}
	waits := w.leave(alice, to("a.example"))
	approve(w.leave(alice, to("b.example")))
	reopen := func(unknownFor time.Duration) {
		w.Close()
		require.NoError(t, w.store.Close())
		w.open(approval.Limits{UnknownFor: unknownFor})
	}
	reopen(time.Hour)
	require.Equal(t, approval.Pending, w.get(waits).State)
	require.Len(t, w.Grants(), 1)
	require.NoError(t, w.store.PutSandbox(t.Context(), store.Sandbox{ID: bob.SandboxID, KeyID: bob.KeyID, CreatedAt: time.Now()}))
	approve(w.leave(bob, to("b.example")))
	reopen(time.Nanosecond)
	require.Equal(t, approval.Withdrawn, w.get(waits).State)
	require.Len(t, w.Grants(), 1, "one of a sandbox that is known stays")
	require.Equal(t, bob.SandboxID, w.Grants()[0].Scope.ID)
}

func TestFullOfGrantsStillAnswersForOnce(t *testing.T) {
	w := newWorld(t, approval.Limits{Grants: 1})
	id, got := w.ask(t.Context(), alice, to("a.example"))
	yes := approval.Answer{Approve: true, Reach: approval.ForSandbox, Hash: w.get(id).Hash, Approver: "carol"}
	_, err := w.Answer(t.Context(), id, yes)
	require.NoError(t, err)
	require.Equal(t, approval.Approved, (<-got).hold.State)
	id, got = w.ask(t.Context(), alice, to("b.example"))
	yes.Hash = w.get(id).Hash
	_, err = w.Answer(t.Context(), id, yes)
	require.ErrorContains(t, err, "revoke")
	w.once(id)
	require.Equal(t, approval.Approved, (<-got).hold.State, "an answer to who waits leaves nothing")
}

// stuck is a store from which grants cannot be deleted.
type stuck struct{ *sqlite.Store }

func (stuck) DeleteGrant(context.Context, string) error { return errors.New("the disk is full") }

func TestAnApprovalThatCannotBeUsedUpIsAnError(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	w.once(w.leave(alice, to("a.example")))
	desk, err := approval.Open(t.Context(), approval.Config{Store: stuck{w.store}})
	require.NoError(t, err)
	t.Cleanup(desk.Close)
	_, err = desk.Ask(t.Context(), alice, to("a.example"), asks, patience)
	require.ErrorContains(t, err, "the disk is full", "it ends, and is tried by who asks")
	_, granted := desk.Granted(alice, to("a.example"), "")
	require.False(t, granted)
	_, granted = w.Granted(alice, to("a.example"), "")
	require.True(t, granted, "it was not lost")
}

func TestFloodOfOneSandboxIsItsOwn(t *testing.T) {
	w := newWorld(t, approval.Limits{PerSandbox: 3, PerKey: 5, InAll: 7})
	for _, host := range []string{"a", "b", "c"} {
		w.leave(alice, to(host))
	}
	_, err := w.Ask(t.Context(), alice, to("d"), asks, patience)
	require.ErrorIs(t, err, approval.ErrFull)
	require.ErrorContains(t, err, "of this sandbox")
	sister := policy.Subject{SandboxID: "i3", KeyID: alice.KeyID}
	w.leave(sister, to("a"))
	w.leave(sister, to("b"))
	_, err = w.Ask(t.Context(), sister, to("c"), asks, patience)
	require.ErrorContains(t, err, "of the sandboxes of this key")
	w.leave(bob, to("a"))
	w.leave(bob, to("b"))
	_, err = w.Ask(t.Context(), bob, to("c"), asks, patience)
	require.ErrorContains(t, err, "of all sandboxes")
	id, _ := w.ask(t.Context(), alice, to("a"))
	require.Equal(t, 2, w.get(id).Count, "one that waits can be joined")
	w.once(w.waiting(bob, to("b")).ID)
	w.leave(bob, to("c"))
}

func TestWhatNobodyCanReadIsNotAsked(t *testing.T) {
	w := newWorld(t, approval.Limits{ActionBytes: 200})
	_, err := w.Ask(t.Context(), alice, policy.Action{Kind: policy.Exec, Command: string(make([]byte, 300))}, asks, patience)
	var invalid *approval.InvalidError
	require.ErrorAs(t, err, &invalid)
}
