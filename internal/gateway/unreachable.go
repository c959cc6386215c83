package gateway

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// portUnreachable is the frame that tells the sandbox that its datagrams of a
// flow reach nobody (RFC 792): a connected socket inside gets "connection
// refused" then, and need not wait for an answer that never comes. The message
// quotes the headers of such a datagram, which is how the socket is found.
func portUnreachable(flow stack.TransportEndpointID) []byte {
	const quoted = header.IPv4MinimumSize + header.UDPMinimumSize
	frame := make([]byte, header.EthernetMinimumSize+header.IPv4MinimumSize+header.ICMPv4MinimumSize+quoted)
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: linkAddress(gatewayMAC), DstAddr: linkAddress(sandboxMAC), Type: header.IPv4ProtocolNumber,
	})
	packet := frame[header.EthernetMinimumSize:]
	encodeIPv4(packet, header.ICMPv4ProtocolNumber, flow.LocalAddress, flow.RemoteAddress)

	message := header.ICMPv4(packet[header.IPv4MinimumSize:])
	message.SetType(header.ICMPv4DstUnreachable)
	message.SetCode(header.ICMPv4PortUnreachable)
	datagram := message[header.ICMPv4MinimumSize:]
	encodeIPv4(datagram, header.UDPProtocolNumber, flow.RemoteAddress, flow.LocalAddress)
	header.UDP(datagram[header.IPv4MinimumSize:]).Encode(&header.UDPFields{
		SrcPort: flow.RemotePort, DstPort: flow.LocalPort, Length: header.UDPMinimumSize,
	})
	message.SetChecksum(^checksum.Checksum(message, 0))
	return frame
}

// encodeIPv4 writes the header of a packet that fills b.
func encodeIPv4(b []byte, protocol tcpip.TransportProtocolNumber, from, to tcpip.Address) {
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(b)), TTL: 64, Protocol: uint8(protocol), SrcAddr: from, DstAddr: to,
	})
	ip.SetChecksum(^ip.CalculateChecksum())
}

// sendFrame sends a finished frame to the sandbox. One that the device does not
// take is lost.
func (l *link) sendFrame(frame []byte) {
	withHeader := append(make([]byte, vnetHeaderLen, vnetHeaderLen+len(frame)), frame...)
	_ = l.queues[queueTCP].Write(func(fd uintptr) bool {
		_, _ = unix.Write(int(fd), withHeader)
		return true
	})
	l.bytesIn.Add(uint64(len(frame)))
}
