package gateway

import (
	"context"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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

// In a namespace of its own, since the machine's addresses are not the test's to change.
func TestAnAddressThatTheHostGetsIsItsOwnAtOnce(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	h := &hostAddresses{}
	ctx, cancel := context.WithCancel(t.Context())
	handles, ended := make(chan *netlink.Handle, 1), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Unshare(unix.CLONE_NEWNET) != nil {
			close(handles)
			return
		}
		handle, _ := netlink.NewHandle(unix.NETLINK_ROUTE)
		handles <- handle
		h.followOnce(ctx)
	}()
	defer func() {
		cancel()
		<-ended
		require.False(t, h.followed.Load())
	}()
	handle := <-handles
	require.NotNil(t, handle)
	defer handle.Close()
	require.Eventually(t, h.followed.Load, 10*time.Second, time.Millisecond)

	link, err := handle.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, handle.LinkSetUp(link))
	addr, err := netlink.ParseAddr("198.51.100.9/32")
	require.NoError(t, err)
	require.False(t, h.owns("198.51.100.9"))
	require.NoError(t, handle.AddrAdd(link, addr))
	require.Eventually(t, func() bool { return h.owns("198.51.100.9") }, 10*time.Second, time.Millisecond)
	require.NoError(t, handle.AddrDel(link, addr))
	require.Eventually(t, func() bool { return !h.owns("198.51.100.9") }, 10*time.Second, time.Millisecond)

	// However old it is, nobody waits for another.
	aged := *h.last.Load()
	aged.at = time.Now().Add(-time.Hour)
	h.reading.Lock() // as a reader that takes long
	h.last.Store(&aged)
	require.True(t, h.own(netip.MustParseAddr("127.0.0.1")))
	h.reading.Unlock()
}

// owns looks at the last reading, without another.
func (h *hostAddresses) owns(address string) bool {
	for _, prefix := range h.last.Load().prefixes {
		if prefix.Contains(netip.MustParseAddr(address)) {
			return true
		}
	}
	return false
}
