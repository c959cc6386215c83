package gateway

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// hostAddressesAge is how long a reading of the host's addresses is used before
	// they are read again, beside what goes on.
	hostAddressesAge = 2 * time.Second
	// hostAddressesMost is how old a reading may be where nobody follows the changes: who
	// asks then waits.
	hostAddressesMost = 5 * time.Second
	// followAgain is how long after its end changes are followed again: the kernel had more
	// of them than fit, or tells nobody.
	followAgain = time.Second
)

// hostAddresses knows what the host takes for itself: the kernel's table of
// local addresses, which holds those of interfaces, their broadcast addresses
// and local ranges without an interface.
type hostAddresses struct {
	last     atomic.Pointer[hostTable] // nil before the first
	reading  sync.Mutex
	followed atomic.Bool // a change is read when it happens
}

// hostTable is one reading.
type hostTable struct {
	prefixes []netip.Prefix // nil: they could never be read
	at       time.Time
}

// own reports whether the host itself answers for addr. While the host's
// addresses cannot be read, every address counts as its own.
func (h *hostAddresses) own(addr netip.Addr) bool {
	table := h.table()
	if table.prefixes == nil {
		return true
	}
	for _, prefix := range table.prefixes {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// table lets nobody wait for a reading that takes long, as on hosts with many routes,
// while there is one that will do.
func (h *hostAddresses) table() *hostTable {
	table := h.last.Load()
	if table == nil || !h.followed.Load() && table.olderThan(hostAddressesMost) {
		h.reading.Lock()
		defer h.reading.Unlock()
		return h.read(hostAddressesMost)
	}
	if table.olderThan(hostAddressesAge) && h.reading.TryLock() {
		go func() {
			defer h.reading.Unlock()
			h.read(hostAddressesAge)
		}()
	}
	return table
}

// follow reads the addresses when they change, until ctx ends.
func (h *hostAddresses) follow(ctx context.Context) {
	for ctx.Err() == nil {
		h.followOnce(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(followAgain):
		}
	}
}

// followOnce returns when the kernel tells of no more changes.
func (h *hostAddresses) followOnce(ctx context.Context) {
	changes := make(chan netlink.RouteUpdate, 64)
	if netlink.RouteSubscribe(changes, ctx.Done()) != nil {
		return
	}
	h.reread()
	h.followed.Store(true)
	defer h.followed.Store(false)
	for change := range changes {
		if change.Table != unix.RT_TABLE_LOCAL {
			continue
		}
		for len(changes) > 0 {
			<-changes // as an interface comes, several do
		}
		h.reread()
	}
}

func (h *hostAddresses) reread() {
	h.reading.Lock()
	defer h.reading.Unlock()
	h.read(0)
}

func (t *hostTable) olderThan(age time.Duration) bool { return time.Since(t.at) > age }

// read reads again what is older than age. What cannot be read stays as it was known.
func (h *hostAddresses) read(age time.Duration) *hostTable {
	last := h.last.Load()
	if last != nil && !last.olderThan(age) {
		return last // another reader was before this one
	}
	next := &hostTable{at: time.Now()}
	prefixes, err := localTable()
	if err != nil {
		prefixes, err = interfaceAddresses()
	}
	switch {
	case err == nil:
		next.prefixes = prefixes
	case last != nil:
		next.prefixes = last.prefixes
	}
	h.last.Store(next)
	return next
}

func localTable() ([]netip.Prefix, error) {
	table := &netlink.Route{Table: unix.RT_TABLE_LOCAL}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, table, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, err
	}
	prefixes := []netip.Prefix{}
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
	prefixes := []netip.Prefix{}
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
