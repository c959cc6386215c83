package gateway_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

func TestPublicRefusesWhatIsNotPublic(t *testing.T) {
	policy := gateway.NewPublic()
	for _, row := range []struct {
		address string
		allow   bool
	}{
		{"1.1.1.1", true},
		{"8.8.8.8", true},
		{"192.0.2.77", true}, // documentation ranges: nothing is there to protect
		{"198.51.100.1", true},
		{"203.0.113.200", true},
		{"172.15.255.255", true},
		{"172.32.0.0", true},
		{"100.63.255.255", true},
		{"100.128.0.0", true},
		{"2606:4700:4700::1111", true},
		{"64:ff9b::808:808", true},
		{"2002:808:808::1", true},

		{"0.0.0.0", false},
		{"0.1.2.3", false},
		{"10.0.0.1", false}, // the gateway
		{"10.0.0.2", false},
		{"10.255.255.255", false},
		{"100.64.0.0", false},
		{"100.100.100.200", false}, // metadata of a cloud
		{"168.63.129.16", false},   // the same, and formally public
		{"168.63.129.17", true},
		{"::ffff:168.63.129.16", false},
		{"64:ff9b::a83f:8110", false},
		{"fd20:ce::254", false},
		{"100.127.255.255", false},
		{"127.0.0.1", false},
		{"127.255.255.254", false},
		{"169.254.169.254", false},
		{"169.254.170.2", false},
		{"172.16.0.1", false},
		{"172.31.255.255", false},
		{"192.0.0.192", false},
		{"192.168.0.1", false},
		{"198.18.0.1", false},
		{"198.19.255.255", false},
		{"224.0.0.1", false},
		{"239.255.255.250", false},
		{"240.0.0.1", false},
		{"255.255.255.255", false},

		{"::", false},
		{"::1", false},
		{"fe80::1", false},
		{"fe80::1%eth0", false},
		{"fec0::1", false},
		{"fc00::1", false},
		{"fd00:ec2::254", false}, // metadata of a cloud
		{"ff02::1", false},
		{"100::1", false},
		{"::ffff:127.0.0.1", false},
		{"::ffff:169.254.169.254", false},
		{"::127.0.0.1", false},
		{"64:ff9b::a9fe:a9fe", false},
		{"64:ff9b::7f00:1", false},
		{"64:ff9b:1::1", false},
		{"2002:7f00:1::", false},
		{"2002:a9fe:a9fe::1", false},
		{"2001:0:808:808:0:0:80ff:fffe", false}, // Teredo, client 127.0.0.1
	} {
		for _, protocol := range []gateway.Protocol{gateway.TCP, gateway.UDP, gateway.DNSAnswer} {
			destination := netip.AddrPortFrom(netip.MustParseAddr(row.address), 443)
			d := policy.Decide(context.Background(), gateway.Request{Protocol: protocol, Destination: destination})
			require.Equal(t, row.allow, d.Allowed(), "%s %s: %s", protocol, row.address, d.Reason)
			require.NotEmpty(t, d.Reason)
		}
	}
}

func TestPublicRefusesTheHost(t *testing.T) {
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	policy := gateway.NewPublic()
	for _, address := range addresses {
		addr, ok := netip.AddrFromSlice(address.(*net.IPNet).IP)
		require.True(t, ok)
		d := policy.Decide(context.Background(), gateway.Request{
			Protocol: gateway.TCP, Destination: netip.AddrPortFrom(addr.Unmap(), 22),
		})
		require.False(t, d.Allowed(), "%s", addr)
	}
}

func TestPublicRefusesNoAddress(t *testing.T) {
	d := gateway.NewPublic().Decide(context.Background(), gateway.Request{Protocol: gateway.TCP})
	require.False(t, d.Allowed())
}
