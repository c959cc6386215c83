package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// loop turns what the kernel sends into events, in the order in which it
// happened. Bytes in a pipe are read in two steps: first it notes how many
// there are, then it handles every frame on the socket, then it reads that many.
// A frame sent before those bytes is on the socket by then; one sent after them
// waits, because the program sends "sync" instead while it sees bytes in a pipe.
func (k *programKernel) loop() {
	l := &programLoop{k: k}
	cause := l.run()
	if cause != nil {
		k.process.SetReason(cause.Error())
	}
	_ = k.process.Signal(syscall.SIGKILL)
	<-k.swept

	// What it wrote last is still in the pipes.
	_ = l.drain(k.out, 1<<20)
	_ = l.drain(k.err, 1<<20)
	l.flushTails()

	k.writing.Lock()
	k.broken = true
	fds{k.socket, k.out.fd, k.err.fd, k.acks}.close()
	if k.interrupts >= 0 {
		_ = unix.Close(k.interrupts)
	}
	k.socket = -1
	k.writing.Unlock()

	if !l.ready {
		answer(k.ready, fmt.Errorf("%s; it wrote: %q", epitaph(k.process), l.early))
	}
	close(k.ended)
	l.takeRun()
	if l.events != nil {
		l.events <- event{Kind: eventDied, Value: epitaph(k.process)}
		close(l.events)
	}
}

// maxEarly bounds what is kept of the output of a start, bytes.
const maxEarly = 2 << 10

type programLoop struct {
	k      *programKernel
	lines  lineBuffer
	events chan<- event // of the open run, nil between runs
	synced bool         // the pipes were drained since they were measured
	told   bool         // a client knows the process's reason
	ready  bool         // the kernel has started
	early  []byte       // what it wrote before, to explain a failure
	buf    [64 << 10]byte
}

// run returns nil when the kernel is gone, or why it must not go on.
func (l *programLoop) run() error {
	k := l.k
	set := []unix.PollFd{
		{Fd: int32(k.socket), Events: unix.POLLIN},
		{Fd: int32(k.out.fd), Events: unix.POLLIN},
		{Fd: int32(k.err.fd), Events: unix.POLLIN},
	}
	for {
		if _, err := unix.Poll(set, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return fmt.Errorf("wait for the kernel: %w", err)
		}
		l.synced = false
		out, errOut := k.out.waiting(), k.err.waiting()
		if err := l.readSocket(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if l.synced {
			continue
		}
		if err := l.drain(k.out, out); err != nil {
			return err
		}
		if err := l.drain(k.err, errOut); err != nil {
			return err
		}
		// A pipe that everybody closed would wake every poll.
		for i, p := range []*outputPipe{k.out, k.err} {
			if set[1+i].Revents&(unix.POLLHUP|unix.POLLERR) != 0 && p.waiting() == 0 {
				set[1+i].Fd = -1
			}
		}
	}
}

// readSocket handles frames until the socket is empty.
func (l *programLoop) readSocket() error {
	for {
		n, err := unix.Read(l.k.socket, l.buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.ECONNRESET):
			return io.EOF
		case err != nil:
			return fmt.Errorf("read from the kernel: %w", err)
		case n == 0:
			return io.EOF
		}
		l.lines.add(l.buf[:n])
		if err := l.handleLines(); err != nil {
			return err
		}
	}
}

// cancelled ends a line that the program could not write to its end.
var cancelled = []byte{0x18}

func (l *programLoop) handleLines() error {
	for {
		line, err := l.lines.next()
		if err != nil {
			return fmt.Errorf("it broke the driver's protocol: %w", err)
		}
		if line == nil {
			return nil
		}
		if bytes.HasSuffix(line, cancelled) {
			continue
		}
		f, err := parseFrame(line)
		if err != nil {
			return fmt.Errorf("it broke the driver's protocol: %w", err)
		}
		if err := l.handle(f); err != nil {
			return err
		}
	}
}

func (l *programLoop) handle(f frame) error {
	if e, ok := f.event(); ok {
		l.flushTails()
		l.emit(e)
		return nil
	}
	k := l.k
	switch f.T {
	case "sync":
		if err := l.drainBoth(); err != nil {
			return err
		}
		return writeAll(k.acks, []byte{1}, time.Second)
	case "end":
		if err := l.drainBoth(); err != nil {
			return err
		}
		l.flushTails()
		l.tellReason()
		l.emit(event{Kind: eventEnd})
		if l.events != nil {
			close(l.events)
			l.events = nil
		}
	case "ready":
		l.ready, l.early = true, nil
		answer(k.ready, nil)
	case "fatal":
		answer(k.ready, errors.New(f.S))
	case "warmed":
		var err error
		if f.S != "" {
			err = errors.New(f.S)
		}
		answer(k.warmed, err)
	default:
		return fmt.Errorf("it broke the driver's protocol: unknown frame %.20q", f.T)
	}
	return nil
}

// emit blocks until the client took the event, which holds the kernel up too.
// Between runs there is nobody to tell: output of background work is dropped.
// Before the start is over it is kept, because it may explain a failure.
func (l *programLoop) emit(e event) {
	l.takeRun()
	if l.events != nil {
		l.events <- e
		return
	}
	if room := maxEarly - len(l.early); !l.ready && room > 0 {
		l.early = append(l.early, e.Text[:min(room, len(e.Text))]...)
	}
}

// tellReason says once why a process of the run was ended.
func (l *programLoop) tellReason() {
	if e, ok := reasonEvent(l.k.process); ok && !l.told {
		l.told = true
		l.emit(e)
	}
}

func (l *programLoop) takeRun() {
	if l.events != nil {
		return
	}
	select {
	case l.events = <-l.k.runs:
	default:
	}
}

func (l *programLoop) drainBoth() error {
	l.synced = true
	if err := l.drain(l.k.out, l.k.out.waiting()); err != nil {
		return err
	}
	return l.drain(l.k.err, l.k.err.waiting())
}

// drain reads n bytes of a pipe, fewer if there are fewer.
func (l *programLoop) drain(p *outputPipe, n int) error {
	for n > 0 {
		got, err := unix.Read(p.fd, l.buf[:min(n, len(l.buf))])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) || got == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the kernel's output: %w", err)
		}
		n -= got
		if e, ok := p.take(l.buf[:got]); ok {
			l.emit(e)
		}
	}
	return nil
}

func (l *programLoop) flushTails() {
	for _, p := range []*outputPipe{l.k.out, l.k.err} {
		if e, ok := p.takeTail(); ok {
			l.emit(e)
		}
	}
}

func answer(to chan<- error, err error) {
	select {
	case to <- err:
	default: // nobody asked, or a hostile kernel answers twice
	}
}

// writeAll writes to a non-blocking descriptor, waiting up to timeout in all.
func writeAll(fd int, data []byte, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			left := time.Until(deadline)
			if left <= 0 {
				return fmt.Errorf("write to the kernel: it did not read for %s", timeout)
			}
			set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
			_, err := unix.Poll(set, int(left.Milliseconds())+1)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("wait to write to the kernel: %w", err)
			}
		case err != nil:
			return fmt.Errorf("write to the kernel: %w", err)
		default:
			data = data[n:]
		}
	}
	return nil
}
