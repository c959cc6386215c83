package edge

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// Of a request that was answered before all of it had come, the rest is read and
// dropped for a while: a client that writes everything before it reads would
// else find its connection reset and the answer gone.
const (
	drainTimeout = 10 * time.Second // in all
	drainSilence = time.Second      // without a byte
)

var errAnswered = errors.New("the request was answered already")

// requestBody is the body of a request that may be answered early. The transport
// then still reads it, and a server that ends a request while someone reads
// resets the connection, so that the client may lose the answer. finish takes
// the body back first.
type requestBody struct {
	io.ReadCloser

	mu    sync.Mutex // held while reading
	eof   bool
	taken bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken {
		return 0, errAnswered
	}
	n, err := b.ReadCloser.Read(p)
	b.eof = b.eof || err == io.EOF
	return n, err
}

// finish sends what of the answer is not yet sent, and returns when nobody reads
// the body any more and no more of it is expected.
func (b *requestBody) finish(rc *http.ResponseController) {
	if b.mu.TryLock() {
		eof := b.eof
		b.taken = true
		b.mu.Unlock()
		if eof {
			return
		}
	}
	_ = rc.Flush()
	_ = rc.SetReadDeadline(time.Now().Add(drainSilence)) // ends a read that hangs
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken = true
	if !b.eof {
		drain(b.ReadCloser, rc)
	}
}

func drain(body io.Reader, rc *http.ResponseController) {
	buf := make([]byte, 32<<10)
	for end := time.Now().Add(drainTimeout); time.Now().Before(end); {
		if rc.SetReadDeadline(time.Now().Add(drainSilence)) != nil {
			return
		}
		if _, err := body.Read(buf); err != nil {
			return
		}
	}
}
