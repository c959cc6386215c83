package zmtp_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/kernel/zmtp"
)

const limit = 1 << 20

// peer is the other end of a connection, which writes bytes as it likes.
type peer struct {
	t    *testing.T
	conn net.Conn
}

func (p peer) write(data ...byte) {
	p.t.Helper()
	_, err := p.conn.Write(data)
	require.NoError(p.t, err)
}

func (p peer) read(n int) []byte {
	p.t.Helper()
	data := make([]byte, n)
	_, err := io.ReadFull(p.conn, data)
	require.NoError(p.t, err)
	return data
}

var (
	greeting = append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, make([]byte, 48)...)
	ready    = append([]byte{4, 26}, "\x05READY\x0bSocket-Type\x00\x00\x00\x04ROUT"...)
)

// open returns a connection whose peer has shaken hands.
func open(t *testing.T, as zmtp.SocketType) (*zmtp.Conn, peer) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	mine, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	theirs, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { mine.Close(); theirs.Close() })
	p := peer{t, theirs}
	p.write(greeting...)
	p.write(ready...)
	c, err := zmtp.Open(mine, as, "", limit)
	require.NoError(t, err)
	p.read(64)
	p.read(int(p.read(2)[1]))
	return c, p
}

func long(flags byte, body []byte) []byte {
	frame := binary.BigEndian.AppendUint64([]byte{flags | 2}, uint64(len(body)))
	return append(frame, body...)
}

func TestMessagesArriveAsTheyWereSent(t *testing.T) {
	c, p := open(t, zmtp.Dealer)
	big := bytes.Repeat([]byte("x"), 300)
	require.NoError(t, c.Send([]byte("a"), nil, big))
	require.Equal(t, append([]byte{1, 1, 'a', 1, 0}, long(0, big)...), p.read(5+9+300))

	p.write(append([]byte{1, 1, 'a', 4, 1, 0, 1, 0}, long(0, big)...)...) // a command in between
	frames, err := c.Receive()
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("a"), {}, big}, frames)
}

func TestATooLargeMessageIsSkipped(t *testing.T) {
	c, p := open(t, zmtp.Sub)
	go func() {
		p.write(1, 1, 'a')
		p.write(long(1, make([]byte, limit))...)
		p.write(0, 1, 'b')
		for range 1024 {
			p.write(1, 0)
		}
		p.write(0, 0)
		p.write(0, 2, 'o', 'k')
	}()
	for range 2 {
		_, err := c.Receive()
		require.ErrorIs(t, err, zmtp.ErrTooLarge)
	}
	frames, err := c.Receive()
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("ok")}, frames)
}

func TestWhatIsNoFrameEndsTheConnection(t *testing.T) {
	for name, data := range map[string][]byte{
		"flags":      {0x80, 1, 'x'},
		"endless":    {2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"cut header": {2, 0, 0},
		"cut body":   {0, 9, 'x'},
	} {
		c, p := open(t, zmtp.Dealer)
		p.write(data...)
		p.conn.Close()
		_, err := c.Receive()
		require.Error(t, err, name)
		require.NotErrorIs(t, err, zmtp.ErrTooLarge, name)
	}
}

func TestHandshakesThatFail(t *testing.T) {
	old := bytes.Clone(greeting)
	old[10] = 2
	curve := bytes.Clone(greeting)
	copy(curve[12:], "CURVE")
	for _, c := range []struct {
		sends []byte
		says  string
	}{
		{[]byte("HTTP/1.1 400 Bad Request\r\n" + strings.Repeat(" ", 64)), "does not speak ZeroMQ"},
		{old, "too old"},
		{curve, "mechanism"},
		{append(bytes.Clone(greeting), 0, 1, 'x'), "something else than a command"},
		{append(bytes.Clone(greeting), 6, 0, 0, 1, 0, 0, 0, 0, 0), "something else than a command"},
		{append(bytes.Clone(greeting), append([]byte{4, 10}, "\x05ERROR\x03bad"...)...), "refused"},
		{greeting[:20], "EOF"},
		{nil, "timeout"},
	} {
		mine, theirs := net.Pipe()
		go func() {
			go io.Copy(io.Discard, theirs)
			theirs.Write(c.sends)
			if c.says == "EOF" {
				theirs.Close()
			}
		}()
		patience := 20 * time.Second
		if c.says == "timeout" {
			patience = time.Second
		}
		require.NoError(t, mine.SetDeadline(time.Now().Add(patience)))
		_, err := zmtp.Open(mine, zmtp.Dealer, "me", limit)
		require.ErrorContains(t, err, c.says)
	}
}

// FuzzReceive checks that no bytes of a peer break the reader or its bounds.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{1, 1, 'a', 0, 1, 'b'})
	f.Add(long(1, []byte("x")))
	f.Fuzz(func(t *testing.T, data []byte) {
		mine, theirs := net.Pipe()
		go io.Copy(io.Discard, theirs)
		go func() {
			theirs.Write(greeting)
			theirs.Write(ready)
			theirs.Write(data)
			theirs.Close()
		}()
		c, err := zmtp.Open(mine, zmtp.Sub, "", 64)
		if err != nil {
			t.Fatal(err)
		}
		for {
			frames, err := c.Receive()
			if err == zmtp.ErrTooLarge {
				continue
			}
			if err != nil {
				return
			}
			size := 0
			for _, frame := range frames {
				size += len(frame)
			}
			if size > 64 {
				t.Fatalf("a message of %d bytes passed", size)
			}
		}
	})
}
