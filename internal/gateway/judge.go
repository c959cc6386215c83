package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
)

// judged is a request and the policy that allowed it.
type judged struct {
	request Request
	by      *policyBox
}

var errDenied = errors.New("denied by the policy")

// decide asks the policy of the moment and reports what it said. A policy that
// panics denies. No policy can allow the sandbox's own network: what has those
// addresses on the host's networks is something else.
func (n *Network) decide(ctx context.Context, r Request) Decision {
	return n.decideBy(ctx, n.policy.Load(), r)
}

func (n *Network) decideBy(ctx context.Context, p *policyBox, r Request) (d Decision) {
	d = Decision{Reason: "the policy failed; see the log of the server"}
	defer func() {
		if !d.Allowed() {
			n.counters.denied.Add(1)
		}
		n.events.send(Event{Request: r, Decision: d})
	}()
	if insideNet.Contains(r.Destination.Addr()) {
		return Decision{Reason: "the gateway answers names only; reach your own services on 127.0.0.1"}
	}
	defer n.guard("policy")
	return p.Decide(ctx, r)
}

// dialOutside judges the destination and dials just that from the host.
func (n *Network) dialOutside(ctx context.Context, protocol Protocol, destination netip.AddrPort) (net.Conn, judged, error) {
	j := judged{
		request: Request{Protocol: protocol, Destination: destination, Name: n.names.find(destination.Addr())},
		by:      n.policy.Load(),
	}
	if d := n.decideBy(ctx, j.by, j.request); !d.Allowed() {
		return nil, j, errDenied
	}
	dialer := net.Dialer{
		Timeout: n.limits.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveEvery, Count: keepAliveCount,
		},
	}
	conn, err := dialer.DialContext(ctx, string(protocol), destination.String())
	return conn, j, err
}

// stillAllowed lists c as allowed, so that Recheck finds it. If the policy was
// replaced since c was judged it is judged again; the caller ends c on false.
func (n *Network) stillAllowed(c closer, j judged) bool {
	n.mu.Lock()
	n.allowed[c] = j.request
	n.mu.Unlock()
	again := j.request
	again.Again = true
	if n.policy.Load() == j.by || n.decide(n.ctx, again).Allowed() {
		return true
	}
	n.forget(c)
	return false
}

func (n *Network) forget(c closer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.allowed, c)
}

// Recheck asks the policy about every connection and flow out that is open and
// ends those it denies. Call it after SetPolicy if the new rules are to hold for
// what was allowed before. It returns early, with ctx's error, when ctx ends.
func (n *Network) Recheck(ctx context.Context) error {
	n.mu.Lock()
	open := make(map[closer]Request, len(n.allowed))
	for c, r := range n.allowed {
		open[c] = r
	}
	n.mu.Unlock()
	for c, r := range open {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.Again = true
		if !n.decide(ctx, r).Allowed() {
			c.abort()
		}
	}
	return nil
}
