package gateway_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// open allows all there is, and looks into TLS for one host.
type open struct{ host string }

func (p open) Decide(_ context.Context, r gateway.Request) gateway.Decision {
	switch {
	case r.Protocol == gateway.TCP:
		return gateway.Decision{Verdict: gateway.Inspect, TLSOnly: true}
	case r.Protocol == gateway.TLS && r.Name == p.host:
		return gateway.Decision{Verdict: gateway.Inspect}
	}
	return gateway.Decision{Verdict: gateway.Allow}
}

// Where only some hosts are looked into, theirs are found whatever the program did to learn
// the address, and nothing else is in the way of other connections.
func TestOnlyTLSIsLookedIntoWhereAllElseIsAllowed(t *testing.T) {
	i, all := newInternet(t), newInterception(t)
	i.name("seen.example", "203.0.113.5")
	i.name("elsewhere.example", "203.0.113.9")
	serve, client := secureServer(t)
	n := i.network(open{host: "seen.example"}, all.with(t))
	tls := func(address, name string) func(t *testing.T) string {
		return func(t *testing.T) string {
			i.serve(address, serve)
			conn, err := dialFromInside(t, n, "tcp4", address)
			require.NoError(t, err)
			said, err := overTLS(conn, client, name)
			require.NoError(t, err)
			return said
		}
	}
	seen := func(address string) func(t *testing.T) string {
		return func(t *testing.T) string {
			i.serve(address, all.secureWeb)
			conn, err := dialFromInside(t, n, "tcp4", address)
			require.NoError(t, err)
			answer := askOver(t, all.throughTLS(t, conn, "seen.example"), "GET / HTTP/1.1\r\nHost: seen.example\r\n\r\n")[0]
			return answer.Status + " " + bodyOf(answer)
		}
	}
	plain := func(address, text string) func(t *testing.T) string {
		return func(t *testing.T) string {
			i.serve(address, echo)
			conn, err := dialFromInside(t, n, "tcp4", address)
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
			_, err = conn.Write([]byte(text))
			require.NoError(t, err)
			back := make([]byte, len(text))
			_, err = io.ReadFull(conn, back)
			require.NoError(t, err)
			return string(back)
		}
	}
	for _, row := range []struct {
		what, why string
		run       func(t *testing.T) string
		want      string
	}{
		{"the host by an address from elsewhere", "the handshake names it", seen("203.0.113.5:443"), "200 OK served seen.example /\n"},
		{"the host on another port", "a name counts on every port", seen("203.0.113.5:8443"), "200 OK served seen.example /\n"},
		{"the host at an address that is not its", "values go to where the name leads", seen("203.0.113.6:443"), "403 Forbidden"},
		{"another host", "it passes end to end", tls("203.0.113.7:443", "example.com"), "hello"},
		{"another host's name that does not lead there", "the address is allowed whatever is said to it", tls("203.0.113.7:8443", "example.com"), "hello"},
		{"a request in the clear to another port", "it is not TLS", plain("203.0.113.7:3128", "GET http://elsewhere.example/ HTTP/1.1\r\n\r\n"), "GET http://elsewhere.example/ HTTP/1.1\r\n\r\n"},
		{"another protocol", "it is not TLS", plain("203.0.113.7:5432", "\x00\x00\x00\x08\x04\xd2\x16\x2f"), "\x00\x00\x00\x08\x04\xd2\x16\x2f"},
	} {
		t.Run(row.what, func(t *testing.T) { require.Contains(t, row.run(t), row.want, row.why) })
	}
	for _, d := range n.Destinations() {
		if d.Address == netip.MustParseAddr("203.0.113.7") {
			require.Empty(t, d.Name, "anybody may say a name")
		} else {
			require.Equal(t, "seen.example", d.Name)
		}
	}
}

func TestTextOfAClientThatWaitedIsSentOnceWhereOnlyTLSIsLookedInto(t *testing.T) {
	i := newInternet(t)
	came := make(chan struct{}, 1)
	i.serve("203.0.113.5:3128", func(conn net.Conn) {
		line := make([]byte, len("GET / HTTP/1.1\r\n"))
		_, _ = io.ReadFull(conn, line[:1])
		came <- struct{}{}
		_, _ = io.ReadFull(conn, line[1:])
		_, _ = conn.Write(line)
	})
	n := i.network(open{host: "seen.example"}, withInterceptor(t))
	conn, err := dialFromInside(t, n, "tcp4", "203.0.113.5:3128")
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = conn.Write([]byte("G"))
	require.NoError(t, err)
	<-came
	_, err = conn.Write([]byte("ET / HTTP/1.1\r\n"))
	require.NoError(t, err)
	back := make([]byte, len("GET / HTTP/1.1\r\n"))
	_, err = io.ReadFull(conn, back)
	require.NoError(t, err)
	require.Equal(t, "GET / HTTP/1.1\r\n", string(back))
	require.Equal(t, []string{"203.0.113.5:3128"}, i.wasDialled())
}

func TestServerThatSpeaksFirstIsReachedWhereOnlyTLSIsLookedInto(t *testing.T) {
	i := newInternet(t)
	i.serve("203.0.113.5:2525", func(conn net.Conn) { _, _ = conn.Write([]byte("220 hello\r\n")); echo(conn) })
	n := i.network(open{host: "seen.example"}, withInterceptor(t))
	conn, err := dialFromInside(t, n, "tcp4", "203.0.113.5:2525")
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	greeting := make([]byte, len("220 hello\r\n"))
	_, err = io.ReadFull(conn, greeting)
	require.NoError(t, err)
	require.Equal(t, "220 hello\r\n", string(greeting))
}
