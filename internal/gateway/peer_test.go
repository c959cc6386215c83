package gateway_test

import (
	"context"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// The tests play the sandbox with the kernel's own TCP/IP: a socket made on a
// thread that has entered the network's namespace sends through the TAP.

// loopback allows everything, so that tests reach listeners on this machine.
type loopback struct{}

func (loopback) Decide(context.Context, gateway.Request) gateway.Decision {
	return gateway.Decision{Verdict: gateway.Allow, Reason: "test"}
}

func newNetwork(t testing.TB, change ...func(*gateway.Config)) *gateway.Network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	cfg := gateway.Config{Dir: t.TempDir(), Policy: loopback{}}
	for _, c := range change {
		c(&cfg)
	}
	n, err := gateway.New(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

func withPolicy(p gateway.Policy) func(*gateway.Config) {
	return func(c *gateway.Config) { c.Policy = p }
}

// inside runs fn on a thread in the namespace; sockets fn makes stay in it.
func inside(t testing.TB, n *gateway.Network, fn func() error) error {
	t.Helper()
	ns, err := os.Open(n.NamespacePath())
	require.NoError(t, err)
	defer ns.Close()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- fn()
	}()
	return <-result
}

func dialFromInside(t testing.TB, n *gateway.Network, network, address string) (conn net.Conn, err error) {
	err = inside(t, n, func() error {
		conn, err = net.DialTimeout(network, address, 10*time.Second)
		return err
	})
	if err == nil {
		t.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

func listenInside(t testing.TB, n *gateway.Network) net.Listener {
	t.Helper()
	var listener net.Listener
	require.NoError(t, inside(t, n, func() (err error) {
		listener, err = net.Listen("tcp4", "10.0.0.2:0")
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	return listener
}

func listenOutside(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	return listener
}
