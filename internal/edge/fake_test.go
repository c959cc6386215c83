package edge_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/edge"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// sandboxes stands in for the manager: every port of a sandbox is a real server
// on loopback.
type sandboxes struct {
	sandbox.Sandboxes // what the edge must not call panics

	mu    sync.Mutex
	live  map[string]*box
	ended map[string]string // reason by id
	onEnd []func(id string)
}

type box struct {
	info    sandbox.Info
	ports   map[uint16]string // address
	conns   []net.Conn        // what the edge dialled
	wakes   int
	wakeErr error         // what Wake answers
	gate    chan struct{} // holds a wake up until it is closed
}

func newSandboxes() *sandboxes {
	return &sandboxes{live: map[string]*box{}, ended: map[string]string{}}
}

// serve makes h the server on a port of a sandbox, which it makes if need be.
func (s *sandboxes) serve(t testing.TB, id string, port uint16, h http.Handler) {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	s.listen(id, port, server.Listener.Addr().String())
}

func (s *sandboxes) listen(id string, port uint16, addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[id] == nil {
		s.live[id] = &box{
			info: sandbox.Info{
				ID: id, State: sandbox.Running, ExecutionID: "run 1 of " + id,
				AccessToken: "token-of-" + id, TrafficToken: "traffic-token-of-" + id,
			},
			ports: map[uint16]string{},
		}
	}
	s.live[id].ports[port] = addr
}

// kill ends a sandbox: it is gone, then its connections close, then the edge is told.
func (s *sandboxes) kill(id, reason string) {
	s.mu.Lock()
	b := s.live[id]
	delete(s.live, id)
	s.ended[id] = reason
	s.mu.Unlock()
	for _, c := range b.conns {
		c.Close()
	}
	for _, fn := range s.onEnd {
		fn(id)
	}
}

// set changes a sandbox behind the edge's back.
func (s *sandboxes) set(id string, change func(b *box)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.live[id])
}

func (s *sandboxes) setState(id string, state sandbox.State) {
	s.set(id, func(b *box) { b.info.State = state })
}

// pause pauses a sandbox: its connections break, then the edge is told.
func (s *sandboxes) pause(id string) {
	s.setState(id, sandbox.Pausing)
	var conns []net.Conn
	s.set(id, func(b *box) {
		conns, b.conns = b.conns, nil
		b.info.State = sandbox.Paused
	})
	for _, c := range conns {
		c.Close()
	}
	for _, fn := range s.onEnd {
		fn(id)
	}
}

func (s *sandboxes) wakes(id string) (n int) {
	s.set(id, func(b *box) { n = b.wakes })
	return n
}

func (s *sandboxes) Wake(ctx context.Context, id string) error {
	s.mu.Lock()
	b := s.live[id]
	switch {
	case b == nil:
		s.mu.Unlock()
		return sandbox.ErrNotFound
	case b.info.State == sandbox.Running:
		s.mu.Unlock()
		return nil
	case !b.info.Lifecycle.AutoResume:
		s.mu.Unlock()
		return sandbox.ErrAsleep
	}
	b.wakes++
	err, gate := b.wakeErr, b.gate
	if err == nil {
		b.info.State = sandbox.Resuming
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if gate != nil {
		<-gate
	}
	s.set(id, func(b *box) {
		b.info.State = sandbox.Running
		b.info.ExecutionID = fmt.Sprintf("run %d of %s", b.wakes+1, id)
	})
	return nil
}

// end ends a sandbox and leaves its connections for the edge to close.
func (s *sandboxes) end(id string) {
	s.mu.Lock()
	delete(s.live, id)
	s.mu.Unlock()
	for _, fn := range s.onEnd {
		fn(id)
	}
}

func (s *sandboxes) dialled(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live[id].conns)
}

func (s *sandboxes) Get(id string) (sandbox.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.live[id]; b != nil {
		return b.info, nil
	}
	if reason, ok := s.ended[id]; ok {
		return sandbox.Info{}, &sandbox.GoneError{ID: id, Reason: reason}
	}
	return sandbox.Info{}, sandbox.ErrNotFound
}

func (s *sandboxes) List(sandbox.Filter) []sandbox.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []sandbox.Info
	for _, b := range s.live {
		all = append(all, b.info)
	}
	return all
}

func (s *sandboxes) Dial(ctx context.Context, id string, port uint16) (net.Conn, error) {
	info, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	if info.State != sandbox.Running {
		return nil, sandbox.ErrPaused
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	addr, ok := s.live[id].ports[port]
	if !ok {
		return nil, sandbox.ErrPortClosed
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err == nil {
		s.live[id].conns = append(s.live[id].conns, c)
	}
	return c, err
}

func (s *sandboxes) OnStop(fn func(id string)) { s.onEnd = append(s.onEnd, fn) }

// start serves an edge over s and returns its address, host:port.
func start(t testing.TB, s *sandboxes) string {
	t.Helper()
	control := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-From", "control")
	})
	return serve(t, edge.New(edge.Options{Sandboxes: s, Control: control}), nil)
}

// serve serves h as the product does and returns the address.
func serve(t testing.TB, h http.Handler, config *tls.Config) string {
	t.Helper()
	server := edge.Server(h)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := edge.Listener(raw, config)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return raw.Addr().String()
}

// request makes a request to the edge with pairs of headers; "Host" sets the host.
func request(t testing.TB, method, url string, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	return r
}

func do(t testing.TB, r *http.Request) *http.Response {
	t.Helper()
	res, err := (&http.Transport{DisableKeepAlives: true, DisableCompression: true}).RoundTrip(r)
	require.NoError(t, err)
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 10*time.Second, time.Millisecond, what)
}
