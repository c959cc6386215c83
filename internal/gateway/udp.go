package gateway

import (
	"net"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// maxDatagram is the largest payload of UDP over IPv4, bytes.
const maxDatagram = 65507

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
	outside, judged, err := n.dialOutside(n.ctx, UDP, localEnd(request.ID()))
	if err != nil {
		return
	}
	defer outside.Close()
	var queue waiter.Queue
	endpoint, createErr := request.CreateEndpoint(&queue)
	if createErr != nil {
		return
	}
	inside := gonet.NewUDPConn(&queue, endpoint)
	defer inside.Close()
	flow := &udpFlow{inside, outside}
	if !n.track(flow) {
		return
	}
	defer n.untrack(flow)
	if !n.stillAllowed(flow, judged) {
		return
	}
	defer n.forget(flow)
	n.counters.udpFlows.Add(1)
	defer n.counters.udpFlows.Add(-1)

	idle := newIdleTimer(n.limits.UDPIdle, flow.abort)
	defer idle.stop()
	var other sync.WaitGroup
	other.Add(1)
	go func() {
		defer other.Done()
		defer n.guard("UDP flow in")
		defer flow.abort()
		copyDatagrams(inside, outside, idle)
	}()
	copyDatagrams(outside, inside, idle)
	flow.abort()
	other.Wait()
}

// udpFlow is the two sockets of a flow.
type udpFlow struct {
	inside  *gonet.UDPConn
	outside net.Conn
}

// abort ends both copies.
func (f *udpFlow) abort() {
	_ = f.outside.Close()
	_ = f.inside.SetDeadline(time.Unix(1, 0))
	_ = f.inside.Close()
}

// copyDatagrams copies until source ends. A datagram that sink refuses is
// lost; that the outside's port is closed (ECONNREFUSED) ends the flow.
func copyDatagrams(sink, source net.Conn, idle *idleTimer) {
	buffer := datagrams.Get().(*[maxDatagram]byte)
	defer datagrams.Put(buffer)
	for {
		count, err := source.Read(buffer[:])
		if err != nil {
			return
		}
		idle.touch()
		_, _ = sink.Write(buffer[:count])
	}
}

var datagrams = sync.Pool{New: func() any { return new([maxDatagram]byte) }}
