package approval

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
)

const (
	// maxText is how long a reason may be, in bytes.
	maxText = 1000
	// maxDuration is the longest that an approval for a time may hold.
	maxDuration = 365 * 24 * time.Hour
)

// Answer decides a hold. The first answer counts; who comes later gets the hold as it
// is and ErrDecided, ErrExpired or ErrWithdrawn. Other errors: ErrNotFound, ErrChanged
// when a.Hash is not that of the hold, ErrOtherProposal, ErrFull, *InvalidError. An error but the first
// three changed nothing.
func (d *Desk) Answer(ctx context.Context, id string, a Answer) (Hold, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	p, h, err := d.toChange(ctx, id)
	if err != nil {
		return h, err
	}
	if a.Hash != h.Hash {
		return h, ErrChanged
	}
	if a.Approve && a.Reach == "" {
		a.Reach = Once
	}
	a.At = now()
	if err := a.check(&h); err != nil {
		return h, err
	}
	state := Denied
	var leaves []Grant
	if a.Approve {
		state = Approved
		// Whoever waits for this very action has it by the answer itself: there must be
		// no grant besides, which would be a second use.
		if a.Reach != Once || h.Waiting == 0 {
			leaves = append(leaves, d.grantOf(h, a))
		}
		if len(leaves) > 0 && len(d.grants.Load().byID) >= d.config.Limits.Grants {
			return h, invalid("there are %d grants, and no more may be; revoke some first", d.config.Limits.Grants)
		}
	}
	return d.settle(ctx, p, state, &a, leaves)
}

// toChange finds a hold that is pending. writing is held.
func (d *Desk) toChange(ctx context.Context, id string) (*pending, Hold, error) {
	if d.isClosed() {
		return nil, Hold{}, ErrClosed
	}
	p := d.find(id)
	if p == nil {
		h, err := d.stored(ctx, id)
		if err != nil {
			return nil, h, err
		}
		if h.State != Pending {
			return nil, h, ended(h)
		}
		p = d.adopt(h) // of another process
	}
	h := d.copyOf(p)
	if !time.Now().Before(h.Deadline) {
		h, err := d.settle(ctx, p, Expired, nil, nil)
		if err == nil {
			err = ended(h)
		}
		return nil, h, err
	}
	return p, h, nil
}

// settle ends a hold, in the store first. writing is held.
func (d *Desk) settle(ctx context.Context, p *pending, state State, a *Answer, leaves []Grant) (Hold, error) {
	h := d.copyOf(p)
	h.State, h.Answer, h.EndedAt = state, a, now()
	ctx, cancel := writeContext(ctx)
	defer cancel()
	err := d.write(ctx, h, leaves)
	if errors.Is(err, store.ErrEnded) || errors.Is(err, store.ErrNotFound) {
		// Another process was first.
		if err := d.readGrants(ctx); err != nil {
			return d.copyOf(p), err
		}
		d.takeOutcome(ctx, h.ID)
		h = d.copyOf(p)
		return h, ended(h)
	}
	if err != nil {
		return d.copyOf(p), err
	}
	if err := d.enter(leaves); err != nil {
		return d.copyOf(p), err
	}
	once := state == Approved && a.Reach == Once
	free := state == Approved && (!once || len(leaves) == 0)
	if waited := d.end(p, h, free); once && free && waited == 0 {
		// Those who waited went away while the answer was written.
		d.leave(ctx, d.grantOf(h, *a))
	}
	h = d.copyOf(p)
	d.config.OnChange(h)
	return h, nil
}

func (d *Desk) write(ctx context.Context, h Hold, leaves []Grant) error {
	r, err := h.record()
	if err != nil {
		return err
	}
	var grants []store.Grant
	for _, g := range leaves {
		r, err := g.record()
		if err != nil {
			return err
		}
		grants = append(grants, r)
	}
	return d.config.Store.UpdateHold(ctx, r, grants...)
}

// enter has grants that the store has hold from now on. writing is held.
func (d *Desk) enter(grants []Grant) error {
	for _, g := range grants {
		ready, err := newGrant(g)
		if err != nil {
			return err
		}
		d.grants.Store(d.grants.Load().with(ready))
	}
	return nil
}

// leave writes a grant. writing is held.
func (d *Desk) leave(ctx context.Context, g Grant) {
	r, err := g.record()
	if err == nil {
		err = d.config.Store.AddGrant(ctx, r)
	}
	if err == nil {
		err = d.enter([]Grant{g})
	}
	if err != nil {
		d.config.Log.Error("an approval that nobody waited for any more was lost", "hold", g.HoldID, "error", err)
	}
}

// expire ends a hold whose deadline has passed.
func (d *Desk) expire(id string) {
	d.writing.Lock()
	defer d.writing.Unlock()
	p := d.find(id)
	if p == nil || d.isClosed() {
		return
	}
	if h, err := d.settle(context.Background(), p, Expired, nil, nil); err != nil && h.State == Pending {
		// Whoever waits must not wait for the store as well. It is tried again when the
		// store is read the next time.
		d.config.Log.Error("that a hold expired could not be written", "hold", id, "error", err)
		h.State, h.EndedAt = Expired, now()
		d.end(p, h, false)
	}
}

// Withdraw ends a hold that nobody wants any more. Errors as of Answer.
func (d *Desk) Withdraw(ctx context.Context, id string) (Hold, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	p, h, err := d.toChange(ctx, id)
	if err != nil {
		return h, err
	}
	return d.settle(ctx, p, Withdrawn, nil, nil)
}

// grantOf is what an approval of a hold leaves.
func (d *Desk) grantOf(h Hold, a Answer) Grant {
	g := Grant{
		ID: newID("grant_"), Reach: a.Reach, Scope: home(h.Subject), Kind: h.Action.Kind, Match: a.Match,
		HoldID: h.ID, Approver: a.Approver, Reason: a.Reason, At: a.At,
	}
	if a.Match == nil {
		g.Hash = h.Hash
	}
	switch a.Reach {
	case Once:
		g.Until = a.At.Add(d.config.Limits.OnceFor)
	case ForTime:
		g.Until = a.At.Add(a.Duration)
	case ByRule:
		g.Scope = a.Scope
	}
	return g
}

// check judges an answer to a hold, and fills in what it leaves open.
func (a *Answer) check(h *Hold) error {
	if a.Approver == "" {
		return invalid("the answer does not say who gives it")
	}
	if err := checkText("reason", a.Reason); err != nil {
		return err
	}
	if !a.Approve {
		if a.Reach != "" || a.Match != nil || a.Proposal != "" || a.Duration != 0 || a.Scope != (policy.Scope{}) {
			return invalid("a denial takes a reason only: no reach, match, proposal, duration or scope")
		}
		return nil
	}
	if err := a.takeProposal(h); err != nil {
		return err
	}
	if err := a.checkReach(h); err != nil {
		return err
	}
	if a.Match != nil {
		return checkMatch(*a.Match, h.Action)
	}
	return nil
}

// takeProposal makes the match that of the proposal which the answer names.
func (a *Answer) takeProposal(h *Hold) error {
	switch {
	case a.Proposal == "":
		return nil
	case a.Match != nil:
		return invalid("a proposal has a match of its own: give the one or the other")
	case h.Proposed == nil || h.Proposed.ID != a.Proposal:
		return ErrOtherProposal
	}
	match := h.Proposed.Match
	a.Match = &match
	return nil
}

func (a *Answer) checkReach(h *Hold) error {
	if a.Reach != ForTime && a.Duration != 0 {
		return invalid("a duration goes with the reach %q only", ForTime)
	}
	if a.Reach != ByRule && a.Scope != (policy.Scope{}) {
		return invalid("a scope goes with the reach %q only", ByRule)
	}
	switch a.Reach {
	case Once:
		if a.Match != nil {
			return invalid("an approval for once is of this very action and takes no match")
		}
	case ForSandbox:
		if h.Subject.SandboxID == "" {
			return invalid("there is no sandbox yet: approve it once, for a time, or by a rule")
		}
	case ForTime:
		if a.Duration <= 0 || a.Duration > maxDuration {
			return invalid("the duration %s: use more than 0 and at most %s", a.Duration, maxDuration)
		}
	case ByRule:
		if a.Match == nil {
			return invalid("a rule needs a match that says what it is about")
		}
		return a.checkScope(h.Subject)
	default:
		return invalid("the reach %.32q: use %s, %s, %s or %s", a.Reach, Once, ForSandbox, ForTime, ByRule)
	}
	return nil
}

// checkScope allows a scope that the sandbox is in.
func (a *Answer) checkScope(s policy.Subject) error {
	own := map[policy.ScopeKind]string{
		policy.ServerScope: "", policy.KeyScope: s.KeyID, policy.TemplateScope: s.TemplateID, policy.SandboxScope: s.SandboxID,
	}
	id, known := own[a.Scope.Kind]
	switch {
	case !known:
		return invalid("the scope %.32q: use server, key, template or sandbox", a.Scope.Kind)
	case a.Scope.ID != "" && a.Scope.ID != id:
		return invalid("the sandbox is not in the scope %s %.64q", a.Scope.Kind, a.Scope.ID)
	case id == "" && a.Scope.Kind != policy.ServerScope:
		return invalid("the sandbox is in no scope %s", a.Scope.Kind)
	}
	a.Scope.ID = id
	return nil
}

// checkText allows text that a terminal or a page shows as it is.
func checkText(what, s string) error {
	if len(s) > maxText {
		return invalid("the %s has %d bytes; %d are allowed", what, len(s), maxText)
	}
	odd := func(r rune) bool { return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) }
	if !utf8.ValidString(s) || strings.ContainsFunc(s, odd) {
		return invalid("the %s must be plain text, without control characters", what)
	}
	return nil
}
