package gateway_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// quiet is how long nothing may be seen of what a held network keeps back.
const quiet = 300 * time.Millisecond

// pair is a connection out, both its ends.
func pair(t *testing.T, n *gateway.Network) (inside, outside net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	inside, err = dialFromInside(t, n, "tcp4", listener.Addr().String())
	require.NoError(t, err)
	outside, err = listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { outside.Close() })
	return inside, outside
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	_, err := conn.Write([]byte(text))
	require.NoError(t, err)
}

func expect(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	got := make([]byte, len(text))
	_, err := io.ReadFull(conn, got)
	require.NoError(t, err, "waiting for %q", text)
	require.Equal(t, text, string(got))
}

func expectNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(quiet)))
	count, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "read %d bytes", count)
}

func TestHeldNetworkCarriesNothingAndLosesNothing(t *testing.T) {
	n := newNetwork(t)
	inside, outside := pair(t, n)
	send(t, inside, "before")
	expect(t, outside, "before")
	for range 3 {
		n.Hold()
		n.Hold() // again, to no effect
		frames := n.Stats()
		send(t, inside, "from inside")
		send(t, outside, "from outside")
		expectNothing(t, inside)
		expectNothing(t, outside)
		require.Equal(t, frames.BytesOut, n.Stats().BytesOut, "frames were taken from the sandbox")
		require.Equal(t, frames.BytesIn, n.Stats().BytesIn, "frames were sent to the sandbox")
		n.Release()
		expect(t, inside, "from outside")
		expect(t, outside, "from inside")
	}
	n.Release() // of what is not held
	send(t, inside, "after")
	expect(t, outside, "after")
}

// TestHoldIsInForceWhenItReturns holds a network whose sandbox sends all the
// time.
func TestHoldIsInForceWhenItReturns(t *testing.T) {
	n := newNetwork(t)
	inside, outside := pair(t, n)
	var copying sync.WaitGroup
	copying.Go(func() { _, _ = io.Copy(io.Discard, outside) })
	copying.Go(func() {
		chunk := make([]byte, 64<<10)
		for {
			if _, err := inside.Write(chunk); err != nil {
				return
			}
		}
	})
	for range 20 {
		moved := n.Stats().BytesOut
		require.Eventually(t, func() bool { return n.Stats().BytesOut > moved+1<<20 }, 10*time.Second, time.Millisecond)
		n.Hold()
		before := n.Stats()
		time.Sleep(10 * time.Millisecond) // in which a leak would show
		after := n.Stats()
		require.Equal(t, before.BytesOut, after.BytesOut)
		require.Equal(t, before.BytesIn, after.BytesIn)
		n.Release()
	}
	inside.Close()
	outside.Close()
	copying.Wait()
}

func TestBytesAreCompleteAfterManyHolds(t *testing.T) {
	n := newNetwork(t)
	inside, outside := pair(t, n)
	const size = 64 << 20
	sums := make(chan [2][sha256.Size]byte, 2)
	var moving sync.WaitGroup
	move := func(from, to net.Conn) {
		var pair [2][sha256.Size]byte
		var ends sync.WaitGroup
		ends.Go(func() {
			sum, chunk := sha256.New(), make([]byte, 64<<10)
			for i := range size / len(chunk) {
				chunk[0], chunk[len(chunk)/2] = byte(i), byte(i>>8)
				sum.Write(chunk)
				if _, err := from.Write(chunk); err != nil {
					t.Errorf("write: %v", err)
					return
				}
			}
			pair[0] = [sha256.Size]byte(sum.Sum(nil))
		})
		ends.Go(func() {
			sum := sha256.New()
			if _, err := io.CopyN(sum, to, size); err != nil {
				t.Errorf("read: %v", err)
			}
			pair[1] = [sha256.Size]byte(sum.Sum(nil))
		})
		ends.Wait()
		sums <- pair
	}
	moving.Go(func() { move(inside, outside) })
	moving.Go(func() { move(outside, inside) })
	done := make(chan struct{})
	go func() {
		moving.Wait()
		close(done)
	}()
	held := 0
	for over := false; !over; {
		n.Hold()
		held++
		time.Sleep(5 * time.Millisecond) // held for as long as the room for frames lasts and longer
		n.Release()
		select {
		case <-done:
			over = true
		case <-time.After(5 * time.Millisecond):
		}
	}
	require.Greater(t, held, 2)
	for range 2 {
		pair := <-sums
		require.Equal(t, pair[0], pair[1])
	}
}

func TestConnectionsOutliveALongHold(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	inside, outside := pair(t, n)
	listener := listenInside(t, n)
	in, err := n.DialContext(context.Background(), uint16(listener.Addr().(*net.TCPAddr).Port))
	require.NoError(t, err)
	defer in.Close()
	peer, err := listener.Accept()
	require.NoError(t, err)
	defer peer.Close()
	n.Hold()
	for _, conn := range []net.Conn{inside, outside, in, peer} {
		send(t, conn, "held")
	}
	time.Sleep(10 * time.Second) // a pause that fails may take as long
	n.Release()
	for _, conn := range []net.Conn{inside, outside, in, peer} {
		expect(t, conn, "held")
	}
}

func TestDatagramsNamesAndDiallingWaitForRelease(t *testing.T) {
	n := newNetwork(t, withResolvers(upstream(t, zone(t, "name.example. 60 A 198.51.100.7"))))
	conn, err := dialFromInside(t, n, "udp4", echoDatagrams(t).LocalAddr().String())
	require.NoError(t, err)
	send(t, conn, "before")
	expect(t, conn, "before")
	listener := listenInside(t, n)

	n.Hold()
	answered, dialled := make(chan *dns.Msg, 1), make(chan error, 1)
	go func() { answered <- ask(t, n, "udp", "name.example.", dns.TypeA) }()
	go func() {
		c, err := n.DialContext(context.Background(), uint16(listener.Addr().(*net.TCPAddr).Port))
		if err == nil {
			c.Close()
		}
		dialled <- err
	}()
	send(t, conn, "held")
	expectNothing(t, conn)
	require.Empty(t, answered)
	require.Empty(t, dialled)
	n.Release()
	expect(t, conn, "held")
	require.Len(t, (<-answered).Answer, 1)
	require.NoError(t, <-dialled)
}

func TestWhatWaitsIsNeverSeenWhenAHeldNetworkIsClosed(t *testing.T) {
	server, err := net.ListenPacket("udp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer server.Close()
	n := newNetwork(t)
	inside, outside := pair(t, n)
	flow, err := dialFromInside(t, n, "udp4", server.LocalAddr().String())
	require.NoError(t, err)
	send(t, flow, "before")
	buffer := make([]byte, 100)
	count, _, err := server.ReadFrom(buffer)
	require.NoError(t, err)
	require.Equal(t, "before", string(buffer[:count]))
	listener := listenInside(t, n)
	in, err := n.DialContext(context.Background(), uint16(listener.Addr().(*net.TCPAddr).Port))
	require.NoError(t, err)

	n.Hold()
	send(t, inside, "late")
	send(t, flow, "late")
	began := time.Now()
	require.NoError(t, n.Close())
	require.Less(t, time.Since(began), 20*time.Second)
	n.Hold() // of what is closed
	n.Release()

	require.NoError(t, outside.SetReadDeadline(time.Now().Add(20*time.Second)))
	got, err := io.ReadAll(outside)
	require.Empty(t, got)
	require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "the outside should see the end at once")
	_, err = in.Read(buffer)
	require.ErrorIs(t, err, gateway.ErrClosed)
	require.NoError(t, server.SetReadDeadline(time.Now().Add(quiet)))
	_, _, err = server.ReadFrom(buffer)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestHoldAndCloseMayComeTogether(t *testing.T) {
	for range 50 {
		n := newNetwork(t)
		inside, _ := pair(t, n)
		var all sync.WaitGroup
		for _, do := range []func(){n.Hold, n.Release, n.Hold, func() { _ = n.Close() }} {
			all.Go(do)
		}
		all.Go(func() { _, _ = inside.Write(make([]byte, 1000)) })
		all.Wait()
	}
}
