package gateway

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// join copies both ways until both directions have ended, one has failed, or
// nothing has moved for the idle limit. A direction that ends at its source is
// ended at its other side and the other direction goes on, as TCP has it; a
// failure resets both sides. It closes both.
func (n *Network) join(inside *insideConn, outside *net.TCPConn) {
	fail := func() { reset(inside, outside) }
	idle := newIdleTimer(n.limits.TCPIdle, fail)
	defer idle.stop()
	defer inside.Close()
	defer outside.Close()
	fromOutside, err := newOutsideSource(outside, true)
	if err != nil {
		fail()
		return
	}
	fromInside := newInsideSource(inside, inside.endpoint, inside.queue)
	defer fromInside.stop()

	var other sync.WaitGroup
	other.Add(1)
	go func() {
		defer other.Done()
		defer n.guard("copy in")
		carry(inside, fromOutside, idle, fail)
	}()
	carry(outside, fromInside, idle, fail)
	other.Wait()
}

// source is the reading side of a connection. read waits until something can
// be read and takes a buffer only then, so that a connection which is idle
// holds none. The caller puts the chunk back, an empty one too. The error is io.EOF
// at the end.
type source interface {
	read() (chunk, error)
}

type sink interface {
	io.Writer
	CloseWrite() error
}

// carry copies until the source ends, and passes the end on.
func carry(to sink, from source, idle *idleTimer, fail func()) {
	if err := copyAll(to, from, idle); err != nil {
		fail()
		return
	}
	if err := to.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
		fail()
	}
}

func copyAll(to io.Writer, from source, idle *idleTimer) error {
	for {
		c, err := from.read()
		if err == nil {
			idle.touch()
			_, err = to.Write(c.bytes())
		}
		c.putBack()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// reset ends both sides at once, without the polite end that would claim that
// everything had arrived.
func reset(inside *insideConn, outside *net.TCPConn) {
	_ = outside.SetLinger(0) // it is closed already otherwise
	_ = outside.Close()
	inside.abort()
}

// idleTimer calls a function when touch was not called for a while. touch
// costs one store.
type idleTimer struct {
	limit   time.Duration
	expire  func()
	touched atomic.Int64 // nanoseconds since start
	start   time.Time
	timer   *time.Timer
}

func newIdleTimer(limit time.Duration, expire func()) *idleTimer {
	t := &idleTimer{limit: limit, expire: expire, start: time.Now()}
	t.timer = time.AfterFunc(limit, t.check)
	return t
}

func (t *idleTimer) touch() { t.touched.Store(int64(time.Since(t.start))) }

func (t *idleTimer) check() {
	idle := time.Since(t.start) - time.Duration(t.touched.Load())
	if idle >= t.limit {
		t.expire()
		return
	}
	t.timer.Reset(t.limit - idle)
}

func (t *idleTimer) stop() { t.timer.Stop() }
