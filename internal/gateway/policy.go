package gateway

import (
	"context"
	"net/netip"
)

// Protocol says what a request is for.
type Protocol string

// Protocols.
const (
	TCP Protocol = "tcp" // a connection
	UDP Protocol = "udp" // a flow of datagrams
	// DNS is a question for a name, asked of the gateway. The Request has no
	// Destination.
	DNS Protocol = "dns"
	// DNSAnswer is one address in the answer to a question; port 0. Denied, it
	// is left out of the answer. Connections to it are judged again. Decide
	// must not wait on anything here.
	DNSAnswer Protocol = "dns-answer"
)

// Request is what a policy judges.
type Request struct {
	Protocol    Protocol
	Destination netip.AddrPort // the address that will be dialled
	// Name is the name asked for, in lower case and without the last dot. For
	// TCP and UDP it is the name whose answer last held this address, and empty
	// if the sandbox never asked the gateway for one: a hint, no proof.
	Name string
}

// Decision is the judgement on a request.
type Decision struct {
	Allow bool
	// Reason says why, in words for the person outside and the program inside.
	Reason string
}

// Policy decides on every connection, flow and question of a sandbox. Decide
// may be called by many goroutines at once and may wait, until ctx ends.
type Policy interface {
	Decide(ctx context.Context, r Request) Decision
}

// DenyAll refuses everything, questions for names too.
type DenyAll struct {
	Reason string // empty: "the sandbox has no network"
}

// Decide denies.
func (d DenyAll) Decide(context.Context, Request) Decision {
	if d.Reason == "" {
		return Decision{Reason: "the sandbox has no network"}
	}
	return Decision{Reason: d.Reason}
}
