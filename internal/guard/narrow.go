package guard

import (
	"sync"

	"github.com/tombolo-dev/tombolo/internal/guard/inside"
)

// narrow is what the guard keeps of one sandbox, over pauses, until it ends.
type narrow struct {
	refusals inside.Refusals
	once     hashes // of actions that a person approved for this once

	mu    sync.Mutex
	ports map[uint16]bool
}

func (g *Guard) narrowOf(sandboxID string) *narrow {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := g.narrow[sandboxID]
	if kept == nil {
		kept = &narrow{ports: map[uint16]bool{}}
		g.narrow[sandboxID] = kept
	}
	return kept
}

// forget drops what is kept of a sandbox that has ended.
func (g *Guard) forget(sandboxID string) {
	g.mu.Lock()
	delete(g.narrow, sandboxID)
	g.mu.Unlock()
	if g.config.Desk != nil {
		g.config.Desk.Forget(sandboxID)
	}
}

// hashes are the latest of some actions.
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
