package gateway

import (
	"context"
	"errors"
	"net/netip"
)

// judged is a request that was allowed, and what tells whether that may have
// changed since.
type judged struct {
	request Request
	// enough: the verdict Inspect keeps it open too, since all within is judged by itself.
	enough bool
	era    era
	// dialled is what the name of a held one led to. It is judged as well, with rules on
	// addresses.
	dialled netip.AddrPort
}

// era is a time in which judgements stay what they are: it ends when the policy is
// replaced or says that it changed.
type era struct {
	by      *policyBox
	changes uint64
}

func (n *Network) era() era { return era{n.policy.Load(), n.changes.Load()} }

func (j judged) allowedBy(v Verdict) bool { return v == Allow || j.enough && v == Inspect }

var errDenied = errors.New("denied by the policy")

// decide asks the policy of the moment and reports what it said. A policy that
// panics denies, and so does one that goes on after ctx ended. No policy can allow
// what the gateway knows to be wrong.
func (n *Network) decide(ctx context.Context, r Request) Decision {
	if why := impossible(r); why != "" {
		d := n.deny(r, why)
		d.Readable = false
		return d
	}
	d := n.policyDecides(ctx, r)
	if context.Cause(ctx) == errTooManyHeld {
		return n.deny(r, errTooManyHeld.Error())
	}
	if ctx.Err() != nil {
		d = Decision{Reason: context.Cause(ctx).Error()}
	}
	n.report(r, d)
	return d
}

func (n *Network) policyDecides(ctx context.Context, r Request) (d Decision) {
	d = Decision{Reason: "the policy failed; see the log of the server"}
	defer n.guard("policy")
	return n.policy.Load().Decide(ctx, r)
}

// impossible says why no policy may allow a request, or nothing. What has those
// addresses on the host's networks is something else than what the sandbox means.
func impossible(r Request) string {
	addr := r.Destination.Addr()
	switch {
	case insideNet.Contains(addr):
		return "the gateway answers names only; reach your own services on 127.0.0.1"
	case standInNet.Contains(addr) && !r.Held:
		return addr.String() + " stands for a name inside a sandbox, but for none here or none any more; look the name up again"
	}
	return ""
}

// report counts a judgement and tells of it.
func (n *Network) report(r Request, d Decision) {
	if d.Verdict == Deny {
		n.counters.denied.Add(1)
	}
	n.events.send(Event{Request: r, Decision: d})
}

// deny is a judgement of the gateway itself, of which it tells the policy.
func (n *Network) deny(r Request, reason string) Decision {
	d := Decision{Reason: reason, Readable: true}
	if told, ok := n.policy.Load().Policy.(Refuser); ok {
		d = n.refusedBy(told, r, d)
	}
	n.report(r, d)
	return d
}

func (n *Network) refusedBy(told Refuser, r Request, d Decision) (decision Decision) {
	decision = d
	defer n.guard("policy")
	decision = told.Refused(r, d.Reason)
	decision.Verdict = Deny
	return decision
}

// request is what is known of a connection or a flow before it says anything.
func (n *Network) request(protocol Protocol, destination netip.AddrPort) Request {
	r := Request{Protocol: protocol, Destination: destination}
	if r.Name = n.standIns.name(destination.Addr()); r.Name != "" {
		r.Names, r.Held = []string{r.Name}, true
		return r
	}
	if r.Names = n.names.find(destination.Addr()); len(r.Names) > 0 {
		r.Name = r.Names[0]
	}
	return r
}

// stillAllowed lists c as allowed, so that Recheck finds it. If the policy may have
// changed since c was judged it is judged again; the caller ends c on false.
func (n *Network) stillAllowed(c closer, j judged) bool {
	n.mu.Lock()
	n.allowed[c] = j
	n.mu.Unlock()
	if n.era() == j.era || n.allowsAgain(n.ctx, j) {
		return true
	}
	n.forget(c)
	return false
}

func (n *Network) allowsAgain(ctx context.Context, j judged) bool {
	j.request.Again = true
	return j.allowedBy(n.decide(ctx, j.request).Verdict) && n.mayLead(ctx, j.request, j.dialled)
}

// mayLead tells whether the name of a request that was held may still lead to an address.
// Of others the address was judged with the request.
func (n *Network) mayLead(ctx context.Context, r Request, to netip.AddrPort) bool {
	if !r.Held || !to.IsValid() {
		return true
	}
	return n.decide(ctx, Request{Protocol: DNSAnswer, Destination: to, Name: r.Name, Datagrams: r.Protocol == UDP}).Allowed()
}

func (n *Network) forget(c closer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.allowed, c)
}

// Recheck asks the policy about every connection, flow and request out that is open
// and ends those it denies, and forgets the names that may not be asked for any
// more. Call it after SetPolicy, or when a policy changed by itself, if the new
// rules are to hold for what was allowed before. It returns early, with ctx's error,
// when ctx ends.
func (n *Network) Recheck(ctx context.Context) error {
	n.changes.Add(1)
	if err := n.recheckNames(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	open := make(map[closer]judged, len(n.allowed))
	for c, j := range n.allowed {
		open[c] = j
	}
	n.mu.Unlock()
	for _, l := range n.loans() {
		if !n.mayLead(ctx, l.request, l.to) {
			l.abort()
		}
	}
	for c, j := range open {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !n.allowsAgain(ctx, j) || !n.allowsWithin(ctx, c) {
			c.abort()
		}
	}
	return nil
}

// recheckNames asks for each name that is remembered, without a report: nobody asked
// for one now.
func (n *Network) recheckNames(ctx context.Context) error {
	gone := map[string]bool{}
	for name := range n.names.all() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !n.mayAskFor(ctx, name) {
			gone[name] = true
		}
	}
	n.names.drop(gone)
	return nil
}

// mayAskFor tells whether a name may be asked for, where nothing inside asked for it.
func (n *Network) mayAskFor(ctx context.Context, name string) (may bool) {
	defer n.guard("policy")
	return n.policy.Load().Decide(ctx, Request{Protocol: DNS, Name: name, Again: true}).Allowed()
}
