package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// arrival is a connection that the sandbox is opening. Its handshake inside is
// completed as late as can be.
type arrival struct {
	n           *Network
	request     *tcp.ForwarderRequest
	destination netip.AddrPort
	// fixedSize, when set, is that of each buffer, which then do not count, bytes.
	fixedSize int
	first     *flight // what the client sent first, once it is looked at
	tlsOnly   bool    // see Decision.TLSOnly

	mu       sync.Mutex
	answered bool        // the handshake was completed or refused
	taken    bufferSizes // of the budget; none of a connection with a fixedSize
	inside   *insideConn // once the handshake was completed
}

// accept completes the handshake inside, once.
func (a *arrival) accept() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inside != nil {
		return nil
	}
	if a.answered {
		return net.ErrClosed
	}
	size := a.fixedSize
	if size == 0 {
		if a.taken == (bufferSizes{}) { // else it was tried before
			a.taken = a.n.buffers.take()
		}
		size = a.taken.inside
	}
	inside, err := a.n.accept(a.request, size)
	if err != nil {
		return err
	}
	a.inside, a.answered = inside, true
	a.request.Complete(false)
	return nil
}

// end refuses a handshake that was not completed with a reset, and lets a connection
// that was closed deliver what it has.
func (a *arrival) end() {
	a.first.release()
	a.mu.Lock()
	if !a.answered {
		a.answered = true
		a.request.Complete(true)
	}
	inside := a.inside
	a.mu.Unlock()
	if inside != nil {
		_ = inside.Close()
		inside.settle(settleLimit)
	}
	a.n.buffers.give(a.taken)
}

// reset ends the connection at once, whatever its state.
func (a *arrival) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inside != nil {
		a.inside.abort()
	}
}

// look begins to read what the client sends first.
func (a *arrival) look() *flight {
	a.first = &flight{conn: a.inside, all: &a.n.counters.flights}
	return a.first
}

// decide judges a request of the connection. While it waits the connection is open
// inside, so that the program does not give up and is seen to close it.
func (a *arrival) decide(r Request) Decision {
	return a.n.decideHeld(a.n.ctx, r, func(callOff context.CancelCauseFunc) func() {
		if err := a.accept(); err != nil {
			callOff(errClientGone)
			return func() {}
		}
		return a.inside.watchEnd(func() { callOff(errClientGone) })
	})
}

// serve judges the connection and carries it, has it carried, or refuses it.
func (a *arrival) serve() {
	era := a.n.era()
	r := a.n.request(TCP, a.destination)
	switch d := a.decide(r); d.Verdict {
	case Allow:
		a.carry(judged{request: r, era: era}, nil)
	case Inspect:
		a.tlsOnly = d.TLSOnly
		a.inspect(r)
	default:
		a.refuse(r, d)
	}
}

// carry dials the outside, and only then answers a handshake that was not completed,
// so that a connection that fails outside never looks open inside. first was read
// from the client already.
func (a *arrival) carry(j judged, first []byte) {
	outside, err := a.n.dialJudged(a.n.ctx, j.request)
	if err != nil {
		a.failed(j.request, first, err)
		return
	}
	j.dialled = outside.to
	a.join(j, outside, a.n.meter(j.request), first)
}

// failed ends a connection that was allowed and could not be made.
func (a *arrival) failed(r Request, first []byte, err error) {
	if nowhere := (*leadsNowhere)(nil); errors.As(err, &nowhere) && a.n.ctx.Err() == nil {
		d := a.n.deny(r, err.Error())
		if len(first) > 0 {
			a.refuseFlight(r, &flight{conn: a.inside, kept: first}, d)
			return
		}
	}
	a.reset()
}

func (a *arrival) join(j judged, outside *outsideConn, m meter, first []byte) {
	if err := a.accept(); err != nil {
		_ = outside.Close()
		return
	}
	a.first.release()
	a.n.counters.connectionsOut.Add(1)
	limitHostBuffers(outside.tcp, a.taken)
	_ = a.inside.SetDeadline(time.Time{})
	a.n.carryConnection(&carried{inside: a.inside, outside: outside, meter: m, first: first}, j)
}

// watchEnd calls fn when the sandbox ends the connection, or its direction, until
// stop.
func (c *insideConn) watchEnd(fn func()) (stop func()) {
	entry, notify := waiter.NewChannelEntry(readable | waiter.EventRdHUp)
	c.queue.EventRegister(&entry)
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for !c.endedInside() {
			select {
			case <-notify:
			case <-stopped:
				return
			}
		}
		fn()
	}()
	return func() {
		close(stopped)
		<-done
		c.queue.EventUnregister(&entry)
	}
}

func (c *insideConn) endedInside() bool {
	const ends = waiter.EventRdHUp | waiter.EventHUp | waiter.EventErr
	return c.endpoint.Readiness(readable|ends)&ends != 0
}
