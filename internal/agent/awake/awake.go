// Package awake measures the time for which the sandbox runs. The engine's clocks,
// the monotonic one too, go on while a sandbox is saved: to programs a pause is as
// if nothing had been scheduled for long. What a caller allows a command should
// not go by in it.
package awake

import (
	"context"
	"sync"
	"time"
)

const (
	// tick is how often the clock looks. A gap between two looks counts for gapMost
	// at the most: what is longer was a pause, or an agent that got no processor
	// time.
	tick    = time.Second
	gapMost = 2 * time.Second
)

// Clock counts the time awake. Safe for concurrent use.
type Clock struct {
	now func() time.Time

	mu    sync.Mutex
	last  time.Time
	awake time.Duration
}

// New returns a clock at zero, made from one that goes on in a pause. It is right
// while Run runs.
func New(now func() time.Time) *Clock { return &Clock{now: now, last: now()} }

// Run keeps the clock going until ctx ends.
func (c *Clock) Run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			c.Now()
		case <-ctx.Done():
			return
		}
	}
}

// Now is the time awake since New.
func (c *Clock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.awake += min(now.Sub(c.last), gapMost)
	c.last = now
	return c.awake
}

// Timer is a call to come.
type Timer struct {
	clock *Clock
	due   time.Duration
	call  func()

	mu    sync.Mutex
	timer *time.Timer // nil when stopped
}

// AfterFunc calls call, in a goroutine of its own, after d awake.
func (c *Clock) AfterFunc(d time.Duration, call func()) *Timer {
	t := &Timer{clock: c, due: c.Now() + d, call: call}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(d, t.expire)
	return t
}

// Stop keeps the call from coming, if it has not begun.
func (t *Timer) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

func (t *Timer) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer == nil {
		return
	}
	if left := t.due - t.clock.Now(); left > 0 {
		t.timer.Reset(left)
		return
	}
	t.timer = nil
	go t.call()
}
