// Package replace puts byte strings in the place of others, in memory and in
// streams. It knows nothing of what the strings are.
package replace

import (
	"bytes"
	"slices"
	"unsafe"
)

// Pair is a string to look for and what is put in its place.
type Pair struct{ Old, New []byte }

// Replacer replaces the Old of each of its pairs by its New. What is found first
// counts, and of what begins at the same place the longest; nothing is looked for in what was
// put in. With one pair that is what [bytes.ReplaceAll] does. A nil Replacer replaces
// nothing. A Replacer may be used by several goroutines at once.
type Replacer struct {
	pairs []entry // by first byte, of these the longest first
	// first and last are the range of each first byte in pairs.
	first, last [256]uint16
	// starts has a bit for each two bytes that an Old begins with.
	starts  [1 << 16 / 64]uint64
	longest int
	found   func(pair int)
}

type entry struct {
	Pair
	index int // as given to New
}

// New makes a Replacer of pairs, which are not copied. Empty Olds are left out, and
// of equal ones all but the first. There may be 65,535.
func New(pairs ...Pair) *Replacer {
	r := &Replacer{}
	for i, p := range pairs {
		same := func(e entry) bool { return bytes.Equal(e.Old, p.Old) }
		if len(p.Old) > 0 && !slices.ContainsFunc(r.pairs, same) {
			r.pairs = append(r.pairs, entry{p, i})
		}
	}
	slices.SortStableFunc(r.pairs, func(a, b entry) int {
		if a.Old[0] != b.Old[0] {
			return int(a.Old[0]) - int(b.Old[0])
		}
		return len(b.Old) - len(a.Old)
	})
	for i, e := range r.pairs {
		b := e.Old[0]
		if r.last[b] == 0 {
			r.first[b] = uint16(i)
		}
		r.last[b] = uint16(i + 1)
		r.mark(e.Old)
		r.longest = max(r.longest, len(e.Old))
	}
	return r
}

func (r *Replacer) mark(old []byte) {
	set := func(second int) {
		n := int(old[0])<<8 | second
		r.starts[n/64] |= 1 << (n % 64)
	}
	if len(old) > 1 {
		set(int(old[1]))
		return
	}
	for second := range 256 {
		set(second)
	}
}

// Notify returns a Replacer that does the same and calls found with the index of a
// pair, as New was given them, each time it replaces it.
func (r *Replacer) Notify(found func(pair int)) *Replacer {
	notifying := *r
	notifying.found = found
	return &notifying
}

// Longest is the length of the longest Old, bytes; 0 when there is nothing to
// replace.
func (r *Replacer) Longest() int {
	if r == nil {
		return 0
	}
	return r.longest
}

// Bytes returns b with everything replaced: b itself when there is nothing to.
func (r *Replacer) Bytes(b []byte) []byte {
	if r == nil {
		return b
	}
	var out []byte
	done := 0
	for at := 0; ; {
		at = r.next(b, at)
		if at == len(b) {
			break
		}
		e, _ := r.match(b[at:], true)
		if e == nil {
			at++
			continue
		}
		out = append(append(out, b[done:at]...), e.New...)
		r.tell(e)
		at += len(e.Old)
		done = at
	}
	if done == 0 {
		return b
	}
	return append(out, b[done:]...)
}

// String is Bytes for strings.
func (r *Replacer) String(s string) string {
	if s == "" {
		return s
	}
	b := unsafe.Slice(unsafe.StringData(s), len(s)) // read only
	out := r.Bytes(b)
	if unsafe.SliceData(out) == unsafe.SliceData(b) {
		return s
	}
	return string(out)
}

// next returns where at or after a place in b something may begin, len(b) when
// nothing does.
func (r *Replacer) next(b []byte, at int) int {
	for ; at+1 < len(b); at++ {
		n := int(b[at])<<8 | int(b[at+1])
		if r.starts[n/64]&(1<<(n%64)) != 0 {
			return at
		}
	}
	if at < len(b) && r.last[b[at]] == 0 {
		at++
	}
	return at
}

// match returns the pair whose Old b begins with; more when further bytes may make it
// another, which they cannot when b is all there is.
func (r *Replacer) match(b []byte, all bool) (e *entry, more bool) {
	for i := r.first[b[0]]; i < r.last[b[0]]; i++ {
		e := &r.pairs[i]
		if len(b) >= len(e.Old) {
			if bytes.HasPrefix(b, e.Old) {
				return e, false
			}
		} else if !all && bytes.HasPrefix(e.Old, b) {
			return nil, true
		}
	}
	return nil, false
}

func (r *Replacer) tell(e *entry) {
	if r.found != nil {
		r.found(e.index)
	}
}
