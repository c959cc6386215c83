package guard

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/tombolo-dev/tombolo/internal/guard/inside"
	"github.com/tombolo-dev/tombolo/internal/policy"
)

// narrow is what the guard keeps of one sandbox, over pauses, until it ends.
type narrow struct {
	refusals inside.Refusals
	once     hashes                          // of actions that a person approved for this once
	rules    atomic.Pointer[policy.Compiled] // its own, as they were when they were last judged by

	changed chan struct{} // closed when its rules change, and replaced; by Guard.mu

	mu    sync.Mutex
	ports map[uint16]bool
}

func newNarrow() *narrow { return &narrow{ports: map[uint16]bool{}, changed: make(chan struct{})} }

// tellWaiting is [Guard.tellWaiting] for what waits in one sandbox.
func (n *Network) tellWaiting(sandboxID string) {
	kept := n.guard.narrowOf(sandboxID)
	n.guard.mu.Lock()
	defer n.guard.mu.Unlock()
	close(kept.changed)
	kept.changed = make(chan struct{})
}

// narrowOf is for a sandbox that there is. What is still done about one that has ended,
// such as an answer to who waited for it, gets one that nobody keeps, as does what is no
// sandbox's.
func (g *Guard) narrowOf(sandboxID string) *narrow {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := g.narrow[sandboxID]
	if kept == nil {
		kept = newNarrow()
		if sandboxID != "" && !g.ended.has(sandboxID) {
			g.narrow[sandboxID] = kept
		}
	}
	return kept
}

// Forget drops what is kept of a sandbox that has ended.
func (g *Guard) Forget(sandboxID string) {
	g.mu.Lock()
	delete(g.narrow, sandboxID)
	g.ended.add(sandboxID)
	g.mu.Unlock()
	if g.config.Desk != nil {
		g.config.Desk.Forget(sandboxID)
	}
}

// hashes are the latest of some actions, or of other things by what names them.
type hashes struct {
	mu    sync.Mutex
	known map[string]bool
	order []string
}

// maxHashes bounds them: no more connections than these are open at once, or nearly.
const maxHashes = 1024

func (h *hashes) add(hash string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known[hash] {
		return
	}
	if h.known == nil {
		h.known = map[string]bool{}
	}
	if len(h.order) == maxHashes {
		delete(h.known, h.order[0])
		h.order = h.order[1:]
	}
	h.known[hash], h.order = true, append(h.order, hash)
}

func (h *hashes) has(hash string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known[hash]
}

// Kept counts what the guard keeps: networks, with those that wait for a sandbox, and
// sandboxes, running and paused, of which something was decided.
func (g *Guard) Kept() (networks, sandboxes int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.networks), len(g.narrow)
}

// seenPort tells whether a port was admitted before, and notes that it was.
func (k *narrow) seenPort(port uint16) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen := k.ports[port]
	k.ports[port] = true
	return seen
}

// Refusals lists what was refused to a sandbox lately, the latest first.
func (g *Guard) Refusals(sandboxID string) []Refusal {
	g.mu.Lock()
	kept := g.narrow[sandboxID]
	g.mu.Unlock()
	if kept == nil {
		return nil
	}
	return kept.refusals.List()
}

// compiled makes the own rules of the sandbox ready to judge by, once for as long as they
// stay the same. Rules that do not compile deny all: they were checked when they were set,
// so they are from another version.
func (k *narrow) compiled(own policy.Table) *policy.Compiled {
	if kept := k.rules.Load(); kept != nil && sameTable(kept.Table(), own) {
		return kept
	}
	compiled, err := policy.Compile(own)
	if err != nil {
		deny := map[policy.Kind]policy.Decision{}
		for _, kind := range policy.Kinds {
			deny[kind] = policy.Deny
		}
		compiled, _ = policy.Compile(policy.Table{Scope: own.Scope, Default: deny})
		return compiled
	}
	k.rules.Store(compiled)
	return compiled
}

// sameTable tells whether two tables have the very same rules in memory, which are replaced
// as a whole and never changed. It may say no of equal ones.
func sameTable(a, b policy.Table) bool {
	if a.Scope != b.Scope || len(a.Rules) != len(b.Rules) || !maps.Equal(a.Default, b.Default) {
		return false
	}
	return len(a.Rules) == 0 || &a.Rules[0] == &b.Rules[0]
}
