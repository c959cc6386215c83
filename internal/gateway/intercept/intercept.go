package intercept

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// Config says how connections are intercepted.
type Config struct {
	Authority *Authority
	// Roots are trusted for destinations. Nil is what this machine trusts.
	Roots *x509.CertPool
	// Requests bounds those of one sandbox that are under way at once, the ones that wait for
	// a person included; 0 is 256.
	Requests int
	// Log gets what goes wrong. Nil discards.
	Log *slog.Logger
}

// Interceptor carries the intercepted connections of all sandboxes. It implements
// [gateway.Interceptor]. Close it.
type Interceptor struct {
	config Config
	log    *slog.Logger
	server *http.Server
	conns  *handover
	tls    *tls.Config // of connections from inside
	proxy  *httputil.ReverseProxy
}

// New makes an Interceptor.
func New(c Config) *Interceptor {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Requests == 0 {
		c.Requests = defaultRequests
	}
	i := &Interceptor{config: c, log: c.Log, conns: newHandover()}
	i.tls, i.proxy = i.serverTLS(), newProxy(c.Log)
	i.server = newServer(http.HandlerFunc(i.serve), c.Log)
	go i.server.Serve(i.conns)
	return i
}

// newServer makes the server of the connections from inside. What is sent may
// take as long as it does: the gateway ends connections in which nothing moves.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true) // by prior knowledge
	return &http.Server{
		Handler:                      h,
		DisableGeneralOptionsHandler: true,
		Protocols:                    protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     receiveInside,
		},
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleInside,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // sandboxes can fill it
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			carried := carriedOf(c)
			return context.WithValue(valued{ctx, carried.ctx}, carriedKey{}, carried)
		},
	}
}

// Close ends every connection.
func (i *Interceptor) Close() error {
	return errors.Join(i.server.Close(), i.conns.Close())
}

// Intercept implements [gateway.Interceptor].
func (i *Interceptor) Intercept(w gateway.Warden) gateway.Interception {
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{
		all: i, warden: w, ctx: ctx, cancel: cancel,
		slots: make(chan struct{}, i.config.Requests),
		conns: map[*carried]struct{}{},
	}
	s.upstreams = newUpstreams(s.dial, i.config.Roots)
	return s
}

// session is what is intercepted of one sandbox.
type session struct {
	all       *Interceptor
	warden    gateway.Warden
	upstreams *upstreams
	ctx       context.Context // ends with the session
	cancel    context.CancelFunc
	slots     chan struct{} // one for each request under way

	mu     sync.Mutex
	closed bool
	conns  map[*carried]struct{}
}

var errClosed = errors.New("the network is closed")

// Carry implements [gateway.Interception].
func (s *session) Carry(ctx context.Context, c gateway.Intercepted) error {
	conn := &carried{Conn: c.Conn, Intercepted: c, session: s, done: make(chan struct{})}
	defer conn.Close()
	if !s.add(conn) {
		return nil
	}
	defer s.remove(conn)
	var cancel context.CancelFunc
	conn.ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(conn.ctx, func() { conn.Close() })()

	var served net.Conn = conn
	if c.TLS {
		encrypted, err := s.all.handshake(conn)
		if err != nil {
			return err
		}
		served = encrypted
	}
	if s.all.conns.give(served) {
		<-conn.done
	}
	return nil
}

func (s *session) add(c *carried) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *session) remove(c *carried) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// Close implements [gateway.Interception].
func (s *session) Close() {
	s.mu.Lock()
	s.closed = true
	open := make([]*carried, 0, len(s.conns))
	for c := range s.conns {
		open = append(open, c)
	}
	s.mu.Unlock()
	s.cancel()
	for _, c := range open {
		c.Close()
	}
	s.upstreams.close()
}

// dial connects to a destination for an upstream; ctx does not end with a request.
func (s *session) dial(ctx context.Context, r gateway.Request) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	if s.ctx.Err() != nil {
		return nil, errClosed
	}
	return s.warden.Dial(ctx, r)
}

// carried is a connection from inside.
type carried struct {
	net.Conn
	gateway.Intercepted
	session *session
	ctx     context.Context // ends when the connection does

	once sync.Once
	done chan struct{} // closed by Close
}

// Close closes the connection; further calls do nothing.
func (c *carried) Close() (err error) {
	c.once.Do(func() {
		err = c.Conn.Close()
		close(c.done)
	})
	return err
}

type carriedKey struct{}

// valued is a context with the values of another, too.
type valued struct {
	context.Context
	also context.Context
}

func (v valued) Value(key any) any {
	if value := v.Context.Value(key); value != nil {
		return value
	}
	return v.also.Value(key)
}

// carriedOf finds the connection under TLS.
func carriedOf(c net.Conn) *carried {
	if outer, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = outer.NetConn()
	}
	return c.(*carried)
}

// handover is a listener whose connections are given to it.
type handover struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (h *handover) give(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.closed:
		return false
	}
}

// Accept implements net.Listener.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handover) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handover) Addr() net.Addr { return &net.UnixAddr{Name: "intercepted", Net: "unix"} }
