package edge

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConnectionsBeyondTheBoundWaitForAPlace(t *testing.T) {
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &boundedListener{Listener: raw, places: make(chan struct{}, 2), closed: make(chan struct{})}
	accepted := make(chan net.Conn)
	failed := make(chan error, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				failed <- err
				return
			}
			accepted <- conn
		}
	}()
	for range 3 {
		conn, err := net.Dial("tcp", raw.Addr().String())
		require.NoError(t, err)
		defer conn.Close()
	}
	first, second := <-accepted, <-accepted
	select {
	case <-accepted:
		t.Fatal("a third one was accepted")
	case <-time.After(50 * time.Millisecond):
	}
	first.Close()
	first.Close() // gives one place back, not two
	third := <-accepted
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-failed, net.ErrClosed, "closing ends the wait for a place")
	second.Close()
	third.Close()
	require.Empty(t, l.places)
}
