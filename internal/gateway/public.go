package gateway

import (
	"context"
	"fmt"
	"net/netip"
)

// Public is the policy that lets sandboxes reach the public internet and
// nothing else: no private, link-local, metadata, carrier-grade NAT, multicast
// or reserved address, none of the host's own and not the gateway. Every name
// may be asked for. One Public may serve many networks.
type Public struct {
	host *hostAddresses
}

// NewPublic returns the policy for this host.
func NewPublic() *Public { return &Public{host: &hostAddresses{}} }

// Follow has the host's own addresses read when they change, until ctx ends. Without, a
// judgement waits for them when there was none for some seconds.
func (p *Public) Follow(ctx context.Context) { go p.host.follow(ctx) }

// Decide judges by the address alone.
func (p *Public) Decide(_ context.Context, r Request) Decision {
	if r.Protocol == DNS {
		return Decision{Verdict: Allow, Reason: "any name may be asked for"}
	}
	if why := p.refuses(r.Destination.Addr()); why != "" {
		return Decision{Reason: fmt.Sprintf("%s is %s; sandboxes reach public addresses only", r.Destination.Addr(), why)}
	}
	return Decision{Verdict: Allow, Reason: "public address"}
}

// Refuses says what addr is if it is not a public address, or "". Others than
// sandboxes that connect on somebody's behalf ask it too.
func (p *Public) Refuses(addr netip.Addr) string { return p.refuses(addr) }

// refuses returns what addr is if it is not a public address, or empty.
func (p *Public) refuses(addr netip.Addr) string {
	if !addr.IsValid() {
		return "no address"
	}
	addr = addr.WithZone("")
	if why := Metadata(addr); why != "" {
		return why
	}
	if why := reserved(addr); why != "" {
		return why
	}
	if p.host.own(addr) {
		return "an address of this host"
	}
	if inner, how := embedded(addr); inner.IsValid() {
		if why := p.refuses(inner); why != "" {
			return how + " of an address that is " + why
		}
	}
	return ""
}

// reservedRanges are those of the IANA special-purpose registries (RFC 6890
// and its updates) that are not reachable over the internet, and the ones that
// are on some networks and not meant for a sandbox. The documentation ranges
// for IPv4 are left out: nothing answers there.
var reservedRanges = []struct {
	prefix netip.Prefix
	what   string
}{
	{insideNet, "in the sandbox's own network"},
	{netip.MustParsePrefix("0.0.0.0/8"), "in \"this network\" (RFC 791)"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private (RFC 1918)"},
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT (RFC 6598)"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local (RFC 3927)"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private (RFC 1918)"},
	{netip.MustParsePrefix("192.0.0.0/24"), "for protocol assignments (RFC 6890)"},
	{netip.MustParsePrefix("192.88.99.0/24"), "the former 6to4 relay (RFC 7526)"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private (RFC 1918)"},
	{netip.MustParsePrefix("198.18.0.0/15"), "for benchmarks of networks (RFC 2544)"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "broadcast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved (RFC 1112)"},
	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "local translation (RFC 8215)"},
	{netip.MustParsePrefix("100::/64"), "discard-only (RFC 6666)"},
	{netip.MustParsePrefix("fc00::/7"), "private (RFC 4193)"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "site-local (RFC 3879)"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// metadataAddresses are where clouds keep what a machine may know of itself, its
// credentials among that: the address that most have, and what single ones have beside it or
// in its place.
var metadataAddresses = []struct {
	addr netip.Addr
	what string
}{
	{netip.MustParseAddr("169.254.169.254"), "link-local, where clouds keep metadata"},
	{netip.MustParseAddr("168.63.129.16"), "where Azure keeps what its agents need"},
	{netip.MustParseAddr("100.100.100.200"), "where Alibaba Cloud keeps metadata"},
	{netip.MustParseAddr("192.0.0.192"), "where Oracle Cloud keeps metadata"},
	{netip.MustParseAddr("fd00:ec2::254"), "where AWS keeps metadata"},
	{netip.MustParseAddr("fd20:ce::254"), "where Google Cloud keeps metadata"},
	{netip.MustParseAddr("fd00:c1::a9fe:a9fe"), "where Oracle Cloud keeps metadata"},
}

// Metadata says what addr is if a cloud keeps the metadata of machines there, also in an IPv6
// form, or "". Nothing may open these.
func Metadata(addr netip.Addr) string {
	addr = addr.WithZone("")
	for _, m := range metadataAddresses {
		if m.addr == addr {
			return m.what
		}
	}
	if inner, how := embedded(addr); inner.IsValid() {
		if why := Metadata(inner); why != "" {
			return how + " of an address that is " + why
		}
	}
	return ""
}

func reserved(addr netip.Addr) string {
	for _, r := range reservedRanges {
		if r.prefix.Contains(addr) {
			return r.what
		}
	}
	return ""
}

// embedded returns the IPv4 address that a translator or a tunnel would reach
// for an IPv6 address, and how it is embedded.
func embedded(addr netip.Addr) (netip.Addr, string) {
	if addr.Is4() {
		return netip.Addr{}, ""
	}
	b := addr.As16()
	switch {
	case addr.Is4In6():
		return addr.Unmap(), "the IPv6 form (RFC 4291)"
	case prefixNAT64.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:16])), "the NAT64 form (RFC 6052)"
	case prefix6to4.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6])), "the 6to4 form (RFC 3056)"
	case prefixTeredo.Contains(addr): // the client's address, inverted
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), "the Teredo form (RFC 4380)"
	case prefixCompatible.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:16])), "the IPv4-compatible form (RFC 4291)"
	default:
		return netip.Addr{}, ""
	}
}

var (
	prefixNAT64      = netip.MustParsePrefix("64:ff9b::/96")
	prefix6to4       = netip.MustParsePrefix("2002::/16")
	prefixTeredo     = netip.MustParsePrefix("2001::/32")
	prefixCompatible = netip.MustParsePrefix("::/96")
)
