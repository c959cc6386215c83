package replace

import (
	"bytes"
	"io"
	"time"
)

const (
	// chunk is how much is read at once, bytes.
	chunk = 32 << 10
	// patience is how long a beginning that may become something to replace is kept
	// back when nothing follows it, if it is short.
	patience = 100 * time.Millisecond
	// shortPart: a beginning is short when it is no more than this part of every
	// Old that it begins.
	shortPart = 4
)

// Reader returns a reader of src with everything replaced, also what reaches over
// several reads. It gives on what it has read as soon as that cannot be the
// beginning of something to replace.
//
// A beginning is kept back until what follows decides it. A peer that waits for an
// answer to just these bytes would wait forever; so after a moment in which nothing
// followed, a short one, up to a quarter of what it may become, is let through. If
// it becomes that after all, the rest of it is replaced.
//
// The reader may have one Read of src under way in a goroutine of its own when
// it is not used any more; closing what src reads ends it.
func (r *Replacer) Reader(src io.Reader) io.Reader {
	if r.Longest() == 0 {
		return src
	}
	return &reader{replacer: r, src: src}
}

type reader struct {
	replacer *Replacer
	src      io.Reader

	in    []byte // read, from the first byte that is not decided on
	given int    // how many bytes of in were let through already
	out   []byte // decided on
	err   error  // of src

	room    []byte // in is within it
	space   []byte // out is within it
	pending chan result
}

type result struct {
	n   int
	err error
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.out) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.fill()
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// fill reads more and decides on it, or lets through what has waited long enough.
func (r *reader) fill() {
	if r.pending == nil {
		r.makeRoom()
		into := r.room[len(r.in):cap(r.room)]
		if len(r.in) == r.given {
			n, err := r.src.Read(into)
			r.take(result{n, err})
			return
		}
		r.pending = make(chan result, 1)
		go func(pending chan<- result) {
			n, err := r.src.Read(into)
			pending <- result{n, err}
		}(r.pending)
	}
	r.await()
}

func (r *reader) await() {
	var impatient <-chan time.Time
	if len(r.in) > r.given && r.harmless() {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		impatient = timer.C
	}
	select {
	case got := <-r.pending:
		r.pending = nil
		r.take(got)
	case <-impatient:
		r.out = append(r.space[:0], r.in[r.given:]...)
		r.space = r.out
		r.given = len(r.in)
	}
}

// harmless tells whether what is kept back may be let through: nothing in it is to be
// replaced, or is more than a short beginning of that.
func (r *reader) harmless() bool {
	for at := range r.in {
		kept := r.in[at:]
		for i := r.replacer.first[kept[0]]; i < r.replacer.last[kept[0]]; i++ {
			old := r.replacer.pairs[i].Old
			n := min(len(old), len(kept))
			if n*shortPart > len(old) && bytes.Equal(old[:n], kept[:n]) {
				return false
			}
		}
	}
	return true
}

func (r *reader) take(got result) {
	r.in, r.err = r.room[:len(r.in)+got.n], got.err
	r.decide()
}

// makeRoom moves in to the beginning of room, with space after it.
func (r *reader) makeRoom() {
	if r.room == nil {
		r.room = make([]byte, chunk+r.replacer.longest)
	}
	n := copy(r.room, r.in)
	r.in = r.room[:n]
}

// decide moves what is certain from in to out, which is empty. Where nothing is
// replaced that is no copy: in stays as it is until out is empty again.
func (r *reader) decide() {
	r.space = r.space[:0]
	all := r.err != nil
	done, at := min(r.given, len(r.in)), 0
	for {
		at = r.replacer.next(r.in, at)
		if at == len(r.in) {
			break
		}
		e, more := r.replacer.match(r.in[at:], all)
		if more {
			break
		}
		if e == nil {
			at++
			continue
		}
		r.space = append(r.space, r.in[min(done, at):at]...)
		r.space = append(r.space, e.New...)
		r.replacer.tell(e)
		at += len(e.Old)
		done = max(at, r.given)
	}
	rest := r.in[min(done, at):at]
	if r.out = rest; len(r.space) > 0 {
		r.space = append(r.space, rest...)
		r.out = r.space
	}
	r.in = r.in[at:]
	r.given = max(0, r.given-at)
}
