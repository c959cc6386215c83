package gateway

import (
	"context"
	"errors"
	"time"
)

// heldAfter is how long a judgement may take before what it is about counts as
// held. Within it a connection that is refused never looks open.
const heldAfter = 200 * time.Millisecond

var (
	errTooManyHeld = errors.New("too many connections of this sandbox wait for an answer already")
	errClientGone  = errors.New("the program inside closed the connection while it waited")
)

// decideHeld is decide for what may wait for a person. When it waits, it takes one of
// the places for that, and begin is called, which may be nil: it may call off the
// judgement, and what it returns is called when there is one.
func (n *Network) decideHeld(ctx context.Context, r Request, begin func(callOff context.CancelCauseFunc) (end func())) Decision {
	ctx, callOff := context.WithCancelCause(ctx)
	defer callOff(nil)
	held := make(chan struct{})
	end := func() {}
	timer := time.AfterFunc(heldAfter, func() {
		defer close(held)
		defer n.guard("hold")
		end = n.hold(callOff, begin)
	})
	defer func() {
		if !timer.Stop() {
			<-held
			end()
		}
	}()
	return n.decide(ctx, r)
}

// hold takes a place. The returned function gives it back.
func (n *Network) hold(callOff context.CancelCauseFunc, begin func(context.CancelCauseFunc) func()) (end func()) {
	if n.counters.held.Add(1) > int64(n.limits.Held) {
		n.counters.held.Add(-1)
		n.counters.overLimit.Add(1)
		callOff(errTooManyHeld)
		return func() {}
	}
	stop := func() {}
	if begin != nil {
		stop = begin(callOff)
	}
	return func() {
		stop()
		n.counters.held.Add(-1)
	}
}
