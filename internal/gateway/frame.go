package gateway

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

var (
	gatewayAddr = netip.MustParseAddr(hostapi.GatewayAddr)
	sandboxAddr = netip.MustParseAddr(hostapi.SandboxAddr)
	insideNet   = netip.PrefixFrom(gatewayAddr, hostapi.PrefixLen).Masked()

	gateway4 = gatewayAddr.As4()
	sandbox4 = sandboxAddr.As4()
)

// maxHeaders is as much of a frame as checkFrame and refusal look at: Ethernet,
// IPv4 without options, and of TCP what a port unreachable quotes (RFC 792).
const maxHeaders = header.EthernetMinimumSize + header.IPv4MinimumSize + quotedPayload

// checkFrame judges a frame from the sandbox by its first bytes; size is that
// of the whole frame. It lets through what the sandbox may rightly send and
// the stack has a use for: ARP, and IPv4 from the sandbox's own address that is
// TCP or UDP to a unicast address, or ICMP to the gateway. The stack answers
// for every address there is, so an echo to another one would get a false
// reply.
func checkFrame(first []byte, size int) (tcpip.NetworkProtocolNumber, bool) {
	if len(first) < header.EthernetMinimumSize {
		return 0, false
	}
	packet := first[header.EthernetMinimumSize:]
	switch protocol := tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(first[12:])); protocol {
	case header.ARPProtocolNumber:
		return protocol, size-header.EthernetMinimumSize >= header.ARPSize
	case header.IPv4ProtocolNumber:
		return protocol, checkIPv4(packet)
	default:
		return 0, false
	}
}

// firstNotUnicast begins the addresses, by their first byte, that are multicast,
// reserved or broadcast.
const firstNotUnicast = 224

func checkIPv4(packet []byte) bool {
	if len(packet) < header.IPv4MinimumSize || packet[0]>>4 != header.IPv4Version {
		return false
	}
	source, destination := [4]byte(packet[12:16]), [4]byte(packet[16:20])
	if source != sandbox4 || destination == sandbox4 {
		return false
	}
	switch tcpip.TransportProtocolNumber(packet[9]) {
	case header.TCPProtocolNumber, header.UDPProtocolNumber:
		return destination[0] < firstNotUnicast
	case header.ICMPv4ProtocolNumber:
		return destination == gateway4
	default:
		return false
	}
}
