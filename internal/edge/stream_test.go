package edge_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/edge"
)

const userPort = 8000

// toUser are the headers that route to userPort of sandbox iaaa.
var toUser = []string{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "8000"}

// startUser serves an edge to one sandbox with one server.
func startUser(t testing.TB, h http.Handler) (addr string, s *sandboxes) {
	s = newSandboxes()
	s.serve(t, "iaaa", userPort, h)
	return start(t, s), s
}

func TestRequestPassesUnchangedButForWhatIsOurs(t *testing.T) {
	addr, _ := startUser(t, names("a"))
	const uri = "/a%2Fb//c?x=1;2&y=%zz&z=a+b"
	r := request(t, "GET", "http://"+addr+"/", append(toUser,
		"X-API-KEY", "e2b_secret", "Authorization", "Basic dTo=", "X-Access-Token", "t", "Cookie", "a=b",
		"Connection", "X-Hop", "X-Hop", "1", "Te", "trailers", "X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil")...)
	r.URL = &url.URL{Scheme: "http", Host: addr, Opaque: uri}
	res := do(t, r)
	got := func(name string) string { return res.Header.Get("X-Got-" + name) }

	require.Equal(t, uri, res.Header.Get("X-URI"))
	require.Equal(t, "Basic dTo=", got("Authorization"))
	require.Equal(t, "t", got("X-Access-Token"))
	require.Equal(t, "a=b", got("Cookie"))
	require.Equal(t, "trailers", got("Te"))
	require.Equal(t, "127.0.0.1", got("X-Forwarded-For"))
	require.Equal(t, addr, got("X-Forwarded-Host"))
	require.Equal(t, "http", got("X-Forwarded-Proto"))
	require.Empty(t, got("X-Api-Key"), "our key stays outside")
	require.Empty(t, got("X-Hop"))
	require.Empty(t, got("Accept-Encoding"), "the edge asks for no compression of its own")
}

func TestTrailersPass(t *testing.T) {
	addr, _ := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "body")
		w.Header().Set("X-Sum", "42")
	}))
	res := do(t, request(t, "GET", "http://"+addr+"/", toUser...))
	require.Equal(t, "body", body(t, res))
	require.Equal(t, "42", res.Trailer.Get("X-Sum"))
}

func TestEveryEventIsFlushed(t *testing.T) {
	next := make(chan struct{})
	addr, _ := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next // not before the client has read it
		}
	}))
	res := do(t, request(t, "GET", "http://"+addr+"/", toUser...))
	lines := bufio.NewReader(res.Body)
	for i := range 3 {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("data: %d\n", i), line)
		_, err = lines.ReadString('\n')
		require.NoError(t, err)
		next <- struct{}{}
	}
}

func TestWebSocketEchoes(t *testing.T) {
	addr, s := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, data, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, data) != nil {
				return
			}
		}
	}))
	c, _, err := websocket.Dial(t.Context(), "ws://"+addr+"/ws", &websocket.DialOptions{Host: "8000-iaaa.example.com"})
	require.NoError(t, err)
	defer c.CloseNow()
	for _, text := range []string{"a", strings.Repeat("b", 30_000)} {
		require.NoError(t, c.Write(t.Context(), websocket.MessageText, []byte(text)))
		_, got, err := c.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}

	s.kill("iaaa", "killed")
	_, _, err = c.Read(t.Context())
	require.Error(t, err)
	require.NotEqual(t, websocket.StatusNormalClosure, websocket.CloseStatus(err), "a killed sandbox is no clean end")
}

func TestLargeBodiesStreamBothWays(t *testing.T) {
	const size = 64 << 20
	addr, _ := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		if r.Method == "POST" {
			io.Copy(sum, r.Body)
		} else {
			io.Copy(io.MultiWriter(w, sum), random(size))
			return
		}
		io.WriteString(w, hex.EncodeToString(sum.Sum(nil)))
	}))
	want := sha256.New()
	io.Copy(want, random(size))

	r := request(t, "POST", "http://"+addr+"/", toUser...)
	r.Body = io.NopCloser(random(size)) // chunked, as the clients send
	require.Equal(t, hex.EncodeToString(want.Sum(nil)), body(t, do(t, r)))

	got := sha256.New()
	n, err := io.Copy(got, do(t, request(t, "GET", "http://"+addr+"/", toUser...)).Body)
	require.NoError(t, err)
	require.EqualValues(t, size, n)
	require.Equal(t, want.Sum(nil), got.Sum(nil))
}

func TestAnswerMayBeginBeforeTheRequestEnds(t *testing.T) {
	addr, _ := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		buf := make([]byte, 16)
		for {
			n, err := r.Body.Read(buf)
			w.Write(buf[:n])
			w.(http.Flusher).Flush()
			if err != nil {
				return
			}
		}
	}))
	in, out := io.Pipe()
	r := request(t, "POST", "http://"+addr+"/", toUser...)
	r.Body = in
	res := do(t, r)
	buf := make([]byte, 4)
	for range 3 {
		_, err := out.Write([]byte("ping"))
		require.NoError(t, err)
		_, err = io.ReadFull(res.Body, buf)
		require.NoError(t, err)
		require.Equal(t, "ping", string(buf))
	}
	out.Close()
	_, err := io.ReadAll(res.Body)
	require.NoError(t, err)
}

func TestEarlyRefusalOfAnUploadArrives(t *testing.T) {
	addr, _ := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "disk full", http.StatusInsufficientStorage)
	}))
	for range 50 {
		r := request(t, "POST", "http://"+addr+"/", toUser...)
		r.Body = io.NopCloser(random(8 << 20))
		res := do(t, r)
		require.Equal(t, http.StatusInsufficientStorage, res.StatusCode)
		require.Equal(t, "disk full\n", body(t, res))
	}
}

// TestEarlyRefusalReachesClientThatWritesFirst is for clients that read only when
// they have written everything.
func TestEarlyRefusalReachesClientThatWritesFirst(t *testing.T) {
	addr, _ := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "disk full", http.StatusInsufficientStorage)
	}))
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	const size = 64 << 20
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: 8000-iaaa.x\r\nContent-Length: %d\r\n\r\n", size)
	_, err = io.Copy(c, random(size))
	require.NoError(t, err)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusInsufficientStorage, res.StatusCode)
}

func TestClientMayWaitForContinue(t *testing.T) {
	addr, _ := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	}))
	post := func(path string, sent *bool) *http.Response {
		r := request(t, "POST", "http://"+addr+path, append(toUser, "Expect", "100-continue")...)
		r.Body = io.NopCloser(io.TeeReader(random(1<<20), writerFunc(func(p []byte) (int, error) {
			*sent = true
			return len(p), nil
		})))
		transport := &http.Transport{ExpectContinueTimeout: time.Minute, DisableKeepAlives: true}
		res, err := transport.RoundTrip(r)
		require.NoError(t, err)
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	var sent bool
	require.Equal(t, "1048576", body(t, post("/yes", &sent)))
	sent = false
	require.Equal(t, http.StatusForbidden, post("/no", &sent).StatusCode)
	require.False(t, sent, "a refused upload is not sent")
}

func TestHTTP2RoutesAndStreams(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", userPort, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
	}))
	server := httptest.NewUnstartedServer(nil)
	server.Config = edge.Server(edge.New(edge.Options{Sandboxes: s, Control: http.NotFoundHandler()}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	r := request(t, "POST", server.URL, "Host", "8000-iaaa.example.com")
	r.Body = io.NopCloser(random(1 << 20))
	res, err := server.Client().Transport.RoundTrip(r)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, 2, res.ProtoMajor)
	n, err := io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, n)
}

func TestEndedSandboxLeavesNothingBehind(t *testing.T) {
	s := newSandboxes()
	addr := start(t, s)
	before := runtime.NumGoroutine()
	for i := range 20 {
		id := fmt.Sprintf("ix%d", i)
		var open atomic.Int64
		server := httptest.NewUnstartedServer(names(id))
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed:
				open.Add(-1)
			}
		}
		server.Start()
		s.listen(id, userPort, server.Listener.Addr().String())
		body(t, do(t, request(t, "GET", "http://"+addr+"/", "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "8000")))
		require.EqualValues(t, 1, open.Load(), "the edge keeps the connection")
		s.end(id)
		eventually(t, "the edge closes what it dialled", func() bool { return open.Load() == 0 })
		server.Close()
	}
	eventually(t, "no goroutine stays", func() bool { return runtime.NumGoroutine() <= before+3 })
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestClientThatLeavesIsNoticedInside(t *testing.T) {
	left := make(chan struct{})
	addr, _ := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(left)
	}))
	res := do(t, request(t, "GET", "http://"+addr+"/", toUser...))
	res.Body.Close()
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Fatal("the server in the sandbox must see that the client left")
	}
}

func TestKilledSandboxBreaksItsStreams(t *testing.T) {
	forever := func(header ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if len(header) > 0 {
				w.Header().Set(header[0], header[1])
			}
			io.WriteString(w, "begin")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
	}
	// An answer of HTTP/1.0 ends where its connection does, so that a plain proxy
	// could not tell a kill from the end.
	untilClose := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\nbegin")
		io.Copy(io.Discard, c)
	})
	for name, h := range map[string]http.Handler{
		"chunked":       forever(),
		"with a length": forever("Content-Length", "1000"),
		"until close":   untilClose,
	} {
		t.Run(name, func(t *testing.T) {
			addr, s := startUser(t, h)
			res := do(t, request(t, "GET", "http://"+addr+"/", toUser...))
			require.Equal(t, http.StatusOK, res.StatusCode)
			_, err := io.ReadFull(res.Body, make([]byte, len("begin")))
			require.NoError(t, err)
			s.kill("iaaa", "killed")
			_, err = io.ReadAll(res.Body)
			require.Error(t, err, "the client must not take a part for the whole")
		})
	}
}

func TestKilledSandboxEndsRequestsNotYetAnswered(t *testing.T) {
	inside := make(chan struct{})
	addr, s := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		<-r.Context().Done()
	}))
	go func() {
		<-inside
		s.kill("iaaa", "out of memory")
	}()
	r := request(t, "POST", "http://"+addr+"/", toUser...)
	res := do(t, r)
	require.Equal(t, http.StatusBadGateway, res.StatusCode)
	require.JSONEq(t, `{"sandboxId":"iaaa","message":"The sandbox was not found","code":502,"reason":"out of memory"}`, body(t, res))
}

func TestServerThatHangsUpIsNotTakenForADeadSandbox(t *testing.T) {
	addr, _ := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }))
	res := do(t, request(t, "POST", "http://"+addr+"/", toUser...))
	require.Equal(t, http.StatusBadGateway, res.StatusCode)
	require.Contains(t, body(t, res), "The sandbox is running")
}

func TestConnectionsIntoASandboxAreReused(t *testing.T) {
	addr, s := startUser(t, names("a"))
	for range 10 {
		body(t, do(t, request(t, "GET", "http://"+addr+"/", toUser...)))
	}
	require.Less(t, s.dialled("iaaa"), 10)
}

func TestOneSandboxCannotHoldEveryConnection(t *testing.T) {
	release := make(chan struct{})
	addr, s := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			w.(http.Flusher).Flush()
			<-release
		}
	}))
	s.serve(t, "ibbb", userPort, names("b"))

	client := &http.Transport{}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var held []*http.Response
	for range 20 {
		wg.Go(func() {
			for range 50 {
				res, err := client.RoundTrip(request(t, "GET", "http://"+addr+"/hold", toUser...))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				held = append(held, res)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, held, 1000)

	require.Equal(t, http.StatusTooManyRequests, do(t, request(t, "GET", "http://"+addr+"/", toUser...)).StatusCode)
	other := do(t, request(t, "GET", "http://"+addr+"/", "E2b-Sandbox-Id", "ibbb", "E2b-Sandbox-Port", "8000"))
	require.Equal(t, http.StatusOK, other.StatusCode, "another sandbox is not held up")

	close(release)
	for _, res := range held {
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	eventually(t, "requests are counted out again", func() bool {
		return do(t, request(t, "GET", "http://"+addr+"/", toUser...)).StatusCode == http.StatusOK
	})
}

func TestSlowHeadersStarveNobody(t *testing.T) {
	addr, _ := startUser(t, names("a"))
	for range 500 {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer c.Close()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	}
	begin := time.Now()
	require.Equal(t, http.StatusOK, do(t, request(t, "GET", "http://"+addr+"/", toUser...)).StatusCode)
	require.Less(t, time.Since(begin), 9*time.Second)
}

func TestHugeHeadersAreRefused(t *testing.T) {
	addr, _ := startUser(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Big", strings.Repeat("a", 300<<10))
	}))
	res := do(t, request(t, "GET", "http://"+addr+"/", append(toUser, "X-Big", strings.Repeat("a", 80<<10))...))
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, res.StatusCode)
	res = do(t, request(t, "GET", "http://"+addr+"/", toUser...))
	require.Equal(t, http.StatusBadGateway, res.StatusCode)
}

// random is a stream of n bytes, the same each time.
func random(n int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{1}), n)
}
