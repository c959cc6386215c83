package intercept_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
	"github.com/tombolo-dev/tombolo/internal/replace"
)

// world is a gateway with one destination: a listener whose connections are
// intercepted, and what is behind it.
type world struct {
	t       testing.TB
	ca      *intercept.Authority
	session gateway.Interception
	addr    netip.AddrPort // where clients connect to
	conn    gateway.Intercepted
	ctx     context.Context // of Carry
	failed  chan error      // of Carry

	mu      sync.Mutex
	judged  []gateway.Request
	dialled []gateway.Request
	denied  []string // without being judged
	judge   func(context.Context, gateway.Request) gateway.Decision
	rewrite func(context.Context, gateway.Request, *http.Request) (gateway.Scrubber, error)
	dial    func(context.Context, gateway.Request) (net.Conn, error)
}

// inWorld begins a world whose connections are as conn says, for localhost over TLS
// where it says nothing. What is dialled is the destination, an httptest.Server.
func inWorld(t testing.TB, to *httptest.Server, conn gateway.Intercepted, config intercept.Config) *world {
	t.Helper()
	var err error
	if config.Authority == nil {
		config.Authority, err = intercept.OpenAuthority(t.TempDir())
		require.NoError(t, err)
	}
	if config.Roots == nil && to != nil && to.TLS != nil {
		config.Roots = x509.NewCertPool()
		config.Roots.AddCert(to.Certificate())
	}
	w := &world{t: t, ca: config.Authority, ctx: context.Background(), failed: make(chan error, 100)}
	w.judge = func(context.Context, gateway.Request) gateway.Decision {
		return gateway.Decision{Verdict: gateway.Allow}
	}
	w.rewrite = func(context.Context, gateway.Request, *http.Request) (gateway.Scrubber, error) { return nil, nil }
	w.dial = func(ctx context.Context, _ gateway.Request) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", to.Listener.Addr().String())
	}
	all := intercept.New(config)
	w.session = all.Intercept(warden{w})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w.addr = listener.Addr().(*net.TCPAddr).AddrPort()
	w.conn = conn
	if !conn.Destination.IsValid() {
		w.conn.Destination = w.addr
	}
	var carrying sync.WaitGroup
	carrying.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			carrying.Go(func() {
				conn := w.conn
				conn.Conn = c
				if err := w.session.Carry(w.ctx, conn); err != nil {
					w.failed <- err
				}
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		w.session.Close()
		carrying.Wait() // nothing stays behind
		require.NoError(t, all.Close())
	})
	return w
}

// encrypted is a connection whose client said localhost in its handshake.
var encrypted = gateway.Intercepted{TLS: true, Name: "localhost"}

type warden struct{ w *world }

func (g warden) Judge(ctx context.Context, r gateway.Request) gateway.Decision {
	g.w.mu.Lock()
	g.w.judged = append(g.w.judged, r)
	judge := g.w.judge
	g.w.mu.Unlock()
	return judge(ctx, r)
}

func (g warden) Deny(r gateway.Request, why string) gateway.Decision {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.w.denied = append(g.w.denied, why)
	return gateway.Decision{Reason: why, ID: "dec_0"}
}

func (g warden) Rewrite(ctx context.Context, r gateway.Request, out *http.Request) (gateway.Scrubber, error) {
	return g.w.rewrite(ctx, r, out)
}

func (g warden) Dial(ctx context.Context, r gateway.Request) (net.Conn, error) {
	g.w.mu.Lock()
	g.w.dialled = append(g.w.dialled, r)
	g.w.mu.Unlock()
	return g.w.dial(ctx, r)
}

// url is the address of path at the destination, as the client has it.
func (w *world) url(path string) string {
	scheme := "http"
	if w.conn.TLS {
		scheme = "https"
	}
	return scheme + "://localhost:" + strconv.Itoa(int(w.addr.Port())) + path
}

// client is Go's, which trusts the authority.
func (w *world) client(http2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2 && w.conn.TLS)
	protocols.SetUnencryptedHTTP2(http2 && !w.conn.TLS)
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", w.addr.String())
		},
		TLSClientConfig:    &tls.Config{RootCAs: w.roots()},
		Protocols:          protocols,
		DisableCompression: true,
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (w *world) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	require.True(w.t, pool.AppendCertsFromPEM(w.ca.PEM()))
	return pool
}

// lastJudged is the request that was judged last.
func (w *world) lastJudged() gateway.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	require.NotEmpty(w.t, w.judged)
	return w.judged[len(w.judged)-1]
}

func (w *world) dials() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.dialled)
}

// scrubs replaces old by new in answers.
func scrubs(old, new string) func(context.Context, gateway.Request, *http.Request) (gateway.Scrubber, error) {
	r := replace.New(replace.Pair{Old: []byte(old), New: []byte(new)})
	return func(context.Context, gateway.Request, *http.Request) (gateway.Scrubber, error) { return r, nil }
}

// serverFor is a destination for localhost that speaks all protocols.
func serverFor(t testing.TB, tls bool, h http.Handler) *httptest.Server {
	return startServer(t, tls, true, h)
}

func startServer(t testing.TB, encrypted, http2 bool, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.DisableGeneralOptionsHandler = true
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetHTTP2(http2)
	s.Config.Protocols.SetUnencryptedHTTP2(http2)
	s.EnableHTTP2 = http2
	if encrypted {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{certFor(t, "localhost")}}
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// certFor is a certificate of an authority that only who is told trusts.
func certFor(t testing.TB, host string) tls.Certificate {
	ca, err := intercept.OpenAuthority(t.TempDir())
	require.NoError(t, err)
	leaf, err := ca.Leaf(host)
	require.NoError(t, err)
	return *leaf
}

func denies(d gateway.Decision) func(context.Context, gateway.Request) gateway.Decision {
	return func(context.Context, gateway.Request) gateway.Decision { return d }
}

func addrPort(addr string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
}
