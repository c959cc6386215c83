package intercept

import "time"

const (
	// maxHeader bounds the headers of a request and of an answer, bytes.
	maxHeader = 256 << 10
	// maxTarget bounds the path of a request, bytes: rules match it as often as there are
	// patterns.
	maxTarget = 16 << 10
	// handshakeTimeout is for TLS with the client, headerTimeout for the headers of a
	// request from their first byte on.
	handshakeTimeout = 15 * time.Second
	headerTimeout    = 30 * time.Second
	// idleInside is how long a client may keep a connection without a request.
	idleInside = 5 * time.Minute
	// idleOutside is how long a connection to a destination is kept without one, as it
	// is with most programs. Of a destination closing it meanwhile a request that may be
	// repeated does not notice.
	idleOutside = 90 * time.Second
	// maxIdlePerHost bounds the connections that are kept to one destination.
	maxIdlePerHost = 16
	maxStreams     = 250 // at once, in one HTTP/2 connection
	// maxUpstreams bounds the destinations of one sandbox that connections are kept to.
	maxUpstreams = 128
	// pingAfter is how long a silent HTTP/2 connection to a destination is believed in.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
	// receiveStream and receiveConnection are what a destination may send of one answer, and
	// of all in one connection, before the client has taken any of it, bytes; what a client
	// may send before the destination takes it is receiveInside for each request. With
	// defaultRequests they bound what a sandbox has this process hold.
	receiveStream     = 256 << 10
	receiveConnection = 4 << 20
	receiveInside     = 128 << 10
	// maxFrame is how much a destination may send in one frame of HTTP/2, bytes: few large
	// ones cost less.
	maxFrame = 256 << 10
	// continueTimeout is how long a destination may let a body wait that the client asked
	// about.
	continueTimeout = 2 * time.Second
	// defaultRequests is Config.Requests when that is 0.
	defaultRequests = 256
)
