// Package intercept carries connections of sandboxes request by request: it ends TLS
// in the name of the destination, has each HTTP request judged, lets headers and
// secrets be put in, sends it on over a connection of its own, and takes out of the
// answer what must not get inside. What is refused is answered in words.
//
// It holds the authority that sandboxes trust for this ([Authority]) and the
// connections to destinations, apart for each sandbox, name and address. It does not
// know which connections are to be carried so, what is allowed, what a secret is or how
// a destination is reached: the gateway says all of that ([gateway.Warden]).
//
// # What is carried
//
// HTTP/1 and HTTP/2, each within TLS 1.2 or later or in the clear, bodies of any length both ways
// as they come, trailers, informational answers, and WebSocket by an upgrade of
// HTTP/1.1. Other upgrades are not offered to the destination. A destination is
// spoken to in HTTP/2 where it offers that within TLS, and its certificate is verified as the
// server does for itself, for the name that the sandbox asked for.
//
// # What is refused before anything is judged
//
// A Host that is not the name of the TLS handshake, paths that servers read in different
// ways (dot segments in any encoding, backslashes, control characters, what is not
// UTF-8), CONNECT, and what net/http's server does not take: several Hosts, lengths that
// contradict each other, malformed headers. A request is written anew when it is sent
// on, so one can never be hidden within another.
//
// # What scrubbing does and does not
//
// A scrubber goes over the headers, the body and the trailers of an answer, and over
// the messages of a WebSocket that come in. So that it can read them, the request
// asks for no compression; an answer that is compressed all the same is sent on without, and
// refused when the compression is unknown. It finds what is spelled out: a
// destination that encodes or cuts up what it was sent is not found out, and neither is
// what is compressed within a format, as in a gRPC message that names its own compression.
// A replacement changes lengths, so a message of a binary format in which one was
// made may not be readable any more.
package intercept
