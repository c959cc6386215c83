package filesystem

import (
	"sync"

	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
)

// queueLimit is how many events wait to be read.
const queueLimit = 4096

// queue holds events in order. An event that only repeats the last one waiting
// for the same name is left out: a file that is written a thousand times is
// changed once for a reader who comes later.
type queue struct {
	ready chan struct{} // holds one token when there is something to take

	mu     sync.Mutex
	events []*pb.FilesystemEvent
	last   map[string]int // name to the index of its last event
	lost   int
}

func newQueue() *queue {
	return &queue{ready: make(chan struct{}, 1), last: map[string]int{}}
}

func (q *queue) push(event *pb.FilesystemEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at, waiting := q.last[event.GetName()]
	switch {
	case waiting && q.events[at].GetType() == event.GetType():
		q.events[at].Entry = event.Entry
		return
	case len(q.events) >= queueLimit:
		q.lost++
	default:
		q.last[event.GetName()] = len(q.events)
		q.events = append(q.events, event)
	}
	q.wake()
}

// lose notes that the kernel dropped events.
func (q *queue) lose() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost++
	q.wake()
}

func (q *queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns what waits, and how many events did not fit.
func (q *queue) take() (events []*pb.FilesystemEvent, lost int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events, lost = q.events, q.lost
	q.events, q.lost = nil, 0
	clear(q.last)
	return events, lost
}
