package event

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// The bounds of what is told of refusals. A program that is refused tries again, and
// what it tries is up to it: without them it could push out of the log whatever else
// happened, and keep the store busy.
const (
	// repeatEvery is how often equal refusals of a sandbox are told, with their count.
	repeatEvery = time.Minute
	// A sandbox may cause refusalBurst events at once and one each refusalEvery.
	refusalBurst = 20
	refusalEvery = 3 * time.Second
	// maxSubjects is how many different refusals of a sandbox are told apart in repeatEvery.
	maxSubjects = 256
	// maxQueued is how many events wait for the store; more are counted only.
	maxQueued = 256
)

// Refusals tells of what is refused again and again, and is cheap to call for each
// time: it writes nothing by itself and waits for nothing.
type Refusals struct {
	record func(sandbox.Event)
	now    func() time.Time
	queue  chan sandbox.Event
	ended  sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	sandboxes map[string]*refused
}

// refused is what was refused to one sandbox.
type refused struct {
	subjects map[string]*refusedSubject
	budget   float64 // events that it may cause now
	at       time.Time
	untold   int // that were left out since the last event
}

type refusedSubject struct {
	told  time.Time
	count int // since then
}

// NewRefusals begins to record what is told. Close it before the recorder.
func NewRefusals(r *Recorder) *Refusals { return newRefusals(r.Record, time.Now) }

func newRefusals(record func(sandbox.Event), now func() time.Time) *Refusals {
	r := &Refusals{record: record, now: now, queue: make(chan sandbox.Event, maxQueued), sandboxes: map[string]*refused{}}
	r.ended.Go(func() {
		for e := range r.queue {
			r.record(e)
		}
	})
	return r
}

// Close records what waits, and ends.
func (r *Refusals) Close() {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.queue)
	}
	r.mu.Unlock()
	r.ended.Wait()
}

// Repeats is what the Data of such an event has besides that of the first.
type Repeats struct {
	// Count is how often the same was refused since the last event about it, this time
	// included.
	Count int `json:"count"`
	// Untold is how many refusals of other things there were no events about, because they
	// were too many.
	Untold int `json:"untold,omitempty"`
}

// Tell notes a refusal: e.Kind and subject say what of the sandbox e.Info.ID is the
// same. The first is recorded at once, as long as its sandbox does not cause too many;
// equal ones within a minute are counted. data makes what e.Data is to be, and is
// called for events that are recorded only.
func (r *Refusals) Tell(e sandbox.Event, subject string, data func(Repeats) any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	repeats, tell := r.count(e, string(e.Kind)+"\x00"+subject)
	if !tell || r.closed {
		return
	}
	var err error
	if e.Data, err = json.Marshal(data(repeats)); err != nil {
		return // what cannot be written down is no event
	}
	select {
	case r.queue <- e:
	default:
		r.sandboxes[e.Info.ID].untold += repeats.Count + repeats.Untold
	}
}

// count enters a refusal and tells whether there is to be an event of it.
func (r *Refusals) count(e sandbox.Event, subject string) (Repeats, bool) {
	now := r.now()
	s := r.sandboxes[e.Info.ID]
	if s == nil {
		s = &refused{subjects: map[string]*refusedSubject{}, budget: refusalBurst, at: now}
		r.sandboxes[e.Info.ID] = s
	}
	s.budget = min(refusalBurst, s.budget+now.Sub(s.at).Seconds()/refusalEvery.Seconds())
	s.at = now
	of := s.subjects[subject]
	if of == nil {
		if len(s.subjects) >= maxSubjects {
			s.forget(now)
		}
		if len(s.subjects) >= maxSubjects {
			s.untold++
			return Repeats{}, false
		}
		of = &refusedSubject{}
		s.subjects[subject] = of
	}
	of.count++
	if now.Sub(of.told) < repeatEvery || s.budget < 1 {
		return Repeats{}, false
	}
	repeats := Repeats{Count: of.count, Untold: s.untold}
	s.budget--
	s.untold, of.count, of.told = 0, 0, now
	return repeats, true
}

// forget drops what was told long ago.
func (s *refused) forget(now time.Time) {
	for subject, of := range s.subjects {
		if now.Sub(of.told) >= repeatEvery {
			s.untold += of.count
			delete(s.subjects, subject)
		}
	}
}

// Forget drops what is known of a sandbox that ended.
func (r *Refusals) Forget(sandboxID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, sandboxID)
}
