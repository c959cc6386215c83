package gateway

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// Destination is what a network had to do with one place outside.
type Destination struct {
	// Name is what leads to the address, or empty; then Address says what it is. Both are empty for all that came when many destinations were known
	// already.
	Name        string
	Address     netip.Addr
	Port        uint16
	Protocol    Protocol // TCP or UDP
	Connections uint64   // that were opened, or flows
	Denied      uint64   // connections, flows and requests
	BytesOut    uint64   // of what they carried
	BytesIn     uint64
}

// How many destinations are told apart in one network: of those that were connected to,
// and of those of which all was refused, which must not be in the way of the others.
const (
	maxDestinations = 512
	maxRefused      = 256
)

// accounts keeps count for each destination.
type accounts struct {
	mu      sync.Mutex
	byKey   map[accountKey]*account
	refused int // of byKey, with all refused
	others  account
}

type accountKey struct {
	name     string
	addr     netip.Addr // where there is no name
	port     uint16
	protocol Protocol
}

type account struct {
	connections, denied, out, in atomic.Uint64

	refused bool // all of it, by accounts.mu
}

func newAccounts() *accounts { return &accounts{byKey: map[accountKey]*account{}} }

// refuse counts something to a destination that was refused.
func (a *accounts) refuse(r Request) { a.of(r, true).denied.Add(1) }

func (a *accounts) of(r Request, refused bool) *account {
	key := accountKey{name: r.Name, port: r.Destination.Port(), protocol: TCP}
	if r.Protocol == UDP {
		key.protocol = UDP
	}
	if r.Unproven { // what is said is not where it goes
		key.name = ""
	}
	if key.name == "" {
		key.addr = r.Destination.Addr()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.byKey[key]
	switch {
	case known != nil && (refused || !known.refused):
		return known
	case refused && a.refused >= maxRefused, !refused && len(a.byKey)-a.refused >= maxDestinations:
		return &a.others
	case known != nil:
		known.refused = false
		a.refused--
		return known
	}
	known = &account{refused: refused}
	if refused {
		a.refused++
	}
	a.byKey[key] = known
	return known
}

// Destinations returns what the network had to do with each place outside since it was
// made, the busiest first. Beyond a number, all others are one entry.
func (n *Network) Destinations() []Destination {
	a := n.accounts
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]Destination, 0, len(a.byKey)+1)
	for key, known := range a.byKey {
		all = append(all, known.destination(key))
	}
	if others := a.others.destination(accountKey{}); others != (Destination{}) {
		all = append(all, others)
	}
	slices.SortFunc(all, func(x, y Destination) int {
		return cmp.Or(cmp.Compare(y.BytesOut+y.BytesIn, x.BytesOut+x.BytesIn), cmp.Compare(x.label(), y.label()))
	})
	return all
}

func (a *account) destination(key accountKey) Destination {
	return Destination{
		Name: key.name, Address: key.addr, Port: key.port, Protocol: key.protocol,
		Connections: a.connections.Load(), Denied: a.denied.Load(), BytesOut: a.out.Load(), BytesIn: a.in.Load(),
	}
}

func (d Destination) label() string {
	return string(d.Protocol) + d.Name + d.Address.String() + strconv.Itoa(int(d.Port))
}

// meter counts and limits what one connection or flow carries.
type meter struct{ out, in direction }

type direction struct {
	bytes *atomic.Uint64
	limit *atomic.Pointer[rate.Limiter] // to nil: none
	ctx   context.Context
}

// meter counts a connection in.
func (n *Network) meter(r Request) meter {
	account := n.accounts.of(r, false)
	account.connections.Add(1)
	return meter{
		out: direction{&account.out, &n.bandwidthOut, n.ctx},
		in:  direction{&account.in, &n.bandwidthIn, n.ctx},
	}
}

// meterRefused counts what is said about a refusal with nothing of the kind, and
// limits it like the rest.
func (n *Network) meterRefused() meter {
	var ignored atomic.Uint64
	return meter{out: direction{&ignored, &n.bandwidthOut, n.ctx}, in: direction{&ignored, &n.bandwidthIn, n.ctx}}
}

// pass counts bytes and waits until they may go on. The error is that of a network
// that was closed meanwhile.
func (d direction) pass(count int) error {
	if count <= 0 {
		return nil
	}
	d.bytes.Add(uint64(count))
	limit := d.limit.Load()
	if limit == nil {
		return nil
	}
	for count > 0 {
		part := min(count, limit.Burst()) // more could never pass
		if err := limit.WaitN(d.ctx, part); err != nil {
			return err
		}
		count -= part
	}
	return nil
}

// newBandwidth returns nil for no limit. What is moved at once must fit, and comes on
// top where bytes are counted when they have been moved.
func newBandwidth(bytesPerSecond int) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), max(chunkSize, bytesPerSecond/10-chunkSize))
}
