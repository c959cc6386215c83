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
	out, in, err := c.movers()
	if err != nil {
		c.abort()
		return
	}
	defer out.stop()
	defer in.stop()
	defer c.passResetOn()()

	var other sync.WaitGroup
	other.Add(1)
	go func() {
		defer other.Done()
		defer n.guard("copy in")
		carry(in, c.inside, idle, c.meter.in, c.abort)
	}()
	if err := c.sendFirst(); err != nil {
		c.abort()
	} else {
		carry(out, c.outside, idle, c.meter.out, c.abort)
	}
	other.Wait()
}

// movers are of both directions.
func (c *carried) movers() (out, in mover, err error) {
	if !c.outside.plain() {
		from := newInsideSource(c.inside, c.inside.endpoint, c.inside.queue)
		return &copier{from, c.outside}, &copier{readerSource{c.outside}, c.inside}, nil
	}
	if out, err = newOutlet(c.inside, c.outside.tcp); err != nil {
		return nil, nil, err
	}
	if in, err = newIntake(c.inside, c.outside.tcp); err != nil {
		out.stop()
		return nil, nil, err
	}
	return out, in, nil
}

// sendFirst sends what was read from the inside before.
func (c *carried) sendFirst() error {
	if len(c.first) == 0 {
		return nil
	}
	first := c.first
	c.first = nil // the connection may be open for long
	if err := c.meter.out.pass(len(first)); err != nil {
		return err
	}
	_, err := c.outside.Write(first)
	return err
}

// passResetOn resets the outside when the sandbox resets the inside, even while
// a copy waits for the outside to take more. The stack tells of other changes in
// the same way. The returned function stops it.
func (c *carried) passResetOn() (stop func()) {
	var aborts sync.WaitGroup
	entry := waiter.NewFunctionEntry(waiter.EventErr, func(waiter.EventMask) {
		if tcp.EndpointState(c.inside.endpoint.State()) == tcp.StateError {
			// Not here, where the endpoint is locked: the end of a socket waits for a
			// mover that uses it, and that for the endpoint.
			aborts.Go(c.outside.abort)
		}
	})
	c.inside.queue.EventRegister(&entry)
	return func() {
		c.inside.queue.EventUnregister(&entry)
		aborts.Wait()
	}
}

// mover moves the bytes of one direction. move waits until it has moved some, and says
// how many; the error is io.EOF at the end. While it waits, for either side, it holds no
// buffer unless it has to.
type mover interface {
	move() (int, error)
	stop()
}

// carry moves until the source ends, and passes the end on.
func carry(m mover, to interface{ CloseWrite() error }, idle *idleTimer, d direction, fail func()) {
	if err := moveAll(m, idle, d); err != nil {
		fail()
		return
	}
	if err := to.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
		fail()
	}
}

func moveAll(m mover, idle *idleTimer, d direction) error {
	for {
		count, err := m.move()
		if err == nil {
			idle.touch()
			err = d.pass(count)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// copier is the mover for a connection that is more than a socket: to a proxy, by TLS.
type copier struct {
	from source
	to   io.Writer
}

func (c *copier) move() (int, error) {
	read, err := c.from.read()
	defer read.putBack()
	if err != nil {
		return 0, err
	}
	return c.to.Write(read.bytes())
}

func (c *copier) stop() { c.from.stop() }

// source is the reading side of a connection. read waits until something can
// be read. The caller puts the chunk back, an empty one too. The error is io.EOF
// at the end.
type source interface {
	read() (chunk, error)
	stop()
}

// idleTimer calls a function when touch was not called for a while. touch
// costs one store.
type idleTimer struct {
	limit   time.Duration
	expire  func()
	touched atomic.Int64 // nanoseconds since start
	start   time.Time
	timer   *time.Timer
	busy    atomic.Int64 // while it is not 0, nothing is expected to move
}

func newIdleTimer(limit time.Duration, expire func()) *idleTimer {
	t := &idleTimer{limit: limit, expire: expire, start: time.Now()}
	t.timer = time.AfterFunc(limit, t.check)
	return t
}

func (t *idleTimer) touch() { t.touched.Store(int64(time.Since(t.start))) }

func (t *idleTimer) check() {
	idle := time.Since(t.start) - time.Duration(t.touched.Load())
	if t.busy.Load() > 0 {
		idle = 0
	}
	if idle >= t.limit {
		t.expire()
		return
	}
	t.timer.Reset(t.limit - idle)
}

// wait keeps it from ending until end is called.
func (t *idleTimer) wait() (end func()) {
	t.busy.Add(1)
	return func() {
		t.touch()
		t.busy.Add(-1)
	}
}

func (t *idleTimer) stop() { t.timer.Stop() }
