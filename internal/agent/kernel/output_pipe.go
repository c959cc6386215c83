package kernel

import (
	"os"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// An outputPipe is the agent's end of descriptor 1 or 2 of a kernel.
type outputPipe struct {
	fd   int
	kind eventKind
	tail []byte // the begin of a character whose rest is not there yet
}

// waiting is how many bytes can be read now.
func (p *outputPipe) waiting() int {
	n, err := unix.IoctlGetInt(p.fd, unix.TIOCINQ)
	if err != nil {
		return 1 << 16 // a pipe's capacity
	}
	return n
}

// take returns the event of data that was read, without an unfinished last
// character; ok is false when nothing else came.
func (p *outputPipe) take(data []byte) (e event, ok bool) {
	whole := append(p.tail, data...)
	cut := len(whole)
	for back := 1; back < utf8.UTFMax && back <= len(whole); back++ {
		start := len(whole) - back
		if utf8.RuneStart(whole[start]) {
			if !utf8.FullRune(whole[start:]) {
				cut = start
			}
			break
		}
	}
	p.tail = append([]byte(nil), whole[cut:]...)
	return event{Kind: p.kind, Text: string(whole[:cut])}, cut > 0
}

// takeTail returns the event of an unfinished character that nothing follows; ok
// is false when there is none.
func (p *outputPipe) takeTail() (e event, ok bool) {
	e = event{Kind: p.kind, Text: string(p.tail)}
	p.tail = nil
	return e, e.Text != ""
}

// A watchedPipe is an outputPipe that one goroutine watches and another reads.
type watchedPipe struct {
	outputPipe
	file  *os.File
	again chan struct{}
}

func newWatchedPipe(fd int, kind eventKind) *watchedPipe {
	return &watchedPipe{
		outputPipe: outputPipe{fd: fd, kind: kind},
		file:       os.NewFile(uintptr(fd), "pipe"),
		again:      make(chan struct{}),
	}
}

// watch sends the pipe each time there is something to read, and waits until it
// was read.
func (p *watchedPipe) watch(to chan<- *watchedPipe, stop <-chan struct{}) {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	for {
		over := false
		err := conn.Read(func(fd uintptr) bool {
			set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(set, 0)
			over = err == nil && n > 0 && set[0].Revents&unix.POLLIN == 0
			return err != nil || n > 0
		})
		if err != nil || over {
			return
		}
		select {
		case to <- p:
		case <-stop:
			return
		}
		select {
		case <-p.again:
		case <-stop:
			return
		}
	}
}
