package kernel

import (
	"fmt"
	"sync"
)

// maxWaiting bounds what waits for a client that reads slowly, bytes. A kernel
// is never held up: ZeroMQ would throw away what it publishes then, the word that
// the run has ended included.
const maxWaiting = 32 << 20

// An outbox holds the events of one run until the client takes them.
type outbox struct {
	out  chan event
	wake chan struct{}

	mu     sync.Mutex
	events []event
	bytes  int // of events not yet taken
	lost   int // bytes left out
	closed bool
}

func newOutbox() *outbox {
	b := &outbox{out: make(chan event), wake: make(chan struct{}, 1)}
	go b.deliver()
	return b
}

// put takes an event; output and results only while there is room.
func (b *outbox) put(e event) {
	size := sizeOf(e)
	b.mu.Lock()
	defer b.mu.Unlock()
	if size > 0 && b.bytes+size > maxWaiting {
		b.lost += size
		return
	}
	b.noteLossLocked()
	b.bytes += size
	b.events = append(b.events, e)
	b.signal()
}

func (b *outbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noteLossLocked()
	b.closed = true
	b.signal()
}

func (b *outbox) noteLossLocked() {
	if b.lost == 0 {
		return
	}
	note := event{Kind: eventStderr, Text: fmt.Sprintf("[%d bytes of this run's output are left out: the client did not read them in time]\n", b.lost)}
	b.lost = 0
	b.bytes += sizeOf(note)
	b.events = append(b.events, note)
}

func (b *outbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *outbox) deliver() {
	defer close(b.out)
	for range b.wake {
		for {
			b.mu.Lock()
			events, closed := b.events, b.closed
			b.events = nil
			b.mu.Unlock()
			if len(events) == 0 {
				if closed {
					return
				}
				break
			}
			for _, e := range events {
				b.out <- e
				b.taken(e)
			}
		}
	}
}

func (b *outbox) taken(e event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes -= sizeOf(e)
}

// sizeOf is what an event counts against the bound, bytes.
func sizeOf(e event) int {
	size := len(e.Text)
	for mime, value := range e.Bundle {
		size += len(mime) + len(value)
	}
	return size
}
