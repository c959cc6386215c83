package intercept_test

import (
	"bytes"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/coder/websocket"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

const secret, placeholder = "sk-very-secret-value", "[it]"

func TestAnswersAreScrubbed(t *testing.T) {
	long := strings.Repeat(secret+", and more. ", 20_000)
	eachWay(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", secret)
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header().Set("X-Echo", "Bearer "+secret)
		w.Header().Set("X-Asked", r.Header.Get("Accept-Encoding"))
		w.Header().Set("Trailer", "X-Last")
		switch r.URL.Path {
		case "/short":
			w.Header().Set("Content-Length", fmt.Sprint(len(secret)+1))
			io.WriteString(w, "<"+secret)
		case "/long":
			io.WriteString(w, long)
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		}
		w.Header().Set("X-Last", secret)
		w.Header().Set(http.TrailerPrefix+"X-Unannounced", secret)
	}, func(t *testing.T, w *world, c *http.Client) {
		w.rewrite = scrubs(secret, placeholder)
		for path, want := range map[string]string{
			"/short": "<" + placeholder, "/long": strings.ReplaceAll(long, secret, placeholder), "/none": "",
		} {
			req, err := http.NewRequest("GET", w.url(path), nil)
			require.NoError(t, err)
			req.Header.Set("Accept-Encoding", "gzip, br")
			res, err := c.Do(req)
			require.NoError(t, err)
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, want, string(body), path)
			require.Equal(t, "Bearer "+placeholder, res.Header.Get("X-Echo"))
			require.Equal(t, "identity", res.Header.Get("X-Asked"))
			if path == "/short" {
				require.Equal(t, int64(len(want)), res.ContentLength)
			}
			if path == "/long" {
				require.Equal(t, http.Header{"X-Last": {placeholder}, "X-Unannounced": {placeholder}}, res.Trailer)
			}
		}
	})
}

func TestEncodedAnswersAreScrubbed(t *testing.T) {
	text := strings.Repeat("This is "+secret+".", 10_000)
	encode := map[string]func(io.Writer) io.WriteCloser{
		"gzip":   func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"x-gzip": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"br":     func(w io.Writer) io.WriteCloser { return brotli.NewWriter(w) },
		"zstd": func(w io.Writer) io.WriteCloser {
			z, err := zstd.NewWriter(w)
			require.NoError(t, err)
			return z
		},
		"deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
		"Deflate": func(w io.Writer) io.WriteCloser { // without the header, as some servers have it
			f, err := flate.NewWriter(w, 1)
			require.NoError(t, err)
			return f
		},
		"gzip, br": func(w io.Writer) io.WriteCloser {
			outer := brotli.NewWriter(w)
			return both{gzip.NewWriter(outer), outer}
		},
	}
	to := serverFor(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Query().Get("as")
		w.Header().Set("Content-Encoding", name)
		open := encode[name]
		if open == nil {
			io.WriteString(w, text)
			return
		}
		z := open(w)
		io.WriteString(z, text)
		z.Close()
	}))
	w := inWorld(t, to, encrypted, intercept.Config{})
	w.rewrite = scrubs(secret, placeholder)
	c := w.client(false)
	for name := range encode {
		res, err := c.Get(w.url("/?as=" + strings.ReplaceAll(name, " ", "%20")))
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err, name)
		require.Equal(t, strings.ReplaceAll(text, secret, placeholder), string(body), name)
		require.NotContains(t, res.Header, "Content-Encoding", name)
	}
	for _, name := range []string{"unknown", "gzip,gzip,gzip,gzip"} {
		res, err := c.Get(w.url("/?as=" + name))
		require.NoError(t, err)
		require.Equal(t, http.StatusBadGateway, res.StatusCode, "what cannot be read is not passed on")
		require.Equal(t, "no-answer", res.Header.Get(intercept.FailedHeader))
		res.Body.Close()
	}

	w.rewrite = func(context.Context, gateway.Request, *http.Request) (gateway.Scrubber, error) { return nil, nil }
	res, err := c.Get(w.url("/?as=gzip"))
	require.NoError(t, err)
	require.Equal(t, "gzip", res.Header.Get("Content-Encoding"), "without a scrubber all passes as it is")
	res.Body.Close()
}

type both struct {
	io.WriteCloser
	outer io.Closer
}

func (b both) Close() error {
	b.WriteCloser.Close()
	return b.outer.Close()
}

func TestCutOffEncodedAnswerIsNotPassedAsWhole(t *testing.T) {
	to := serverFor(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var all bytes.Buffer
		z := gzip.NewWriter(&all)
		io.WriteString(z, strings.Repeat(secret, 1000))
		z.Close()
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(all.Bytes()[:all.Len()-10])
	}))
	w := inWorld(t, to, encrypted, intercept.Config{})
	w.rewrite = scrubs(secret, placeholder)
	res, err := w.client(false).Get(w.url("/"))
	require.NoError(t, err)
	_, err = io.ReadAll(res.Body)
	require.Error(t, err)
}

func TestWebSocket(t *testing.T) {
	for _, scrubbed := range []bool{false, true} {
		for _, tls := range []bool{false, true} {
			t.Run(fmt.Sprintf("scrubbed=%v tls=%v", scrubbed, tls), func(t *testing.T) {
				w := inWorld(t, serverFor(t, tls, echo(t)), gateway.Intercepted{TLS: tls, Name: "localhost"}, intercept.Config{})
				want := func(s string) string { return s }
				if scrubbed {
					w.rewrite = scrubs(secret, placeholder)
					want = func(s string) string { return strings.ReplaceAll(s, secret, placeholder) }
				}
				c, res, err := websocket.Dial(t.Context(), w.url("/chat"), &websocket.DialOptions{
					HTTPClient: w.client(false), CompressionMode: websocket.CompressionContextTakeover, Subprotocols: []string{"chat"},
				})
				require.NoError(t, err)
				require.Equal(t, "chat", c.Subprotocol())
				require.Equal(t, !scrubbed, res.Header.Get("Sec-Websocket-Extensions") != "", "compression cannot be looked into")
				c.SetReadLimit(1 << 20)
				for _, message := range []string{"", "s", "sk-very-", secret, strings.Repeat(secret, 3000), strings.Repeat("x", 200_000) + secret} {
					require.NoError(t, c.Write(t.Context(), websocket.MessageText, []byte(message)))
					kind, got, err := c.Read(t.Context())
					require.NoError(t, err)
					require.Equal(t, websocket.MessageText, kind)
					require.Equal(t, want(message), string(got))
				}
				require.NoError(t, c.Ping(c.CloseRead(t.Context())))
				require.NoError(t, c.Close(websocket.StatusNormalClosure, "bye"))
				require.Equal(t, "/chat", w.lastJudged().Path)
			})
		}
	}
}

// echo sends messages back, in pieces where they are long.
func echo(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{
			CompressionMode: websocket.CompressionContextTakeover, Subprotocols: []string{"chat"},
		})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 20)
		for {
			kind, message, err := c.Read(r.Context())
			if err != nil {
				return
			}
			out, err := c.Writer(r.Context(), kind)
			if err != nil {
				return
			}
			for len(message) > 0 {
				n, err := out.Write(message[:min(len(message), 10_007)])
				if err != nil {
					return
				}
				message = message[n:]
			}
			out.Close()
		}
	})
}

// An answer that cannot be looked through is not given on, and what would lead to one is
// not sent.
func TestAnswersAreWholeAndReadable(t *testing.T) {
	for _, row := range []struct {
		what, why    string
		asks, answer http.Header
		status       int
		sent         http.Header // nil: nothing
	}{
		{"a part of it", "a part may end within a value", http.Header{"Range": {"bytes=0-9"}, "If-Range": {`"tag"`}}, nil, 200, http.Header{"Range": nil, "If-Range": nil}},
		{"encodings that gRPC takes", "messages are encoded one by one", http.Header{"Grpc-Accept-Encoding": {"gzip"}}, nil, 200, http.Header{"Grpc-Accept-Encoding": {"identity"}}},
		{"encodings that Connect takes", "the same", http.Header{"Connect-Accept-Encoding": {"br, gzip"}}, nil, 200, http.Header{"Connect-Accept-Encoding": {"identity"}}},
		{"encoded messages of gRPC", "servers answer in the encoding of the request", http.Header{"Grpc-Encoding": {"gzip"}}, nil, 415, nil},
		{"encoded messages of Connect", "the same", http.Header{"Connect-Content-Encoding": {"gzip"}}, nil, 415, nil},
		{"messages that are not", "they can be read", http.Header{"Grpc-Encoding": {"identity"}}, http.Header{"Grpc-Encoding": {"identity"}}, 200, http.Header{"Grpc-Encoding": {"identity"}}},
		{"an answer of gRPC's that is encoded all the same", "a value may be in it", http.Header{}, http.Header{"Grpc-Encoding": {"gzip"}}, 502, http.Header{}},
		{"one of Connect's", "the same", http.Header{}, http.Header{"Connect-Content-Encoding": {"zstd"}}, 502, http.Header{}},
	} {
		t.Run(row.what, func(t *testing.T) {
			var sent http.Header
			to := serverFor(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				sent = r.Header
				for name, values := range row.answer {
					w.Header()[name] = values
				}
				io.WriteString(w, "\x01\x00\x00\x00\x01x")
			}))
			w := inWorld(t, to, encrypted, intercept.Config{})
			scrub := scrubs(secret, placeholder)
			w.rewrite = func(ctx context.Context, r gateway.Request, out *http.Request) (gateway.Scrubber, error) {
				require.Equal(t, row.status == http.StatusUnsupportedMediaType, r.Unreadable != nil, "it is said before a secret is asked for")
				return scrub(ctx, r, out)
			}
			req, err := http.NewRequest("POST", w.url("/echo.Echo/Whoami"), strings.NewReader("x"))
			require.NoError(t, err)
			for name, values := range row.asks {
				req.Header[name] = values
			}
			res, err := w.client(true).Do(req)
			require.NoError(t, err)
			defer res.Body.Close()
			require.Equal(t, row.status, res.StatusCode, row.why)
			require.Equal(t, row.sent == nil, sent == nil, row.why)
			for name, values := range row.sent {
				require.Equal(t, values, sent[name], row.why)
			}
		})
	}
}
