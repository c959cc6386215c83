package intercept_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

// What a server sends must be there before it sends more: the client asks for each
// piece when it has read the one before.
func TestBodiesStreamBothWays(t *testing.T) {
	for _, scrubbed := range []bool{false, true} {
		eachWay(t, func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor == 1 {
				http.NewResponseController(w).EnableFullDuplex()
			}
			w.Header().Set("Content-Type", "text/event-stream")
			lines := bufio.NewScanner(r.Body)
			for lines.Scan() {
				fmt.Fprintf(w, "data: %s\n\n", lines.Text())
				w.(http.Flusher).Flush()
			}
		}, func(t *testing.T, w *world, c *http.Client) {
			if w.rewrite = nothing; scrubbed {
				w.rewrite = scrubs(secret, placeholder)
			}
			body, feed := io.Pipe()
			req, err := http.NewRequest("POST", w.url("/"), body)
			require.NoError(t, err)
			go io.WriteString(feed, "0\n")
			res, err := c.Do(req)
			require.NoError(t, err)
			lines := bufio.NewReader(res.Body)
			for i := range 5 {
				got, err := lines.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, fmt.Sprintf("data: %d\n", i), got)
				_, err = lines.ReadString('\n')
				require.NoError(t, err)
				_, err = fmt.Fprintf(feed, "%d\n", i+1)
				require.NoError(t, err)
			}
			feed.Close()
			_, err = io.ReadAll(lines)
			require.NoError(t, err)
		})
	}
}

func nothing(context.Context, gateway.Request, *http.Request) (gateway.Scrubber, error) {
	return nil, nil
}

func TestTrailersPassBothWays(t *testing.T) {
	eachWay(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "Grpc-Status")
		w.Header().Set("X-Te", r.Header.Get("Te"))
		w.Write(body)
		w.Header().Set("Grpc-Status", "7")
		w.Header().Set(http.TrailerPrefix+"X-Sum", r.Trailer.Get("X-Sum"))
	}, func(t *testing.T, w *world, c *http.Client) {
		req, err := http.NewRequest("POST", w.url("/"), io.NopCloser(strings.NewReader("body"))) // of unknown length
		require.NoError(t, err)
		req.Trailer = http.Header{"X-Sum": {"42"}}
		req.Header.Set("Te", "trailers")
		res, err := c.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "body", string(body))
		require.Equal(t, http.Header{"Grpc-Status": {"7"}, "X-Sum": {"42"}}, res.Trailer)
		require.Equal(t, "trailers", res.Header.Get("X-Te"))
	})
}

func TestAnswersWithoutBodies(t *testing.T) {
	eachWay(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/head":
			w.Header().Set("Content-Length", "1000")
		case "/304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(http.StatusNotModified)
		case "/204":
			w.WriteHeader(http.StatusNoContent)
		}
	}, func(t *testing.T, w *world, c *http.Client) {
		for _, scrubbed := range []bool{false, true} {
			if w.rewrite = nothing; scrubbed {
				w.rewrite = scrubs(secret, placeholder)
			}
			res, err := c.Head(w.url("/head"))
			require.NoError(t, err)
			require.Equal(t, int64(1000), res.ContentLength)
			for path, status := range map[string]int{"/304": 304, "/204": 204} {
				res, err := c.Get(w.url(path))
				require.NoError(t, err)
				require.Equal(t, status, res.StatusCode)
				body, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.Empty(t, body)
			}
		}
	})
}

func TestInformationalAnswersPass(t *testing.T) {
	eachWay(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
	}, func(t *testing.T, w *world, c *http.Client) {
		hints := ""
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				hints = fmt.Sprint(code, h.Get("Link"))
				return nil
			},
		})
		req, err := http.NewRequestWithContext(ctx, "GET", w.url("/"), nil)
		require.NoError(t, err)
		res, err := c.Do(req)
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, "103</style.css>", hints)
	})
}

// A body that the client asks about first is sent when the destination wants it, and not
// when it, or the policy, does not.
func TestExpectContinue(t *testing.T) {
	to := startServer(t, true, false, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	}))
	w := inWorld(t, to, encrypted, intercept.Config{})
	w.judge = func(_ context.Context, r gateway.Request) gateway.Decision {
		if r.Path == "/denied" {
			return gateway.Decision{}
		}
		return gateway.Decision{Verdict: gateway.Allow}
	}
	for path, want := range map[string]int{"/yes": 100, "/no": 401, "/denied": 403} {
		c := w.connect("http/1.1")
		fmt.Fprintf(c, "PUT %s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n", path)
		answers := bufio.NewReader(c)
		res, err := http.ReadResponse(answers, nil)
		require.NoError(t, err)
		require.Equal(t, want, res.StatusCode, path)
		if want != 100 {
			continue
		}
		_, err = c.Write(bytes.Repeat([]byte("x"), 1000000))
		require.NoError(t, err)
		res, err = http.ReadResponse(answers, nil)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "1000000", string(body))
	}
}

func TestCutOffAnswerIsNotPassedAsWhole(t *testing.T) {
	eachWay(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}, func(t *testing.T, w *world, c *http.Client) {
		res, err := c.Get(w.url("/"))
		require.NoError(t, err)
		_, err = io.ReadAll(res.Body)
		require.Error(t, err)
	})
}

func TestLargeBodiesPass(t *testing.T) {
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	eachWay(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Length", fmt.Sprint(r.ContentLength))
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Write(body)
	}, func(t *testing.T, w *world, c *http.Client) {
		res, err := c.Post(w.url("/"), "", bytes.NewReader(large))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(len(large)), res.Header.Get("X-Length"))
		got, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.True(t, bytes.Equal(large, got))
	})
}
