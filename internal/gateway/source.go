package gateway

import (
	"io"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// chunkSize is how much is moved at once, bytes: more than the largest
// datagram.
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

// insideSource reads from a connection or a flow of the stack.
type insideSource struct {
	conn     io.Reader // over endpoint
	endpoint tcpip.Endpoint
	queue    *waiter.Queue
	entry    waiter.Entry
	notify   chan struct{}
	first    []byte // was read before
}

const readable = waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr

// newInsideSource waits on queue, until stop.
func newInsideSource(conn io.Reader, endpoint tcpip.Endpoint, queue *waiter.Queue) *insideSource {
	s := &insideSource{conn: conn, endpoint: endpoint, queue: queue}
	s.entry, s.notify = waiter.NewChannelEntry(readable)
	queue.EventRegister(&s.entry)
	return s
}

func (s *insideSource) stop() { s.queue.EventUnregister(&s.entry) }

func (s *insideSource) read() (chunk, error) {
	if len(s.first) > 0 {
		c := takeChunk()
		c.count = copy(c.buffer[:], s.first)
		if s.first = s.first[c.count:]; len(s.first) == 0 {
			s.first = nil // the connection may be open for long
		}
		return c, nil
	}
	for s.endpoint.Readiness(readable) == 0 {
		<-s.notify
	}
	c := takeChunk()
	var err error
	c.count, err = s.conn.Read(c.buffer[:])
	return c, err
}

// outsideSource reads from a socket of the host.
type outsideSource struct {
	raw      syscall.RawConn
	emptyEnd bool // reading nothing is the end, as on a stream
	// try is the callback of raw.Read, which fills got and err.
	try func(fd uintptr) bool
	got chunk
	err error
}

func newOutsideSource(conn syscall.Conn, stream bool) (*outsideSource, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &outsideSource{raw: raw, emptyEnd: stream}
	s.try = s.tryRead
	return s, nil
}

func (s *outsideSource) read() (chunk, error) {
	s.got, s.err = chunk{}, nil
	if err := s.raw.Read(s.try); err != nil {
		return chunk{}, err
	}
	if s.err == nil && s.got.count == 0 && s.emptyEnd {
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

// readerSource reads from what has no socket of its own to wait at, with a buffer
// at all times.
type readerSource struct{ from io.Reader }

func (s readerSource) read() (chunk, error) {
	c := takeChunk()
	var err error
	for c.count == 0 && err == nil {
		c.count, err = s.from.Read(c.buffer[:])
	}
	if c.count > 0 {
		err = nil // it comes again
	}
	return c, err
}
