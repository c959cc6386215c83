package gateway

import (
	"net/netip"
	"slices"
	"sync"
)

// namesOfAddress is how many names of one address are remembered: many lead to
// the addresses of those who serve for others.
const namesOfAddress = 16

// nameCache remembers which names led to an address, for policies that judge by
// name. Beyond its size it forgets what it learnt first.
type nameCache struct {
	size int

	mu    sync.Mutex
	names map[netip.Addr][]string // latest first; a slice is never changed
	order []knownName             // those in names, a ring once it is full
	next  int                     // in order, the one to forget
}

type knownName struct {
	addr netip.Addr
	name string
}

func newNameCache(size int) *nameCache {
	return &nameCache{size: size, names: map[netip.Addr][]string{}}
}

// add makes name the latest of addr.
func (c *nameCache) add(addr netip.Addr, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.names[addr]
	if len(known) > 0 && known[0] == name {
		return
	}
	if !slices.Contains(known, name) {
		c.makeRoom(knownName{addr, name})
		known = c.names[addr]
	}
	latest := make([]string, 1, len(known)+1)
	latest[0] = name
	for _, other := range known {
		if other != name && len(latest) < namesOfAddress {
			latest = append(latest, other)
		}
	}
	c.names[addr] = latest
}

func (c *nameCache) makeRoom(k knownName) {
	if len(c.order) < c.size {
		c.order = append(c.order, k)
		return
	}
	c.remove(c.order[c.next])
	c.order[c.next] = k
	c.next = (c.next + 1) % c.size
}

func (c *nameCache) remove(k knownName) {
	rest := slices.DeleteFunc(slices.Clone(c.names[k.addr]), func(name string) bool { return name == k.name })
	if len(rest) == 0 {
		delete(c.names, k.addr)
		return
	}
	c.names[k.addr] = rest
}

// find returns the names that led to addr, latest first. They are not to be changed.
func (c *nameCache) find(addr netip.Addr) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names[addr]
}

// has tells whether name led to addr.
func (c *nameCache) has(addr netip.Addr, name string) bool {
	return slices.Contains(c.find(addr), name)
}

// all returns every name once.
func (c *nameCache) all() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]bool{}
	for _, names := range c.names {
		for _, name := range names {
			all[name] = true
		}
	}
	return all
}

// drop forgets names. Their places in order are used again in their turn.
func (c *nameCache) drop(names map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, known := range c.names {
		rest := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return names[name] })
		if len(rest) == 0 {
			delete(c.names, addr)
		} else {
			c.names[addr] = rest
		}
	}
}
