package gateway

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// carried is a TCP connection out: its side in the stack and its side on the
// host.
type carried struct {
	inside  *insideConn
	outside *outsideConn
	meter   meter
	first   []byte // read from the inside already
}

// abort ends both sides at once, without the polite end that would claim that
// everything had arrived.
func (c *carried) abort() {
	c.outside.abort()
	c.inside.abort()
}

// join copies both ways until both directions have ended, one has failed, or
// nothing has moved for the idle limit. A direction that ends at its source is
// ended at its other side and the other direction goes on, as TCP has it; a
// failure resets both sides. It closes both.
func (n *Network) join(c *carried) {
	idle := newIdleTimer(n.limits.TCPIdle, c.abort)
	defer idle.stop()
	defer c.inside.Close()
	defer c.outside.Close()
	fromOutside, err := c.fromOutside()
	if err != nil {
		c.abort()
		return
	}
	fromInside := newInsideSource(c.inside, c.inside.endpoint, c.inside.queue)
	fromInside.first, c.first = c.first, nil
	defer fromInside.stop()
	defer c.passResetOn()()

	var other sync.WaitGroup
	other.Add(1)
	go func() {
		defer other.Done()
		defer n.guard("copy in")
		carry(c.inside, fromOutside, idle, c.meter.in, c.abort)
	}()
	carry(c.outside, fromInside, idle, c.meter.out, c.abort)
	other.Wait()
}

func (c *carried) fromOutside() (source, error) {
	if c.outside.plain() {
		return newOutsideSource(c.outside.tcp, true)
	}
	return readerSource{c.outside}, nil
}

// passResetOn resets the outside when the sandbox resets the inside, even while
// a copy waits for the outside to take more. The stack tells of other changes in
// the same way. The returned function stops it.
func (c *carried) passResetOn() (stop func()) {
	entry := waiter.NewFunctionEntry(waiter.EventErr, func(waiter.EventMask) {
		if tcp.EndpointState(c.inside.endpoint.State()) == tcp.StateError {
			c.outside.abort()
		}
	})
	c.inside.queue.EventRegister(&entry)
	return func() { c.inside.queue.EventUnregister(&entry) }
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
func carry(to sink, from source, idle *idleTimer, m direction, fail func()) {
	if err := copyAll(to, from, idle, m); err != nil {
		fail()
		return
	}
	if err := to.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
		fail()
	}
}

func copyAll(to io.Writer, from source, idle *idleTimer, m direction) error {
	for {
		c, err := from.read()
		if err == nil {
			idle.touch()
			err = m.pass(c.count)
		}
		if err == nil {
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
