package intercept

import (
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// aheadAfter is how long a judgement takes before the body is read meanwhile.
	aheadAfter = time.Second
	// maxAhead bounds what is read of it, bytes.
	maxAhead = 64 << 10
)

// readAhead reads a body while its request waits for somebody's decision. The server
// sees a client of HTTP/1 go away only when it waits for the next request, and so
// not before the body was read. Of a body that is longer than maxAhead, or asked for
// with Expect, nothing is seen until then; the gateway sees the connection's end.
type readAhead struct {
	io.ReadCloser
	timer *time.Timer

	mu   sync.Mutex // held while ReadCloser is read
	read []byte
	err  error
	over bool // nothing is read ahead any more
}

// watchClient puts a readAhead into r, if it has a body that needs one.
func watchClient(r *http.Request) *readAhead {
	a := &readAhead{ReadCloser: r.Body}
	if r.ProtoMajor != 1 || r.ContentLength == 0 || r.Header.Get("Expect") != "" {
		return a
	}
	r.Body = a
	a.timer = time.AfterFunc(aheadAfter, a.run)
	return a
}

// stop ends it; what was read is kept.
func (a *readAhead) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
}

func (a *readAhead) run() {
	for a.more() {
	}
}

func (a *readAhead) more() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over || a.err != nil || len(a.read) >= maxAhead {
		return false
	}
	chunk := make([]byte, 4<<10)
	n, err := a.ReadCloser.Read(chunk)
	a.read, a.err = append(a.read, chunk[:n]...), err
	return true
}

// Read gives what was read ahead, then the rest.
func (a *readAhead) Read(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	if len(a.read) > 0 {
		n := copy(p, a.read)
		a.read = a.read[n:]
		return n, nil
	}
	if a.err != nil {
		return 0, a.err
	}
	return a.ReadCloser.Read(p)
}
