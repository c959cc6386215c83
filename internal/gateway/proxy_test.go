package gateway_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

func anyAddress(netip.Addr) string { return "" }

// echoes wants a connection from inside to reach the echo at an address.
func echoes(t *testing.T, n *gateway.Network, address string) {
	t.Helper()
	conn, err := dialFromInside(t, n, "tcp4", address)
	require.NoError(t, err)
	said, err := func() (string, error) {
		if _, err := conn.Write([]byte("hello")); err != nil {
			return "", err
		}
		b := make([]byte, 5)
		_, err := io.ReadFull(conn, b)
		return string(b), err
	}()
	require.NoError(t, err)
	require.Equal(t, "hello", said)
}

func TestProxyByNameWithLogin(t *testing.T) {
	i := newInternet(t)
	i.serve("203.0.113.5:22", echo)
	i.name("proxy.example", "127.0.0.1")
	address := netip.MustParseAddrPort(i.proxy.Address)
	n := i.network(loopback{})
	require.NoError(t, n.SetProxy(&gateway.Proxy{
		Kind: gateway.SOCKS5, Address: "proxy.example:" + portOf(address), Username: "me", Password: "secret", Refuses: anyAddress,
	}))
	echoes(t, n, "203.0.113.5:22")
	require.Equal(t, "me:secret", i.login)
	require.Equal(t, []string{"proxy.example"}, i.wasAsked())
	require.Equal(t, []string{"203.0.113.5:22"}, i.wasDialled(), "the address that was judged, and not a name")

	// By itself a proxy may be at public addresses only.
	require.NoError(t, n.SetProxy(&gateway.Proxy{Kind: gateway.SOCKS5, Address: "proxy.example:" + portOf(address)}))
	_, err := dialFromInside(t, n, "tcp4", "203.0.113.5:22")
	require.Error(t, err)
	require.Empty(t, i.wasDialled())
}

func portOf(a netip.AddrPort) string {
	_, port, _ := net.SplitHostPort(a.String())
	return port
}

// connectServer is an HTTP proxy, which answers a login that is not right with 407.
func connectServer(i *internet, login string) func(net.Conn) {
	return func(conn net.Conn) {
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		asked := &http.Request{Header: http.Header{"Authorization": request.Header["Proxy-Authorization"]}}
		name, password, _ := asked.BasicAuth()
		to, err := netip.ParseAddrPort(request.Host)
		if err != nil || request.Method != http.MethodConnect || name+":"+password != login {
			_, _ = io.WriteString(conn, "HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nSome: header\r\n\r\n")
		i.mu.Lock()
		i.dialled = append(i.dialled, to)
		server := i.servers[to]
		i.mu.Unlock()
		server(conn)
	}
}

func TestProxyByConnectAndTLS(t *testing.T) {
	i := newInternet(t)
	i.serve("203.0.113.5:25", func(conn net.Conn) { // its words come right behind the proxy's
		_, _ = conn.Write([]byte("220 hello"))
		echo(conn)
	})
	authority, err := intercept.OpenAuthority(t.TempDir())
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(authority.PEM()))
	listener := listenOutside(t)
	go serveEach(listener, func(conn net.Conn) {
		config := &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return authority.Leaf(h.ServerName) }}
		connectServer(i, "me:secret")(tls.Server(conn, config))
	})
	good := gateway.Proxy{
		Kind: gateway.HTTPConnect, Address: listener.Addr().String(), Username: "me", Password: "secret", Refuses: anyAddress,
		TLS: &tls.Config{RootCAs: roots, ServerName: "proxy.example"},
	}
	n := i.network(loopback{}, func(c *gateway.Config) {
		c.Proxy, c.Limits = &good, gateway.Limits{DialTimeout: time.Second}
	})
	conn, err := dialFromInside(t, n, "tcp4", "203.0.113.5:25")
	require.NoError(t, err)
	said := make([]byte, len("220 hello"))
	_, err = io.ReadFull(conn, said)
	require.NoError(t, err)
	require.Equal(t, "220 hello", string(said))
	big := make([]byte, 300<<10)
	go func() { _, _ = conn.Write(big) }()
	_, err = io.ReadFull(conn, big)
	require.NoError(t, err)
	require.Len(t, i.wasDialled(), 1)

	for what, change := range map[string]func(*gateway.Proxy){
		"a wrong password":            func(p *gateway.Proxy) { p.Password = "wrong" },
		"a certificate of nobody":     func(p *gateway.Proxy) { p.TLS = &tls.Config{ServerName: "proxy.example"} },
		"no TLS where there is some":  func(p *gateway.Proxy) { p.TLS = nil },
		"another kind":                func(p *gateway.Proxy) { p.Kind = gateway.SOCKS5 },
		"a port that nobody serves":   func(p *gateway.Proxy) { p.Address = "127.0.0.1:1" },
		"a name that leads to nobody": func(p *gateway.Proxy) { p.Address = "nowhere.example:1" },
	} {
		bad := good
		change(&bad)
		require.NoError(t, n.SetProxy(&bad))
		_, err := dialFromInside(t, n, "tcp4", "203.0.113.5:25")
		require.Error(t, err, what)
		require.Empty(t, i.wasDialled(), what)
	}
}

func TestProxyIsChecked(t *testing.T) {
	n := newNetwork(t)
	for _, p := range []gateway.Proxy{
		{}, {Kind: "ftp", Address: "a.example:1"}, {Kind: gateway.SOCKS5, Address: "a.example"}, {Kind: gateway.SOCKS5, Address: "a.example:0"},
		{Kind: gateway.SOCKS5, Address: "a.example:70000"}, {Kind: gateway.HTTPConnect, Address: "0x7f.1:80"}, {Kind: gateway.HTTPConnect, Address: ":80"},
		{Kind: gateway.SOCKS5, Address: "a.example:1", Password: string(make([]byte, 256))},
	} {
		require.Error(t, n.SetProxy(&p), "%+v", p)
	}
	require.NoError(t, n.SetProxy(nil))
}

// Requests that come after a change do not go the way of those before.
func TestKeptConnectionsOfRequestsEndWhenTheProxyChanges(t *testing.T) {
	first, second := newInternet(t), newInternet(t)
	for _, i := range []*internet{first, second} {
		i.name("allowed.example", allowedIP)
		i.serve(allowedIP+":80", webServer)
	}
	n := first.network(&rules{allow: []string{"allowed.example"}}, withInterceptor(t))
	conn, err := connect(t, n, "allowed.example", "80")
	require.NoError(t, err)
	request := "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n"
	for range 2 {
		require.Equal(t, http.StatusOK, askOver(t, conn, request)[0].StatusCode)
	}
	require.Len(t, first.wasDialled(), 1, "it is kept")
	require.NoError(t, n.SetProxy(second.proxy))
	require.Equal(t, http.StatusOK, askOver(t, conn, request)[0].StatusCode)
	require.Equal(t, []string{allowedIP + ":80"}, second.wasDialled())
}

// Datagrams have no proxy: they leave as they do without one.
func TestDatagramsDoNotGoThroughTheProxy(t *testing.T) {
	i := newInternet(t)
	n := i.network(loopback{})
	conn, err := dialFromInside(t, n, "udp4", echoDatagrams(t).LocalAddr().String())
	require.NoError(t, err)
	_, err = conn.Write([]byte("x"))
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.NoError(t, err)
	require.Empty(t, i.wasDialled())
}
