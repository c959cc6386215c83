package gateway

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// insideConn is a TCP connection of the stack, tracked by its network. It
// behaves like a *net.TCPConn where gonet's does not: its errors are found by
// errors.Is, and an end that is not the sandbox's doing is no io.EOF.
type insideConn struct {
	*gonet.TCPConn
	network  *Network
	endpoint tcpip.Endpoint
	queue    *waiter.Queue
	closed   atomic.Bool

	noting sync.Mutex
	place  int64 // in the ledger
}

func newInsideConn(n *Network, endpoint tcpip.Endpoint, queue *waiter.Queue) *insideConn {
	return &insideConn{TCPConn: gonet.NewTCPConn(queue, endpoint), network: n, endpoint: endpoint, queue: queue, place: noPlace}
}

func (c *insideConn) Read(b []byte) (int, error) {
	count, err := c.TCPConn.Read(b)
	return count, c.explain("read", err)
}

func (c *insideConn) Write(b []byte) (int, error) {
	written := 0
	for {
		count, err := c.TCPConn.Write(b[written:min(len(b), written+segmentSize)])
		if written += count; err != nil || written == len(b) {
			return written, c.explain("write", err)
		}
	}
}

// explain gives an error of gonet the form of one of package net.
func (c *insideConn) explain(operation string, err error) error {
	if err == nil {
		return nil
	}
	var timeout net.Error
	switch {
	case c.network.ctx.Err() != nil:
		err = ErrClosed
	case c.closed.Load():
		err = net.ErrClosed
	case err == io.EOF:
		return err
	case errors.As(err, &timeout) && timeout.Timeout():
		err = os.ErrDeadlineExceeded
	default:
		return err
	}
	return &net.OpError{Op: operation, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// Close ends the connection; what was written is still delivered, unless many
// connections are closed with a sandbox that takes nothing.
func (c *insideConn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	c.network.untrack(c)
	c.noting.Lock()
	c.network.ledger.remove(c.place)
	c.noting.Unlock()
	_ = c.TCPConn.Close() // returns nil always
	if c.hasData() {
		c.network.leave(c)
	}
	return nil
}

// note puts the connection into the ledger until it is closed.
func (c *insideConn) note(id stack.TransportEndpointID) {
	c.noting.Lock()
	defer c.noting.Unlock()
	if !c.closed.Load() {
		c.place = c.network.ledger.add(id)
	}
}

// abort ends the connection at once, with a reset.
func (c *insideConn) abort() {
	c.endpoint.Abort()
	_ = c.Close()
}

// hasData reports whether a connection that was closed may still hold data for
// the sandbox.
func (c *insideConn) hasData() bool {
	switch tcp.EndpointState(c.endpoint.State()) {
	case tcp.StateClose, tcp.StateError, tcp.StateTimeWait, tcp.StateFinWait2:
		return false
	default:
		return true
	}
}

// settle waits, after Close, until the sandbox has taken the rest, and resets
// the connection if it does not.
func (c *insideConn) settle(limit time.Duration) {
	if !c.hasData() {
		return
	}
	entry, ended := waiter.NewChannelEntry(waiter.EventHUp)
	c.queue.EventRegister(&entry)
	defer c.queue.EventUnregister(&entry)
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; c.hasData(); pause = min(2*pause, time.Second) {
		select {
		case <-ended:
		case <-c.network.ctx.Done():
			return
		case <-time.After(pause): // not every change of state is told
		}
		if time.Now().After(deadline) {
			c.endpoint.Abort()
			return
		}
	}
}
