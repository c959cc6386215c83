package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"
)

// inspect looks at what the client sends first, which tells what the connection is
// for, and judges it by that.
func (a *arrival) inspect(r Request) {
	if a.accept() != nil {
		return
	}
	a.inspectFlight(r, a.look())
}

// inspectFlight reads until it is clear what the client speaks, and goes on by that.
func (a *arrival) inspectFlight(r Request, f *flight) {
	is, err := a.await(f)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		a.serveUnclear(r, f)
	case err == errFlightTooLong, err == errFlightsTooLong:
		a.unreadable(r, f, err.Error())
	case err != nil:
		a.reset()
	case is == speaksTLS:
		a.inspectTLS(r, f)
	case is == speaksHTTP && !a.tlsOnly:
		a.inspectHTTP(r, f)
	default:
		a.inspectOpaque(r, f)
	}
}

// await reads until it is clear what the client speaks, or for some time: clients of web
// servers speak first, on other ports some wait for the server.
func (a *arrival) await(f *flight) (spoken, error) {
	each := silence
	if port := a.destination.Port(); port == portHTTP || port == portHTTPS {
		each = flightPatience
	}
	until := time.Now().Add(flightPatience)
	for {
		if is := f.sniff(); is != unclear {
			return is, nil
		}
		deadline := time.Now().Add(each)
		if deadline.After(until) {
			deadline = until
		}
		_ = a.inside.SetReadDeadline(deadline)
		if err := f.more(); err != nil {
			return unclear, err
		}
	}
}

const (
	portHTTP  = 80
	portHTTPS = 443
)

// unreadable refuses what nobody can tell the meaning of.
func (a *arrival) unreadable(r Request, f *flight, reason string) {
	r.Protocol = Opaque
	a.refuseFlight(r, f, a.n.deny(r, reason))
}

func (a *arrival) inspectOpaque(r Request, f *flight) {
	r.Protocol = Opaque
	era := a.n.era()
	d := a.decide(r)
	if !d.Allowed() {
		a.refuseFlight(r, f, a.n.needAllow(r, d))
		return
	}
	a.carry(judged{request: r, era: era}, f.kept)
}

// needAllow makes a deny of a verdict that means nothing there.
func (n *Network) needAllow(r Request, d Decision) Decision {
	if d.Verdict == Deny {
		return d
	}
	return n.deny(r, "nothing more can be found out about the connection, and the policy does not allow it as it is")
}

func (a *arrival) inspectTLS(r Request, f *flight) {
	r.Protocol, r.Encrypted = TLS, true
	_ = a.inside.SetReadDeadline(time.Now().Add(flightPatience))
	h, err := readHello(f)
	if err != nil {
		a.unreadable(r, f, fmt.Sprintf("the TLS handshake cannot be read: %v", err))
		return
	}
	if why := a.nameOf(&r, h); why != "" {
		a.refuseFlight(r, f, a.n.deny(r, why))
		return
	}
	era := a.n.era()
	d := a.judgeTLS(&r)
	j := judged{request: r, era: era}
	switch {
	case d.Allowed() && h.encrypted && a.tlsOnly && a.n.interception != nil:
		// Another name may be hidden in it, which is found out by ending the TLS. Browsers
		// send the extension with nothing hidden, and do not notice.
		j.enough = true
		a.intercept(j, f)
	case d.Allowed() && h.encrypted:
		a.refuseFlight(r, f, a.n.deny(r, "the TLS handshake hides the name of the server (Encrypted Client Hello): turn that off in the client"))
	case d.Allowed():
		a.carry(j, f.kept)
	case d.Verdict == Inspect:
		j.enough = true
		a.intercept(j, f)
	default:
		a.refuseFlight(r, f, a.n.needAllow(r, d))
	}
}

// judgeTLS judges a connection by the name in its hello. Where only some names matter,
// others do not have to lead to the destination.
func (a *arrival) judgeTLS(r *Request) Decision {
	if !a.tlsOnly || r.Name == "" || r.Held || a.n.names.has(r.Destination.Addr(), r.Name) {
		return a.n.judgeNamed(a.n.ctx, *r, a.decide)
	}
	r.Unproven = true
	d := a.decide(*r)
	if d.Verdict != Inspect {
		return d
	}
	r.Unproven = false
	return a.n.judgeNamed(a.n.ctx, *r, func(Request) Decision { return d })
}

// nameOf sets the name of a request to the one in a hello. It says why the hello is
// to be refused, or nothing.
func (a *arrival) nameOf(r *Request, h hello) string {
	looked := r.Name
	r.Name = ""
	if h.name != "" {
		name, err := HostName(h.name)
		if err != nil {
			return fmt.Sprintf("the name in the TLS handshake is none: %v", err)
		}
		r.Name = name
	}
	if r.Held && r.Name != looked {
		return disagree(r.Name, looked)
	}
	return ""
}

// disagree says that a connection to what stands for a name says another one.
func disagree(says, looked string) string {
	if says == "" {
		return fmt.Sprintf("the connection names no host, and %s was looked up", looked)
	}
	return fmt.Sprintf("the connection is for %s, and %s was looked up", says, looked)
}

func (a *arrival) inspectHTTP(r Request, f *flight) {
	if a.n.interception == nil {
		r.Protocol = HTTP
		a.refuseFlight(r, f, a.n.deny(r, noInterception))
		return
	}
	a.intercept(judged{request: r, enough: true, era: a.n.era()}, f)
}

const noInterception = "requests cannot be looked at here, and the policy does not allow the connection without"

// judgeNamed judges a request that says its name, which must lead to its destination.
// Who asks the name servers about it tells them the name: so it is asked before the
// judgement only if the name may be asked for, and else after it was allowed.
func (n *Network) judgeNamed(ctx context.Context, r Request, decide func(Request) Decision) Decision {
	leads := r.Name == "" || r.Held || n.names.has(r.Destination.Addr(), r.Name)
	if !leads && n.mayAskFor(ctx, r.Name) {
		if why := n.leadsElsewhere(ctx, r); why != "" {
			return n.deny(r, why)
		}
		leads = true
	}
	d := decide(r)
	if d.Verdict != Deny && !leads {
		if why := n.leadsElsewhere(ctx, r); why != "" {
			return n.deny(r, why)
		}
	}
	return d
}

// leadsElsewhere asks the name servers, and says why a request is not for its destination,
// or nothing.
func (n *Network) leadsElsewhere(ctx context.Context, r Request) string {
	found, err := n.lookup(ctx, r.Name, 0, false)
	switch {
	case errors.Is(err, errTooManyQuestions):
		return fmt.Sprintf("whether the name %s leads to the address %s cannot be asked now: %v", r.Name, r.Destination.Addr(), err)
	case slices.Contains(found, r.Destination.Addr()):
		return ""
	}
	return fmt.Sprintf("the name %s does not lead to the address %s", r.Name, r.Destination.Addr()) // nor does one without an answer
}

// literal returns the address that a host is given as, in its one usual form.
func literal(host string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(host)
	return addr, err == nil && addr.Is4() && addr.String() == host
}
