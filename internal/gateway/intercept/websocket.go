package intercept

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// Frames of WebSocket, RFC 6455, section 5.2.
const (
	frameFinal    = 0x80 // of the first byte
	frameReserved = 0x70
	frameOpcode   = 0x0f
	frameMasked   = 0x80 // of the second byte
	frameLength   = 0x7f

	opContinuation = 0
	opBinary       = 2
	opControl      = 8 // and above

	maxControl = 125 // bytes
	// maxBetween bounds the control frames kept until there is more of the message that
	// they came within, bytes.
	maxBetween = 16 << 10
	// maxPiece is how much of a message is sent on in one frame, bytes.
	maxPiece = 32 << 10
)

var (
	errFrame   = errors.New("it sent a malformed WebSocket frame")
	errNoWrite = errors.New("the WebSocket cannot be written to")
)

// scrubWebSocket has the messages that come in scrubbed. A message is sent on in frames
// of other lengths than it came in; what goes out passes as it is.
func scrubWebSocket(res *http.Response, s gateway.Scrubber) error {
	conn, ok := res.Body.(io.ReadWriteCloser)
	if !ok {
		return errNoWrite
	}
	res.Body = &webSocket{ReadWriteCloser: conn, in: bufio.NewReader(conn), scrubber: s}
	return nil
}

// webSocket is the connection to a destination, with scrubbed messages to read.
type webSocket struct {
	io.ReadWriteCloser
	in       *bufio.Reader
	scrubber gateway.Scrubber
	out      []byte // frames that were not read yet
	err      error

	message io.Reader // scrubbed; nil between messages
	frames  *frames   // of message
	begun   bool      // a frame of message was sent on
	piece   []byte
}

// Read gives frames.
func (w *webSocket) Read(p []byte) (int, error) {
	for len(w.out) == 0 {
		if w.err != nil {
			return 0, w.err
		}
		w.out = w.out[:0]
		w.err = w.next()
	}
	n := copy(p, w.out)
	w.out = w.out[n:]
	return n, nil
}

// CloseWrite ends the direction out.
func (w *webSocket) CloseWrite() error {
	if half, ok := w.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// next puts a frame into out: one of control, or a piece of a message.
func (w *webSocket) next() error {
	if w.message == nil {
		h, err := readFrame(w.in)
		if err != nil {
			return err
		}
		if h.opcode >= opControl {
			return w.control(h)
		}
		if h.opcode == opContinuation || h.opcode > opBinary {
			return errFrame
		}
		w.frames = &frames{w: w, opcode: h.opcode, left: h.length, final: h.final}
		w.message, w.begun = w.scrubber.Reader(w.frames), false
		if h.final && h.length <= maxPiece {
			return w.whole()
		}
	}
	return w.nextPiece()
}

// whole puts a short message into out, in one frame as it came.
func (w *webSocket) whole() error {
	all, err := io.ReadAll(w.message)
	if err != nil {
		return err
	}
	w.out = appendFrame(w.out, w.frames.opcode, true, all)
	w.message, w.frames = nil, nil
	return nil
}

func (w *webSocket) nextPiece() error {
	if w.piece == nil {
		w.piece = make([]byte, maxPiece)
	}
	n, err := w.message.Read(w.piece)
	// What came between the frames of the message goes first.
	w.out = append(w.out, w.frames.takeBetween()...)
	ended := err == io.EOF
	if err != nil && !ended {
		return err
	}
	if n == 0 && !ended {
		return nil
	}
	opcode := byte(opContinuation)
	if !w.begun {
		opcode = w.frames.opcode
	}
	w.begun = true
	w.out = appendFrame(w.out, opcode, ended, w.piece[:n])
	if ended {
		w.message, w.frames = nil, nil
	}
	return nil
}

// control passes a frame of control on. What it says is scrubbed by itself, and cut to the
// length that it may have.
func (w *webSocket) control(h frame) error {
	frame, err := w.readControl(h)
	w.out = append(w.out, frame...)
	return err
}

func (w *webSocket) readControl(h frame) ([]byte, error) {
	if !h.final || h.length > maxControl {
		return nil, errFrame
	}
	payload := make([]byte, h.length)
	if _, err := io.ReadFull(w.in, payload); err != nil {
		return nil, noEOF(err)
	}
	said := w.scrubber.String(string(payload))
	return appendFrame(nil, h.opcode, true, []byte(said[:min(len(said), maxControl)])), nil
}

// frames reads the payload of one message.
type frames struct {
	w      *webSocket
	opcode byte
	left   uint64 // of the frame, bytes
	final  bool   // no frame follows

	mu      sync.Mutex
	between []byte // control frames that came within the message
}

func (f *frames) takeBetween() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.between
	f.between = nil
	return taken
}

// Read implements io.Reader.
func (f *frames) Read(p []byte) (int, error) {
	for f.left == 0 {
		if f.final {
			return 0, io.EOF
		}
		if err := f.advance(); err != nil {
			return 0, noEOF(err)
		}
	}
	if uint64(len(p)) > f.left {
		p = p[:f.left]
	}
	n, err := f.w.in.Read(p)
	f.left -= uint64(n)
	return n, noEOF(err)
}

// advance goes to the next frame of the message.
func (f *frames) advance() error {
	h, err := readFrame(f.w.in)
	if err != nil {
		return err
	}
	switch {
	case h.opcode >= opControl:
		control, err := f.w.readControl(h)
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.between) > maxBetween {
			return errFrame
		}
		f.between = append(f.between, control...)
		return err
	case h.opcode != opContinuation:
		return errFrame
	}
	f.left, f.final = h.length, h.final
	return nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

type frame struct {
	final  bool
	opcode byte
	length uint64
}

// readFrame reads the head of a frame from a server. It must not be masked, nor need an extension.
func readFrame(r *bufio.Reader) (frame, error) {
	var b [8]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return frame{}, err
	}
	h := frame{final: b[0]&frameFinal != 0, opcode: b[0] & frameOpcode, length: uint64(b[1] & frameLength)}
	if b[0]&frameReserved != 0 || b[1]&frameMasked != 0 {
		return frame{}, errFrame
	}
	size := map[uint64]int{126: 2, 127: 8}[h.length]
	if size == 0 {
		return h, nil
	}
	clear(b[:])
	if _, err := io.ReadFull(r, b[8-size:]); err != nil {
		return frame{}, noEOF(err)
	}
	h.length = binary.BigEndian.Uint64(b[:])
	return h, nil
}

func appendFrame(to []byte, opcode byte, final bool, payload []byte) []byte {
	if final {
		opcode |= frameFinal
	}
	to = append(to, opcode)
	switch n := len(payload); {
	case n < 126:
		to = append(to, byte(n))
	case n < 1<<16:
		to = binary.BigEndian.AppendUint16(append(to, 126), uint16(n))
	default:
		to = binary.BigEndian.AppendUint64(append(to, 127), uint64(n))
	}
	return append(to, payload...)
}
