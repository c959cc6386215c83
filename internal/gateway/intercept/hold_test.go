package intercept_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

// held is a judge that says when it was asked and waits for the answer.
type held struct {
	asked  chan gateway.Request
	answer chan gateway.Decision
	ended  chan error // of the ctx that ended first
}

func holds(w *world) *held {
	h := &held{make(chan gateway.Request, 10), make(chan gateway.Decision), make(chan error, 10)}
	w.judge = func(ctx context.Context, r gateway.Request) gateway.Decision {
		h.asked <- r
		select {
		case d := <-h.answer:
			return d
		case <-ctx.Done():
			h.ended <- ctx.Err()
			return gateway.Decision{}
		}
	}
	return h
}

func TestRequestWaitsForItsJudgement(t *testing.T) {
	eachWay(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Write(body)
	}, func(t *testing.T, w *world, c *http.Client) {
		h := holds(w)
		answered := make(chan string, 1)
		long := strings.Repeat("x", 200_000) // more than is read ahead
		go func() {
			res, err := c.Post(w.url("/"), "", strings.NewReader(long))
			if err != nil {
				answered <- err.Error()
				return
			}
			body, _ := io.ReadAll(res.Body)
			answered <- string(body)
		}()
		<-h.asked
		time.Sleep(1200 * time.Millisecond) // so long that the body is read ahead
		require.Zero(t, w.dials(), "nothing goes out before it is allowed")
		require.Empty(t, answered)
		h.answer <- gateway.Decision{Verdict: gateway.Allow}
		require.Equal(t, long, <-answered)
	})
}

func TestJudgementEndsWhenTheClientGoesAway(t *testing.T) {
	eachWay(t, nil, func(t *testing.T, w *world, c *http.Client) {
		for _, body := range []string{"", "some"} {
			h := holds(w)
			ctx, leave := context.WithCancel(t.Context())
			gone := make(chan error, 1)
			go func() {
				req, _ := http.NewRequestWithContext(ctx, "POST", w.url("/"), strings.NewReader(body))
				_, err := c.Do(req)
				gone <- err
			}()
			<-h.asked
			leave()
			require.Error(t, <-gone)
			require.ErrorIs(t, <-h.ended, context.Canceled)
		}
		require.Zero(t, w.dials())
	})
}

func TestJudgementEndsWithTheNetwork(t *testing.T) {
	eachWay(t, nil, func(t *testing.T, w *world, c *http.Client) {
		h := holds(w)
		gone := make(chan error, 1)
		go func() {
			_, err := c.Get(w.url("/"))
			gone <- err
		}()
		<-h.asked
		w.session.Close()
		require.Error(t, <-gone)
		require.ErrorIs(t, <-h.ended, context.Canceled)
	})
}

// The gateway finds by it the connection that a judgement is about.
func TestJudgementHasTheValuesOfTheConnection(t *testing.T) {
	type key struct{}
	eachWay(t, func(http.ResponseWriter, *http.Request) {}, func(t *testing.T, w *world, c *http.Client) {
		w.ctx = context.WithValue(context.Background(), key{}, "its value")
		got := make(chan any, 1)
		w.judge = func(ctx context.Context, r gateway.Request) gateway.Decision {
			got <- ctx.Value(key{})
			return gateway.Decision{}
		}
		res, err := c.Get(w.url("/"))
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, "its value", <-got)
	})
}

// A connection may be ended by the gateway, with a body that nobody reads on its way.
func TestJudgementEndsWithTheContextOfTheConnection(t *testing.T) {
	eachWay(t, nil, func(t *testing.T, w *world, c *http.Client) {
		ctx, end := context.WithCancel(context.Background())
		w.ctx = ctx
		h := holds(w)
		gone := make(chan error, 1)
		go func() {
			_, err := c.Post(w.url("/"), "", strings.NewReader(strings.Repeat("x", 1<<20)))
			gone <- err
		}()
		<-h.asked
		end()
		require.ErrorIs(t, <-h.ended, context.Canceled)
		require.Error(t, <-gone)
	})
}

func TestTooManyRequestsUnderWay(t *testing.T) {
	w := inWorld(t, nil, encrypted, intercept.Config{Requests: 2})
	h := holds(w)
	c := w.client(true)
	answered := make(chan int, 3)
	get := func() {
		res, err := c.Get(w.url("/"))
		if err != nil {
			answered <- 0
			return
		}
		res.Body.Close()
		answered <- res.StatusCode
	}
	for range 2 {
		go get()
		<-h.asked
	}
	get()
	require.Equal(t, http.StatusServiceUnavailable, <-answered)
	h.answer <- gateway.Decision{}
	require.Equal(t, http.StatusForbidden, <-answered)
	go get()
	<-h.asked // there is room again
	h.answer <- gateway.Decision{}
	h.answer <- gateway.Decision{}
	require.Equal(t, []int{403, 403}, []int{<-answered, <-answered})
}

func TestRewriting(t *testing.T) {
	eachWay(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Auth", r.Header.Get("Authorization"))
		io.WriteString(w, r.URL.RawQuery+" "+string(body))
	}, func(t *testing.T, w *world, c *http.Client) {
		w.rewrite = func(_ context.Context, r gateway.Request, out *http.Request) (gateway.Scrubber, error) {
			if r.Path == "/refused" {
				return nil, &gateway.Refusal{Decision: gateway.Decision{Reason: "the secret is not for this", ID: "dec_2"}}
			}
			if r.Path == "/failed" {
				return nil, errors.New("the secret cannot be read")
			}
			out.Header.Set("Authorization", "Bearer x")
			out.URL.RawQuery = "key=x"
			out.Body = io.NopCloser(strings.NewReader("another body"))
			out.ContentLength = -1
			return nil, nil
		}
		res, err := c.Post(w.url("/?key=placeholder"), "", strings.NewReader("a body"))
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "key=x another body", string(body))
		require.Equal(t, "Bearer x", res.Header.Get("X-Auth"))

		for path, want := range map[string]string{"/refused": "the secret is not for this", "/failed": "the secret cannot be read"} {
			res, err = c.Post(w.url(path), "", strings.NewReader("a body"))
			require.NoError(t, err)
			body, err = io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Contains(t, string(body), want)
			require.Equal(t, map[string]int{"/refused": 403, "/failed": 502}[path], res.StatusCode)
		}
	})
}

func TestFailuresOutsideAreSaidInWords(t *testing.T) {
	to := serverFor(t, true, http.NotFoundHandler())
	plain := serverFor(t, false, http.NotFoundHandler())
	dialTo := func(addr string) func(context.Context, gateway.Request) (net.Conn, error) {
		return func(ctx context.Context, _ gateway.Request) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	fails := func(err error) func(context.Context, gateway.Request) (net.Conn, error) {
		return func(context.Context, gateway.Request) (net.Conn, error) { return nil, err }
	}
	closing, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer closing.Close()
	go func() {
		for {
			c, err := closing.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	rows := []struct {
		name, host string
		dial       func(context.Context, gateway.Request) (net.Conn, error)
		trusting   bool
		status     int
		says       string
	}{
		{"certificate for another name", "other.example", dialTo(to.Listener.Addr().String()), true, 502, "is for another name"},
		{"certificate of a stranger", "localhost", dialTo(to.Listener.Addr().String()), false, 502, "--ca-bundle"},
		{"refused", "localhost", fails(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), true, 502, "refused the connection"},
		{"unreachable", "localhost", fails(&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}), true, 502, "cannot be reached"},
		{"timeout", "localhost", fails(context.DeadlineExceeded), true, 502, "did not answer in time"},
		{"no TLS", "localhost", dialTo(plain.Listener.Addr().String()), true, 502, "does not speak TLS"},
		{"closes", "localhost", dialTo(closing.Addr().String()), true, 502, "closed the connection without an answer"},
		{"its address is denied", "localhost", fails(&gateway.Refusal{Decision: gateway.Decision{Reason: "private address"}}), true, 403, "private address"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			config := intercept.Config{}
			if !row.trusting {
				config.Roots = inWorld(t, nil, encrypted, intercept.Config{}).roots()
			}
			w := inWorld(t, to, gateway.Intercepted{TLS: true, Name: row.host}, config)
			w.dial = row.dial
			res, err := w.client(true).Get(strings.Replace(w.url("/"), "localhost", row.host, 1))
			require.NoError(t, err)
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, row.status, res.StatusCode, string(body))
			require.Contains(t, string(body), row.says)
		})
	}
}

// Connections to the outside are used again by what asks for the same, and by nothing
// else.
func TestConnectionsOutAreShared(t *testing.T) {
	to := serverFor(t, true, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	w := inWorld(t, to, encrypted, intercept.Config{})
	get := func() {
		c := w.client(false) // a connection of its own inside
		res, err := c.Get(w.url("/"))
		require.NoError(t, err)
		require.Equal(t, 200, res.StatusCode)
		res.Body.Close()
		c.CloseIdleConnections()
	}
	for range 3 {
		get()
	}
	require.Equal(t, 1, w.dials())
	w.conn.Destination = addrPort("203.0.113.9", w.addr.Port())
	get()
	require.Equal(t, 2, w.dials(), "another address of the name")
	require.Equal(t, w.conn.Destination, w.dialled[1].Destination)
}

func TestClientThatDoesNotTrustIsTold(t *testing.T) {
	w := inWorld(t, nil, encrypted, intercept.Config{})
	_, err := http.Get(w.url("/"))
	require.Error(t, err)
	require.ErrorContains(t, <-w.failed, "trusts other authorities or pins one")
}
