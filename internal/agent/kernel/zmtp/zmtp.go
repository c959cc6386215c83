// Package zmtp is one connection of ZeroMQ's transport protocol (ZMTP 3.0, RFC
// 23) from the client's side, as far as the client of a Jupyter kernel needs it:
// the NULL mechanism, as DEALER or SUB, over a stream that is connected.
//
// It exists because the other end is hostile: it holds a bound on what a message
// may take, and a message over it costs no memory and not the connection.
package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A SocketType is what a connection is to its peer.
type SocketType string

// What a client of a Jupyter kernel connects as.
const (
	Dealer SocketType = "DEALER" // to a ROUTER
	Sub    SocketType = "SUB"    // to a PUB or XPUB
)

// maxFrames bounds the frames of one message; Jupyter's have 6 and one for each
// binary buffer.
const maxFrames = 1024

// maxReady bounds the handshake command of a peer, bytes.
const maxReady = 4 << 10

// sendTimeout bounds how long a peer may not read what is sent to it.
const sendTimeout = 5 * time.Second

// ErrTooLarge says that a message had more bytes or frames than allowed. It was
// read to its end and thrown away: the connection goes on.
var ErrTooLarge = errors.New("the message is too large")

// A Conn is an open connection. Receive may run in one goroutine while another
// sends; neither may run twice at once.
type Conn struct {
	conn       net.Conn
	in         *bufio.Reader
	maxMessage int
}

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// Open shakes hands over a connected stream, within the deadline that the caller
// has set on it, and clears that. A ROUTER knows the connection by the identity,
// at most 255 bytes, empty for one of its choice. A message of the peer may have
// maxMessage bytes. The stream is the Conn's, also after an error.
func Open(conn net.Conn, as SocketType, identity string, maxMessage int) (*Conn, error) {
	c := &Conn{conn: conn, in: bufio.NewReaderSize(conn, 64<<10), maxMessage: maxMessage}
	if err := c.handshake(as, identity); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("ZeroMQ handshake: %w", err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *Conn) handshake(as SocketType, identity string) error {
	if _, err := c.conn.Write(greeting()); err != nil {
		return err
	}
	var theirs [64]byte
	if _, err := io.ReadFull(c.in, theirs[:]); err != nil {
		return err
	}
	if theirs[0] != 0xff || theirs[9] != 0x7f {
		return errors.New("the peer does not speak ZeroMQ")
	}
	if theirs[10] < 3 {
		return fmt.Errorf("the peer speaks version %d of the protocol, which is too old", theirs[10])
	}
	if mechanism := string(theirs[12:17]); mechanism != "NULL\x00" {
		return fmt.Errorf("the peer wants the mechanism %.20q", theirs[12:32])
	}
	if _, err := c.conn.Write(ready(as, identity)); err != nil {
		return err
	}
	flags, size, err := c.header()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || size > maxReady {
		return errors.New("the peer sent something else than a command")
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.in, body); err != nil {
		return err
	}
	if len(body) < 6 || string(body[:6]) != "\x05READY" {
		return fmt.Errorf("the peer refused: %.80q", body)
	}
	return nil
}

// greeting is signature, version 3.0, mechanism, "not the server", filler.
func greeting() []byte {
	var g [64]byte
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	return g[:]
}

func ready(as SocketType, identity string) []byte {
	body := []byte("\x05READY\x0bSocket-Type")
	body = binary.BigEndian.AppendUint32(body, uint32(len(as)))
	body = append(body, as...)
	if identity != "" {
		body = append(body, "\x08Identity"...)
		body = binary.BigEndian.AppendUint32(body, uint32(len(identity)))
		body = append(body, identity...)
	}
	if len(body) <= 255 {
		return append([]byte{flagCommand, byte(len(body))}, body...)
	}
	return append(binary.BigEndian.AppendUint64([]byte{flagCommand | flagLong}, uint64(len(body))), body...)
}

// Subscribe asks a publisher for all messages, as a connection of type Sub must
// before it receives any.
func (c *Conn) Subscribe() error { return c.Send([]byte{1}) }

// Send sends one message. After an error the connection is of no use.
func (c *Conn) Send(frames ...[]byte) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	var message []byte
	for i, frame := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags |= flagMore
		}
		if len(frame) > 255 {
			message = append(message, flags|flagLong)
			message = binary.BigEndian.AppendUint64(message, uint64(len(frame)))
		} else {
			message = append(message, flags, byte(len(frame)))
		}
		message = append(message, frame...)
	}
	_, err := c.conn.Write(message)
	return err
}

// Receive returns the frames of the next message. Any error but [ErrTooLarge]
// is the end of the connection.
func (c *Conn) Receive() ([][]byte, error) {
	var frames [][]byte
	left, tooLarge := c.maxMessage, false
	for {
		flags, size, err := c.header()
		if err != nil {
			return nil, err
		}
		switch {
		case flags&flagCommand != 0, tooLarge, size > uint64(left), len(frames) >= maxFrames:
			if flags&flagCommand == 0 {
				tooLarge, frames = true, nil
			}
			if err := c.skip(size); err != nil {
				return nil, err
			}
			if flags&flagCommand != 0 {
				continue // none that a 3.0 peer has to answer
			}
		default:
			frame := make([]byte, size)
			if _, err := io.ReadFull(c.in, frame); err != nil {
				return nil, err
			}
			left -= len(frame)
			frames = append(frames, frame)
		}
		if flags&flagMore != 0 {
			continue
		}
		if tooLarge {
			return nil, ErrTooLarge
		}
		return frames, nil
	}
}

// header reads what precedes the body of a frame.
func (c *Conn) header() (flags byte, size uint64, err error) {
	flags, err = c.in.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, 0, fmt.Errorf("a ZeroMQ frame has the flags %#x, which do not exist", flags)
	}
	if flags&flagLong == 0 {
		short, err := c.in.ReadByte()
		return flags, uint64(short), err
	}
	var long [8]byte
	if _, err := io.ReadFull(c.in, long[:]); err != nil {
		return 0, 0, err
	}
	return flags, binary.BigEndian.Uint64(long[:]), nil
}

func (c *Conn) skip(size uint64) error {
	if size > 1<<62 {
		return fmt.Errorf("a ZeroMQ frame claims to have %d bytes", size)
	}
	_, err := io.CopyN(io.Discard, c.in, int64(size))
	return err
}

// Close ends the connection; a Receive that waits returns an error.
func (c *Conn) Close() error { return c.conn.Close() }
