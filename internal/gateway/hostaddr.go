package gateway

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hostAddressesAge is how long a reading of the host's addresses is used.
const hostAddressesAge = 2 * time.Second

// hostAddresses knows what the host takes for itself: the kernel's table of
// local addresses, which holds those of interfaces, their broadcast addresses
// and local ranges without an interface.
type hostAddresses struct {
	mu       sync.Mutex
	prefixes []netip.Prefix
	read     time.Time
	known    bool
}

// own reports whether the host itself answers for addr. While the host's
// addresses cannot be read, every address counts as its own.
func (h *hostAddresses) own(addr netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.read) > hostAddressesAge {
		h.refresh()
	}
	if !h.known {
		return true
	}
	for _, prefix := range h.prefixes {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

func (h *hostAddresses) refresh() {
	prefixes, err := localTable()
	if err != nil {
		prefixes, err = interfaceAddresses()
	}
	if err == nil {
		h.prefixes, h.known = prefixes, true
	}
	h.read = time.Now()
}

func localTable() ([]netip.Prefix, error) {
	table := &netlink.Route{Table: unix.RT_TABLE_LOCAL}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, table, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, err
	}
	var prefixes []netip.Prefix
	for _, route := range routes {
		if route.Dst == nil {
			continue
		}
		if prefix, ok := toPrefix(route.Dst); ok {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes, nil
}

func interfaceAddresses() ([]netip.Prefix, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var prefixes []netip.Prefix
	for _, address := range addresses {
		network, ok := address.(*net.IPNet)
		if !ok {
			continue
		}
		if addr, ok := netip.AddrFromSlice(network.IP); ok {
			addr = addr.Unmap()
			prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return prefixes, nil
}

func toPrefix(network *net.IPNet) (netip.Prefix, bool) {
	addr, ok := netip.AddrFromSlice(network.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, _ := network.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), true
}
