package gateway

import (
	"encoding/binary"

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
	datagram := make([]byte, header.IPv4MinimumSize+header.UDPMinimumSize)
	encodeIPv4(datagram, header.UDPProtocolNumber, flow.RemoteAddress, flow.LocalAddress)
	header.UDP(datagram[header.IPv4MinimumSize:]).Encode(&header.UDPFields{
		SrcPort: flow.RemotePort, DstPort: flow.LocalPort, Length: header.UDPMinimumSize,
	})
	return unreachable(header.ICMPv4PortUnreachable, flow.LocalAddress, datagram)
}

// refusal is the frame that answers a frame which checkFrame refuses, so that
// the sandbox need not wait for its own timeout; nil for none. TCP to an address
// that is not unicast gets one: the stack has no answer to that, and the sandbox
// takes no segment from such an address. first is the start of the frame,
// maxHeaders of it if it is as long.
func refusal(first []byte) []byte {
	if len(first) < maxHeaders || binary.BigEndian.Uint16(first[12:]) != uint16(header.IPv4ProtocolNumber) {
		return nil
	}
	packet := header.IPv4(first[header.EthernetMinimumSize:maxHeaders])
	source, destination := packet.SourceAddress().As4(), packet.DestinationAddress().As4()
	plain := packet[0] == header.IPv4Version<<4|header.IPv4MinimumSize/4
	if !plain || source != sandbox4 || destination[0] < firstNotUnicast || packet.TransportProtocol() != header.TCPProtocolNumber {
		return nil
	}
	return unreachable(header.ICMPv4HostUnreachable, tcpip.AddrFrom4(gateway4), packet)
}

// quotedPayload is how much of what an IPv4 packet holds its error message
// quotes, bytes (RFC 792).
const quotedPayload = 8

// unreachable is the frame of an ICMP error; quoted is the start of the packet it
// is about.
func unreachable(code header.ICMPv4Code, from tcpip.Address, quoted []byte) []byte {
	frame := make([]byte, header.EthernetMinimumSize+header.IPv4MinimumSize+header.ICMPv4MinimumSize+len(quoted))
	header.Ethernet(frame).Encode(&header.EthernetFields{
		SrcAddr: linkAddress(gatewayMAC), DstAddr: linkAddress(sandboxMAC), Type: header.IPv4ProtocolNumber,
	})
	packet := frame[header.EthernetMinimumSize:]
	encodeIPv4(packet, header.ICMPv4ProtocolNumber, from, tcpip.AddrFrom4(sandbox4))

	message := header.ICMPv4(packet[header.IPv4MinimumSize:])
	message.SetType(header.ICMPv4DstUnreachable)
	message.SetCode(code)
	copy(message[header.ICMPv4MinimumSize:], quoted)
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
// take, or that comes while the network is held, is lost.
func (l *link) sendFrame(frame []byte) {
	withHeader := append(make([]byte, vnetHeaderLen, vnetHeaderLen+len(frame)), frame...)
	l.gate.pass(func() tcpip.Error {
		_ = l.queues[queueTCP].Write(func(fd uintptr) bool {
			_, _ = unix.Write(int(fd), withHeader)
			return true
		})
		l.bytesIn.Add(uint64(len(frame)))
		return nil
	})
}
