package gateway

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

func TestSniff(t *testing.T) {
	for text, want := range map[string]spoken{
		"":                                 unclear,
		"\x16":                             unclear,
		"\x16\x03\x01\x00\x10":             speaksTLS,
		"\x16\x02":                         opaque,
		"G":                                unclear,
		"GET":                              unclear,
		"GET / HTTP/1.1":                   unclear,
		"GET / HTTP/1.1\r\n":               speaksHTTP,
		"get /\n":                          speaksHTTP, // HTTP/0.9, for some
		"GET\t/\tHTTP/1.1\n":               speaksHTTP,
		"\r\n\r\nGET / HTTP/1.1\r\n":       speaksHTTP,
		"\n":                               unclear,
		"BREW pot-1 http/1.1\n":            speaksHTTP,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": speaksHTTP,
		"EHLO me\r\n":                      opaque,
		"SSH-2.0-x\r\n":                    opaque,
		"*1\r\n$4\r\nPING\r\n":             opaque,
		"\x00\x00\x00\x08\x04\xd2\x16\x2f": opaque, // PostgreSQL asks for TLS
		// What some servers answer to, and go on after:
		" GET / HTTP/1.1\r\n":                          speaksHTTP,
		"\r\n \tGET / HTTP/1.1\r\n":                    speaksHTTP,
		"<GET> / HTTP/1.1\r\n":                         speaksHTTP,
		strings.Repeat("A", 40):                        unclear,
		strings.Repeat("A", 40) + " / HTTP/1.1":        unclear,
		strings.Repeat("A", 9000) + " / HTTP/1.1\r\n":  speaksHTTP,
		"\x15\x03\x01\x00\x02\x01\x64":                 speaksTLS, // an alert, which OpenSSL skips
		"\x14\x03\x03\x00\x01\x01":                     speaksTLS,
		"\x17\x02":                                     opaque,
		"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10": speaksTLS, // SSL 2.0's hello
		"\x80\x2e\x01\x00\x02":                         speaksTLS,
		"\x80\x2e\x01":                                 unclear,
		"\x80\x2e\x04":                                 opaque,
		"\xff\x00\x00\x00\x00":                         opaque,
		`{"id":1,"method":"x"}`:                        unclear,
		`{"id":1,"method":"x"}` + "\n":                 opaque,
		`{"text":"` + strings.Repeat("x", 2000):        opaque,
		"{\x01":                                        opaque,
		"GET " + strings.Repeat("/", 70<<10):           unclear,
		"GET /\xff\x00 HTTP/1.1\r\nHost: x\r\n":        speaksHTTP,
	} {
		require.Equal(t, want, sniff([]byte(text)), "%.40q", text)
	}
}

// sniff is for who has all at once.
func sniff(b []byte) spoken { return new(sniffer).sniff(b) }

// What a client sends byte by byte is looked at once: to begin anew with each would take
// hours here, of a processor that others need too.
func TestFirstWordsAreReadOnce(t *testing.T) {
	for _, word := range []string{"A", " ", "GET /", "<GET> "} {
		var s sniffer
		b := []byte(word + strings.Repeat(word[len(word)-1:], 2<<20))
		for i := range b {
			if is := s.sniff(b[:i]); is != unclear {
				require.Equal(t, opaque, is)
				require.GreaterOrEqual(t, i, maxText)
				break
			}
		}
	}
}

func TestTooManyQuestionsAreNotTakenForAnAnswer(t *testing.T) {
	n := &Network{questions: rate.NewLimiter(0, 0)}
	r := Request{Name: "a.example", Destination: netip.MustParseAddrPort("203.0.113.5:443")}
	require.Contains(t, n.leadsElsewhere(t.Context(), r), "too many questions for names from this sandbox")
}

func TestHostName(t *testing.T) {
	for name, want := range map[string]string{
		"a.example": "a.example", "A.Example.": "a.example", "localhost": "localhost", "_dmarc.a.example": "_dmarc.a.example",
		"xn--mnchen-3ya.example": "xn--mnchen-3ya.example", "1.2.3.4.in-addr.arpa": "1.2.3.4.in-addr.arpa",
		"r3---sn-x.example": "r3---sn-x.example", "0x7f.example": "0x7f.example", "a.0xg": "a.0xg",
		"": "", ".": "", "..": "", "a..example": "", ".a": "", "a b": "", "a\x00b": "", "a/b": "", "a:1": "", "[::1]": "", "::1": "",
		`a\000b`: "", `a\.b`: "", "münchen.example": "", "a%00b": "", "a@b": "", "*.example": "", "a,b": "",
		"1.2.3.4": "", "1.2.3.4.": "", "2130706433": "", "0x7f000001": "", "0X7F.1": "", "127.1": "", "a.1": "", "a.0x": "", "a.0xAf": "",
		strings.Repeat("a", 64) + ".example": "", strings.Repeat("a.", 127) + "a": "", strings.Repeat("a.", 126) + "a": strings.Repeat("a.", 126) + "a",
	} {
		got, err := HostName(name)
		require.Equal(t, want, got, "%q", name)
		require.Equal(t, want == "", err != nil, "%q", name)
	}
}

func TestNamesOfAnAddressAreBounded(t *testing.T) {
	const size = 100
	c := newNameCache(size)
	one := netip.MustParseAddr("192.0.2.1")
	for i := range 1000 {
		c.add(one, strings.Repeat("a", 1+i%200))
		c.add(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), "b.example")
	}
	require.LessOrEqual(t, len(c.find(one)), namesOfAddress)
	require.Equal(t, strings.Repeat("a", 200), c.find(one)[0], "the latest is first")
	count := 0
	for _, names := range c.names {
		count += len(names)
	}
	require.LessOrEqual(t, count, size)
	require.Len(t, c.order, size)
	c.add(one, "x.example")
	c.add(one, "y.example")
	c.add(one, "x.example")
	require.Equal(t, []string{"x.example", "y.example"}, c.find(one)[:2])
	c.drop(map[string]bool{"x.example": true})
	require.False(t, c.has(one, "x.example"))
	require.True(t, c.has(one, "y.example"))
}

// FuzzHello reads any bytes as the beginning of TLS.
func FuzzHello(f *testing.F) {
	f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"))
	f.Add([]byte("\x16\x03\x01\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err != nil {
			require.Empty(t, h)
			return
		}
		require.Equal(t, speaksTLS, sniff(b), "what crypto/tls reads is TLS")
	})
}

// FuzzSniff adds to what a client said: what is clear stays so.
func FuzzSniff(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n"), []byte("Host: x\r\n"))
	f.Add([]byte("\x16\x03"), []byte("\x01"))
	f.Add([]byte("\r\nPRI"), []byte(" * HTTP/2.0\r\n"))
	f.Fuzz(func(t *testing.T, first, more []byte) {
		before, all := sniff(first), append(bytes.Clone(first), more...)
		if before != unclear {
			require.Equal(t, before, sniff(all))
		}
		var bytewise sniffer
		for i := range all {
			if is := bytewise.sniff(all[:i+1]); is != unclear {
				require.Equal(t, is, sniff(all))
				return
			}
		}
		require.Equal(t, unclear, sniff(all))
	})
}

// FuzzHostName: what is a name is its own form, and a question for it is for just
// that.
func FuzzHostName(f *testing.F) {
	for _, name := range []string{"a.example.", "0x7f.1", `a\000.b`} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		plain, err := HostName(name)
		if err != nil {
			require.Empty(t, plain)
			return
		}
		again, err := HostName(plain)
		require.NoError(t, err)
		require.Equal(t, plain, again)
		labels, ok := dns.IsDomainName(dns.Fqdn(plain))
		require.True(t, ok)
		require.Equal(t, strings.Count(plain, ".")+1, labels)
		_, err = netip.ParseAddr(plain)
		require.Error(t, err)
	})
}

// FuzzStandIns takes any bytes for the file of names.
func FuzzStandIns(f *testing.F) {
	entry := make([]byte, 2*standInEntry)
	entry[4] = 9
	copy(entry[5:], "a.example")
	f.Add(entry)
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(standInsPath(dir), content, 0o600))
		s, err := openStandIns(dir)
		require.NoError(t, err)
		defer s.close()
		for name, known := range s.byName {
			require.Equal(t, name, s.name(known.addr()))
			require.Equal(t, known.addr(), s.address(name))
		}
		fresh := s.address("fresh.example")
		require.True(t, standInNet.Contains(fresh))
		require.Equal(t, "fresh.example", s.name(fresh))
		require.LessOrEqual(t, len(s.byName), maxStandIns)
		require.Len(t, s.byAddr, len(s.byName))
	})
}

func TestWhatAllClientsSendFirstIsBounded(t *testing.T) {
	var all atomic.Int64
	var flights []*flight
	for {
		client, server := net.Pipe()
		defer server.Close()
		go func() { _, _ = server.Write(make([]byte, maxFlight)) }()
		f := &flight{conn: client, all: &all}
		flights = append(flights, f)
		if err := f.more(); err != nil {
			require.ErrorIs(t, err, errFlightsTooLong)
			break
		}
		require.ErrorIs(t, f.more(), errFlightTooLong)
		require.LessOrEqual(t, len(flights), maxFlights/maxFlight)
	}
	for _, f := range flights {
		f.release()
		f.release()
	}
	require.Zero(t, all.Load())
}
