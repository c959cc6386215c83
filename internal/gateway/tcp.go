package gateway

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	keepAliveIdle  = 60 * time.Second
	keepAliveEvery = 15 * time.Second
	keepAliveCount = 4
)

// serveTCP carries one connection that the sandbox opens. The outside is
// dialled before the handshake inside is answered, so that what happens there
// shows inside: a connection that is denied, refused or unreachable is reset,
// and never looks open. The forwarder calls it in a goroutine of its own, and
// bounds how many have not completed the handshake.
func (n *Network) serveTCP(request *tcp.ForwarderRequest) {
	answered := false
	answer := func(reset bool) {
		if !answered {
			answered = true
			request.Complete(reset)
		}
	}
	if !n.begin() {
		answer(true)
		return
	}
	defer n.working.Done()
	defer n.guard("TCP connection")
	defer answer(true)

	if n.counters.openConnections.Add(1) > int64(n.limits.Connections) {
		n.counters.openConnections.Add(-1)
		n.counters.overLimit.Add(1)
		return
	}
	defer n.counters.openConnections.Add(-1)

	destination := localEnd(request.ID())
	if destination == netip.AddrPortFrom(gatewayAddr, dnsPort) {
		n.serveTCPQuestions(request, answer)
		return
	}
	outside, err := n.dialOutside(n.ctx, TCP, destination)
	if err != nil {
		return
	}
	size := n.buffers.take()
	defer n.buffers.give(size)
	inside, err := n.accept(request, size)
	if err != nil {
		outside.Close()
		return
	}
	answer(false)
	n.counters.connectionsOut.Add(1)
	n.join(inside, outside.(*net.TCPConn))
}

// dialOutside judges the destination and dials just that from the host.
func (n *Network) dialOutside(ctx context.Context, protocol Protocol, destination netip.AddrPort) (net.Conn, error) {
	name := n.names.find(destination.Addr())
	if d := n.decide(ctx, Request{Protocol: protocol, Destination: destination, Name: name}); !d.Allow {
		return nil, deniedError(d.Reason)
	}
	dialer := net.Dialer{
		Timeout: n.limits.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveEvery, Count: keepAliveCount,
		},
	}
	return dialer.DialContext(ctx, string(protocol), destination.String())
}

type deniedError string

func (e deniedError) Error() string { return "denied: " + string(e) }

// accept completes the handshake inside. size is that of each buffer, bytes; 0
// leaves the stack's default.
func (n *Network) accept(request *tcp.ForwarderRequest, size int) (*insideConn, error) {
	var queue waiter.Queue
	endpoint, err := request.CreateEndpoint(&queue)
	if err != nil {
		return nil, asError(err)
	}
	tuneEndpoint(endpoint)
	if size > 0 {
		endpoint.SocketOptions().SetReceiveBufferSize(int64(size), true)
		endpoint.SocketOptions().SetSendBufferSize(int64(size), true)
	}
	c := newInsideConn(n, endpoint, &queue)
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
	_ = endpoint.SetSockOpt(&idle) // these fail on no TCP endpoint
	_ = endpoint.SetSockOpt(&every)
	_ = endpoint.SetSockOptInt(tcpip.KeepaliveCountOption, keepAliveCount)
}

// insideConn is a TCP connection of the stack, tracked by its network.
type insideConn struct {
	*gonet.TCPConn
	network  *Network
	endpoint tcpip.Endpoint
	queue    *waiter.Queue
	closing  sync.Once
}

func newInsideConn(n *Network, endpoint tcpip.Endpoint, queue *waiter.Queue) *insideConn {
	return &insideConn{TCPConn: gonet.NewTCPConn(queue, endpoint), network: n, endpoint: endpoint, queue: queue}
}

// Close ends the connection; what was written is still delivered.
func (c *insideConn) Close() error {
	c.closing.Do(func() {
		c.network.untrack(c)
		_ = c.TCPConn.Close() // returns nil always
	})
	return nil
}

// abort ends the connection at once, with a reset.
func (c *insideConn) abort() {
	c.endpoint.Abort()
	_ = c.Close()
}

func localEnd(id stack.TransportEndpointID) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4(id.LocalAddress.As4()), id.LocalPort)
}
