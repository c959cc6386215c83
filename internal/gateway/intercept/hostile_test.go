package intercept_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

// Each row is what a client sends, byte by byte, and what must come of it. HOST is
// the host as it should be.
var hostileRequests = []struct {
	name   string
	send   string
	clear  bool // not within TLS
	status int
	judged string // name, method and path of what was judged; empty: nothing was
	sent   string // request line and Host that the destination saw; empty: nothing
	why    string
}{
	{
		name: "plain request", send: "GET /a?b HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 200,
		judged: "localhost GET /a", sent: "GET /a?b HTTP/1.1 HOST",
	},
	{
		name: "other host", send: "GET / HTTP/1.1\r\nHost: other.example\r\n\r\n", status: 421,
		why: "domain fronting: the handshake was judged for another name",
	},
	{
		name: "host in capitals and with a final dot", send: "GET / HTTP/1.1\r\nHost: LocalHost.\r\n\r\n", status: 200,
		judged: "localhost GET /", sent: "GET / HTTP/1.1 LocalHost.", why: "it is the same name",
	},
	{
		name: "other port", send: "GET / HTTP/1.1\r\nHost: localhost:1\r\n\r\n", status: 421,
		why: "the connection was judged with its port",
	},
	{
		name: "an address instead of the name", send: "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", status: 421,
		why: "the handshake was judged for a name",
	},
	{
		name: "address in an odd spelling", send: "GET / HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n", status: 400,
		why: "programs take it for an address",
	},
	{
		name: "NUL in the host", send: "GET / HTTP/1.1\r\nHost: evil\x00.localhost\r\n\r\n", status: 400,
		why: "one program ends the name there, another does not",
	},
	{
		name: "userinfo in the host", send: "GET / HTTP/1.1\r\nHost: localhost@evil\r\n\r\n", status: 400,
		why: "which of both is the host is read in different ways",
	},
	{
		name: "two hosts", send: "GET / HTTP/1.1\r\nHost: HOST\r\nHost: evil\r\n\r\n", status: 400,
		why: "servers take the first or the last",
	},
	{
		name: "two hosts that are the same", send: "GET / HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n", status: 400,
		why: "RFC 9112, 3.2",
	},
	{
		name: "no host", send: "GET / HTTP/1.1\r\n\r\n", status: 400, why: "RFC 9112, 3.2",
	},
	{
		name: "HTTP/1.0 without a host", send: "GET / HTTP/1.0\r\n\r\n", status: 200,
		judged: "localhost GET /", sent: "GET / HTTP/1.1 HOST", why: "it is for the name of the handshake",
	},
	{
		name: "folded host", send: "GET / HTTP/1.1\r\nHost: localhost\r\n evil\r\n\r\n", status: 400,
		why: "a host does not go over several lines",
	},
	{
		name: "absolute form with another host", send: "GET https://evil/ HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 421,
		why: "the target counts, not the Host",
	},
	{
		name: "absolute form", send: "GET https://HOST/a HTTP/1.1\r\nHost: evil\r\n\r\n", status: 200,
		judged: "localhost GET /a", sent: "GET /a HTTP/1.1 HOST", why: "the target counts, and the Host is not sent on",
	},
	{
		name: "absolute form of another scheme", send: "GET http://HOST/ HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400,
		why: "a server may do something else for http",
	},
	{
		name: "CONNECT", send: "CONNECT evil:443 HTTP/1.1\r\nHost: evil:443\r\n\r\n", status: 501,
		why: "a tunnel could not be seen into",
	},
	{
		name: "dot segments", send: "GET /public/../secret HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400,
		why: "servers resolve them or do not",
	},
	{
		name: "encoded dot segments", send: "GET /public/%2e%2e/secret HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400, why: "the same",
	},
	{
		name: "dot segment with an encoded slash", send: "GET /public/..%2fsecret HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400, why: "the same",
	},
	{
		name: "encoded slash before dots", send: "GET /public%2F..%2Fsecret HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400, why: "the same",
	},
	{
		name: "dots encoded twice", send: "GET /public/%252e%252e/secret HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400,
		why: "some servers decode twice",
	},
	{
		name: "dots encoded without end", send: "GET /%25252525252e HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400,
		why: "nobody knows how often a server decodes",
	},
	{
		name: "dot segment with parameters", send: "GET /public/..;x=1/secret HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400,
		why: "servers of Java cut them off",
	},
	{
		name: "backslash", send: "GET /public\\..\\secret HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400,
		why: "some servers take it for a slash",
	},
	{
		name: "encoded backslash", send: "GET /public%5Csecret HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400, why: "the same",
	},
	{
		name: "NUL in the path", send: "GET /secret%00.png HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400,
		why: "some programs end the path there",
	},
	{
		name: "overlong UTF-8 in the path", send: "GET /public/%c0%ae%c0%ae/secret HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400,
		why: "some programs take it for dots",
	},
	{
		name: "encoded slash", send: "GET /@scope%2fname HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 200,
		judged: "localhost GET /@scope/name or /@scope%2Fname", sent: "GET /@scope%2fname HTTP/1.1 HOST", why: "npm asks so; servers take it for a slash or a letter",
	},
	{
		name: "encoded slash beside a sign that should be encoded", send: "GET /a%2Fb;\" HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 200,
		judged: `localhost GET /a/b;" or /a%2Fb;"`, sent: `GET /a%2Fb;" HTTP/1.1 HOST`, why: "it is sent as it came, so it is judged as it came",
	},
	{
		name: "encoded slash beside a letter that should be encoded", send: "GET /a%2Fé HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 200,
		judged: "localhost GET /a/é or /a%2Fé", sent: "GET /a%2Fé HTTP/1.1 HOST", why: "the same",
	},
	{
		name: "slash encoded twice", send: "GET /a%252Fb HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 200,
		judged: "localhost GET /a%2Fb or /a/b", sent: "GET /a%252Fb HTTP/1.1 HOST", why: "some servers decode twice",
	},
	{
		name: "letter encoded twice", send: "GET /%2561dmin HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 200,
		judged: "localhost GET /%61dmin or /admin", sent: "GET /%2561dmin HTTP/1.1 HOST", why: "some servers decode twice",
	},
	{
		name: "number sign", send: "GET /admin#/public HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400,
		why: "nginx ends a path there, others do not",
	},
	{
		name: "number sign in a whole URL", send: "GET https://HOST/admin#/public HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400, why: "the same",
	},
	{
		name: "space in the target", send: "GET /admin /public HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400,
		why: "some servers end a path there",
	},
	{
		name: "path that is a pain to match", send: "GET " + strings.Repeat("/a", 9<<10) + " HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 414,
		why: "it would be matched against every pattern",
	},
	{
		name: "several slashes", send: "GET //admin///x HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 200,
		judged: "localhost GET /admin/x", sent: "GET //admin///x HTTP/1.1 HOST", why: "many servers take them for one",
	},
	{
		name: "encoded letters", send: "GET /%61dmin HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 200,
		judged: "localhost GET /admin", sent: "GET /%61dmin HTTP/1.1 HOST", why: "it is the same path",
	},
	{
		name: "asterisk", send: "OPTIONS * HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 200,
		judged: "localhost OPTIONS *", sent: "OPTIONS * HTTP/1.1 HOST",
	},
	{
		name: "asterisk of another method", send: "GET * HTTP/1.1\r\nHost: HOST\r\n\r\n", status: 400, why: "RFC 9112, 3.2.4",
	},
	{
		name: "length and chunks", status: 200, judged: "localhost POST /", sent: "POST / HTTP/1.1 HOST [5 chunked]",
		send: "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		why:  "request smuggling: it is written anew, in chunks alone",
	},
	{
		name: "two lengths", status: 400,
		send: "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nhello", why: "request smuggling",
	},
	{
		name: "length with a sign", status: 400,
		send: "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: +5\r\n\r\nhello", why: "request smuggling",
	},
	{
		name: "hidden chunked", status: 400,
		send: "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", why: "request smuggling",
	},
	{
		name: "chunked twice", status: 501,
		send: "POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", why: "request smuggling",
	},
	{
		name: "space before the colon", status: 400,
		send: "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length : 5\r\n\r\nhello", why: "request smuggling",
	},
	{
		name: "upgrade to HTTP/2", status: 200, judged: "localhost GET /", sent: "GET / HTTP/1.1 HOST",
		send: "GET / HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
		why:  "further requests would pass unseen, so it is not offered",
	},
	{
		name: "upgrade with another method", status: 200, judged: "localhost POST /", sent: "POST / HTTP/1.1 HOST",
		send: "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
		why:  "that is no WebSocket, and a server may answer something else",
	},
	{
		name: "in the clear for another host", clear: true, status: 200,
		send:   "GET /a HTTP/1.1\r\nHost: other.example\r\n\r\n",
		judged: "other.example GET /a", sent: "GET /a HTTP/1.1 other.example", why: "each request is judged by its host",
	},
	{
		name: "in the clear for an address that it is not connected to", clear: true, status: 421,
		send: "GET /a HTTP/1.1\r\nHost: 10.1.2.3\r\n\r\n", why: "it would be judged by one and sent to another",
	},
	{
		name: "in the clear, absolute form", clear: true, status: 200,
		send:   "GET http://other.example/a HTTP/1.1\r\nHost: localhost\r\n\r\n",
		judged: "other.example GET /a", sent: "GET /a HTTP/1.1 other.example", why: "the target counts",
	},
}

func TestHostileRequests(t *testing.T) {
	for _, row := range hostileRequests {
		t.Run(row.name, func(t *testing.T) {
			var sent atomic.Value
			sent.Store("")
			to := startServer(t, !row.clear, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				line := r.Method + " " + r.RequestURI + " HTTP/1.1 " + r.Host
				if body, _ := io.ReadAll(r.Body); len(body) > 0 {
					line += fmt.Sprintf(" [%d %s]", len(body), strings.Join(r.TransferEncoding, ","))
				}
				if r.Header.Get("Upgrade") != "" || r.Header.Get("Http2-Settings") != "" {
					line += " upgrade"
				}
				sent.Store(line)
			}))
			conn := gateway.Intercepted{TLS: !row.clear}
			if conn.TLS {
				conn.Name = "localhost"
			}
			w := inWorld(t, to, conn, intercept.Config{})
			host := w.addr.String()
			if conn.TLS {
				host = fmt.Sprintf("localhost:%d", w.addr.Port())
			}
			client := w.connect("http/1.1")
			_, err := io.WriteString(client, strings.ReplaceAll(row.send, "HOST", host))
			require.NoError(t, err)
			res, err := http.ReadResponse(bufio.NewReader(client), nil)
			require.NoError(t, err)
			require.Equal(t, row.status, res.StatusCode, row.why)
			if id := res.Header.Get(gateway.RefusedHeader); id != "" {
				body, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.Equal(t, "dec_0", id)
				require.Contains(t, string(body), `"error":"refused"`)
				require.Len(t, w.denied, 1, "it is told outside")
			}
			judged := ""
			for _, r := range w.judged {
				judged += strings.TrimSpace(r.Name + " " + r.Method + " " + strings.Join(append([]string{r.Path}, r.OtherPaths...), " or "))
			}
			require.Equal(t, row.judged, judged, row.why)
			require.Equal(t, strings.ReplaceAll(row.sent, "HOST", host), sent.Load(), row.why)
		})
	}
}

// connect begins a connection as a client that speaks a protocol.
func (w *world) connect(protocol string) net.Conn {
	c, err := net.Dial("tcp", w.addr.String())
	require.NoError(w.t, err)
	w.t.Cleanup(func() { c.Close() })
	if !w.conn.TLS {
		return c
	}
	encrypted := tls.Client(c, &tls.Config{RootCAs: w.roots(), ServerName: "localhost", NextProtos: []string{protocol}})
	require.NoError(w.t, encrypted.Handshake())
	return encrypted
}

// What HTTP/2 can say and the line of HTTP/1.1 that it would become cannot.
func TestTargetsOfHTTP2AreNoLinesOfHTTP1(t *testing.T) {
	sent := atomic.Int32{}
	w := inWorld(t, startServer(t, true, false, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) })), encrypted, intercept.Config{})
	for _, target := range []string{"/admin HTTP/1.1/info/refs", "/admin#/info/refs", "/a?b HTTP/1.1"} {
		req, err := http.NewRequest("GET", w.url("/"), nil)
		require.NoError(t, err)
		req.URL.Opaque = target
		res, err := w.client(true).Do(req)
		require.NoError(t, err)
		require.Equal(t, http.StatusBadRequest, res.StatusCode, "http.server reads the path up to the space, nginx up to the number sign")
		res.Body.Close()
	}
	require.Zero(t, sent.Load())
}

func TestHandshakeForAnotherNameIsRefused(t *testing.T) {
	w := inWorld(t, nil, encrypted, intercept.Config{})
	c, err := net.Dial("tcp", w.addr.String())
	require.NoError(t, err)
	defer c.Close()
	err = tls.Client(c, &tls.Config{RootCAs: w.roots(), ServerName: "evil.example"}).Handshake()
	require.Error(t, err)
	require.ErrorContains(t, <-w.failed, `the handshake names "evil.example"`)
}

func TestAddressIsAHostToo(t *testing.T) {
	for _, addr := range []string{"203.0.113.7:443", "[2001:db8::7]:443"} {
		to := serverFor(t, true, http.NotFoundHandler())
		w := inWorld(t, to, gateway.Intercepted{TLS: true, Destination: netip.MustParseAddrPort(addr)}, intercept.Config{})
		c := w.client(true)
		res, err := c.Get("https://" + strings.TrimSuffix(addr, ":443") + "/")
		require.NoError(t, err)
		require.Equal(t, http.StatusBadGateway, res.StatusCode, "the destination's certificate is for a name")
		require.Empty(t, w.lastJudged().Name)
		res.Body.Close()

		req, err := http.NewRequest("GET", "https://"+addr+"/", nil)
		require.NoError(t, err)
		req.Host = "some.example"
		res, err = c.Do(req)
		require.NoError(t, err)
		require.Equal(t, http.StatusMisdirectedRequest, res.StatusCode)
		res.Body.Close()
	}
}

func TestConnectionThatWasDeniedAsAWhole(t *testing.T) {
	for _, tls := range []bool{false, true} {
		w := inWorld(t, nil, gateway.Intercepted{TLS: tls, Name: "localhost", Refused: &gateway.Decision{Reason: "not this host"}}, intercept.Config{})
		for _, http2 := range []bool{false, true} {
			res, err := w.client(http2).Get(w.url("/a/../b"))
			require.NoError(t, err)
			require.Equal(t, http.StatusForbidden, res.StatusCode)
			require.Equal(t, "-", res.Header.Get(gateway.RefusedHeader))
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Contains(t, string(body), "not this host")
		}
		require.Empty(t, w.judged)
	}
}
