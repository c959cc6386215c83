package gateway_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// The rules of every attack: connections to allowed.example pass, the requests to
// seen.example are looked at, somebody is asked about asked.example, and nothing else is
// allowed. evil.example is the attacker's, and she has servers at its address.
const (
	allowedIP = "203.0.113.5"
	seenIP    = "203.0.113.7"
	evilIP    = "203.0.113.66"
)

type attacked struct {
	*internet
	policy *rules
	n      *gateway.Network
	in     *interception
}

func newAttacked(t *testing.T) *attacked {
	i := newInternet(t)
	i.name("allowed.example", allowedIP)
	i.name("seen.example", seenIP)
	i.name("asked.example", evilIP)
	i.name("evil.example", evilIP)
	in := newInterception(t)
	serve, _ := secureServer(t)
	for _, address := range []string{allowedIP, seenIP, evilIP} {
		i.serve(address+":443", serve)
		i.serve(address+":80", webServer)
		i.serve(address+":22", echo)
	}
	p := &rules{
		allow: []string{"allowed.example"}, see: []string{"seen.example"}, opaque: true, silent: true,
		ask: map[string]chan int{"asked.example": make(chan int, 1)},
	}
	return &attacked{internet: i, policy: p, n: i.network(p, in.with(t)), in: in}
}

// refuses wants nothing of what the attacker sent to reach a server, and the
// connection to end.
func (a *attacked) refuses(address string, sent []byte) {
	a.t.Helper()
	conn, err := dialFromInside(a.t, a.n, "tcp4", address)
	if err == nil {
		_, err = sendAndRead(a.t, conn, string(sent))
	}
	require.Error(a.t, err)
	require.True(a.t, isReset(err), "%v", err)
	require.Empty(a.t, a.wasDialled())
}

func isReset(err error) bool {
	for _, e := range []error{syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EPIPE} {
		if strings.Contains(err.Error(), e.Error()) {
			return true
		}
	}
	return false
}

// answersNot wants no server to answer a request in the clear, and none to be reached as
// the attacker's.
func (a *attacked) answersNot(address, request string) {
	a.t.Helper()
	conn, err := dialFromInside(a.t, a.n, "tcp4", address)
	require.NoError(a.t, err)
	said, err := sendAndRead(a.t, conn, request)
	require.True(a.t, err == nil || isReset(err), "%v: %q is answered %q", err, request, said)
	require.NotContains(a.t, said, "served evil", "%q", request)
	require.NotContains(a.t, said, "hidden", "%q", request)
	if !strings.Contains(request, "hidden") {
		require.NotContains(a.t, said, "served", "%q", request)
	}
	for _, dialled := range a.wasDialled() {
		require.NotContains(a.t, dialled, evilIP)
	}
}

// passes wants a handshake to get to the one address.
func (a *attacked) passes(address string, hello []byte) {
	a.t.Helper()
	conn, err := dialFromInside(a.t, a.n, "tcp4", address)
	require.NoError(a.t, err)
	for _, b := range hello { // byte by byte, a segment each
		_, err := conn.Write([]byte{b})
		require.NoError(a.t, err)
	}
	require.NoError(a.t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	first := make([]byte, 1)
	_, err = io.ReadFull(conn, first)
	require.NoError(a.t, err)
	require.EqualValues(a.t, 0x16, first[0], "the server answers the handshake")
	require.Equal(a.t, []string{address}, a.wasDialled())
}

// helloFor is a ClientHello that names a host, in one record.
func helloFor(t testing.TB, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	stand := strings.Repeat("x", len(name)) // crypto/tls takes no name that is an address or ends in a dot
	go func() { _ = tls.Client(client, &tls.Config{ServerName: stand, InsecureSkipVerify: true}).Handshake() }()
	head := make([]byte, 5)
	_, err := io.ReadFull(server, head)
	require.NoError(t, err)
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	_, err = io.ReadFull(server, body)
	require.NoError(t, err)
	if name != "" {
		require.Equal(t, 1, bytes.Count(body, []byte(stand)))
	}
	return append(head, bytes.Replace(body, []byte(stand), []byte(name), 1)...)
}

// withExtension adds one to a ClientHello in one record.
func withExtension(hello []byte, kind uint16, data []byte) []byte {
	at := 5 + 4 + 2 + 32
	at += 1 + int(hello[at])                           // session
	at += 2 + int(binary.BigEndian.Uint16(hello[at:])) // cipher suites
	at += 1 + int(hello[at])                           // compression
	extension := binary.BigEndian.AppendUint16(nil, kind)
	extension = binary.BigEndian.AppendUint16(extension, uint16(len(data)))
	longer := append(bytes.Clone(hello), append(extension, data...)...)
	grown := len(extension) + len(data)
	binary.BigEndian.PutUint16(longer[at:], binary.BigEndian.Uint16(longer[at:])+uint16(grown))
	size := len(longer) - 9
	longer[6], longer[7], longer[8] = byte(size>>16), byte(size>>8), byte(size)
	binary.BigEndian.PutUint16(longer[3:], uint16(len(longer)-5))
	return longer
}

// inRecords splits a ClientHello over records of a size.
func inRecords(hello []byte, size int) []byte {
	var split []byte
	for body := hello[5:]; len(body) > 0; {
		part := body[:min(size, len(body))]
		body = body[len(part):]
		split = append(split, hello[0], hello[1], hello[2], byte(len(part)>>8), byte(len(part)))
		split = append(split, part...)
	}
	return split
}

// metadata are spellings of 169.254.169.254 that some program takes.
var metadata = []string{
	"169.254.169.254", "2852039166", "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "169.254.43518",
	"169.16689662", "0251.254.0xa9.254",
}

func TestAttacks(t *testing.T) {
	for _, row := range []struct {
		attack, must string
		run          func(t *testing.T, a *attacked)
	}{
		{"an address without a name, over a protocol of the attacker's",
			"be refused: under rules by name nothing says that it is allowed", func(t *testing.T, a *attacked) {
				a.refuses(evilIP+":22", []byte("SSH-2.0-evil\r\n"))
				a.refuses(evilIP+":443", []byte("\x00\x01\x02 not TLS at all"))
			}},
		{"the name of the attacker in TLS, on the address of an allowed host",
			"be refused: what serves many names would serve it (domain fronting the simple way)", func(t *testing.T, a *attacked) {
				_, err := lookUp(t, a.n, "allowed.example")
				require.NoError(t, err)
				a.refuses(allowedIP+":443", helloFor(t, "evil.example"))
			}},
		{"an allowed name in TLS, on the address of the attacker",
			"be refused: the name does not lead there, and her server does not mind the name", func(t *testing.T, a *attacked) {
				_, err := lookUp(t, a.n, "allowed.example")
				require.NoError(t, err)
				a.refuses(evilIP+":443", helloFor(t, "allowed.example"))
				a.refuses(evilIP+":443", helloFor(t, "seen.example"))
			}},
		{"TLS without a name, on the address of the attacker", "be refused: it could be for anybody", func(t *testing.T, a *attacked) {
			a.refuses(evilIP+":443", helloFor(t, ""))
		}},
		{"data in names that are looked up", "not leave: a refused name is never asked for, whatever the type of record", func(t *testing.T, a *attacked) {
			for k := range 20 {
				for _, kind := range []uint16{dns.TypeA, dns.TypeTXT, dns.TypeNULL, dns.TypeCNAME, dns.TypeMX, dns.TypePTR} {
					ask(t, a.n, "udp", fmt.Sprintf("data-%d.evil.example.", k), kind)
				}
			}
			ask(t, a.n, "tcp", "data.4.3.2.1.in-addr.arpa.", dns.TypePTR)
			require.Empty(t, a.wasAsked())
		}},
		{"data in the name of a TLS handshake, which the gateway could look up to check it", "not leave", func(t *testing.T, a *attacked) {
			a.refuses(evilIP+":443", helloFor(t, "data.evil.example"))
			require.Empty(t, a.wasAsked())
		}},
		{"an allowed name that leads to a private address once it is trusted (rebinding)",
			"lead nowhere: each answer is judged, and each connection again", func(t *testing.T, a *attacked) {
				_, err := lookUp(t, a.n, "allowed.example")
				require.NoError(t, err)
				for _, private := range []string{"10.0.0.2", "127.0.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "198.18.0.1"} {
					a.name("allowed.example", private)
					_, err := lookUp(t, a.n, "allowed.example")
					require.Error(t, err, private)
				}
				a.wasAsked()
				a.refuses("192.168.0.1:443", helloFor(t, "allowed.example"))
			}},
		{"a name that somebody is asked about, and that leads to a private address by the time of the answer",
			"be reset: what is approved is a name, and no name opens a private address", func(t *testing.T, a *attacked) {
				addr, err := lookUp(t, a.n, "asked.example")
				require.NoError(t, err)
				a.name("asked.example", "169.254.169.254")
				a.policy.ask["asked.example"] <- 1
				a.refuses(addr.String()+":443", helloFor(t, "asked.example"))
			}},
		{"another name in TLS on the address that stands for one that somebody is asked about",
			"be refused without asking: what is approved must be what happens", func(t *testing.T, a *attacked) {
				addr, err := lookUp(t, a.n, "asked.example")
				require.NoError(t, err)
				a.refuses(addr.String()+":443", helloFor(t, "allowed.example"))
				a.refuses(addr.String()+":443", helloFor(t, ""))
			}},
		{"an address that stands for names, of which none was looked up", "be refused", func(t *testing.T, a *attacked) {
			a.refuses("198.18.0.1:80", nil)
			a.refuses("198.19.255.255:443", nil)
		}},
		{"the metadata address in many spellings, as an address", "be refused", func(t *testing.T, a *attacked) {
			a.refuses("169.254.169.254:80", []byte("GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n"))
		}},
		{"the metadata address in many spellings, as a name to look up",
			"not be a name: nobody is asked, since some name servers answer addresses with themselves", func(t *testing.T, a *attacked) {
				for _, spelling := range append(metadata, "[::ffff:169.254.169.254]", "::ffff:a9fe:a9fe") {
					require.Equal(t, dns.RcodeNameError, ask(t, a.n, "udp", spelling+".", dns.TypeA).Rcode, spelling)
				}
				require.Empty(t, a.wasAsked())
			}},
		{"the metadata address in many spellings, as the name in TLS", "be refused, on any address", func(t *testing.T, a *attacked) {
			for _, spelling := range metadata {
				a.refuses(allowedIP+":443", helloFor(t, spelling))
			}
		}},
		{"allowed names whose address is metadata's", "lead nowhere", func(t *testing.T, a *attacked) {
			a.name("allowed.example", "169.254.169.254", allowedIP)
			addr, err := lookUp(t, a.n, "allowed.example")
			require.NoError(t, err)
			require.Equal(t, allowedIP, addr.String())
		}},
		{"a NUL, or a dot within a label, that ends a name for some programs and not for others",
			"be refused, in questions and in TLS: in the table of rules it would end in an allowed name", func(t *testing.T, a *attacked) {
				a.policy.allow = append(a.policy.allow, "evil.example\x00.allowed.example", `evil.example\000.allowed.example`)
				for _, name := range []string{`evil.example\000.allowed.example.`, `evil\.example.allowed.example.`, `evil\032example.`, `a\\b.example.`, `\228.example.`} {
					require.Equal(t, dns.RcodeNameError, ask(t, a.n, "udp", name, dns.TypeA).Rcode, name)
				}
				a.refuses(allowedIP+":443", helloFor(t, "evil.example\x00.allowed.example"))
				require.Empty(t, a.wasAsked())
			}},
		{"a last dot or capitals in the name of an attacker's host", "be the same name, refused", func(t *testing.T, a *attacked) {
			for _, name := range []string{"EVIL.example", "evil.example.", "eViL.ExAmPlE."} {
				a.refuses(allowedIP+":443", helloFor(t, name))
			}
		}},
		{"capitals in the name of an allowed host", "be the same name, allowed", func(t *testing.T, a *attacked) {
			a.passes(allowedIP+":443", helloFor(t, "ALLOWED.example"))
		}},
		{"a name beyond ASCII, or what looks like an allowed one",
			"be refused: names come in their ASCII form, and that of a look-alike is another name", func(t *testing.T, a *attacked) {
				for _, name := range []string{"\u0430llowed.example", "xn--llowed-2nf.example", "allowed\u3002example", "\uff41llowed.example"} {
					a.refuses(allowedIP+":443", helloFor(t, name))
				}
				require.Equal(t, dns.RcodeNameError, ask(t, a.n, "udp", "allowed。example.", dns.TypeA).Rcode)
				require.Empty(t, a.wasAsked())
			}},
		{"IPv6: addresses of names, literals, and forms that lead to IPv4", "not be there inside", func(t *testing.T, a *attacked) {
			require.Empty(t, ask(t, a.n, "udp", "allowed.example.", dns.TypeAAAA).Answer)
			for _, address := range []string{"[::ffff:169.254.169.254]:80", "[64:ff9b::a9fe:a9fe]:80", "[2002:a9fe:a9fe::]:80", "[::169.254.169.254]:80"} {
				conn, err := dialFromInside(t, a.n, "tcp6", address)
				if err == nil {
					conn.Close()
				}
				require.Error(t, err, address)
			}
		}},
		{"a TLS handshake within which another is hidden (ECH)", "be refused: its name is not the real one", func(t *testing.T, a *attacked) {
			a.refuses(allowedIP+":443", withExtension(helloFor(t, "allowed.example"), 0xfe0d, make([]byte, 200)))
			a.refuses(allowedIP+":443", withExtension(helloFor(t, "allowed.example"), 0xffce, make([]byte, 200)))
		}},
		{"a hidden handshake, to a host whose requests are looked at",
			"not hide anything: the server ends the TLS itself, so the name outside is the one that counts", func(t *testing.T, a *attacked) {
				_, err := lookUp(t, a.n, "seen.example")
				require.NoError(t, err)
				conn, err := dialFromInside(t, a.n, "tcp4", seenIP+":443")
				require.NoError(t, err)
				_, err = conn.Write(withExtension(helloFor(t, "seen.example"), 0xfe0d, make([]byte, 200)))
				require.NoError(t, err)
				require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
				_, err = conn.Read(make([]byte, 1)) // it is answered or ended by the interceptor
				require.True(t, err == nil || errors.Is(err, io.EOF) || isReset(err), "%v", err)
				require.Empty(t, a.wasDialled())
			}},
		{"a handshake in many segments and records", "be read as the one it is", func(t *testing.T, a *attacked) {
			a.passes(allowedIP+":443", inRecords(helloFor(t, "allowed.example"), 10))
			a.refuses(allowedIP+":443", inRecords(helloFor(t, "evil.example"), 10))
			a.refuses(allowedIP+":443", inRecords(helloFor(t, "evil.example"), 1))
		}},
		{"a handshake with two names, or twice the extension with the name", "be refused: servers may take either", func(t *testing.T, a *attacked) {
			name := []byte("evil.example")
			entry := append([]byte{0, 0, byte(len(name))}, name...)
			list := append([]byte{0, byte(len(entry))}, entry...)
			a.refuses(allowedIP+":443", withExtension(helloFor(t, "allowed.example"), 0, list))
			both := append(bytes.Clone(entry), append([]byte{0, 0, byte(len("allowed.example"))}, "allowed.example"...)...)
			a.refuses(allowedIP+":443", withExtension(helloFor(t, ""), 0, append([]byte{0, byte(len(both))}, both...)))
		}},
		{"a handshake of more than 64 KiB", "be refused, and cost no more than that", func(t *testing.T, a *attacked) {
			hello := helloFor(t, "allowed.example")
			hello[6], hello[7], hello[8] = 2, 0, 0 // says that it is 128 KiB long
			long := append(hello[5:], make([]byte, 128<<10)...)
			a.refuses(allowedIP+":443", inRecords(append([]byte{0x16, 3, 1, 0, 0}, long...), 16<<10))
		}},
		{"what begins like TLS and is not", "be refused: a server may be more lenient than we are", func(t *testing.T, a *attacked) {
			a.refuses(allowedIP+":443", append([]byte{0x16, 3, 1, 0, 10}, "garbage..."...))
			broken := helloFor(t, "evil.example")
			broken[len(broken)-1]++ // in the last extension
			broken[4]--
			a.refuses(allowedIP+":443", broken)
		}},
		{"a handshake that stops in the middle on a port where servers speak first",
			"not be handed on", func(t *testing.T, a *attacked) {
				a.refuses(allowedIP+":22", helloFor(t, "allowed.example")[:50])
			}},
		{"QUIC, and datagrams to port 443 otherwise", "be refused at once: nobody looks into them", func(t *testing.T, a *attacked) {
			_, err := lookUp(t, a.n, "allowed.example")
			require.NoError(t, err)
			conn, err := dialFromInside(t, a.n, "udp4", allowedIP+":443")
			require.NoError(t, err)
			_, err = conn.Write([]byte("\xc0\x00\x00\x00\x01 initial"))
			require.NoError(t, err)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
			_, err = conn.Read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			last := a.policy.judged[len(a.policy.judged)-1]
			require.Equal(t, gateway.UDP, last.Protocol)
			require.Equal(t, []string{"allowed.example"}, last.Names)
		}},
		{"a Host that is not what was looked up, in the clear", "be refused, whatever its spelling", func(t *testing.T, a *attacked) {
			_, err := lookUp(t, a.n, "allowed.example")
			require.NoError(t, err)
			for _, host := range append(metadata, "evil.example", "EVIL.example.", evilIP, "allowed.example@evil.example",
				"allowed.example:81", "evil.example:80", "", "[::ffff:203.0.113.66]") {
				a.answersNot(allowedIP+":80", "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
			}
		}},
		{"an allowed Host on the address of the attacker", "be refused: the name does not lead there", func(t *testing.T, a *attacked) {
			a.answersNot(evilIP+":80", "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
			a.answersNot(evilIP+":80", "GET / HTTP/1.0\r\n\r\n")
			require.NotContains(t, a.wasAsked(), "evil.example")
		}},
		{"a NUL, a space or a tab in the Host", "be refused", func(t *testing.T, a *attacked) {
			for _, host := range []string{"evil.example\x00.allowed.example", "allowed.example\x00", "evil.example .allowed.example", "evil.example\t.allowed.example"} {
				a.answersNot(allowedIP+":80", "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
			}
		}},
		{"a second request with another Host on a connection that is allowed", "be refused by itself", func(t *testing.T, a *attacked) {
			conn, err := dialFromInside(t, a.n, "tcp4", allowedIP+":80")
			require.NoError(t, err)
			said, err := sendAndRead(t, conn, "GET /1 HTTP/1.1\r\nHost: allowed.example\r\n\r\n"+
				"GET /2 HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
			require.NoError(t, err)
			require.Contains(t, said, "served allowed.example /1")
			require.NotContains(t, said, "served evil.example")
		}},
		{"two Hosts, or one in the target and another in the header", "reach no server as the attacker's", func(t *testing.T, a *attacked) {
			a.answersNot(allowedIP+":80", "GET / HTTP/1.1\r\nHost: allowed.example\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
			a.answersNot(allowedIP+":80", "GET http://evil.example/ HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
			a.answersNot(allowedIP+":80", "GET http://allowed.example@evil.example/ HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
		}},
		{"CONNECT to another host, as if the allowed one were a proxy", "be refused", func(t *testing.T, a *attacked) {
			a.answersNot(allowedIP+":80", "CONNECT evil.example:443 HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
			a.answersNot(allowedIP+":80", "CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
		}},
		{"a request within another by lengths that disagree (smuggling)", "not reach the server as a request", func(t *testing.T, a *attacked) {
			hidden := "GET /hidden HTTP/1.1\r\nHost: evil.example\r\n\r\n"
			for _, lengths := range []string{
				"Content-Length: 4\r\nTransfer-Encoding: chunked", "Content-Length: 0\r\nContent-Length: 50",
				"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Transfer-Encoding:\x0bchunked", "Content-Length: +0", "Content-Length : 0",
			} {
				a.answersNot(allowedIP+":80", "POST / HTTP/1.1\r\nHost: allowed.example\r\n"+lengths+"\r\nConnection: close\r\n\r\n0\r\n\r\n"+hidden)
			}
		}},
		{"HTTP/2 in the clear without asking (prior knowledge)", "be judged by its :authority, as all requests", func(t *testing.T, a *attacked) {
			protocols := new(http.Protocols)
			protocols.SetUnencryptedHTTP2(true)
			transport := &http.Transport{Protocols: protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
				return dialFromInside(t, a.n, "tcp4", allowedIP+":80")
			}}
			defer transport.CloseIdleConnections()
			answer, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Get("http://evil.example/")
			require.NoError(t, err)
			require.Equal(t, http.StatusForbidden, answer.StatusCode)
			require.Equal(t, 2, answer.ProtoMajor)
			require.Empty(t, a.wasDialled())
		}},
		{"a request that begins with empty lines, or in small letters", "be read as a request", func(t *testing.T, a *attacked) {
			a.answersNot(allowedIP+":80", "\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
			a.answersNot(allowedIP+":80", "get / http/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
			a.answersNot(allowedIP+":22", "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
		}},
		{"another Host within TLS that is looked into", "be refused: it is the connection's name that counts", func(t *testing.T, a *attacked) {
			_, err := lookUp(t, a.n, "seen.example")
			require.NoError(t, err)
			conn, err := dialFromInside(t, a.n, "tcp4", seenIP+":443")
			require.NoError(t, err)
			answers := askOver(t, a.in.throughTLS(t, conn, "seen.example"), "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
			require.GreaterOrEqual(t, answers[0].StatusCode, 400)
			require.Empty(t, a.wasDialled())
		}},
	} {
		t.Run(row.attack, func(t *testing.T) {
			t.Parallel()
			t.Logf("must %s", row.must)
			row.run(t, newAttacked(t))
		})
	}
}
