package gateway

import (
	"context"
	"net/netip"
)

// Protocol says what a request is for, and with that how much of it is known.
type Protocol string

// Protocols. A connection may be judged several times, each time with more known:
// as TCP, then as Stream or HTTP where the decision before said [Inspect].
const (
	TCP Protocol = "tcp" // a connection; the client has sent nothing yet
	UDP Protocol = "udp" // a flow of datagrams
	// DNS is a question for a name, asked of the gateway. The Request has no
	// Destination.
	DNS Protocol = "dns"
	// DNSAnswer is one address that a name leads to, Name the name. In the answer to a
	// question the port is 0: denied, the address is left out, and connections to it are
	// judged again. With a port it is what a connection to a name that was [Later] is
	// to be dialled at, after that was allowed: denied, it is not. Decide must not wait
	// on anything here.
	DNSAnswer Protocol = "dns-answer"
	// TLS is a connection whose client began a TLS handshake and names Name in it;
	// empty when it names none.
	TLS Protocol = "tls"
	// Opaque is a connection whose client sent something that is neither TLS nor
	// HTTP, or waits for the server. Name is what its address was looked up by.
	Opaque Protocol = "opaque"
	// HTTP is one request, in the clear or within a TLS connection that is
	// intercepted. Name is the host it is for.
	HTTP Protocol = "http"
)

// Request is what a policy judges. Names are in lower case, without the last dot,
// in their ASCII form; what cannot be a name was refused before.
type Request struct {
	Protocol    Protocol
	Destination netip.AddrPort // the address that will be dialled
	// Name is the name asked for. For TCP and UDP it is the one of Names that was
	// looked up last.
	Name string
	// Names are all that the sandbox looked up and that led to this address, latest
	// first: a hint until the connection itself says its name. The gateway lets a
	// connection name (by TLS or HTTP) only what really has the address.
	Names []string
	// Held: no address of the name was ever asked for; Destination stands for it
	// inside only. See [Later] and Decision.Readable.
	Held bool

	// Again: of something that is open already, which a changed policy is asked about
	// (see [Network.Recheck]). Decide must not wait on anybody then: what would have to
	// be asked about is denied. Of DNS: the gateway wants to know, and nobody inside asked;
	// it is no event.
	Again bool

	// Silent, of DNS: the question is for records that are answered as if there were none, as
	// IPv6 addresses are. Nothing of it is sent anywhere, so it is no event; programs ask
	// for them beside others.
	Silent bool

	// Unproven, of TLS: Name is what the client says, and whether it leads to Destination
	// is not known (see Decision.TLSOnly).
	Unproven bool

	// Datagrams: of DNSAnswer with a port, the address is to be sent datagrams.
	Datagrams bool

	// Of HTTP.
	Method, Path string // Path is decoded and cleaned, without query
	// OtherPaths are what servers may take for the path in its place: with an encoded
	// slash as a letter, or decoded more than once. What is allowed must be so as each.
	OtherPaths []string
	Query      string // as it was sent, placeholders too
	Encrypted  bool   // within TLS
	// Unreadable is why the answer could not be looked through; nil where it could. Where
	// it would have to be, [Rewriter.Rewrite] fails with it before anybody is asked.
	Unreadable error
}

// Verdict is what a policy says.
type Verdict int

// Verdicts. The zero value denies.
const (
	Deny Verdict = iota
	Allow
	// Inspect: too little is known. Of TCP the gateway completes the handshake inside,
	// looks at what the client sends first and asks again, as TLS, Opaque or, for each
	// request, HTTP; of TLS it ends the TLS itself, with a certificate of its own, and
	// asks again about each request within. Of the others it denies.
	Inspect
	// Later, of DNS only: the name may lead somewhere, but not before somebody was
	// asked, and must not be sent out until then. The gateway answers with an address
	// that stands for the name in this sandbox; a connection to it is judged with the
	// name, and resolves it once it is allowed.
	Later
)

// Decision is the judgement on a request.
type Decision struct {
	Verdict Verdict
	// Reason says why, in words for the person outside and the program inside.
	Reason string
	// Rule names what decided, where a rule did.
	Rule string
	// ID names this judgement, for people who ask about it. Empty for those that nobody
	// will ask about.
	ID string
	// Ask says how the program inside can ask for what was refused, in words; empty when
	// it cannot.
	Ask string
	// TLSOnly, with Inspect of TCP: the destination is allowed whatever is said to it, and
	// only hosts that TLS names are looked for. What the client speaks in place of TLS is
	// asked about as Opaque, HTTP too, and a name that does not lead to the destination is
	// asked about as Unproven: with Allow the connection passes, with Inspect the name must
	// lead there.
	TLSOnly bool
	// Readable, of a deny, has the program inside told why where its protocol has words
	// for it: HTTP, and TLS where there is an [Interceptor], are answered 403. A connection to
	// port 80 or 443 is opened for that; any other is reset without ever looking open.
	// A question for a name is answered with an address that stands for it, so that a
	// connection can be told. Without, it is answered that there is no such name.
	Readable bool
}

// Allowed tells whether the decision is to allow.
func (d Decision) Allowed() bool { return d.Verdict == Allow }

// Policy decides on every connection, flow, question and request of a sandbox.
// Decide may be called by many goroutines at once. It may wait, until ctx ends, for
// all but DNS and DNSAnswer: a connection that waits longer than a moment is open to the
// sandbox meanwhile, and ctx ends when the sandbox closes it. How many may wait is
// limited (Limits.Held); what is too many is denied.
type Policy interface {
	Decide(ctx context.Context, r Request) Decision
}

// Refuser is a [Policy] that is told of what the gateway refuses by itself: names that
// do not lead where a connection goes, handshakes that cannot be read and the like.
// It returns the decision, which may have an id; the verdict is always Deny. It must
// not wait.
type Refuser interface {
	Refused(r Request, reason string) Decision
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
