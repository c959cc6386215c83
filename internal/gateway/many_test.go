package gateway_test

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

func echoTCP(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	go serveEach(listener, echo)
	return listener
}

// openMany opens connections from inside and has each carry a byte there and back.
func openMany(t testing.TB, n *gateway.Network, address string, count int) {
	t.Helper()
	require.NoError(t, inside(t, n, func() error {
		for range count {
			conn, err := net.DialTimeout("tcp4", address, 10*time.Second)
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
			if _, err := conn.Write([]byte("x")); err != nil {
				return err
			}
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestTwoThousandConnectionsAreOpenAtOnce(t *testing.T) {
	const count = 2000
	n := newNetwork(t)
	address := echoTCP(t).Addr().String()
	before := heap()
	openMany(t, n, address, count)
	require.EqualValues(t, count, n.Stats().OpenConnections)
	// The figure is of both ends of each connection, the tests' own included.
	t.Logf("%d KiB for each connection", (heap()-before)/count/1024)
	openMany(t, n, address, 1)
}

func TestConnectionsThatAreBegunAreLimited(t *testing.T) {
	n := newNetwork(t, func(c *gateway.Config) { c.Limits = gateway.Limits{NewConnections: 5} })
	address := echoTCP(t).Addr().String()
	refused := 0
	for range 50 {
		conn, err := dialFromInside(t, n, "tcp4", address)
		if err != nil {
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			refused++
			continue
		}
		conn.Close()
	}
	require.NotZero(t, refused)
	require.EqualValues(t, refused, n.Stats().OverLimit)
}

func TestBandwidthIsLimited(t *testing.T) {
	for _, row := range []struct{ limit, size int }{
		{4 << 20, 1 << 20},
		{1 << 20, 512 << 10}, // a tenth of a second's bytes are less than a packet and what waits with it
		{64 << 10, 192 << 10},
	} {
		t.Run(fmt.Sprintf("%d KiB a second", row.limit>>10), func(t *testing.T) { bandwidthIsLimited(t, row.limit, row.size) })
	}
}

func bandwidthIsLimited(t *testing.T, limit, size int) {
	i := newInternet(t)
	i.serve("203.0.113.5:9", echo)
	n := i.network(loopback{}, func(c *gateway.Config) { c.Limits = gateway.Limits{BandwidthOut: limit, BandwidthIn: limit} })
	conn, err := dialFromInside(t, n, "tcp4", "203.0.113.5:9")
	require.NoError(t, err)
	start := time.Now()
	carryBoth(t, conn, size)
	// A tenth of a second's bytes, or twice what is moved at once, may come at once.
	require.GreaterOrEqual(t, time.Since(start), time.Second*time.Duration(size-max(limit/10, 128<<10))/time.Duration(limit))
	require.Zero(t, n.Stats().Panics)

	n.SetLimits(gateway.Limits{}) // also for what is open
	carryBoth(t, conn, 16<<20)
}

func carryBoth(t *testing.T, conn net.Conn, size int) {
	t.Helper()
	go func() { _, _ = conn.Write(make([]byte, size)) }()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err := io.CopyN(io.Discard, conn, int64(size))
	require.NoError(t, err)
}

// TestConnectionsThatNobodyReadsHoldLittle has a server send without end to programs that
// read nothing.
func TestConnectionsThatNobodyReadsHoldLittle(t *testing.T) {
	const count = 200
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	piece := make([]byte, 64<<10)
	go serveEach(listener, func(conn net.Conn) {
		for err := error(nil); err == nil; {
			_, err = conn.Write(piece)
		}
	})
	n := newNetwork(t, func(c *gateway.Config) { c.Limits = gateway.Limits{BufferBytes: 1 << 20} })
	before := heap()
	require.NoError(t, inside(t, n, func() error {
		dialer := net.Dialer{Timeout: 10 * time.Second, Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1) })
		}}
		for range count {
			conn, err := dialer.Dial("tcp4", listener.Addr().String())
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
		}
		return nil
	}))
	last := uint64(0)
	require.Eventually(t, func() bool { // until nothing moves any more
		now := uint64(0)
		for _, d := range n.Destinations() {
			now += d.BytesIn
		}
		still := now == last
		last = now
		return still
	}, time.Minute, time.Second)
	runtime.GC() // the first pass only takes things out of pools
	held := int64(heap()) - int64(before)
	t.Logf("%d KiB for each connection", held/count/1024)
	require.Less(t, held, int64(count*64<<10), "what waits for those who do not read stays in the host's sockets")
}
