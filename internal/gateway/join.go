package gateway

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// copyBuffer is how much is moved at once, bytes.
const copyBuffer = 128 << 10

// join copies both ways until both directions have ended, one has failed, or
// nothing has moved for the idle limit. A direction that ends at its source is
// ended at its other side and the other direction goes on, as TCP has it; a
// failure resets both sides.
func (n *Network) join(inside *insideConn, outside *net.TCPConn) {
	idle := newIdleTimer(n.limits.TCPIdle, func() { reset(inside, outside) })
	defer idle.stop()
	defer inside.Close()
	defer outside.Close()

	var other sync.WaitGroup
	other.Add(1)
	go func() {
		defer other.Done()
		defer n.guard("copy in")
		carry(inside, outside, idle, func() { reset(inside, outside) })
	}()
	carry(outside, inside, idle, func() { reset(inside, outside) })
	other.Wait()
}

type halfCloser interface {
	io.ReadWriter
	CloseWrite() error
}

// carry copies from source to sink and passes the end on.
func carry(sink, source halfCloser, idle *idleTimer, fail func()) {
	if err := copyTo(sink, source, idle); err != nil {
		fail()
		return
	}
	if err := sink.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) {
		fail()
	}
}

func copyTo(sink io.Writer, source io.Reader, idle *idleTimer) error {
	buffer := copyBuffers.Get().(*[copyBuffer]byte)
	defer copyBuffers.Put(buffer)
	for {
		count, err := source.Read(buffer[:])
		if count > 0 {
			idle.touch()
			if _, err := sink.Write(buffer[:count]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

var copyBuffers = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

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
