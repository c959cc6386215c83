package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// DialContext connects to a TCP port of the sandbox, from the gateway's
// address. The error is a *net.OpError; errors.Is finds syscall.ECONNREFUSED
// in it when nothing listens on the port, ctx's error when ctx ended first, and
// [ErrClosed] when the network is closed. The caller closes the connection; it
// has CloseWrite for half-closing, and ends with the network.
func (n *Network) DialContext(ctx context.Context, port uint16) (net.Conn, error) {
	c, err := n.dial(ctx, port)
	if err != nil {
		address := net.TCPAddrFromAddrPort(netip.AddrPortFrom(sandboxAddr, port))
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: address, Err: err}
	}
	n.counters.connectionsIn.Add(1)
	return c, nil
}

func (n *Network) dial(ctx context.Context, port uint16) (*insideConn, error) {
	var queue waiter.Queue
	endpoint, stackErr := n.stack.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	if stackErr != nil {
		return nil, asError(stackErr)
	}
	tuneEndpoint(endpoint)
	c := newInsideConn(n, endpoint, &queue)
	if !n.track(c) {
		c.abort()
		return nil, ErrClosed
	}
	id, err := bind(endpoint, port)
	if err == nil {
		n.stale.forget(id)
		c.note(id)
		err = connect(ctx, endpoint, &queue, port)
	}
	if err != nil {
		c.abort()
		if n.ctx.Err() != nil {
			return nil, ErrClosed
		}
		return nil, err
	}
	return c, nil
}

// bind gives the endpoint a port of the gateway's and returns what a connection to
// a port of the sandbox will be known by.
func bind(endpoint tcpip.Endpoint, port uint16) (stack.TransportEndpointID, error) {
	err := endpoint.Bind(tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFrom4(gateway4)})
	var local tcpip.FullAddress
	if err == nil {
		local, err = endpoint.GetLocalAddress()
	}
	if err != nil {
		return stack.TransportEndpointID{}, fmt.Errorf("bind to %s: %w", gatewayAddr, asError(err))
	}
	return stack.TransportEndpointID{
		LocalAddress: local.Addr, LocalPort: local.Port,
		RemoteAddress: tcpip.AddrFrom4(sandbox4), RemotePort: port,
	}, nil
}

func connect(ctx context.Context, endpoint tcpip.Endpoint, queue *waiter.Queue, port uint16) error {
	connected, notify := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventErr | waiter.EventHUp)
	queue.EventRegister(&connected)
	defer queue.EventUnregister(&connected)

	err := endpoint.Connect(tcpip.FullAddress{NIC: nicID, Addr: tcpip.AddrFrom4(sandbox4), Port: port})
	if _, started := err.(*tcpip.ErrConnectStarted); started {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-notify:
		}
		err = endpoint.LastError()
	}
	return dialError(err)
}

// dialError gives the errors a caller decides on their names in syscall.
func dialError(err tcpip.Error) error {
	switch err.(type) {
	case nil:
		return nil
	case *tcpip.ErrConnectionRefused:
		return syscall.ECONNREFUSED
	case *tcpip.ErrConnectionReset:
		return syscall.ECONNRESET
	case *tcpip.ErrTimeout:
		return syscall.ETIMEDOUT
	case *tcpip.ErrHostUnreachable, *tcpip.ErrNetworkUnreachable:
		return syscall.EHOSTUNREACH
	default:
		return asError(err)
	}
}
