package gateway

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// intake moves what a socket of the host's receives into a connection of the stack.
// Bytes stay in the socket until there is room for them, and go straight to where the
// stack keeps them until the sandbox has them: no buffer is held for them, however
// many connections wait.
type intake struct {
	to    *insideConn
	raw   syscall.RawConn
	entry waiter.Entry
	room  chan struct{} // tells that there may be room again
	// try is the callback of raw.Read, which fills what follows.
	try    func(fd uintptr) bool
	from   received
	moved  int
	err    error       // of the socket, io.EOF at its end
	inside tcpip.Error // of the stack
}

func newIntake(to *insideConn, from syscall.Conn) (*intake, error) {
	raw, err := from.SyscallConn()
	if err != nil {
		return nil, err
	}
	i := &intake{to: to, raw: raw}
	i.try = i.tryOnce
	i.entry, i.room = waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	to.queue.EventRegister(&i.entry)
	return i, nil
}

func (i *intake) stop() { i.to.queue.EventUnregister(&i.entry) }

// move waits until it has moved something and returns how much. The error is io.EOF at
// the end.
func (i *intake) move() (int, error) {
	for {
		i.moved, i.err, i.inside = 0, nil, nil
		if err := i.raw.Read(i.try); err != nil {
			return 0, err
		}
		switch i.inside.(type) {
		case nil:
			if i.moved > 0 || i.err != nil {
				return i.moved, i.err
			}
		case *tcpip.ErrWouldBlock:
			<-i.room
		default:
			return 0, asError(i.inside)
		}
	}
}

// tryOnce reports false when the socket has nothing.
func (i *intake) tryOnce(fd uintptr) bool {
	i.from.fd = int(fd)
	if i.err = i.from.look(); i.err != nil {
		return i.err != unix.EAGAIN
	}
	moved, err := i.to.endpoint.Write(&i.from, tcpip.WriteOptions{})
	i.moved, i.inside = int(moved), err
	return true
}

// received is what a socket has received, up to a packet to the sandbox.
type received struct {
	fd    int
	count int // in the socket
	few   [16]byte
	rest  []byte // of few: was read and goes first
}

var _ tcpip.Payloader = (*received)(nil)

// look finds out how much it is. The error is unix.EAGAIN when there is nothing yet, and
// io.EOF at the end.
func (r *received) look() error {
	if len(r.rest) > 0 {
		return nil
	}
	count, err := unix.IoctlGetInt(r.fd, unix.TIOCINQ)
	if err != nil {
		return err
	}
	if r.count = min(count, segmentSize); r.count > 0 {
		return nil
	}
	// Only a read tells nothing yet, the end and an error apart. It may get something that
	// has just come, or comes after urgent data, which does not count.
	if count, err = readSocket(r.fd, r.few[:]); err != nil {
		return err
	}
	if count == 0 {
		return io.EOF
	}
	r.rest = r.few[:count]
	return nil
}

// Len implements tcpip.Payloader.
func (r *received) Len() int {
	if len(r.rest) > 0 {
		return len(r.rest)
	}
	return r.count
}

// Read fills b, which is no longer than Len, or fails: the stack takes nothing less.
func (r *received) Read(b []byte) (int, error) {
	if len(r.rest) > 0 {
		count := copy(b, r.rest)
		r.rest = r.rest[count:]
		return count, nil
	}
	for filled := 0; filled < len(b); {
		count, err := readSocket(r.fd, b[filled:])
		if err == nil && count == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return filled, err
		}
		filled += count
	}
	return len(b), nil
}

func readSocket(fd int, b []byte) (int, error) {
	for {
		count, err := unix.Read(fd, b)
		if err != unix.EINTR {
			return max(count, 0), err
		}
	}
}
