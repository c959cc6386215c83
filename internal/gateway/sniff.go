package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxFlight is how much a client may send before it is clear what it speaks, bytes.
	maxFlight = 64 << 10
	// flightPatience is how long it may take for that.
	flightPatience = 10 * time.Second
	// silence is how long a client waits before it is taken for one that waits for the
	// server, on ports where that is usual.
	silence = 300 * time.Millisecond

	// maxText is how much of a line that begins like no request is waited for, bytes.
	maxText = 1 << 10
)

// spoken is what a client's first bytes are.
type spoken int

const (
	unclear    spoken = iota // more bytes are needed
	speaksTLS                // a TLS record with a handshake
	speaksHTTP               // a request line, or what a server could take for one
	opaque                   // neither
)

// sniffer tells by its first bytes what a client speaks. What some server could take
// for TLS or HTTP must not be opaque: its name would not be looked at. It remembers what it
// has looked at, so that a client that sends byte by byte costs no more than another.
type sniffer struct {
	blank  int // signs before the first line
	method int // signs of that line that may be a method
	line   int // signs of that line that do not end it
}

// sniff takes all that came so far.
func (s *sniffer) sniff(b []byte) spoken {
	if len(b) == 0 {
		return unclear
	}
	switch {
	case b[0] >= recordFirst && b[0] <= recordLast:
		return sniffTLS(b)
	case b[0]&0x80 != 0:
		return sniffOldTLS(b)
	}
	return s.sniffHTTP(b)
}

// Records of TLS (RFC 8446, 5.1). Some servers skip an alert before the handshake.
const (
	recordFirst = 0x14 // change_cipher_spec
	recordLast  = 0x17 // application_data
	recordMajor = 3
)

func sniffTLS(b []byte) spoken {
	switch {
	case len(b) == 1:
		return unclear
	case b[1] == recordMajor:
		return speaksTLS
	default:
		return opaque
	}
}

// sniffOldTLS knows the hello of SSL 2.0, by which TLS could once be begun too (RFC
// 5246, E.2): a length of two bytes, a one, and the version.
func sniffOldTLS(b []byte) spoken {
	switch {
	case len(b) >= 3 && b[2] != 1:
		return opaque
	case len(b) < 5:
		return unclear
	case b[3] == recordMajor || b[3] == 0 && b[4] == 2:
		return speaksTLS
	default:
		return opaque
	}
}

// sniffHTTP takes a method and a space as the beginning of a request, also after
// empty lines, which servers skip (RFC 9112, 2.2), and spaces. The line counts as HTTP if it
// says so anywhere, however badly formed, and if its method is one of HTTP's: HTTP/0.9 says
// nothing more. Text that is no method is waited for a little.
func (s *sniffer) sniffHTTP(b []byte) spoken {
	for s.blank < len(b) && strings.IndexByte("\r\n\t ", b[s.blank]) >= 0 {
		s.blank++
	}
	line := b[s.blank:]
	for s.method < len(line) && isTokenChar(line[s.method]) {
		s.method++
	}
	method := s.method
	if method == len(line) {
		return unclear
	}
	isRequest := method > 0 && (line[method] == ' ' || line[method] == '\t')
	end := bytes.IndexByte(line[s.line:], '\n')
	switch {
	case end >= 0:
		line = line[:s.line+end]
	case isRequest || len(line) < maxText && isText(line):
		s.line = len(line)
		return unclear
	default:
		return opaque
	}
	if !isRequest && !isText(line) {
		return opaque
	}
	if bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")) || isRequest && slices.Contains(httpMethods, strings.ToUpper(string(line[:method]))) {
		return speaksHTTP
	}
	return opaque
}

// isText tells whether there is nothing but printable ASCII, tabs and ends of lines.
func isText(b []byte) bool {
	return !bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' && r != '\t' && r != '\r' || r >= 0x7f })
}

var httpMethods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

// isTokenChar is RFC 9110, 5.6.2.
func isTokenChar(c byte) bool {
	return c > ' ' && c < 0x7f && strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) < 0
}

// flight reads what a client sends first, and keeps it.
type flight struct {
	conn net.Conn
	kept []byte
	at   int // of kept, what Read returns next
	is   sniffer

	all   *atomic.Int64 // bytes kept by all flights of a network; nil does not count
	taken int64         // of all
}

// maxFlights is how much all clients of a sandbox may have sent like that at a time,
// bytes.
const maxFlights = 16 << 20

var (
	errFlightTooLong  = errors.New("the client sent 64 KiB and it is still not clear what it wants")
	errFlightsTooLong = errors.New("too many connections of this sandbox send too much before it is clear what they want")
)

// release gives back what counts. A nil flight has nothing.
func (f *flight) release() {
	if f != nil && f.all != nil {
		f.all.Add(-f.taken)
		f.all, f.taken = nil, 0
	}
}

// more reads once.
func (f *flight) more() error {
	if len(f.kept) >= maxFlight {
		return errFlightTooLong
	}
	c := takeChunk()
	defer c.putBack()
	count, err := f.conn.Read(c.buffer[:maxFlight-len(f.kept)])
	if count == 0 {
		return err
	}
	if f.all != nil {
		f.taken += int64(count)
		if f.all.Add(int64(count)) > maxFlights {
			return errFlightsTooLong
		}
	}
	f.kept = append(f.kept, c.buffer[:count]...)
	return nil
}

// Read is for who reads from the beginning.
func (f *flight) Read(b []byte) (int, error) {
	if f.at == len(f.kept) {
		if err := f.more(); err != nil {
			return 0, err
		}
	}
	count := copy(b, f.kept[f.at:])
	f.at += count
	return count, nil
}

// sniff tells what the client speaks by what it has sent.
func (f *flight) sniff() spoken { return f.is.sniff(f.kept) }

// what reads until it is clear what the client speaks.
func (f *flight) what() (spoken, error) {
	for {
		if is := f.sniff(); is != unclear {
			return is, nil
		}
		if err := f.more(); err != nil {
			return unclear, err
		}
	}
}

// hello is what a TLS handshake begins with (ClientHello).
type hello struct {
	name      string // as the client says it; empty when it names none
	encrypted bool   // another hello is hidden in it (ECH)
}

// Extensions that hide the real hello: ECH (RFC 9849) and its drafts, ESNI.
const (
	extensionESNI     = 0xffce
	extensionECHFirst = 0xfe08 // of the drafts
	extensionECH      = 0xfe0d
)

// readHello reads a hello with the parser of crypto/tls, which puts together what is
// split over records and refuses what is malformed, has an extension or a
// name twice, or is no hello.
func readHello(from io.Reader) (hello, error) {
	var h hello
	enough := errors.New("seen enough")
	server := tls.Server(helloConn{from}, &tls.Config{
		MinVersion: tls.VersionTLS10, // nothing is spoken
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			h.name = info.ServerName
			h.encrypted = slices.ContainsFunc(info.Extensions, func(e uint16) bool {
				return e == extensionESNI || e >= extensionECHFirst && e <= extensionECH
			})
			return nil, enough
		},
	})
	if err := server.Handshake(); !errors.Is(err, enough) {
		return hello{}, err
	}
	return h, nil
}

// helloConn is read from only.
type helloConn struct{ io.Reader }

func (helloConn) Write(b []byte) (int, error)      { return len(b), nil }
func (helloConn) Close() error                     { return nil }
func (helloConn) LocalAddr() net.Addr              { return nil }
func (helloConn) RemoteAddr() net.Addr             { return nil }
func (helloConn) SetDeadline(time.Time) error      { return nil }
func (helloConn) SetReadDeadline(time.Time) error  { return nil }
func (helloConn) SetWriteDeadline(time.Time) error { return nil }
