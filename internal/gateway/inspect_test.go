package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// secureServer ends TLS with a certificate for example.com and answers "hello".
func secureServer(t testing.TB) (serve func(net.Conn), client *tls.Config) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	server.Close()
	config := &tls.Config{Certificates: server.TLS.Certificates}
	return func(conn net.Conn) {
		secure := tls.Server(conn, config)
		_, _ = secure.Write([]byte("hello"))
		_ = secure.CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
	}, server.Client().Transport.(*http.Transport).TLSClientConfig
}

// overTLS begins TLS in conn for a name and reads what the server says.
func overTLS(conn net.Conn, config *tls.Config, name string) (string, error) {
	config = config.Clone()
	config.ServerName = name
	secure := tls.Client(conn, config)
	_ = secure.SetDeadline(time.Now().Add(20 * time.Second))
	said, err := io.ReadAll(secure)
	return string(said), err
}

func TestTLSForAnAllowedNamePassesEndToEnd(t *testing.T) {
	i := newInternet(t)
	serve, client := secureServer(t)
	i.name("example.com", "203.0.113.5")
	i.serve("203.0.113.5:443", serve)
	n := i.network(&rules{allow: []string{"example.com"}})
	conn, err := connect(t, n, "example.com", "443")
	require.NoError(t, err)
	said, err := overTLS(conn, client, "example.com")
	require.NoError(t, err)
	require.Equal(t, "hello", said)
	require.Equal(t, []string{"203.0.113.5:443"}, i.wasDialled())
}

func TestNameThatWasNotLookedUpHereIsAskedForNow(t *testing.T) {
	i := newInternet(t)
	serve, client := secureServer(t)
	i.name("example.com", "203.0.113.5", "203.0.113.6")
	i.serve("203.0.113.6:443", serve)
	n := i.network(&rules{allow: []string{"example.com"}})
	conn, err := dialFromInside(t, n, "tcp4", "203.0.113.6:443")
	require.NoError(t, err)
	_, err = overTLS(conn, client, "example.com")
	require.NoError(t, err)
	require.Equal(t, []string{"example.com"}, i.wasAsked())
}

func TestQuestionForLaterIsAnsweredWithAStandInAndConnectsOnceAllowed(t *testing.T) {
	i := newInternet(t)
	serve, client := secureServer(t)
	i.name("example.com", "203.0.113.5")
	i.serve("203.0.113.5:443", serve)
	p := &rules{ask: map[string]chan int{"example.com": make(chan int)}}
	n := i.network(p)
	addr, err := lookUp(t, n, "example.com")
	require.NoError(t, err)
	require.True(t, netip.MustParsePrefix("198.18.0.0/15").Contains(addr), addr)
	again, err := lookUp(t, n, "EXAMPLE.com.")
	require.NoError(t, err)
	require.Equal(t, addr, again, "the same name, the same address")
	require.Empty(t, ask(t, n, "udp", "example.com.", dns.TypeAAAA).Answer)
	require.Equal(t, dns.RcodeSuccess, ask(t, n, "udp", "example.com.", dns.TypeTXT).Rcode)
	b := addr.As4()
	reverse := fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa.", b[3], b[2], b[1], b[0])
	require.Equal(t, "example.com.", ask(t, n, "udp", reverse, dns.TypePTR).Answer[0].(*dns.PTR).Ptr)
	require.Empty(t, i.wasAsked(), "nothing was sent out")

	conn, err := dialFromInside(t, n, "tcp4", addr.String()+":443")
	require.NoError(t, err)
	type result struct {
		said string
		err  error
	}
	results := make(chan result, 1)
	go func() {
		said, err := overTLS(conn, client, "example.com")
		results <- result{said, err}
	}()
	p.ask["example.com"] <- 1
	r := <-results
	require.NoError(t, r.err)
	require.Equal(t, "hello", r.said)
	require.Equal(t, []string{"example.com"}, i.wasAsked())
	require.Equal(t, []string{"203.0.113.5:443"}, i.wasDialled())
}

func TestHeldConnectionEndsWithItsClientAndOnlySoManyAreHeld(t *testing.T) {
	i := newInternet(t)
	i.name("fast.example", "203.0.113.5")
	i.serve("203.0.113.5:22", echo)
	p := &rules{allow: []string{"fast.example"}, opaque: true, ask: map[string]chan int{"slow.example": make(chan int)}}
	n := i.network(p, func(c *gateway.Config) { c.Limits = gateway.Limits{Held: 2, Pending: 2} })
	var held []net.Conn
	for range 2 {
		conn, err := connect(t, n, "slow.example", "22")
		require.NoError(t, err)
		_, err = conn.Write([]byte("x"))
		require.NoError(t, err)
		held = append(held, conn)
	}
	require.Eventually(t, func() bool { return n.Stats().Held == 2 }, 20*time.Second, time.Millisecond)
	conn, err := connect(t, n, "slow.example", "22")
	require.NoError(t, err)
	_, err = sendAndRead(t, conn, "x")
	require.ErrorIs(t, err, syscall.ECONNRESET, "one too many")

	other, err := connect(t, n, "fast.example", "22")
	require.NoError(t, err, "those that are held are in nobody's way")
	_, err = other.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(other, make([]byte, 1))
	require.NoError(t, err)

	for _, conn := range held {
		require.NoError(t, conn.Close())
	}
	require.Eventually(t, func() bool { return p.waits() == 0 && n.Stats().Held == 0 }, 20*time.Second, time.Millisecond)
}

func TestServerThatSpeaksFirstIsReachedAfterAMoment(t *testing.T) {
	i := newInternet(t)
	i.name("mail.example", "203.0.113.5")
	i.serve("203.0.113.5:25", func(conn net.Conn) {
		_, _ = conn.Write([]byte("220 hello\r\n"))
		echo(conn)
	})
	n := i.network(&rules{allow: []string{"mail.example"}, opaque: true})
	conn, err := connect(t, n, "mail.example", "25")
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	lines := bufio.NewReader(conn)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "220 hello\r\n", line)
	_, err = conn.Write([]byte("QUIT\r\n"))
	require.NoError(t, err)
	line, err = lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "QUIT\r\n", line)
}

// Waiting before it speaks must not let a client name a host that is not looked at.
func TestClientThatWaitsIsLookedAtWhenItSpeaks(t *testing.T) {
	i := newInternet(t)
	i.name("allowed.example", "203.0.113.5")
	i.serve("203.0.113.5:8443", echo)
	n := i.network(&rules{allow: []string{"allowed.example"}, opaque: true, silent: true})
	conn, err := connect(t, n, "allowed.example", "8443")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(i.wasDialled()) == 1 }, 20*time.Second, time.Millisecond)
	_, err = overTLS(conn, &tls.Config{}, "evil.example")
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestRefusalIsReadInTheClear(t *testing.T) {
	i := newInternet(t)
	n := i.network(&rules{})
	conn, err := connect(t, n, "evil.example", "80")
	require.NoError(t, err)
	require.Empty(t, i.wasAsked())
	_, err = conn.Write([]byte("GET /x?y HTTP/1.1\r\nHost: evil.example\r\n\r\n"))
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, answer.StatusCode)
	var said map[string]string
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&said))
	require.Equal(t, map[string]string{
		"error": "refused", "reason": "not on the list", "rule": "list", "requestId": "id-1", "ask": "ask for it",
		"host": "evil.example", "method": "GET", "path": "/x",
	}, said)
	for _, port := range []string{"22", "443", "8080"} { // without an interceptor, TLS cannot be told
		_, err := connect(t, n, "evil.example", port)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, "port %s never looks open", port)
	}
}

func TestOfflineHasNoNames(t *testing.T) {
	i := newInternet(t)
	n := i.network(gateway.DenyAll{})
	require.Equal(t, dns.RcodeNameError, ask(t, n, "udp", "example.com.", dns.TypeA).Rcode)
}

func TestStandInsOutliveTheProcessAndAPause(t *testing.T) {
	i := newInternet(t)
	p := &rules{ask: map[string]chan int{"a.example": nil, "b.example": nil}}
	dir := t.TempDir()
	n := i.network(p, func(c *gateway.Config) { c.Dir = dir })
	a, err := lookUp(t, n, "a.example")
	require.NoError(t, err)
	require.NoError(t, n.Detach())

	n, err = gateway.Adopt(context.Background(), gateway.Config{Dir: dir, Policy: p, Resolvers: gateway.NewResolvers(i.resolver)})
	require.NoError(t, err)
	b, err := lookUp(t, n, "b.example")
	require.NoError(t, err)
	require.NotEqual(t, a, b)
	require.NoError(t, n.Close())

	n = i.network(p, func(c *gateway.Config) { c.Dir = dir })
	for name, want := range map[string]netip.Addr{"b.example": b, "a.example": a} {
		addr, err := lookUp(t, n, name)
		require.NoError(t, err)
		require.Equal(t, want, addr)
	}
	require.NoError(t, n.Close())

	// Whatever is in the file, the network starts.
	require.NoError(t, os.WriteFile(dir+"/names", []byte("not at all what belongs there"), 0o600))
	n = i.network(p, func(c *gateway.Config) { c.Dir = dir })
	_, err = lookUp(t, n, "b.example")
	require.NoError(t, err)
}

func TestOldestStandInIsForgotten(t *testing.T) {
	i := newInternet(t)
	n := i.network(&rules{}, func(c *gateway.Config) { c.Limits.Questions = 100_000 })
	first, err := lookUp(t, n, "first.example")
	require.NoError(t, err)
	conn, err := dialFromInside(t, n, "udp", "10.0.0.1:53")
	require.NoError(t, err)
	client := dns.Client{Timeout: 8 * time.Second}
	for k := range 4096 {
		query := new(dns.Msg)
		query.SetQuestion(fmt.Sprintf("n%d.example.", k), dns.TypeA)
		_, _, err := client.ExchangeWithConn(query, &dns.Conn{Conn: conn})
		require.NoError(t, err)
	}
	_, err = dialFromInside(t, n, "tcp4", first.String()+":80")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	again, err := lookUp(t, n, "first.example")
	require.NoError(t, err)
	require.NotEqual(t, first, again, "an address does not stand for another name soon")
}

func TestRecheckEndsInspectedConnectionsAndForgetsNames(t *testing.T) {
	i := newInternet(t)
	i.name("a.example", "203.0.113.5")
	i.serve("203.0.113.5:22", echo)
	p := &rules{allow: []string{"a.example"}, opaque: true}
	n := i.network(p)
	conn, err := connect(t, n, "a.example", "22")
	require.NoError(t, err)
	_, err = conn.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, n.Recheck(t.Context()))
	require.EqualValues(t, 1, n.Stats().OpenConnections)

	p = &rules{opaque: true}
	n.SetPolicy(p)
	require.NoError(t, n.Recheck(t.Context()))
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	conn, err = dialFromInside(t, n, "tcp4", "203.0.113.5:22")
	require.NoError(t, err)
	_, _ = sendAndRead(t, conn, "x")
	last := p.judged[len(p.judged)-1]
	require.Equal(t, gateway.Opaque, last.Protocol)
	require.Empty(t, last.Names)
}

func TestGatewayServesItsOwnName(t *testing.T) {
	i := newInternet(t)
	n := i.network(gateway.DenyAll{}, func(c *gateway.Config) {
		c.Inside = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "inside of ", r.Host) })
	})
	conn, err := connect(t, n, "tombolo.internal", "80")
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1:80", conn.RemoteAddr().String())
	said, err := sendAndRead(t, conn, "GET / HTTP/1.0\r\nHost: tombolo.internal\r\n\r\n")
	require.NoError(t, err)
	require.Contains(t, said, "inside of tombolo.internal")
	require.Empty(t, i.wasAsked())
	_, err = dialFromInside(t, n, "tcp4", "10.0.0.1:81")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	// One that says nothing is not there for ever, and many are too many.
	for range 16 {
		_, err := dialFromInside(t, n, "tcp4", "10.0.0.1:80")
		require.NoError(t, err)
	}
	_, err = dialFromInside(t, n, "tcp4", "10.0.0.1:80")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestDestinationsAreCounted(t *testing.T) {
	i := newInternet(t)
	i.name("a.example", "203.0.113.5")
	i.serve("203.0.113.5:22", echo)
	n := i.network(&rules{allow: []string{"a.example"}, opaque: true, silent: true})
	conn, err := connect(t, n, "a.example", "22")
	require.NoError(t, err)
	_, err = conn.Write([]byte("12345"))
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 5))
	require.NoError(t, err)
	_, err = dialFromInside(t, n, "tcp4", "10.9.9.9:1")
	require.Error(t, err)
	require.Equal(t, []gateway.Destination{
		{Name: "a.example", Port: 22, Protocol: gateway.TCP, Connections: 1, BytesOut: 5, BytesIn: 5},
		{Address: netip.MustParseAddr("10.9.9.9"), Port: 1, Protocol: gateway.TCP, Denied: 1},
	}, n.Destinations())
}

// Many that were refused leave room for what was not.
func TestRefusedDestinationsAreNotInTheWayOfOthers(t *testing.T) {
	i := newInternet(t)
	i.serve("203.0.113.5:22", echo)
	n := i.network(&rules{opaque: true, allow: []string{"a.example"}, silent: true})
	for port := range 600 {
		_, err := dialFromInside(t, n, "tcp4", fmt.Sprintf("10.9.9.9:%d", port+1))
		require.Error(t, err)
	}
	i.name("a.example", "203.0.113.5")
	conn, err := connect(t, n, "a.example", "22")
	require.NoError(t, err)
	_, err = conn.Write([]byte("12345"))
	require.NoError(t, err)
	_, err = io.ReadFull(conn, make([]byte, 5))
	require.NoError(t, err)
	all := n.Destinations()
	require.Equal(t, gateway.Destination{Name: "a.example", Port: 22, Protocol: gateway.TCP, Connections: 1, BytesOut: 5, BytesIn: 5}, all[0])
	refused := uint64(0)
	for _, d := range all {
		refused += d.Denied
	}
	require.EqualValues(t, 600, refused, "none is lost")
	require.Less(t, len(all), 600)
}

// Another table stands for the same names by other addresses: what a program remembers of one
// leads nowhere in the other.
func TestStandInsOfTwoSandboxesDiffer(t *testing.T) {
	i := newInternet(t)
	var first []netip.Addr
	for range 3 {
		addr, err := lookUp(t, i.network(&rules{}), "first.example")
		require.NoError(t, err)
		first = append(first, addr)
	}
	require.False(t, first[0] == first[1] && first[1] == first[2], "%v", first)
}
