package gateway

import (
	"net/netip"
	"sync"
)

// nameCache remembers which name's answer last held an address, for a policy
// that judges by name. Beyond its size it forgets what it learnt first.
type nameCache struct {
	size int

	mu    sync.Mutex
	names map[netip.Addr]string
	order []netip.Addr // those in names, a ring once it is full
	next  int          // in order, the one to forget
}

func newNameCache(size int) *nameCache {
	return &nameCache{size: size, names: map[netip.Addr]string{}}
}

func (c *nameCache) add(addr netip.Addr, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, there := c.names[addr]; !there {
		c.makeRoom(addr)
	}
	c.names[addr] = name
}

func (c *nameCache) makeRoom(addr netip.Addr) {
	if len(c.order) < c.size {
		c.order = append(c.order, addr)
		return
	}
	delete(c.names, c.order[c.next])
	c.order[c.next] = addr
	c.next = (c.next + 1) % c.size
}

// find returns empty when no answer held addr.
func (c *nameCache) find(addr netip.Addr) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[addr]
}
