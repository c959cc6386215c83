package gateway

import (
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// agentPatience is how long connections of before an adoption to the agent are
// left alone, so that the agent hears from its host that they are lost before it
// finds out: to a reset it would do what it does for a caller who leaves.
const agentPatience = 5 * time.Second

// stale are connections inside whose other end was lost with another process and
// that are not to be answered yet.
type stale struct {
	some atomic.Bool // there may be some in open: asked for each frame

	mu   sync.Mutex
	open map[stack.TransportEndpointID]struct{} // its local end is the gateway's; empty most of the time
}

// keepAgents takes those of the lost connections that lead to the agent and
// returns the others.
func (s *stale) keepAgents(lost []stack.TransportEndpointID) (others []stack.TransportEndpointID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = map[stack.TransportEndpointID]struct{}{}
	for _, id := range lost {
		switch id.RemotePort {
		case hostapi.AgentPort, hostapi.CodePort, hostapi.HostPort:
			s.open[id] = struct{}{}
		default:
			others = append(others, id)
		}
	}
	s.some.Store(len(s.open) > 0)
	return others
}

// endLater ends in a while what is stale, and again what was lost besides: on a busy host
// the kernel may have dropped the answers to the first attempt, since it takes some time
// until it sends through a device that was just opened again. A connection that has ended
// or begun anew since then loses nothing by it. The returned function keeps it from it.
func (n *Network) endLater(lost []stack.TransportEndpointID) (stop func()) {
	timer := time.AfterFunc(agentPatience, func() { n.endInside(append(n.stale.takeAll(), lost...)) })
	return func() { timer.Stop() }
}

func (s *stale) takeAll() []stack.TransportEndpointID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []stack.TransportEndpointID
	for id := range s.open {
		all = append(all, id)
	}
	s.open = nil
	s.some.Store(false)
	return all
}

// forget lets a new connection have the numbers of an old one.
func (s *stale) forget(id stack.TransportEndpointID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
}

// has tells whether a frame that checkFrame let through, by its first bytes, is of
// such a connection.
func (s *stale) has(first []byte) bool {
	if !s.some.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ip := header.IPv4(first[header.EthernetMinimumSize:])
	if len(ip) < header.IPv4MinimumSize || ip.TransportProtocol() != header.TCPProtocolNumber ||
		len(ip) < int(ip.HeaderLength())+portsLen {
		return false
	}
	segment := header.TCP(ip[ip.HeaderLength():])
	_, is := s.open[stack.TransportEndpointID{
		LocalAddress: ip.DestinationAddress(), LocalPort: segment.DestinationPort(),
		RemoteAddress: tcpip.AddrFrom4(sandbox4), RemotePort: segment.SourcePort(),
	}]
	return is
}

// portsLen is the length of the ports at the start of a TCP header, bytes.
const portsLen = 4
