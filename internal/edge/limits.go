package edge

import (
	"net/http"
	"sync"
	"time"
)

// What is served at once, upgraded connections among it. A stream costs two
// connections and their buffers for as long as it lives.
const (
	maxRequestsPerSandbox = 1000
	maxRequests           = 20_000
)

// load counts the requests that are being served. It outlives pauses.
type load struct {
	mu        sync.Mutex
	total     int
	bySandbox map[string]int
}

func newLoad() *load { return &load{bySandbox: map[string]int{}} }

// enter counts a request in, or says why there are too many. Each request that
// came in takes one leave.
func (l *load) enter(id string) *refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bySandbox[id] >= maxRequestsPerSandbox {
		return &refusal{
			SandboxID: id, Code: http.StatusTooManyRequests, retryAfter: time.Second,
			Message: "The sandbox has too many connections open: close some and try again",
		}
	}
	if l.total >= maxRequests {
		return &refusal{
			SandboxID: id, Code: http.StatusServiceUnavailable, retryAfter: time.Second,
			Message: "The server has too many connections open: try again in a moment",
		}
	}
	l.total++
	l.bySandbox[id]++
	return nil
}

func (l *load) leave(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.bySandbox[id]--; l.bySandbox[id] == 0 {
		delete(l.bySandbox, id)
	}
}
