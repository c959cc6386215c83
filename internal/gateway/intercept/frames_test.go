package intercept_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

// Each row is what a destination sends in a WebSocket, byte by byte, and what must
// come in before the connection ends.
func TestFramesThatComeIn(t *testing.T) {
	rows := []struct{ name, send, want string }{
		{"message", "\x81\x02hi", "\x81\x02hi"},
		{"message with the secret", "\x81\x14" + secret, "\x81\x04" + placeholder},
		{"empty message", "\x82\x00", "\x82\x00"},
		{"secret over two frames", "\x01\x03sk-" + "\x80\x11very-secret-value", "\x01\x04" + placeholder + "\x80\x00"},
		{"ping within a message", "\x01\x01a" + "\x89\x01p" + "\x80\x01b", "\x01\x01a" + "\x89\x01p" + "\x00\x01b" + "\x80\x00"},
		{"ping with the secret", "\x89\x14" + secret, "\x89\x04" + placeholder},
		{"close", "\x88\x05\x03\xe8bye", "\x88\x05\x03\xe8bye"},
		{"masked", "\x81\x81\x00\x00\x00\x00a", ""},
		{"with an extension", "\xc1\x01a", ""},
		{"continuation of nothing", "\x80\x01a", ""},
		{"unknown kind", "\x83\x01a", ""},
		{"message within a message", "\x01\x01a" + "\x81\x01b", "\x01\x01a"},
		{"ping that is too long", "\x89\x7e\x00\x7e" + strings.Repeat("x", 126), ""},
		{"ping in pieces", "\x09\x01p", ""},
		{"cut off", "\x81\x05hi", ""},
		{"cut off in its head", "\x81\x7e\x00", ""},
		{"length beyond all", "\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff" + "abc", "\x02\x03abc"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			to := startServer(t, true, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n%s", row.send)
				c.Close()
			}))
			w := inWorld(t, to, encrypted, intercept.Config{})
			w.rewrite = scrubs(secret, placeholder)
			c := w.connect("http/1.1")
			_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n")
			require.NoError(t, err)
			answers := bufio.NewReader(c)
			res, err := http.ReadResponse(answers, nil)
			require.NoError(t, err)
			require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
			got, _ := io.ReadAll(answers)
			require.Equal(t, row.want, string(got))
		})
	}
}

// A destination may not switch to what was not asked for.
func TestSwitchThatNobodyAskedFor(t *testing.T) {
	to := startServer(t, true, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\nanything")
		c.Close()
	}))
	w := inWorld(t, to, encrypted, intercept.Config{})
	res, err := w.client(false).Get(w.url("/"))
	require.NoError(t, err)
	require.Equal(t, http.StatusBadGateway, res.StatusCode)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), "without being asked")
}
