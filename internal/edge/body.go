package edge

import (
	"errors"
	"io"
	"net/http"
	"slices"
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

// peekStep is how much room a read ahead has, bytes.
const peekStep = 4 << 10

var (
	errAnswered = errors.New("the request was answered already")
	errTooLong  = errors.New("the request is too long to be looked at")
)

// requestBody is the body of a request that may be answered early, or be sent
// again when nothing of it was read yet. An early answer leaves the transport
// reading, and a server that ends a request of HTTP/1 while someone reads resets
// the connection, so that the client may lose the answer. finish takes the body
// back first.
type requestBody struct {
	io.ReadCloser
	rc *http.ResponseController // nil when the protocol needs no finish

	mu    sync.Mutex // held while reading
	begun bool
	eof   bool
	taken bool
	ahead []byte // what peek read and Read has yet to give
}

// ownBody gives a request a body that can be taken back; nil where it has none.
func ownBody(w http.ResponseWriter, r *http.Request) (*http.Request, *requestBody) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, nil
	}
	body := &requestBody{ReadCloser: r.Body}
	if r.ProtoMajor == 1 {
		// An answer may begin while the request still streams, as in a client stream
		// or an early refusal. HTTP/2 can anyway.
		body.rc = http.NewResponseController(w)
		_ = body.rc.EnableFullDuplex()
	}
	r = r.WithContext(r.Context()) // a copy: the server keeps its own body
	r.Body = body
	return r, body
}

// Close leaves the body open: the server closes its own, and until then it may
// have to be sent again.
func (b *requestBody) Close() error { return nil }

// untouched tells whether nobody has begun to read.
func (b *requestBody) untouched() bool {
	if b == nil {
		return true
	}
	if !b.mu.TryLock() {
		return false
	}
	defer b.mu.Unlock()
	return !b.begun
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken {
		return 0, errAnswered
	}
	b.begun = true
	if len(b.ahead) > 0 {
		n := copy(p, b.ahead)
		b.ahead = b.ahead[n:]
		return n, nil
	}
	n, err := b.ReadCloser.Read(p)
	b.eof = b.eof || err == io.EOF
	return n, err
}

// peek reads until what has come is enough, or to the end, and leaves it to be read.
// The body counts as untouched after it. It fails when the body is longer than most.
func (b *requestBody) peek(most int, enough func([]byte) bool) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.eof && !enough(b.ahead) {
		if len(b.ahead) >= most {
			return nil, errTooLong
		}
		b.ahead = slices.Grow(b.ahead, peekStep)
		n, err := b.ReadCloser.Read(b.ahead[len(b.ahead):cap(b.ahead)])
		b.ahead = b.ahead[:len(b.ahead)+n]
		b.eof = err == io.EOF
		if err != nil && err != io.EOF {
			return nil, err
		}
	}
	return b.ahead, nil
}

// finish sends what of the answer is not yet sent, and returns when nobody reads
// the body any more and no more of it is expected.
func (b *requestBody) finish() {
	if b == nil || b.rc == nil {
		return
	}
	if b.mu.TryLock() {
		eof := b.eof
		b.taken = true
		b.mu.Unlock()
		if eof {
			return
		}
	}
	_ = b.rc.Flush()
	_ = b.rc.SetReadDeadline(time.Now().Add(drainSilence)) // ends a read that hangs
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken = true
	if !b.eof {
		drain(b.ReadCloser, b.rc)
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
