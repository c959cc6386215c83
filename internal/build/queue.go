package build

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// atOnce is how many builds of this process run at the same time; `tombolo template
// build` beside a server has turns of its own. One key may have all
// turns but one, so that those of others need not wait for hours.
func atOnce() int { return max(3, runtime.NumCPU()/2) }

// queue deals out the turns of builds: to the key that has fewest of them, and of
// equal ones to the build that has waited longest.
type queue struct {
	mu      sync.Mutex
	turns   int
	running map[string]int // turns that a key has
	waiting []*waiter
}

type waiter struct {
	key  string
	turn chan struct{} // closed when it has one
}

func newQueue(turns int) *queue { return &queue{turns: turns, running: map[string]int{}} }

// take waits for a turn, and calls waits first when there is none. The error is that
// of ctx; on success the caller owes a give.
func (q *queue) take(ctx context.Context, key string, waits func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &waiter{key: key, turn: make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, w)
	q.dealLocked()
	q.mu.Unlock()
	select {
	case <-w.turn:
		return nil
	default:
	}
	waits()
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if at := slices.Index(q.waiting, w); at >= 0 {
		q.waiting = slices.Delete(q.waiting, at, at+1)
	} else {
		q.giveLocked(key) // the turn came in this moment
	}
	return ctx.Err()
}

func (q *queue) give(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.giveLocked(key)
}

func (q *queue) giveLocked(key string) {
	if q.running[key]--; q.running[key] == 0 {
		delete(q.running, key)
	}
	q.dealLocked()
}

func (q *queue) dealLocked() {
	for {
		taken, next := 0, -1
		for _, n := range q.running {
			taken += n
		}
		for i, w := range q.waiting {
			if q.running[w.key] < q.turns-1 && (next < 0 || q.running[w.key] < q.running[q.waiting[next].key]) {
				next = i
			}
		}
		if taken >= q.turns || next < 0 {
			return
		}
		w := q.waiting[next]
		q.waiting = slices.Delete(q.waiting, next, next+1)
		q.running[w.key]++
		close(w.turn)
	}
}
