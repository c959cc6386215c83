package gateway_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// approves lets everything pass, names after a while, and at last not one address.
type approves struct {
	look   gateway.Verdict // of connections
	closed netip.Addr
	now    atomic.Bool // closed is
}

func (p *approves) Decide(_ context.Context, r gateway.Request) gateway.Decision {
	switch {
	case r.Protocol == gateway.DNS:
		return gateway.Decision{Verdict: gateway.Later}
	case r.Protocol == gateway.DNSAnswer && r.Destination.Addr() == p.closed && p.now.Load():
		return gateway.Decision{Reason: "closed"}
	case r.Protocol == gateway.TCP:
		return gateway.Decision{Verdict: p.look}
	}
	return gateway.Decision{Verdict: gateway.Allow}
}

// What a name led to is not known when a connection to what stands for it is judged. Rules on
// addresses that come later count all the same.
func TestRecheckLooksAtTheAddressThatAHeldNameLedTo(t *testing.T) {
	for what, look := range map[string]gateway.Verdict{"passed": gateway.Allow, "carried request by request": gateway.Inspect} {
		t.Run(what, func(t *testing.T) {
			i := newInternet(t)
			i.name("a.example", "203.0.113.5")
			ended := make(chan struct{}, 8) // connections to the address that have ended
			i.serve("203.0.113.5:80", func(conn net.Conn) {
				webServer(conn)
				_, _ = io.Copy(io.Discard, conn)
				ended <- struct{}{}
			})
			p := &approves{look: look, closed: netip.MustParseAddr("203.0.113.5")}
			n := i.network(p, withInterceptor(t))
			conn, err := connect(t, n, "a.example", "80")
			require.NoError(t, err)
			answer := askOver(t, conn, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")[0]
			require.Equal(t, "served a.example /\n", bodyOf(answer))

			require.NoError(t, n.Recheck(t.Context()))
			require.Equal(t, 200, askOver(t, conn, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")[0].StatusCode, "nothing changed")
			p.now.Store(true)
			require.NoError(t, n.Recheck(t.Context()))
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				require.Fail(t, "the connection to the address is still open")
			}
			if look == gateway.Allow {
				_, err = conn.Read(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
			} else {
				require.Equal(t, 502, askOver(t, conn, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")[0].StatusCode, "nor is another one made")
			}
		})
	}
}
