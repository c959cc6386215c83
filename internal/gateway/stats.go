package gateway

import (
	"runtime/debug"
	"sync/atomic"
)

// Stats are counts since the network was made, except where "now" is said.
type Stats struct {
	BytesOut        uint64 // in frames that came from the sandbox
	BytesIn         uint64 // in frames sent to the sandbox
	FramesRefused   uint64 // malformed, spoofed, or of a protocol that is not carried
	ConnectionsOut  uint64 // TCP connections opened to the outside
	ConnectionsIn   uint64 // connections dialled into the sandbox
	OpenConnections int64  // out, now
	UDPFlows        int64  // now
	Held            int64  // connections, flows and requests that wait for an answer, now
	Questions       uint64 // DNS
	Denied          uint64 // judgements that said no
	OverLimit       uint64 // connections, flows and questions dropped because of a limit
	EventsDropped   uint64 // judgements OnDecision was too slow for
	Panics          uint64 // recovered; anything above zero is a bug
}

type counters struct {
	connectionsOut, connectionsIn, questions, denied, overLimit, panics atomic.Uint64
	openConnections, udpFlows, held                                     atomic.Int64
	flights                                                             atomic.Int64 // bytes that clients sent first, being looked at
}

// Stats returns the counts of this moment.
func (n *Network) Stats() Stats {
	s := Stats{
		ConnectionsOut:  n.counters.connectionsOut.Load(),
		ConnectionsIn:   n.counters.connectionsIn.Load(),
		OpenConnections: n.counters.openConnections.Load(),
		UDPFlows:        n.counters.udpFlows.Load(),
		Held:            n.counters.held.Load(),
		Questions:       n.counters.questions.Load(),
		Denied:          n.counters.denied.Load(),
		OverLimit:       n.counters.overLimit.Load() + n.stack.Stats().TCP.ForwardMaxInFlightDrop.Value(),
		EventsDropped:   n.events.dropped.Load(),
		Panics:          n.counters.panics.Load(),
	}
	s.BytesOut, s.BytesIn, s.FramesRefused = n.link.bytesOut.Load(), n.link.bytesIn.Load(), n.link.refused.Load()
	return s
}

func stackTrace() string { return string(debug.Stack()) }
