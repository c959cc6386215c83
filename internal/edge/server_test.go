package edge_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/certs"
	"github.com/tombolo-dev/tombolo/internal/edge"
)

// startTLS serves an edge over s with a private authority for sbx.localhost, and
// returns its address and what trusts it.
func startTLS(t testing.TB, s *sandboxes) (addr string, pool *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	_, err := certs.InitAuthority(dir, certs.Domain{Name: "sbx.localhost"}, false)
	require.NoError(t, err)
	authority, err := certs.OpenAuthority(dir)
	require.NoError(t, err)
	raw, err := os.ReadFile(certs.AuthorityFile(dir))
	require.NoError(t, err)
	pool = x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(raw))
	control := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-From", "control")
	})
	h := edge.OnlyLocalPlain(edge.New(edge.Options{Sandboxes: s, Control: control}))
	return serve(t, h, certs.Config(authority)), pool
}

// client trusts the authority and finds every name at addr.
func client(t testing.TB, addr string, pool *x509.CertPool, protocols func(*http.Protocols)) *http.Client {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool},
		Protocols:       new(http.Protocols),
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	}
	protocols(transport.Protocols)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func http1(p *http.Protocols) { p.SetHTTP1(true) }
func http2(p *http.Protocols) { p.SetHTTP2(true) }
func h2c(p *http.Protocols)   { p.SetUnencryptedHTTP2(true) }

func TestOnePortSpeaksEveryProtocol(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", userPort, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Proto, " ", r.Header.Get("X-Forwarded-Proto"), " ", string(got))
	}))
	addr, pool := startTLS(t, s)
	for _, tt := range []struct {
		scheme    string
		protocols func(*http.Protocols)
		proto     string
	}{
		{"http", http1, "HTTP/1.1"}, {"http", h2c, "HTTP/2.0"}, {"https", http1, "HTTP/1.1"}, {"https", http2, "HTTP/2.0"},
	} {
		t.Run(tt.scheme+" "+tt.proto, func(t *testing.T) {
			c := client(t, addr, pool, tt.protocols)
			for range 3 {
				res, err := c.Post(tt.scheme+"://8000-iaaa.sbx.localhost/", "text/plain", strings.NewReader("hello"))
				require.NoError(t, err)
				require.Equal(t, tt.proto, res.Proto)
				require.Equal(t, "HTTP/1.1 "+tt.scheme+" hello", body(t, res))
				res.Body.Close()
			}
			res, err := c.Get(tt.scheme + "://api.sbx.localhost/")
			require.NoError(t, err)
			defer res.Body.Close()
			require.Equal(t, "control", res.Header.Get("X-From"))
		})
	}
}

func TestWebSocketAndEventsThroughTLS(t *testing.T) {
	next := make(chan struct{})
	s := newSandboxes()
	s.serve(t, "iaaa", userPort, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
				<-next
			}
			return
		}
		c, err := websocket.Accept(w, r, nil) // checks that Origin and Host agree
		if err != nil {
			return
		}
		kind, data, err := c.Read(r.Context())
		if err == nil {
			c.Write(r.Context(), kind, data)
		}
		c.Close(websocket.StatusNormalClosure, "")
	}))
	addr, pool := startTLS(t, s)
	for name, protocols := range map[string]func(*http.Protocols){"h1": http1, "h2": http2} {
		t.Run(name, func(t *testing.T) {
			res, err := client(t, addr, pool, protocols).Get("https://8000-iaaa.sbx.localhost/events")
			require.NoError(t, err)
			defer res.Body.Close()
			lines := bufio.NewScanner(res.Body)
			for i := range 3 {
				require.True(t, lines.Scan())
				require.Equal(t, fmt.Sprintf("data: %d", i), lines.Text())
				require.True(t, lines.Scan())
				next <- struct{}{}
			}
		})
	}
	c, _, err := websocket.Dial(t.Context(), "wss://8000-iaaa.sbx.localhost/ws", &websocket.DialOptions{
		HTTPClient: client(t, addr, pool, http1),
		HTTPHeader: http.Header{"Origin": {"https://8000-iaaa.sbx.localhost"}},
	})
	require.NoError(t, err)
	defer c.CloseNow()
	require.NoError(t, c.Write(t.Context(), websocket.MessageText, []byte("hello")))
	_, data, err := c.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "hello", string(data))
}

func TestGRPCReachesAServerThatSpeaksHTTP2Only(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		got, _ := io.ReadAll(r.Body)
		w.Write(got)
		w.Header().Set("Grpc-Status", "0")
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	s := newSandboxes()
	s.listen("iaaa", userPort, server.Listener.Addr().String())
	addr, pool := startTLS(t, s)
	res, err := client(t, addr, pool, http2).Post("https://8000-iaaa.sbx.localhost/a.B/C", "application/grpc", strings.NewReader("message"))
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, "message", body(t, res))
	require.Equal(t, "0", res.Trailer.Get("Grpc-Status"))
}

func TestPlainRequestsOfOtherMachinesAreSentToHTTPS(t *testing.T) {
	h := edge.OnlyLocalPlain(names("inside"))
	ask := func(method, remote, local string, secure bool) *http.Response {
		r := httptest.NewRequest(method, "http://8000-iaaa.example.com/a?b=c", nil)
		r.RemoteAddr = remote
		addr, err := net.ResolveTCPAddr("tcp", local)
		require.NoError(t, err)
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr))
		if secure {
			r.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result()
	}
	const far = "203.0.113.1:5000"
	for _, remote := range []string{"127.0.0.1:5000", "[::1]:5000", "[::ffff:127.0.0.1]:5000", "10.1.1.1:5000"} {
		require.Equal(t, "inside", ask("POST", remote, "10.1.1.1:443", false).Header.Get("X-From"), remote)
	}
	require.Equal(t, "inside", ask("POST", far, "10.1.1.1:443", true).Header.Get("X-From"))
	res := ask("GET", far, "10.1.1.1:443", false)
	require.Equal(t, http.StatusPermanentRedirect, res.StatusCode)
	require.Equal(t, "https://8000-iaaa.example.com/a?b=c", res.Header.Get("Location"))
	res = ask("POST", far, "10.1.1.1:443", false)
	require.Equal(t, http.StatusForbidden, res.StatusCode)
	require.Contains(t, body(t, res), "https")
	require.Empty(t, res.Header.Get("X-From"))
}

func TestSilentConnectionsHoldNobodyUp(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", userPort, names("a"))
	addr, pool := startTLS(t, s)
	for range 300 {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
	}
	half, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer half.Close()
	_, err = half.Write([]byte{22, 3, 1}) // the begin of a handshake
	require.NoError(t, err)
	begin := time.Now()
	for name, protocols := range map[string]func(*http.Protocols){"https": http2, "http": http1} {
		res, err := client(t, addr, pool, protocols).Get(name + "://8000-iaaa.sbx.localhost/")
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, "a", res.Header.Get("X-From"))
	}
	require.Less(t, time.Since(begin), 9*time.Second)
}

func TestOldTLSIsRefused(t *testing.T) {
	addr, pool := startTLS(t, newSandboxes())
	_, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: pool, ServerName: "sbx.localhost", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	require.Error(t, err)
}

func TestClosedListenerLeavesNoConnectionBehind(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := edge.Listener(raw, &tls.Config{})
	c, err := net.Dial("tcp", raw.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, l.Close())
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	c.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection that had said nothing is closed")
}

func TestConnectionsCanBeHalfClosed(t *testing.T) {
	for name, config := range map[string]*tls.Config{"plain": nil, "both": {}} {
		raw, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		l := edge.Listener(raw, config)
		client, err := net.Dial("tcp", raw.Addr().String())
		require.NoError(t, err)
		_, err = client.Write([]byte("hello"))
		require.NoError(t, err)
		server, err := l.Accept()
		require.NoError(t, err)
		got := make([]byte, 5)
		_, err = io.ReadFull(server, got)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
		half, ok := server.(interface{ CloseWrite() error })
		require.True(t, ok, name)
		require.NoError(t, half.CloseWrite())
		_, err = client.Read(got)
		require.ErrorIs(t, err, io.EOF)
		_, err = client.Write([]byte("still"))
		require.NoError(t, err)
		_, err = io.ReadFull(server, got)
		require.NoError(t, err)
		require.Equal(t, "still", string(got))
		server.Close()
		client.Close()
		require.NoError(t, l.Close())
	}
}
