package gateway

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNobodyWaitsForTheHostsAddressesToBeReadAgain(t *testing.T) {
	h, loopback, other := &hostAddresses{}, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("198.51.100.1")
	require.True(t, h.own(loopback))
	require.False(t, h.own(other))

	aged := *h.last.Load()
	aged.at = time.Now().Add(-hostAddressesAge - time.Millisecond)
	h.last.Store(&aged)
	h.reading.Lock() // as a reader that takes long
	require.True(t, h.own(loopback))
	require.False(t, h.own(other))
	h.reading.Unlock()

	require.Eventually(t, func() bool { h.own(loopback); return h.last.Load() != &aged }, 10*time.Second, time.Millisecond, "it is read beside")
}

func TestOldAddressesOfTheHostAreNotUsed(t *testing.T) {
	h := &hostAddresses{}
	h.last.Store(&hostTable{prefixes: []netip.Prefix{}, at: time.Now().Add(-hostAddressesMost - time.Second)})
	require.True(t, h.own(netip.MustParseAddr("127.0.0.1")))
}
