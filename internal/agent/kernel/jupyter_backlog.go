package kernel

import (
	"errors"
	"sync"

	"github.com/tombolo-dev/tombolo/internal/agent/kernel/zmtp"
)

// maxBacklog bounds the messages of a socket that are read and not yet
// understood, bytes.
const maxBacklog = 64 << 20

// A backlog holds messages as they were read from a socket. It is read as fast
// as it can be, for a kernel throws away what its client is slow to read.
type backlog struct {
	mu        sync.Mutex
	changed   sync.Cond
	items     []backlogItem
	bytes     int
	abandoned bool
}

type backlogItem struct {
	frames [][]byte
	err    error
	bytes  int
}

// itemCost is what a message takes besides its bytes, about.
const itemCost = 512

func newBacklog() *backlog {
	b := &backlog{}
	b.changed.L = &b.mu
	return b
}

// fill reads until the socket's end.
func (b *backlog) fill(c *zmtp.Conn) {
	for {
		frames, err := c.Receive()
		item := backlogItem{frames: frames, err: err, bytes: itemCost}
		for _, frame := range frames {
			item.bytes += len(frame)
		}
		if !b.put(item) || err != nil && !errors.Is(err, zmtp.ErrTooLarge) {
			return
		}
	}
}

func (b *backlog) put(item backlogItem) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.bytes > maxBacklog && !b.abandoned {
		b.changed.Wait()
	}
	b.items = append(b.items, item)
	b.bytes += item.bytes
	b.changed.Broadcast()
	return !b.abandoned
}

// next waits for the next message; the error is that of Receive.
func (b *backlog) next() ([][]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.items) == 0 {
		b.changed.Wait()
	}
	item := b.items[0]
	b.items[0] = backlogItem{}
	b.items = b.items[1:]
	b.bytes -= item.bytes
	b.changed.Broadcast()
	return item.frames, item.err
}

// abandon lets fill end.
func (b *backlog) abandon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abandoned = true
	b.changed.Broadcast()
}
