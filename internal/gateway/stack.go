package gateway

import (
	"errors"
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

const nicID = 1

// startStack puts a TCP/IP stack on the device. It takes every packet, whatever
// its destination, and hands new connections and flows to n.
func (n *Network) startStack() error {
	link, err := newLink(n.ctx, n.namespace.queues, n.guard)
	if err != nil {
		return fmt.Errorf("poll TAP device: %w", err)
	}
	n.link, link.stale = link, &n.stale
	n.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := n.tuneTCP(); err != nil {
		return err
	}
	tcpForwarder := tcp.NewForwarder(n.stack, 0, n.limits.Pending, n.serveTCP)
	udpForwarder := udp.NewForwarder(n.stack, n.serveUDP)
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcpForwarder.HandlePacket)
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udpForwarder.HandlePacket)
	n.flows = newUDPFlows()
	if err := n.addInterface(); err != nil {
		return err
	}
	return n.serveDNS()
}

func (n *Network) addInterface() error {
	address := tcpip.ProtocolAddress{
		Protocol: ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{
			Address:   tcpip.AddrFrom4(gateway4),
			PrefixLen: hostapi.PrefixLen,
		},
	}
	steps := []struct {
		what string
		err  func() tcpip.Error
	}{
		{"add interface", func() tcpip.Error { return n.stack.CreateNIC(nicID, n.link) }},
		{"set address", func() tcpip.Error {
			return n.stack.AddProtocolAddress(nicID, address, stack.AddressProperties{})
		}},
		{"take every destination", func() tcpip.Error { return n.stack.SetPromiscuousMode(nicID, true) }},
		{"answer from every address", func() tcpip.Error { return n.stack.SetSpoofing(nicID, true) }},
		{"set neighbour", func() tcpip.Error {
			return n.stack.AddStaticNeighbor(nicID, ipv4.ProtocolNumber, tcpip.AddrFrom4(sandbox4), linkAddress(sandboxMAC))
		}},
	}
	n.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nicID}})
	for _, step := range steps {
		if err := step.err(); err != nil {
			return fmt.Errorf("start network stack: %s: %w", step.what, asError(err))
		}
	}
	return nil
}

func (n *Network) tuneTCP() error {
	sack := tcpip.TCPSACKEnabled(true)
	nagle := tcpip.TCPDelayEnabled(false)
	tuned := tcpip.TCPModerateReceiveBufferOption(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: minBuffer, Default: defaultBuffer, Max: maxBuffer}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: minBuffer, Default: defaultBuffer, Max: maxBuffer}
	// The link loses nothing and has no other way round, so what TIME-WAIT and
	// FIN-WAIT-2 guard against does not happen; their default of a minute would
	// let a sandbox pile up ended connections.
	timeWait := tcpip.TCPTimeWaitTimeoutOption(500 * time.Millisecond)
	finWait := tcpip.TCPLingerTimeoutOption(10 * time.Second)
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &nagle, &tuned, &receive, &send, &timeWait, &finWait} {
		if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("set TCP option %T: %w", option, asError(err))
		}
	}
	return nil
}

// asError makes an error of the stack's own kind.
func asError(err tcpip.Error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.String())
}
