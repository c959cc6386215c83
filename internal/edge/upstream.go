package edge

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

const (
	// maxRequests bounds the requests, upgraded connections among them, that one
	// sandbox serves at once.
	maxRequests = 1000
	dialTimeout = 10 * time.Second
	// idleTimeout is shorter than the 5 s after which widespread servers (uvicorn,
	// Node) close an idle connection, so that no request meets one closing. Dialling
	// anew costs a fraction of a millisecond.
	idleTimeout  = 4 * time.Second
	maxIdleConns = 128
	// maxResponseHeader bounds what a sandbox can make us hold per answer.
	maxResponseHeader = 256 << 10
	connBuffer        = 32 << 10
)

// upstreams are the sandboxes that have been asked something. Lock order:
// upstreams.mu, then upstream.mu; neither is held while calling out.
type upstreams struct {
	sandboxes sandbox.Sandboxes
	mu        sync.RWMutex
	byID      map[string]*upstream
}

func newUpstreams(s sandbox.Sandboxes) *upstreams {
	u := &upstreams{sandboxes: s, byID: map[string]*upstream{}}
	s.OnStop(u.end)
	return u
}

// get returns the upstream of a live sandbox. Errors are those of
// sandbox.Sandboxes.Get.
func (u *upstreams) get(id string) (*upstream, error) {
	u.mu.RLock()
	up := u.byID[id]
	u.mu.RUnlock()
	if up != nil {
		return up, nil
	}
	if _, err := u.sandboxes.Get(id); err != nil {
		return nil, err
	}
	up = u.add(id)
	// It may have ended between the look and the add, before there was anything
	// for end to remove.
	if _, err := u.sandboxes.Get(id); err != nil {
		u.end(id)
		return nil, err
	}
	return up, nil
}

func (u *upstreams) add(id string) *upstream {
	u.mu.Lock()
	defer u.mu.Unlock()
	if up := u.byID[id]; up != nil {
		return up
	}
	up := newUpstream(id, u.sandboxes)
	u.byID[id] = up
	return up
}

// end breaks what still streams from a sandbox that ended and forgets it.
func (u *upstreams) end(id string) {
	u.mu.Lock()
	up := u.byID[id]
	delete(u.byID, id)
	u.mu.Unlock()
	if up != nil {
		up.close()
	}
}

// upstream is one sandbox as the edge talks to it. Its transport keeps
// connections apart by the port in the URL.
type upstream struct {
	id        string
	sandboxes sandbox.Sandboxes
	transport *http.Transport
	requests  atomic.Int64

	mu    sync.Mutex
	conns map[*conn]struct{} // nil after close
}

func newUpstream(id string, s sandbox.Sandboxes) *upstream {
	up := &upstream{id: id, sandboxes: s, conns: map[*conn]struct{}{}}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	up.transport = &http.Transport{
		Proxy:                  nil, // never the host's
		DialContext:            up.dial,
		Protocols:              protocols,
		DisableCompression:     true, // bytes pass as they are
		MaxIdleConns:           maxIdleConns,
		MaxIdleConnsPerHost:    maxIdleConns,
		IdleConnTimeout:        idleTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
		ReadBufferSize:         connBuffer,
		WriteBufferSize:        connBuffer,
	}
	return up
}

// enter counts a request in; false when there are too many. Each true takes one
// leave.
func (up *upstream) enter() bool {
	if up.requests.Add(1) > maxRequests {
		up.requests.Add(-1)
		return false
	}
	return true
}

func (up *upstream) leave() { up.requests.Add(-1) }

func (up *upstream) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	_, digits, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	raw, err := up.sandboxes.Dial(ctx, up.id, uint16(port))
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, up: up}
	if !up.track(c) {
		raw.Close()
		return nil, fmt.Errorf("sandbox %s: %w", up.id, sandbox.ErrNotFound)
	}
	return c, nil
}

func (up *upstream) track(c *conn) bool {
	up.mu.Lock()
	defer up.mu.Unlock()
	if up.conns == nil {
		return false
	}
	up.conns[c] = struct{}{}
	return true
}

func (up *upstream) untrack(c *conn) {
	up.mu.Lock()
	defer up.mu.Unlock()
	delete(up.conns, c)
}

func (up *upstream) close() {
	up.mu.Lock()
	conns := up.conns
	up.conns = nil
	up.mu.Unlock()
	for c := range conns {
		c.Conn.Close()
	}
	up.transport.CloseIdleConnections()
}

// conn is a connection into a sandbox. When the sandbox has ended, the end of
// the stream is an error: a client must not take what it got for the whole.
type conn struct {
	net.Conn
	up *upstream
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != io.EOF {
		return n, err
	}
	if _, gone := c.up.sandboxes.Get(c.up.id); gone != nil {
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// ReadFrom sends a large body in large pieces. The transport calls it for bodies
// of known length; by itself it sends 32 KiB at a time.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	limited, ok := r.(*io.LimitedReader)
	if !ok || limited.N < largeBody {
		return io.Copy(struct{ io.Writer }{c.Conn}, r)
	}
	buffer := large.Get()
	defer large.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, r, buffer)
}

func (c *conn) Close() error {
	c.up.untrack(c)
	return c.Conn.Close()
}
