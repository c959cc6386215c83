package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

const (
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

// upstreams are the sandboxes that have been asked something since they last
// started to run. Lock order: upstreams.mu, then the manager's own locks, which
// it holds for no call to us; upstream.mu is a leaf.
type upstreams struct {
	sandboxes sandbox.Sandboxes
	inside    func(http.RoundTripper) http.RoundTripper
	mu        sync.RWMutex
	byID      map[string]*upstream
}

func newUpstreams(s sandbox.Sandboxes, inside func(http.RoundTripper) http.RoundTripper) *upstreams {
	u := &upstreams{sandboxes: s, inside: inside, byID: map[string]*upstream{}}
	s.OnStop(u.stopped)
	return u
}

// get returns the upstream of the run that info describes. errNotSent when that
// run is over.
func (u *upstreams) get(info sandbox.Info) (*upstream, error) {
	u.mu.RLock()
	up := u.byID[info.ID]
	u.mu.RUnlock()
	if up != nil && up.run == info.ExecutionID {
		return up, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	// Asked under the lock: if the run is over by now, stopped may have been here
	// already and would not remove what is added after it.
	if !u.runs(info.ID, info.ExecutionID) {
		return nil, errNotSent
	}
	if up = u.byID[info.ID]; up != nil && up.run == info.ExecutionID {
		return up, nil
	}
	if up != nil {
		defer up.close() // of an earlier run
	}
	up = newUpstream(info, u)
	u.byID[info.ID] = up
	return up, nil
}

// runs tells whether a run of a sandbox goes on.
func (u *upstreams) runs(id, run string) bool {
	info, err := u.sandboxes.Get(id)
	return err == nil && info.State == sandbox.Running && info.ExecutionID == run
}

// stopped breaks what still streams from a sandbox that was paused or ended, and
// forgets it. It may come late, when the sandbox runs again already.
func (u *upstreams) stopped(id string) {
	u.mu.Lock()
	up := u.byID[id]
	if up != nil && u.runs(id, up.run) {
		up = nil
	}
	if up != nil {
		delete(u.byID, id)
	}
	u.mu.Unlock()
	if up != nil {
		up.close()
	}
}

// upstream is one run of a sandbox as the edge talks to it. Its transports keep
// connections apart by the port in the URL.
type upstream struct {
	id, run string
	all     *upstreams
	http1   *http.Transport
	http2   *http.Transport // for gRPC, without TLS
	// What the transports are wrapped in.
	inside1, inside2 http.RoundTripper

	mu    sync.Mutex
	conns map[*conn]struct{} // nil after close
}

func newUpstream(info sandbox.Info, all *upstreams) *upstream {
	up := &upstream{id: info.ID, run: info.ExecutionID, all: all, conns: map[*conn]struct{}{}}
	var http1, http2 http.Protocols
	http1.SetHTTP1(true)
	http2.SetUnencryptedHTTP2(true)
	up.http1, up.http2 = up.newTransport(&http1), up.newTransport(&http2)
	up.inside1, up.inside2 = all.inside(up.http1), all.inside(up.http2)
	return up
}

func (up *upstream) newTransport(protocols *http.Protocols) *http.Transport {
	return &http.Transport{
		Proxy: nil, // never the host's
		// Of ports that speak TLS themselves; the way there is ours.
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // whoever serves there may serve anything
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
}

// transportFor speaks HTTP/1.1, which every server does, but for gRPC, which is
// defined over HTTP/2 only.
func (up *upstream) transportFor(r *http.Request) http.RoundTripper {
	if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		return up.inside2
	}
	return up.inside1
}

// explain replaces an error that comes of the end of the run by that end.
func (up *upstream) explain(err error) error {
	if errors.Is(err, errNotSent) {
		return err
	}
	if _, gone := up.all.sandboxes.Get(up.id); gone != nil {
		return gone
	}
	if !up.all.runs(up.id, up.run) {
		return errStopped
	}
	return err
}

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
	raw, err := up.all.sandboxes.Dial(ctx, up.id, uint16(port))
	if errors.Is(err, sandbox.ErrPaused) || errors.Is(err, sandbox.ErrBusy) {
		return nil, errNotSent
	}
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, up: up}
	if !up.track(c) {
		raw.Close()
		return nil, errNotSent
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
	up.http1.CloseIdleConnections()
	up.http2.CloseIdleConnections()
}

// conn is a connection into a sandbox. When the sandbox has stopped, the end of
// the stream is an error: a client must not take what it got for the whole.
type conn struct {
	net.Conn
	up *upstream
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == io.EOF && !c.up.all.runs(c.up.id, c.up.run) {
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
