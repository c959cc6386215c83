package gateway

import (
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/waiter"
)

// chunkSize is how much is moved at once, bytes.
const chunkSize = 64 << 10

// chunk is a pooled buffer with the bytes read into it. The zero chunk holds
// none.
type chunk struct {
	buffer *[chunkSize]byte
	count  int
}

var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

func takeChunk() chunk { return chunk{buffer: chunks.Get().(*[chunkSize]byte)} }

func (c chunk) bytes() []byte { return c.buffer[:c.count] }

func (c chunk) putBack() {
	if c.buffer != nil {
		chunks.Put(c.buffer)
	}
}

// insideSource reads from a connection of the stack.
type insideSource struct {
	conn   *insideConn
	entry  waiter.Entry
	notify chan struct{}
}

const readable = waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr

func newInsideSource(conn *insideConn) *insideSource {
	s := &insideSource{conn: conn}
	s.entry, s.notify = waiter.NewChannelEntry(readable)
	conn.queue.EventRegister(&s.entry)
	return s
}

func (s *insideSource) stop() { s.conn.queue.EventUnregister(&s.entry) }

func (s *insideSource) read() (chunk, error) {
	for s.conn.endpoint.Readiness(readable) == 0 {
		<-s.notify
	}
	c := takeChunk()
	var err error
	c.count, err = s.conn.Read(c.buffer[:])
	return c, err
}

// outsideSource reads from a connection of the host.
type outsideSource struct {
	raw syscall.RawConn
	// try is the callback of raw.Read, which fills got and err.
	try func(fd uintptr) bool
	got chunk
	err error
}

func newOutsideSource(conn *net.TCPConn) (*outsideSource, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &outsideSource{raw: raw}
	s.try = s.tryRead
	return s, nil
}

func (s *outsideSource) read() (chunk, error) {
	s.got, s.err = chunk{}, nil
	if err := s.raw.Read(s.try); err != nil {
		return chunk{}, err
	}
	if s.err == nil && s.got.count == 0 {
		return s.got, io.EOF
	}
	return s.got, s.err
}

func (s *outsideSource) tryRead(fd uintptr) bool {
	c := takeChunk()
	count, err := unix.Read(int(fd), c.buffer[:])
	for err == unix.EINTR {
		count, err = unix.Read(int(fd), c.buffer[:])
	}
	if err == unix.EAGAIN {
		c.putBack()
		return false
	}
	c.count = max(count, 0)
	s.got, s.err = c, err
	return true
}
