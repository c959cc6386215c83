package gateway_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// A sandbox cannot route to 127.0.0.1 through its device, so tests reach the
// host by an address of its own on another interface.
func hostAddress(t testing.TB) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, address := range addresses {
		if ip := address.(*net.IPNet).IP.To4(); ip != nil && !ip.IsLoopback() {
			return ip.String()
		}
	}
	t.Skip("the host has no IPv4 address besides loopback")
	return ""
}

func TestConnectionOutIsCarriedBothWaysAndHalfCloses(t *testing.T) {
	n := newNetwork(t)
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	go func() { // answers only after the end of the question
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		question, _ := io.ReadAll(conn)
		_, _ = conn.Write([]byte(strings.ToUpper(string(question))))
	}()

	conn, err := dialFromInside(t, n, "tcp4", listener.Addr().String())
	require.NoError(t, err)
	_, err = conn.Write([]byte("hello"))
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "HELLO", string(answer))
}

func TestRefusedOutsideIsRefusedInside(t *testing.T) {
	n := newNetwork(t)
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	listener.Close()
	_, err = dialFromInside(t, n, "tcp4", listener.Addr().String())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestDeniedIsResetAndReported(t *testing.T) {
	events := make(chan gateway.Event, 10)
	n := newNetwork(t, withPolicy(gateway.NewPublic()), func(c *gateway.Config) {
		c.OnDecision = func(e gateway.Event) { events <- e }
	})
	for _, address := range []string{"169.254.169.254:80", "10.0.0.1:80", "192.168.1.1:22"} {
		_, err := dialFromInside(t, n, "tcp4", address)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, address)
		event := <-events
		require.Equal(t, address, event.Request.Destination.String())
		require.False(t, event.Decision.Allowed())
		require.NotEmpty(t, event.Decision.Reason)
	}
}

func TestConnectionToNoSingleHostIsRefusedAtOnce(t *testing.T) {
	n := newNetwork(t, withPolicy(gateway.NewPublic()))
	for _, address := range []string{"224.0.0.1:80", "239.255.255.250:1900", "240.0.0.1:80"} {
		_, err := dialFromInside(t, n, "tcp4", address)
		require.Error(t, err, address)
		require.True(t, errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH), "%s: %v", address, err)
	}
}

func TestOfIPv6OnlyLoopbackIsThere(t *testing.T) {
	n := newNetwork(t)
	require.NoError(t, inside(t, n, func() error {
		listener, err := net.Listen("tcp6", "[::1]:0")
		if err != nil {
			return err
		}
		return listener.Close()
	}))
	_, err := dialFromInside(t, n, "tcp6", "[2001:4860:4860::8888]:443")
	require.ErrorIs(t, err, syscall.ENETUNREACH)
}

func TestDialIntoTheSandbox(t *testing.T) {
	n := newNetwork(t)
	listener := listenInside(t, n)
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	conn, err := n.DialContext(context.Background(), port)
	require.NoError(t, err)
	peer, err := listener.Accept()
	require.NoError(t, err)
	require.Equal(t, "10.0.0.1", peer.RemoteAddr().(*net.TCPAddr).IP.String())
	go func() {
		_, _ = io.Copy(peer, peer)
		peer.Close()
	}()
	_, err = conn.Write([]byte("ping"))
	require.NoError(t, err)
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "ping", string(answer))

	listener.Close()
	_, err = n.DialContext(context.Background(), port)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestNothingIsLeft(t *testing.T) {
	runtime.GC() // finalizers close what earlier tests dropped
	before := residue(t)
	for range 200 {
		dir := t.TempDir()
		n, err := gateway.New(context.Background(), gateway.Config{Dir: dir})
		require.NoError(t, err)
		require.NoError(t, n.Close())
		require.NoError(t, n.Close(), "closing again")
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
	deadline := time.Now().Add(30 * time.Second)
	for now := residue(t); now.exceeds(before); now = residue(t) {
		require.True(t, time.Now().Before(deadline), "before: %+v, now: %+v", before, now)
		runtime.Gosched()
	}
}

type remains struct{ files, mounts, goroutines int }

func residue(t *testing.T) remains {
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	return remains{len(files), strings.Count(string(mounts), "\n"), runtime.NumGoroutine()}
}

func (r remains) exceeds(other remains) bool {
	return r.files > other.files || r.mounts > other.mounts || r.goroutines > other.goroutines
}
