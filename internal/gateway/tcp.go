package gateway

import (
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	keepAliveIdle  = 60 * time.Second
	keepAliveEvery = 15 * time.Second
	keepAliveCount = 4
	// settleLimit is how long data may wait for the sandbox to take it after
	// both sides have closed.
	settleLimit = 2 * time.Minute
)

// serveTCP takes one connection that the sandbox opens. The forwarder calls it in a
// goroutine of its own, and bounds how many have not completed the handshake.
func (n *Network) serveTCP(request *tcp.ForwarderRequest) {
	a := &arrival{n: n, request: request, destination: localEnd(request.ID())}
	if !n.begin() {
		a.end()
		return
	}
	defer n.working.Done()
	if !n.admit() {
		a.end()
		return
	}
	defer n.counters.openConnections.Add(-1)
	defer n.guard("TCP connection")
	defer a.end()

	switch a.destination {
	case netip.AddrPortFrom(gatewayAddr, dnsPort):
		a.serveQuestions()
	case netip.AddrPortFrom(gatewayAddr, insidePort):
		a.serveInside()
	default:
		a.serve()
	}
}

// admit counts a connection in, unless there are too many.
func (n *Network) admit() bool {
	if n.arrivals.Allow() {
		if n.counters.openConnections.Add(1) <= n.connections.Load() {
			return true
		}
		n.counters.openConnections.Add(-1)
	}
	n.counters.overLimit.Add(1)
	return false
}

func (n *Network) carryConnection(c *carried, j judged) {
	if !n.track(c) || !n.stillAllowed(c, j) {
		n.untrack(c)
		c.abort()
		return
	}
	defer n.untrack(c)
	defer n.forget(c)
	n.join(c)
}

// limitHostBuffers keeps a sandbox with many connections from filling the
// kernel's buffers, too. The kernel tunes those of the first few.
func limitHostBuffers(outside *net.TCPConn, sizes bufferSizes) {
	if sizes.inside >= defaultBuffer {
		return
	}
	_ = outside.SetReadBuffer(sizes.host) // the connection works without
	_ = outside.SetWriteBuffer(sizes.host)
}

// accept completes the handshake inside. size is that of each buffer, bytes; 0
// leaves the stack's default.
func (n *Network) accept(request *tcp.ForwarderRequest, size int) (*insideConn, error) {
	var queue waiter.Queue
	// Before the sandbox has its answer: from then on it keeps the connection.
	place := n.ledger.add(request.ID())
	endpoint, err := request.CreateEndpoint(&queue)
	if err != nil {
		n.ledger.remove(place)
		return nil, asError(err)
	}
	tuneEndpoint(endpoint)
	if size > 0 {
		endpoint.SocketOptions().SetReceiveBufferSize(int64(size), true)
		endpoint.SocketOptions().SetSendBufferSize(int64(size), true)
	}
	c := newInsideConn(n, endpoint, &queue)
	c.place = place
	if !n.track(c) {
		c.abort()
		return nil, ErrClosed
	}
	return c, nil
}

// tuneEndpoint makes small messages go at once, and finds out when the other
// end is gone without a word, as it is after a restore.
func tuneEndpoint(endpoint tcpip.Endpoint) {
	options := endpoint.SocketOptions()
	options.SetDelayOption(false)
	options.SetQuickAck(true)
	options.SetKeepAlive(true)
	idle, every := tcpip.KeepaliveIdleOption(keepAliveIdle), tcpip.KeepaliveIntervalOption(keepAliveEvery)
	unanswered := tcpip.TCPUserTimeoutOption(keepAliveIdle)
	_ = endpoint.SetSockOpt(&idle) // these fail on no TCP endpoint
	_ = endpoint.SetSockOpt(&every)
	_ = endpoint.SetSockOpt(&unanswered)
	_ = endpoint.SetSockOptInt(tcpip.KeepaliveCountOption, keepAliveCount)
}

func localEnd(id stack.TransportEndpointID) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(id.LocalAddress.As4()), id.LocalPort)
}
