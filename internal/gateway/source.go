package gateway

import (
	"io"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/waiter"
)

// chunkSize is how much is moved at once at most, bytes: more than the largest
// datagram.
const chunkSize = 64 << 10

// segmentSize is the most that goes into one packet to the sandbox, bytes. What is
// longer becomes two, of which the second, however short, costs as much as the first.
const segmentSize = deviceMTU - header.IPv4MinimumSize - header.TCPHeaderMaximumSize

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
	for s.endpoint.Readiness(readable) == 0 {
		<-s.notify
	}
	c := takeChunk()
	var err error
	c.count, err = s.conn.Read(c.buffer[:])
	return c, err
}

// outsideSource reads datagrams from a socket of the host.
type outsideSource struct {
	raw syscall.RawConn
	// try is the callback of raw.Read, which fills got and err.
	try func(fd uintptr) bool
	got chunk
	err error
}

func newOutsideSource(conn syscall.Conn) (*outsideSource, error) {
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
	return s.got, s.err
}

func (s *outsideSource) stop() {}

func (s *outsideSource) tryRead(fd uintptr) bool {
	c := takeChunk()
	count, err := readSocket(int(fd), c.buffer[:])
	if err == unix.EAGAIN {
		c.putBack()
		return false
	}
	c.count = count
	s.got, s.err = c, err
	return true
}

// readerSource reads from what has no socket of its own to wait at, with a buffer
// at all times.
type readerSource struct{ from io.Reader }

func (readerSource) stop() {}

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
