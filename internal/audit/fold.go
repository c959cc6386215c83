package audit

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Nobody is the actor of a request without a valid key, Visitor who comes to a port of a
// sandbox that is open to all.
const (
	Nobody  = "nobody"
	Visitor = "visitor"
)

// What code inside, a stranger, or whoever has the token of a sandbox or volume, can
// cause is kept one by one up to a rate. Beyond it equal records become one with a
// count, each foldEvery, and beyond foldKinds different ones they are counted only. So
// nobody can fill the log, and with it push out what is older. Commands of who has a
// token have ten times the rate: each is a record worth having.
const (
	foldBurst = 1000
	foldRate  = 5 // a second
	execTimes = 10
	foldEvery = 10 * time.Second
	foldKinds = 100
	foldBytes = 128 << 10 // of details held for one actor
)

type fold struct {
	mu     sync.Mutex
	actors map[source]*folding
}

// source is what has a rate of its own: many processes do not hide a connection, nor
// many that were refused one that was allowed, nor many names that were looked up.
type source struct {
	actor    string
	kind     Kind
	decision string
	what     string // of the network, which has a few words for it
}

func sourceOf(r Record) source {
	from := source{actor: r.Actor, kind: r.Kind, decision: r.Decision}
	if r.Kind == Network {
		from.what = r.What
	}
	return from
}

// String is what a count of records that were left out is of.
func (s source) String() string {
	return strings.Join(strings.Fields(string(s.kind)+" "+s.what+" "+s.decision), " ")
}

// rate is by how much the burst and the rate of a source are more than the least; 0 is
// for those whose records are all kept.
func (s source) rate() float64 {
	who, _, _ := strings.Cut(s.actor, ":")
	switch who {
	case Nobody, Visitor, "sandbox", "volume":
		return 1
	case "token":
		if s.kind == Exec {
			return execTimes
		}
		return 1
	}
	return 0
}

// folding is one actor's.
type folding struct {
	rate   float64
	tokens float64
	at     time.Time
	held   map[foldKey]*Record
	bytes  int
	over   int    // records left out
	sample Record // one of them, for its sandbox and key
}

// foldKey is what equal records have in common.
type foldKey struct {
	kind                                               Kind
	sandbox, key, what, decision, rule, reason, detail string
}

func newFold() *fold { return &fold{actors: map[source]*folding{}} }

// pass tells whether a record is kept by itself; if not, it is held or counted.
func (f *fold) pass(r Record) bool {
	from := sourceOf(r)
	if from.rate() == 0 || f.spend(from, r.Time) {
		return true
	}
	r = r.WithDetail() // equal ones are found by it
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of(from, r.Time).hold(r)
	return false
}

// spend takes one of what a source may have kept by itself, if there is one.
func (f *fold) spend(from source, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.of(from, now)
	a.fill(now)
	if a.tokens < 1 {
		return false
	}
	a.tokens--
	return true
}

func (f *fold) of(from source, now time.Time) *folding {
	a := f.actors[from]
	if a == nil {
		rate := from.rate()
		a = &folding{rate: rate, tokens: rate * foldBurst, at: now, held: map[foldKey]*Record{}}
		f.actors[from] = a
	}
	return a
}

func (a *folding) fill(now time.Time) {
	if passed := now.Sub(a.at); passed > 0 {
		a.tokens = min(a.rate*foldBurst, a.tokens+a.rate*foldRate*passed.Seconds())
		a.at = now
	}
}

func (a *folding) hold(r Record) {
	key := foldKey{r.Kind, r.SandboxID, r.KeyID, r.What, r.Decision, r.Rule, r.Reason, string(r.Detail)}
	if held := a.held[key]; held != nil {
		held.Count++
		return
	}
	if len(a.held) >= foldKinds || a.bytes+len(r.Detail) > foldBytes {
		a.over++
		a.sample = r
		return
	}
	r.Count = 1
	a.held[key] = &r
	a.bytes += len(r.Detail)
}

// take gives what is held, and what was left out as counts.
func (f *fold) take() []Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	var records []Record
	now := time.Now()
	for from, a := range f.actors {
		for _, r := range a.held {
			if r.Count == 1 {
				r.Count = 0
			}
			records = append(records, *r)
		}
		if a.over > 0 {
			r := note(whatFold, "too many different records in a short time; these were only counted", map[string]any{
				"actor": from.actor, "records": map[string]int{from.String(): a.over},
			})
			r.SandboxID, r.KeyID = a.sample.SandboxID, a.sample.KeyID
			records = append(records, r)
		}
		a.fill(now)
		if len(a.held) == 0 && a.over == 0 && a.tokens >= a.rate*foldBurst {
			delete(f.actors, from)
			continue
		}
		a.held, a.bytes, a.over = map[foldKey]*Record{}, 0, 0
	}
	slices.SortStableFunc(records, func(a, b Record) int { return a.Time.Compare(b.Time) })
	return records
}
