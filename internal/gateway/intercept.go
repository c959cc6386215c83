package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
)

// Interceptor makes what reads the requests within connections, for all sandboxes
// of a server. Package gateway/intercept has it.
type Interceptor interface {
	// Intercept begins for one network, whose say is w. The network closes it.
	Intercept(w Warden) Interception
}

// Interception carries connections of one network request by request.
type Interception interface {
	// Carry speaks HTTP with the client of c until one of both ends it, and closes
	// c.Conn. It returns early when ctx ends; so do the judgements that wait. ctx should
	// end when the client has closed its side: with a body that nobody reads yet, that is
	// not seen here. The error says, in words, why TLS did not come about, which mostly
	// is that the client does not trust the certificate; nil whatever comes after.
	Carry(ctx context.Context, c Intercepted) error
	// Close ends every connection, also those to the outside.
	Close()
}

// Intercepted is a connection from inside that is carried request by request.
type Intercepted struct {
	// Conn is read from the first byte that the client sent.
	Conn net.Conn
	// TLS: the client begins a TLS handshake. Else it speaks HTTP in the clear.
	TLS bool
	// Name is the one in the handshake, or the one that a held destination stands for.
	// Empty when there is neither: then requests of TLS must be for the address.
	Name        string
	Names       []string // as Request.Names
	Destination netip.AddrPort
	Held        bool // as Request.Held
	// Refused, when set, is the answer to every request: the connection was denied as
	// a whole, by this decision. Nothing is dialled.
	Refused *Decision
}

// Warden is what a network says about the requests within its connections. Its
// methods are called by many goroutines at once.
type Warden interface {
	// Judge decides on one HTTP request. It may wait until ctx ends, which it does when
	// the client goes away, and else when the request is over. ctx has the values of the one
	// that Carry was given. Of a request in the clear, Name is what the client says: a
	// name that does not have the Destination must not be allowed.
	Judge(ctx context.Context, r Request) Decision
	// Deny tells of a request that is refused without being judged, as it cannot be said
	// what it is for; why says so in words. What is in r may be incomplete. The Decision denies.
	Deny(r Request, why string) Decision
	// Rewrite changes a request that was allowed, before it is sent: headers are set,
	// placeholders become values, a body may be replaced (with ContentLength -1 where
	// the length is not known any more). It may wait as Judge does. out must still be for
	// the host and path of r. The Scrubber, which may be nil, is for the answer. A
	// [Refusal] refuses the request, any other error fails it.
	Rewrite(ctx context.Context, r Request, out *http.Request) (Scrubber, error)
	// Dial connects to r.Destination, or where r.Held to an address of r.Name. The
	// caller begins TLS in it, for r.Name, when r.Encrypted. One connection may carry
	// further requests to the same Name and Destination.
	Dial(ctx context.Context, r Request) (net.Conn, error)
}

// Scrubber takes what must not get inside out of answers. It is used by one answer
// at a time, but by several goroutines for its parts.
type Scrubber interface {
	// String scrubs the value of a header, a trailer or the like.
	String(s string) string
	// Reader scrubs a stream. It gives on what it has read as soon as that cannot be the
	// beginning of something to take out.
	Reader(r io.Reader) io.Reader
}

// Rewriter is a [Policy] that also changes the requests it allowed; see
// [Warden.Rewrite].
type Rewriter interface {
	Rewrite(ctx context.Context, r Request, out *http.Request) (Scrubber, error)
}

// Refusal is the error of a Rewrite that refuses a request.
type Refusal struct{ Decision Decision }

// Error is the decision's reason.
func (r *Refusal) Error() string { return r.Decision.Reason }
