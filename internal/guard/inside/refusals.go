package inside

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// Refusal is something that a sandbox was refused, as programs inside are told.
type Refusal struct {
	ID     string       `json:"id"` // the request id that the refusal named
	Time   time.Time    `json:"time"`
	Kind   policy.Kind  `json:"kind"`
	What   string       `json:"what"` // the action in words
	Rule   string       `json:"rule,omitempty"`
	Scope  policy.Scope `json:"scope,omitzero"`
	Reason string       `json:"reason"`
	HoldID string       `json:"holdID,omitempty"` // of the hold that was not approved
	// Count is how often it was refused so; First is when that began.
	Count int       `json:"count,omitempty"`
	First time.Time `json:"first,omitzero"`
}

// Limits of what is kept of one sandbox: a program that tries again and again, or asks for
// ever new things, costs no more than this.
const (
	maxRefusals = 64  // that differ
	maxIDs      = 512 // of the last refusals
	maxText     = 500 // bytes of each text
)

// Refusals keeps what a sandbox was refused lately. Equal refusals are one, with a
// count, and each is found by its own id. The zero value is empty. Safe for concurrent use.
type Refusals struct {
	mu   sync.Mutex
	last []*Refusal // the latest last
	ids  []string   // the latest last
	byID map[string]*Refusal
}

// Add notes one.
func (l *Refusals) Add(r Refusal) {
	r.What, r.Reason, r.Rule = short(r.What), short(r.Reason), short(r.Rule)
	r.Count, r.First = 1, r.Time
	l.mu.Lock()
	defer l.mu.Unlock()
	entry := &r
	if i := slices.IndexFunc(l.last, r.equals); i >= 0 {
		entry = l.last[i]
		l.last = slices.Delete(l.last, i, i+1)
		entry.ID, entry.Time, entry.HoldID = r.ID, r.Time, r.HoldID
		entry.Count++
	}
	if len(l.last) == maxRefusals {
		l.last = slices.Delete(l.last, 0, 1)
	}
	l.last = append(l.last, entry)
	l.name(r.ID, entry)
}

// name has an id mean an entry. mu is held.
func (l *Refusals) name(id string, entry *Refusal) {
	if id == "" {
		return
	}
	if l.byID == nil {
		l.byID = map[string]*Refusal{}
	}
	if _, known := l.byID[id]; !known {
		if len(l.ids) == maxIDs {
			delete(l.byID, l.ids[0])
			l.ids = slices.Delete(l.ids, 0, 1)
		}
		l.ids = append(l.ids, id)
	}
	l.byID[id] = entry
}

func (r *Refusal) equals(other *Refusal) bool {
	return r.Kind == other.Kind && r.What == other.What && r.Rule == other.Rule && r.Scope == other.Scope && r.Reason == other.Reason
}

// List returns what was refused, the latest first.
func (l *Refusals) List() []Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Refusal, 0, len(l.last))
	for _, r := range slices.Backward(l.last) {
		list = append(list, *r)
	}
	return list
}

// Find returns the refusal that named an id.
func (l *Refusals) Find(id string) (Refusal, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.byID[id]
	if !ok {
		return Refusal{}, false
	}
	found := *r
	found.ID = id
	return found, true
}

func short(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}
