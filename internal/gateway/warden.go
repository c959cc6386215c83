package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// intercept has the connection carried request by request.
func (a *arrival) intercept(j judged, f *flight) {
	r := j.request
	if a.n.interception == nil {
		a.refuseFlight(r, f, a.n.deny(r, noInterception))
		return
	}
	ctx, cancel := context.WithCancel(a.n.ctx)
	defer cancel()
	c := &interceptedConn{arrival: a, cancel: cancel, requests: map[*Request]struct{}{}}
	c.idle = newIdleTimer(a.n.limits.TCPIdle, c.abort)
	defer c.idle.stop()
	if !a.n.track(c) || !a.n.stillAllowed(c, j) {
		a.n.untrack(c)
		c.abort()
		return
	}
	defer a.n.untrack(c)
	defer a.n.forget(c)
	a.first.release()
	a.n.counters.connectionsOut.Add(1)
	m := a.n.meter(r)
	if r.Protocol != TLS && !r.Held {
		r.Name = "" // what was looked up is a hint; each request says its host
	}
	_ = a.inside.SetDeadline(time.Time{})
	err := a.n.interception.Carry(context.WithValue(ctx, interceptedKey{}, c), Intercepted{
		Conn: &replayed{insideConn: a.inside, first: f.kept, meter: m, idle: c.idle}, TLS: r.Protocol == TLS,
		Name: r.Name, Names: r.Names, Destination: r.Destination, Held: r.Held,
	})
	if err != nil && a.n.ctx.Err() == nil {
		a.n.deny(r, err.Error())
	}
}

type interceptedKey struct{}

// interceptedConn is a connection that is intercepted, with the requests in it that
// are under way.
type interceptedConn struct {
	arrival *arrival
	cancel  context.CancelFunc
	idle    *idleTimer

	mu       sync.Mutex
	requests map[*Request]struct{}
}

func (c *interceptedConn) abort() {
	c.cancel()
	c.arrival.reset()
}

// watch calls off a judgement when the client goes away. A nil connection is not
// watched.
func (c *interceptedConn) watch(callOff context.CancelCauseFunc) (end func()) {
	if c == nil {
		return func() {}
	}
	return c.arrival.inside.watchEnd(func() { callOff(errClientGone) })
}

// wait is for what may wait for a person. A nil connection has nothing to do.
func (c *interceptedConn) wait() (end func()) {
	if c == nil {
		return func() {}
	}
	return c.idle.wait()
}

// begin lists a request until its ctx ends.
func (c *interceptedConn) begin(ctx context.Context, r Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[&r] = struct{}{}
	context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.requests, &r)
	})
}

func (c *interceptedConn) underWay() []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Request
	for r := range c.requests {
		all = append(all, *r)
	}
	return all
}

// allowsWithin asks the policy about the requests within a connection.
func (n *Network) allowsWithin(ctx context.Context, c closer) bool {
	intercepted, ok := c.(*interceptedConn)
	if !ok {
		return true
	}
	for _, r := range intercepted.underWay() {
		r.Again = true
		if !n.decide(ctx, r).Allowed() {
			return false
		}
	}
	return true
}

// warden is the say of a network about requests.
type warden struct{ n *Network }

// Judge implements [Warden]. Contexts that come from that of Carry have the request
// judged again by Recheck while it is under way.
func (w warden) Judge(ctx context.Context, r Request) Decision {
	r.Protocol = HTTP
	if why := w.checkHost(&r); why != "" {
		return w.n.deny(r, why)
	}
	c, _ := ctx.Value(interceptedKey{}).(*interceptedConn)
	defer c.wait()()
	era := w.n.era()
	d := w.n.judgeNamed(ctx, r, func(r Request) Decision { return w.n.decideHeld(ctx, r, c.watch) })
	if !d.Allowed() {
		w.n.accounts.refuse(r)
		return w.n.needAllow(r, d)
	}
	if c != nil {
		c.begin(ctx, r)
	}
	if w.n.era() != era { // a Recheck may have missed it
		again := r
		again.Again = true
		if now := w.n.decide(ctx, again); !now.Allowed() {
			w.n.accounts.refuse(r)
			return w.n.needAllow(r, now)
		}
	}
	return d
}

// Deny implements [Warden].
func (w warden) Deny(r Request, why string) Decision {
	w.n.accounts.refuse(r)
	return w.n.deny(r, why)
}

// checkHost puts the name of a request into its one form, empty where the host is the
// destination's address. It says why the request is to be refused, or nothing.
func (w warden) checkHost(r *Request) string {
	says := r.Name
	if addr, ok := literal(says); ok {
		if addr != r.Destination.Addr() || r.Held {
			return fmt.Sprintf("the request is for %s on a connection to %s", says, w.lookedUp(*r))
		}
		r.Name = ""
	} else if says != "" {
		name, err := HostName(says)
		if err != nil {
			return fmt.Sprintf("the host of the request is none: %v", err)
		}
		r.Name = name
	}
	if looked := w.n.standIns.name(r.Destination.Addr()); looked != "" {
		r.Held = true
		if r.Name != looked {
			return disagree(r.Name, looked)
		}
	}
	return ""
}

func (w warden) lookedUp(r Request) string {
	if name := w.n.standIns.name(r.Destination.Addr()); name != "" {
		return name
	}
	return r.Destination.Addr().String()
}

// Rewrite implements [Warden].
func (w warden) Rewrite(ctx context.Context, r Request, out *http.Request) (Scrubber, error) {
	c, _ := ctx.Value(interceptedKey{}).(*interceptedConn)
	defer c.wait()()
	if rewriter, ok := w.n.policy.Load().Policy.(Rewriter); ok {
		return rewriter.Rewrite(ctx, r, out)
	}
	return nil, nil
}

// Dial implements [Warden].
func (w warden) Dial(ctx context.Context, r Request) (net.Conn, error) {
	if !w.n.begin() {
		return nil, ErrClosed
	}
	defer w.n.working.Done()
	conn, err := w.n.dialJudged(ctx, r)
	if err != nil {
		return nil, err
	}
	return w.n.loan(conn, r)
}
