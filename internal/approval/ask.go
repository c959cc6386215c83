package approval

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// Ask has an action wait until a person has answered, the deadline has passed or ctx
// ends, and returns the hold as it ended: Approved lets the action go on, all else
// refuses it. It joins the hold that waits for an equal action of the same sandbox,
// if there is one, and waits until that one's deadline; else it makes one, which waits for
// patience (0: Config.Patience). An action that was denied a moment ago is denied
// again without asking.
//
// An error means that nobody answered: ctx ended (the hold stays, and an approval is
// then good for the next equal action), ErrFull, ErrClosed, an *InvalidError for what
// cannot be shown to a person, or that of the store, which may be that an approval could not
// be used up.
func (d *Desk) Ask(ctx context.Context, s policy.Subject, a policy.Action, v policy.Verdict, patience time.Duration) (Hold, error) {
	action := a.Hash()
	asked := Hold{
		Subject: s, Action: a, Hash: hashOf(s, action), Rule: v.Rule, Scope: v.Scope, Reason: v.Reason,
	}
	for {
		g, ok, err := d.granted(s, a, action)
		if err != nil {
			return asked, err
		}
		if ok {
			return d.holdOf(ctx, g, asked), nil
		}
		if err := ctx.Err(); err != nil {
			return asked, err
		}
		p, over, err := d.join(asked, patience)
		if err != nil {
			return asked, err
		}
		if over != nil {
			return *over, nil
		}
		if p == nil {
			continue // it was answered this moment
		}
		if h, again, err := d.wait(ctx, p); !again {
			return h, err
		}
	}
}

// holdOf is the hold that a grant came from, for an action that the grant lets go on.
func (d *Desk) holdOf(ctx context.Context, g Grant, asked Hold) Hold {
	if h, err := d.stored(ctx, g.HoldID); err == nil {
		return h
	}
	asked.ID, asked.State, asked.EndedAt = g.HoldID, Approved, g.At
	asked.Answer = &Answer{Approve: true, Reach: g.Reach, Hash: asked.Hash, Match: g.Match, Reason: g.Reason, Approver: g.Approver, At: g.At}
	return asked
}

// join enters who asks as one who waits. It returns a hold that is over where that
// answers it, and neither when a grant came about meanwhile.
func (d *Desk) join(asked Hold, patience time.Duration) (*pending, *Hold, error) {
	d.mu.Lock()
	p, over, err := d.joinPending(asked)
	d.mu.Unlock()
	if p != nil || over != nil || err != nil {
		return p, over, err
	}
	return d.open(asked, patience)
}

// joinPending is join for what is there already. mu is held.
func (d *Desk) joinPending(asked Hold) (*pending, *Hold, error) {
	if d.closed {
		return nil, nil, ErrClosed
	}
	if denied, ok := d.denied[asked.Hash]; ok && time.Now().Before(denied.until) {
		return nil, &denied.hold, nil
	}
	p := d.byHash[asked.Hash]
	if p == nil {
		return nil, nil, nil
	}
	p.hold.Count++
	p.hold.Waiting++
	d.tellSoon(p)
	return p, nil, nil
}

// open makes a hold, which who asks for it waits for.
func (d *Desk) open(asked Hold, patience time.Duration) (*pending, *Hold, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	if d.bestFit(asked.Subject, asked.Action) == policy.Yes {
		return nil, nil, nil
	}
	d.mu.Lock()
	p, over, err := d.joinPending(asked)
	if p == nil && over == nil && err == nil {
		err = d.room(asked.Subject)
	}
	d.mu.Unlock()
	if p != nil || over != nil || err != nil {
		return p, over, err
	}
	if err := d.readable(asked.Action); err != nil {
		return nil, nil, err
	}
	if patience <= 0 {
		patience = d.config.Patience
	}
	h := asked
	h.ID, h.State, h.CreatedAt, h.Count = newID("apr_"), Pending, now(), 1
	h.Deadline = h.CreatedAt.Add(min(patience, maxPatience))
	r, err := h.record()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := writeContext(context.Background())
	defer cancel()
	if err := d.config.Store.AddHold(ctx, r); err != nil {
		return nil, nil, err
	}
	h.Waiting = 1
	p = d.adopt(h)
	d.config.OnChange(h)
	return p, nil, nil
}

// room tells whether one more hold may wait. mu is held.
func (d *Desk) room(s policy.Subject) error {
	var ofSandbox, ofKey int
	for _, p := range d.pending {
		if p.hold.Subject.KeyID == s.KeyID {
			ofKey++
		}
		if home(p.hold.Subject) == home(s) {
			ofSandbox++
		}
	}
	limits := d.config.Limits
	for _, bound := range []struct {
		have, most int
		of         string
	}{
		{ofSandbox, limits.PerSandbox, "of this sandbox"},
		{ofKey, limits.PerKey, "of the sandboxes of this key"},
		{len(d.pending), limits.InAll, "of all sandboxes"},
	} {
		if bound.have >= bound.most {
			return fmt.Errorf("%w: %d actions %s do, and no more may; try again when they were answered", ErrFull, bound.have, bound.of)
		}
	}
	return nil
}

// readable refuses what is too large for a person to judge.
func (d *Desk) readable(a policy.Action) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if most := d.config.Limits.ActionBytes; len(text) > most {
		return invalid("the action takes %d bytes to write down; a person is asked about %d at most", len(text), most)
	}
	return nil
}

// wait waits for what becomes of a hold that was joined. again: look for a grant.
func (d *Desk) wait(ctx context.Context, p *pending) (h Hold, again bool, err error) {
	select {
	case <-p.settled:
	case <-ctx.Done():
		err = ctx.Err()
	case <-d.done:
		err = ErrClosed
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.hold.State == Pending {
		p.hold.Waiting--
		d.tellSoon(p)
		return p.hold, false, err
	}
	if p.hold.State == Approved && !p.free {
		return p.hold, err == nil, err
	}
	return p.hold, false, nil
}
