package gateway_test

import (
	"context"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

const benchChunk = 1 << 20

// BenchmarkOut moves data from a kernel socket in the namespace to a listener
// on the host.
func BenchmarkOut(b *testing.B) {
	n := newNetwork(b)
	listener, err := net.Listen("tcp4", hostAddress(b)+":0")
	require.NoError(b, err)
	defer listener.Close()
	received := make(chan int64, 1)
	go drainOne(listener, received)
	conn, err := dialFromInside(b, n, "tcp4", listener.Addr().String())
	require.NoError(b, err)
	pump(b, conn)
	require.EqualValues(b, int64(b.N)*benchChunk, <-received)
}

// looked has every connection looked at, and allows it.
type looked struct{}

func (looked) Decide(_ context.Context, r gateway.Request) gateway.Decision {
	if r.Protocol == gateway.TCP {
		return gateway.Decision{Verdict: gateway.Inspect}
	}
	return gateway.Decision{Verdict: gateway.Allow}
}

// BenchmarkOutInspected is BenchmarkOut for a connection that was judged by what it
// sent first.
func BenchmarkOutInspected(b *testing.B) {
	n := newNetwork(b, withPolicy(looked{}))
	listener, err := net.Listen("tcp4", hostAddress(b)+":0")
	require.NoError(b, err)
	defer listener.Close()
	received := make(chan int64, 1)
	go drainOne(listener, received)
	conn, err := dialFromInside(b, n, "tcp4", listener.Addr().String())
	require.NoError(b, err)
	pump(b, conn)
	require.EqualValues(b, int64(b.N)*benchChunk, <-received)
}

// BenchmarkOpen is 2,000 connections that are opened, carry a byte there and back, and
// stay open. The memory is of both their ends, those of the benchmark too.
func BenchmarkOpen(b *testing.B) {
	const count = 2000
	for b.Loop() {
		n := newNetwork(b)
		address := echoTCP(b).Addr().String()
		before := heap()
		openMany(b, n, address, count)
		b.ReportMetric(float64(heap()-before)/count/1024, "KiB/connection")
		require.EqualValues(b, count, n.Stats().OpenConnections)
		require.NoError(b, n.Close())
	}
}

// BenchmarkIn moves data from DialContext to a kernel socket in the namespace.
func BenchmarkIn(b *testing.B) {
	n := newNetwork(b)
	listener := listenInside(b, n)
	received := make(chan int64, 1)
	go drainOne(listener, received)
	conn, err := n.DialContext(context.Background(), uint16(listener.Addr().(*net.TCPAddr).Port))
	require.NoError(b, err)
	pump(b, conn)
	require.EqualValues(b, int64(b.N)*benchChunk, <-received)
}

// BenchmarkLoopback is the baseline of the two above: plain loopback TCP.
func BenchmarkLoopback(b *testing.B) {
	listener := listenOutside(b)
	received := make(chan int64, 1)
	go drainOne(listener, received)
	conn, err := net.Dial("tcp4", listener.Addr().String())
	require.NoError(b, err)
	pump(b, conn)
	require.EqualValues(b, int64(b.N)*benchChunk, <-received)
}

func drainOne(listener net.Listener, received chan<- int64) {
	conn, err := listener.Accept()
	if err != nil {
		received <- -1
		return
	}
	defer conn.Close()
	var total int64
	buffer := make([]byte, 256<<10)
	for {
		count, err := conn.Read(buffer)
		total += int64(count)
		if err != nil {
			break
		}
	}
	received <- total
}

func pump(b *testing.B, conn net.Conn) {
	chunk := make([]byte, benchChunk)
	b.SetBytes(benchChunk)
	b.ResetTimer()
	for range b.N {
		_, err := conn.Write(chunk)
		require.NoError(b, err)
	}
	require.NoError(b, conn.(interface{ CloseWrite() error }).CloseWrite())
	_, _ = io.Copy(io.Discard, conn) // until the other side has read all
	b.StopTimer()
	conn.Close()
}

// BenchmarkRoundTrip is one byte there and back through DialContext;
// BenchmarkRoundTripLoopback is its baseline.
func BenchmarkRoundTrip(b *testing.B) {
	n := newNetwork(b)
	listener := listenInside(b, n)
	go echoOne(listener)
	conn, err := n.DialContext(context.Background(), uint16(listener.Addr().(*net.TCPAddr).Port))
	require.NoError(b, err)
	pingPong(b, conn)
}

func BenchmarkRoundTripLoopback(b *testing.B) {
	listener := listenOutside(b)
	go echoOne(listener)
	conn, err := net.Dial("tcp4", listener.Addr().String())
	require.NoError(b, err)
	pingPong(b, conn)
}

func echoOne(listener net.Listener) {
	conn, err := listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.Copy(struct{ io.Writer }{conn}, struct{ io.Reader }{conn})
}

func pingPong(b *testing.B, conn net.Conn) {
	defer conn.Close()
	one := make([]byte, 1)
	for b.Loop() {
		_, err := conn.Write(one)
		require.NoError(b, err)
		_, err = io.ReadFull(conn, one)
		require.NoError(b, err)
	}
}

func BenchmarkDial(b *testing.B) {
	n := newNetwork(b)
	listener := listenInside(b, n)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	for b.Loop() {
		conn, err := n.DialContext(context.Background(), port)
		require.NoError(b, err)
		conn.Close()
	}
}

// BenchmarkConnectOut is a connection from inside to a listener on the host and a byte
// there and back, allowed by its address; BenchmarkConnectLoopback is its baseline.
func BenchmarkConnectOut(b *testing.B) {
	n := newNetwork(b)
	address := echoTCP(b).Addr().String()
	require.NoError(b, inside(b, n, func() error { return connectAll(b, address) }))
}

func BenchmarkConnectLoopback(b *testing.B) {
	require.NoError(b, connectAll(b, echoTCP(b).Addr().String()))
}

func connectAll(b *testing.B, address string) error {
	one := make([]byte, 1)
	for b.Loop() {
		conn, err := net.Dial("tcp4", address)
		if err != nil {
			return err
		}
		if _, err = conn.Write(one); err == nil {
			_, err = io.ReadFull(conn, one)
		}
		conn.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkFirstConnection is a question for a name, a connection to what it leads to
// and a TLS handshake which is read and judged before it is handed on, until the first
// byte that the server answers. BenchmarkFirstConnectionUnseen has all that allowed by
// address.
func BenchmarkFirstConnection(b *testing.B) {
	benchmarkFirst(b, &rules{allow: []string{"named.example"}, noFloor: true})
}

func BenchmarkFirstConnectionUnseen(b *testing.B) { benchmarkFirst(b, loopback{}) }

func benchmarkFirst(b *testing.B, p gateway.Policy) {
	listener := echoTCP(b)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(b, err)
	i := newInternet(b)
	i.name("named.example", hostAddress(b))
	n := i.network(p, func(c *gateway.Config) { c.Proxy = nil })
	hello := helloFor(b, "named.example")
	query := new(dns.Msg)
	query.SetQuestion("named.example.", dns.TypeA)
	require.NoError(b, inside(b, n, func() error {
		for b.Loop() {
			answer, _, err := new(dns.Client).Exchange(query, "10.0.0.1:53")
			if err != nil {
				return err
			}
			conn, err := net.Dial("tcp4", net.JoinHostPort(answer.Answer[0].(*dns.A).A.String(), port))
			if err != nil {
				return err
			}
			if _, err = conn.Write(hello); err == nil {
				_, err = io.ReadFull(conn, hello)
			}
			conn.Close()
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

func BenchmarkNewClose(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		n, err := gateway.New(context.Background(), gateway.Config{Dir: dir})
		require.NoError(b, err)
		require.NoError(b, n.Close())
	}
}

// BenchmarkIdle reports the memory of a network without traffic.
func BenchmarkIdle(b *testing.B) {
	const count = 50
	for b.Loop() {
		before := heap()
		networks := make([]*gateway.Network, count)
		for i := range networks {
			networks[i] = newNetwork(b)
		}
		b.ReportMetric(float64(heap()-before)/count/1024, "KiB/network")
		for _, n := range networks {
			require.NoError(b, n.Close())
		}
	}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapInuse + stats.StackInuse
}
