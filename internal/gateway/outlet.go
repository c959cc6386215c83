package gateway

import (
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// outlet moves what a connection of the stack has received to a socket of the host's.
// Bytes stay in the stack, which counts them, until the socket takes them: no buffer
// is held for them, however many connections wait.
type outlet struct {
	endpoint tcpip.Endpoint
	queue    *waiter.Queue
	raw      syscall.RawConn
	entry    waiter.Entry
	more     chan struct{} // tells that there may be something to read
	// try is the callback of raw.Write, which fills what follows.
	try    func(fd uintptr) bool
	fd     int
	moved  int
	queued int         // in the stack when the try began
	err    error       // of the socket
	inside tcpip.Error // of the stack
}

func newOutlet(from *insideConn, to syscall.Conn) (*outlet, error) {
	raw, err := to.SyscallConn()
	if err != nil {
		return nil, err
	}
	o := &outlet{endpoint: from.endpoint, queue: from.queue, raw: raw}
	o.try = o.tryOnce
	o.entry, o.more = waiter.NewChannelEntry(readable)
	o.queue.EventRegister(&o.entry)
	return o, nil
}

func (o *outlet) stop() { o.queue.EventUnregister(&o.entry) }

// move waits until it has moved something and returns how much. The error is io.EOF at
// the end.
func (o *outlet) move() (int, error) {
	for {
		for o.endpoint.Readiness(readable) == 0 {
			<-o.more
		}
		o.moved, o.err, o.inside = 0, nil, nil
		if err := o.raw.Write(o.try); err != nil {
			return 0, err
		}
		switch {
		case o.moved > 0:
			return o.moved, nil
		case o.err != nil:
			return 0, o.err
		}
		switch o.inside.(type) {
		case nil, *tcpip.ErrWouldBlock:
		case *tcpip.ErrClosedForReceive:
			return 0, io.EOF
		default:
			return 0, asError(o.inside)
		}
	}
}

// tryOnce reports false when the socket takes nothing.
func (o *outlet) tryOnce(fd uintptr) bool {
	o.fd = int(fd)
	o.queued, _ = o.endpoint.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
	_, o.inside = o.endpoint.Read(o, tcpip.ReadOptions{})
	return o.moved > 0 || o.err != unix.EAGAIN
}

var errEnough = errors.New("enough was moved at once")

// Write gives the stack's bytes to the socket, no more than chunkSize of one try: it may be
// all that a limit lets pass at once.
func (o *outlet) Write(b []byte) (int, error) {
	if o.moved >= chunkSize {
		return 0, errEnough
	}
	whole := len(b)
	b = b[:min(whole, chunkSize-o.moved)]
	flags := unix.MSG_NOSIGNAL | unix.MSG_DONTWAIT
	if o.moved+len(b) < min(o.queued, chunkSize) {
		flags |= unix.MSG_MORE
	}
	for {
		count, err := unix.SendmsgN(o.fd, b, nil, nil, flags)
		if err == unix.EINTR {
			continue
		}
		o.moved += max(count, 0)
		if o.err = err; err == nil && count < whole {
			err = io.ErrShortWrite
		}
		return max(count, 0), err
	}
}
