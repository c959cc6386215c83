package gateway_test

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

func echoDatagrams(t *testing.T) net.PacketConn {
	t.Helper()
	server, err := net.ListenPacket("udp4", hostAddress(t)+":0")
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	go func() {
		buffer := make([]byte, 65535)
		for {
			count, from, err := server.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(buffer[:count], from)
		}
	}()
	return server
}

func TestDatagramsAreCarriedBothWays(t *testing.T) {
	n := newNetwork(t)
	conn, err := dialFromInside(t, n, "udp4", echoDatagrams(t).LocalAddr().String())
	require.NoError(t, err)
	for _, size := range []int{1, 1400, 40000, 60000} {
		sent := make([]byte, size)
		_, err = conn.Write(sent)
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		got := make([]byte, 65535)
		count, err := conn.Read(got)
		require.NoError(t, err, "%d bytes", size)
		require.Equal(t, size, count)
	}
}

func TestFlowsEndWhenIdleAndAreLimited(t *testing.T) {
	const limit = 8
	n := newNetwork(t, func(c *gateway.Config) {
		c.Limits = gateway.Limits{UDPFlows: limit, UDPIdle: 3 * time.Second}
	})
	server := echoDatagrams(t).LocalAddr().String()
	for range 3 * limit {
		conn, err := dialFromInside(t, n, "udp4", server)
		require.NoError(t, err)
		_, err = conn.Write([]byte("x"))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return n.Stats().OverLimit > 0 }, 20*time.Second, time.Millisecond)
	require.LessOrEqual(t, n.Stats().UDPFlows, int64(limit))
	require.Eventually(t, func() bool { return n.Stats().UDPFlows == 0 }, 20*time.Second, time.Millisecond)
}

func TestDatagramsThatReachNobodyAreRefusedInside(t *testing.T) {
	closed, err := net.ListenPacket("udp4", hostAddress(t)+":0")
	require.NoError(t, err)
	closed.Close()
	n := newNetwork(t)
	for what, address := range map[string]string{
		"a closed port": closed.LocalAddr().String(),
		"denied":        "10.0.0.1:5353",
	} {
		conn, err := dialFromInside(t, n, "udp4", address)
		require.NoError(t, err)
		_, err = conn.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNREFUSED, what)
	}
}

// Each flow and each question is work for this process, and a packet for the host.
func TestNewFlowsAndQuestionsAreLimited(t *testing.T) {
	i := newInternet(t)
	n := i.network(gateway.DenyAll{}, func(c *gateway.Config) { c.Limits.NewFlows, c.Limits.Questions = 1, 1 })
	flood := func(to string, message []byte) uint64 {
		before := n.Stats().OverLimit
		for range 20 {
			conn, err := dialFromInside(t, n, "udp", to)
			require.NoError(t, err)
			_, _ = conn.Write(message) // refused ones are told at once
			_ = conn.Close()
		}
		require.Eventually(t, func() bool { return n.Stats().OverLimit > before }, 20*time.Second, time.Millisecond)
		return n.Stats().OverLimit - before
	}
	flood("203.0.113.5:9", []byte("x"))
	question := new(dns.Msg)
	question.SetQuestion("a.example.", dns.TypeA)
	packed, err := question.Pack()
	require.NoError(t, err)
	flood("10.0.0.1:53", packed)
	require.Less(t, n.Stats().Questions, uint64(20))
}
