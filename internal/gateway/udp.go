package gateway

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// udpFlows are the flows there are, by their two ends.
type udpFlows struct {
	mu   sync.Mutex
	open map[stack.TransportEndpointID]struct{}
}

func newUDPFlows() *udpFlows {
	return &udpFlows{open: map[stack.TransportEndpointID]struct{}{}}
}

// add reports false when the flow is there already, or there are limit flows.
func (f *udpFlows) add(id stack.TransportEndpointID, limit int) (added, full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, there := f.open[id]; there {
		return false, false
	}
	if len(f.open) >= limit {
		return false, true
	}
	f.open[id] = struct{}{}
	return true, false
}

func (f *udpFlows) remove(id stack.TransportEndpointID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, id)
}

// serveUDP takes the first datagram of a flow; the stack hands those after it
// to the flow's endpoint. It runs on the device's reader and does not wait.
// What comes while a flow is being judged is dropped, as UDP may be.
func (n *Network) serveUDP(request *udp.ForwarderRequest) bool {
	if !n.newFlows.Allow() {
		n.counters.overLimit.Add(1)
		return true
	}
	added, full := n.flows.add(request.ID(), n.limits.UDPFlows)
	if full {
		n.counters.overLimit.Add(1)
	}
	if !added {
		return true
	}
	if !n.begin() {
		n.flows.remove(request.ID())
		return true
	}
	go func() {
		defer n.working.Done()
		defer n.flows.remove(request.ID())
		defer n.guard("UDP flow")
		n.carryFlow(request)
	}()
	return true
}

func (n *Network) carryFlow(request *udp.ForwarderRequest) {
	outside, judged, err := n.dialFlow(localEnd(request.ID()))
	if err != nil {
		n.link.sendFrame(portUnreachable(request.ID()))
		return
	}
	defer outside.Close()
	var queue waiter.Queue
	endpoint, createErr := request.CreateEndpoint(&queue)
	if createErr != nil {
		return
	}
	flow := &udpFlow{gonet.NewUDPConn(&queue, endpoint), outside}
	defer flow.abort()
	if !n.track(flow) {
		return
	}
	defer n.untrack(flow)
	if !n.stillAllowed(flow, judged) {
		return
	}
	defer n.forget(flow)
	fromOutside, err := newOutsideSource(outside)
	if err != nil {
		return
	}
	fromInside := newInsideSource(flow.inside, endpoint, &queue)
	defer fromInside.stop()
	n.counters.udpFlows.Add(1)
	defer n.counters.udpFlows.Add(-1)

	idle := newIdleTimer(n.limits.UDPIdle, flow.abort)
	defer idle.stop()
	meter := n.meter(judged.request)
	in := make(chan error, 1)
	go func() {
		var err error
		defer func() { in <- err }()
		defer n.guard("UDP flow in")
		defer flow.abort()
		err = copyDatagrams(flow.inside, fromOutside, idle, meter.in)
	}()
	err = copyDatagrams(outside, fromInside, idle, meter.out)
	flow.abort()
	if err = errors.Join(err, <-in); errors.Is(err, unix.ECONNREFUSED) {
		n.link.sendFrame(portUnreachable(request.ID()))
	}
}

// dialFlow judges a flow and connects a socket to just its destination.
func (n *Network) dialFlow(destination netip.AddrPort) (*net.UDPConn, judged, error) {
	j := judged{request: n.request(UDP, destination), era: n.era()}
	if d := n.decideHeld(n.ctx, j.request, nil); !d.Allowed() {
		n.accounts.refuse(j.request)
		return nil, j, errDenied
	}
	addresses, err := n.addressesOf(n.ctx, j.request)
	if err != nil {
		return nil, j, err
	}
	j.dialled = netip.AddrPortFrom(addresses[0], destination.Port())
	conn, err := n.dialer().DialUDP(n.ctx, "udp", netip.AddrPort{}, j.dialled)
	return conn, j, err
}

// udpFlow is the two sockets of a flow.
type udpFlow struct {
	inside  *gonet.UDPConn
	outside net.Conn
}

// abort ends both copies.
func (f *udpFlow) abort() {
	_ = f.outside.Close() // these two fail when they are closed already
	_ = f.inside.Close()
}

// copyDatagrams copies until the source ends or fails, or the outside says
// ECONNREFUSED: the port is closed there. A datagram that is not taken for
// another reason is lost.
func copyDatagrams(to io.Writer, from source, idle *idleTimer, m direction) error {
	for {
		c, err := from.read()
		if err == nil {
			idle.touch()
			err = m.pass(c.count)
		}
		if err == nil {
			if _, lost := to.Write(c.bytes()); errors.Is(lost, unix.ECONNREFUSED) {
				err = lost
			}
		}
		c.putBack()
		if err != nil {
			return err
		}
	}
}
