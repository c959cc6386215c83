package gateway_test

import (
	"context"
	"io"
	"net"
	"runtime"
	"testing"

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
