package gateway

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxEvents is how many judgements wait for OnDecision, per network.
const maxEvents = 1024

// Event is a judgement that was made.
type Event struct {
	Time     time.Time
	Request  Request
	Decision Decision
}

// events hands events to a callback from a goroutine that exists only while
// there are some.
type events struct {
	notify  func(Event)
	dropped atomic.Uint64

	mu      sync.Mutex
	waiting []Event
	running bool
	closed  bool
	idle    sync.WaitGroup
}

// send never blocks.
func (e *events) send(event Event) {
	if e.notify == nil {
		return
	}
	event.Time = time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || len(e.waiting) >= maxEvents {
		e.dropped.Add(1)
		return
	}
	e.waiting = append(e.waiting, event)
	if !e.running {
		e.running = true
		e.idle.Add(1)
		go e.deliver()
	}
}

func (e *events) deliver() {
	defer e.idle.Done()
	for {
		e.mu.Lock()
		batch := e.waiting
		e.waiting = nil
		e.running = len(batch) > 0
		e.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for _, event := range batch {
			e.notify(event)
		}
	}
}

// wait returns when what was sent has been delivered; nothing is sent after.
func (e *events) wait() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.idle.Wait()
}
