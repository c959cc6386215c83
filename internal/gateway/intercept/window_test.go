package intercept_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

// What a destination sends is held until the client takes it: so what it may send before
// that is bounded, as the number of requests is.
func TestLittleIsHeldOfAnswersThatNobodyTakes(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	said := make(chan [2]uint32, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
		frames := http2.NewFramer(io.Discard, conn)
		var stream, connection uint32
		for {
			frame, err := frames.ReadFrame()
			if err != nil {
				return
			}
			switch f := frame.(type) {
			case *http2.SettingsFrame:
				stream, _ = f.Value(http2.SettingInitialWindowSize)
			case *http2.WindowUpdateFrame:
				connection = f.Increment
			case *http2.HeadersFrame:
				said <- [2]uint32{stream, connection}
				return
			}
		}
	}()
	w := inWorld(t, nil, gateway.Intercepted{Name: "localhost"}, intercept.Config{})
	w.dial = func(ctx context.Context, _ gateway.Request) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	}
	res, err := w.client(true).Get(w.url("/"))
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusBadGateway, res.StatusCode)
	windows := <-said
	require.LessOrEqual(t, windows[0], uint32(256<<10), "of one answer")
	require.LessOrEqual(t, windows[1], uint32(4<<20), "of a connection")
}
