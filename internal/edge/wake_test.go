package edge_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// startSleeper serves an edge to one sandbox that traffic may wake, running yet.
func startSleeper(t testing.TB, h http.Handler) (addr string, s *sandboxes) {
	s = newSandboxes()
	for _, port := range []uint16{userPort, 49983, 49999} {
		s.serve(t, "iaaa", port, h)
	}
	s.set("iaaa", func(b *box) { b.info.Lifecycle.AutoResume = true })
	return start(t, s), s
}

func echo() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got, err := io.ReadAll(r.Body); err == nil {
			w.Write(got)
		}
	})
}

func TestRequestWakesAPausedSandboxAndArrivesWhole(t *testing.T) {
	addr, s := startSleeper(t, echo())
	for round := 1; round <= 3; round++ {
		s.pause("iaaa")
		text := strings.Repeat("body ", 100_000)
		for _, chunked := range []bool{false, true} {
			r := request(t, "POST", "http://"+addr+"/", toUser...)
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
			if chunked {
				r.ContentLength = -1
			}
			res := do(t, r)
			require.Equal(t, http.StatusOK, res.StatusCode)
			require.True(t, text == body(t, res), "the body arrives whole")
		}
		require.Equal(t, round, s.wakes("iaaa"), "one wake for each pause")
	}
}

func TestEveryKindOfRequestWakes(t *testing.T) {
	addr, s := startSleeper(t, echo())
	token := []string{"X-Access-Token", "token-of-iaaa"}
	to := func(port string, more ...string) []string {
		return append([]string{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", port}, more...)
	}
	tests := map[string]*http.Request{
		"label":          request(t, "GET", "http://"+addr+"/", "Host", "8000-iaaa.example.com"),
		"port":           request(t, "GET", "http://"+addr+"/", toUser...),
		"preflight":      request(t, "OPTIONS", "http://"+addr+"/", append(toUser, "Access-Control-Request-Method", "PUT")...),
		"agent":          request(t, "POST", "http://"+addr+"/process.Process/List", to("49983", token...)...),
		"agent, signed":  request(t, "GET", "http://"+addr+"/files?"+sign("iaaa", "/a", "read", "", "").Encode(), to("49983")...),
		"signed URL":     request(t, "GET", "http://"+addr+"/files?"+sign("iaaa", "/a", "read", "", "1999999999").Encode()),
		"code":           request(t, "POST", "http://"+addr+"/execute", to("49999", token...)...),
		"contexts":       request(t, "GET", "http://"+addr+"/contexts", to("49999")...),
		"health of code": request(t, "GET", "http://"+addr+"/health", to("49999")...),
	}
	for name, r := range tests {
		t.Run(name, func(t *testing.T) {
			s.pause("iaaa")
			before := s.wakes("iaaa")
			require.Equal(t, http.StatusOK, do(t, r).StatusCode)
			require.Equal(t, before+1, s.wakes("iaaa"))
		})
	}
}

func TestWebSocketWakes(t *testing.T) {
	addr, s := startSleeper(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(w, r, nil); err == nil {
			c.Write(r.Context(), websocket.MessageText, []byte("hello"))
			c.Close(websocket.StatusNormalClosure, "")
		}
	}))
	s.pause("iaaa")
	c, _, err := websocket.Dial(t.Context(), "ws://"+addr+"/", &websocket.DialOptions{Host: "8000-iaaa.example.com"})
	require.NoError(t, err)
	defer c.CloseNow()
	_, text, err := c.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "hello", string(text))
}

func TestWhoCouldDoNothingInsideWakesNothing(t *testing.T) {
	addr, s := startSleeper(t, echo())
	s.set("iaaa", func(b *box) { b.info.Network.PrivateTraffic = true })
	s.pause("iaaa")
	to := func(port string, more ...string) []string {
		return append([]string{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", port}, more...)
	}
	traffic := func(token string) []string { return []string{"E2b-Traffic-Access-Token", token} }
	right := traffic("traffic-token-of-iaaa")
	expired := sign("iaaa", "/a", "read", "", "1000000000").Encode()
	tests := []struct {
		name, method, path string
		headers            []string
		want               int
	}{
		{"agent", "POST", "/process.Process/List", to("49983"), 403},
		{"agent, wrong token", "POST", "/process.Process/List", to("49983", "X-Access-Token", "token-of-ibbb"), 403},
		{"agent, empty token", "POST", "/process.Process/List", to("49983", "X-Access-Token", ""), 403},
		{"agent, traffic token only", "POST", "/process.Process/List", to("49983", right...), 403},
		{"agent, unsigned file", "GET", "/files?path=/a", to("49983"), 403},
		{"agent, wrong signature", "GET", "/files?path=/a&signature=v1_x", to("49983"), 403},
		{"agent, expired signature", "GET", "/files?" + expired, to("49983"), 403},
		{"agent, signature of reading", "POST", "/files?" + sign("iaaa", "/a", "read", "", "").Encode(), to("49983"), 403},
		{"expired signed URL", "GET", "/files?" + expired, nil, 403},
		{"code", "POST", "/execute", to("49999", right...), 403},
		{"code, no traffic token", "POST", "/execute", to("49999", "X-Access-Token", "token-of-iaaa"), 403},
		{"port", "GET", "/", to("8000"), 403},
		{"port, wrong token", "GET", "/", to("8000", traffic("x")...), 403},
		{"port, the agent's token", "GET", "/", to("8000", traffic("token-of-iaaa")...), 403},
		{"preflight of a port", "OPTIONS", "/", to("8000", "Access-Control-Request-Method", "PUT"), 403},
		{"preflight of the agent", "OPTIONS", "/files", to("49983", "Access-Control-Request-Method", "PUT"), 204},
		{"health", "GET", "/health", to("49983"), 502},
		{"health with the token", "GET", "/health", to("49983", "X-Access-Token", "token-of-iaaa"), 502},
		{"host only", "POST", "/init", to("49983", "X-Access-Token", "token-of-iaaa"), 404},
		{"host port", "GET", "/", to("49982", right...), 404},
		{"bad label", "GET", "/", []string{"Host", "0-iaaa.example.com", "E2b-Sandbox-Id", "iaaa"}, 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := do(t, request(t, tt.method, "http://"+addr+tt.path, tt.headers...))
			require.Equal(t, tt.want, res.StatusCode, body(t, res))
		})
	}
	require.Zero(t, s.wakes("iaaa"))
	require.Equal(t, 200, do(t, request(t, "GET", "http://"+addr+"/", to("8000", right...)...)).StatusCode)
	require.Equal(t, 1, s.wakes("iaaa"))
}

// What clients make of a refusal: `e2b` takes 502 for "not running", and for
// "does not exist any more" when the message has "was not found" in it.
func TestPausedSandboxThatTrafficDoesNotWake(t *testing.T) {
	addr, s := startUser(t, names("a"))
	s.pause("iaaa")
	for _, path := range []string{"/", "/health"} {
		for _, port := range []string{"8000", "49983", "49999"} {
			res := do(t, request(t, "GET", "http://"+addr+path, "E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", port, "X-Access-Token", "token-of-iaaa"))
			require.Equal(t, http.StatusBadGateway, res.StatusCode)
			text := body(t, res)
			require.Contains(t, text, "was not found")
			require.Contains(t, text, "paused")
			require.Contains(t, text, "resume")
			require.NotContains(t, text, "ended")
		}
	}
	require.Zero(t, s.wakes("iaaa"))
}

func TestOneWakeServesAllWhoCame(t *testing.T) {
	addr, s := startSleeper(t, names("a"))
	gate := make(chan struct{})
	s.set("iaaa", func(b *box) { b.gate = gate })
	s.pause("iaaa")
	var wg sync.WaitGroup
	codes := make(chan int, 50)
	for range cap(codes) {
		wg.Go(func() { codes <- do(t, request(t, "GET", "http://"+addr+"/", toUser...)).StatusCode })
	}
	eventually(t, "a wake", func() bool { return s.wakes("iaaa") == 1 })
	// One who leaves does not take the others' wake along.
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, err := http.DefaultTransport.RoundTrip(request(t, "GET", "http://"+addr+"/", toUser...).WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
	}()
	leave()
	<-left
	close(gate)
	wg.Wait()
	close(codes)
	for code := range codes {
		require.Equal(t, http.StatusOK, code)
	}
	require.Equal(t, 1, s.wakes("iaaa"))
}

func TestRequestsWaitForTheOutcomeOfAPause(t *testing.T) {
	for _, tt := range []struct {
		outcome sandbox.State
		resumes bool
		want    int
	}{
		{sandbox.Running, false, 200}, // the pause failed
		{sandbox.Paused, true, 200},
		{sandbox.Paused, false, 502},
	} {
		t.Run(fmt.Sprint(tt.outcome, tt.resumes), func(t *testing.T) {
			addr, s := startUser(t, names("a"))
			s.set("iaaa", func(b *box) {
				b.info.Lifecycle.AutoResume = tt.resumes
				b.info.State = sandbox.Pausing
			})
			answered := make(chan int, 1)
			go func() { answered <- do(t, request(t, "GET", "http://"+addr+"/", toUser...)).StatusCode }()
			select {
			case code := <-answered:
				t.Fatalf("answered %d before the pause was over", code)
			case <-time.After(50 * time.Millisecond):
			}
			if tt.outcome == sandbox.Paused {
				s.pause("iaaa")
			} else {
				s.setState("iaaa", tt.outcome)
			}
			require.Equal(t, tt.want, <-answered)
		})
	}
}

// A fork or a snapshot holds a sandbox for a moment: it runs on, and says so.
func TestHealthWaitsForTheOutcomeAndWakesNothing(t *testing.T) {
	for outcome, want := range map[sandbox.State]int{sandbox.Running: 200, sandbox.Paused: 502} {
		for _, begin := range []sandbox.State{sandbox.Pausing, sandbox.Resuming} {
			addr, s := startSleeper(t, names("a"))
			s.setState("iaaa", begin)
			answered := make(chan int, 1)
			go func() {
				answered <- do(t, request(t, "GET", "http://"+addr+"/health", "E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "49983")).StatusCode
			}()
			select {
			case code := <-answered:
				t.Fatalf("answered %d while the sandbox was %s", code, begin)
			case <-time.After(50 * time.Millisecond):
			}
			s.setState("iaaa", outcome)
			require.Equal(t, want, <-answered, "%s, then %s", begin, outcome)
			require.Zero(t, s.wakes("iaaa"))
		}
	}
}

func TestWakeThatFailsIsExplained(t *testing.T) {
	for _, tt := range []struct {
		err        error
		code       int
		retryAfter string
		text       string
	}{
		{&sandbox.LimitError{What: "sandboxes at once", Limit: "3", Flag: "max-sandboxes", RetryAfter: 1500 * time.Millisecond}, 429, "2", "limit of 3 sandboxes at once"},
		{&sandbox.LimitError{What: "sandboxes at once", Limit: "3", Flag: "max-sandboxes"}, 429, "", "limit of 3"},
		{sandbox.ErrAsleep, 502, "", "is paused"},
		{&sandbox.GoneError{ID: "iaaa", Reason: "killed"}, 502, "", "killed"},
		{errors.New("no space left on /secret"), 503, "", "could not be resumed"},
	} {
		addr, s := startSleeper(t, names("a"))
		s.pause("iaaa")
		s.set("iaaa", func(b *box) { b.wakeErr = tt.err })
		res := do(t, request(t, "GET", "http://"+addr+"/", toUser...))
		require.Equal(t, tt.code, res.StatusCode)
		require.Equal(t, tt.retryAfter, res.Header.Get("Retry-After"))
		text := body(t, res)
		require.Contains(t, text, tt.text)
		require.NotContains(t, text, "/secret", "the machine's errors are not for strangers")
	}
}

func TestSandboxKilledWhileRequestsWait(t *testing.T) {
	addr, s := startUser(t, names("a"))
	s.setState("iaaa", sandbox.Pausing)
	answered := make(chan *http.Response, 1)
	go func() { answered <- do(t, request(t, "GET", "http://"+addr+"/", toUser...)) }()
	s.kill("iaaa", "killed")
	res := <-answered
	require.Equal(t, http.StatusBadGateway, res.StatusCode)
	require.Contains(t, body(t, res), "killed")
}

func TestPauseBreaksStreamsAndTheNextRequestConnectsAnew(t *testing.T) {
	addr, s := startSleeper(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begin")
		w.(http.Flusher).Flush()
		if r.URL.Path == "/stream" {
			<-r.Context().Done()
		}
	}))
	res := do(t, request(t, "GET", "http://"+addr+"/stream", toUser...))
	_, err := io.ReadFull(res.Body, make([]byte, len("begin")))
	require.NoError(t, err)
	s.pause("iaaa")
	_, err = io.ReadAll(res.Body)
	require.Error(t, err, "the client must not take a part for the whole")
	require.Equal(t, "begin", body(t, do(t, request(t, "GET", "http://"+addr+"/", toUser...))))
	require.Equal(t, 1, s.wakes("iaaa"), "the broken stream is not sent again")
}

func TestLateWordOfAPauseLeavesTheNextRunAlone(t *testing.T) {
	addr, s := startSleeper(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begin")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	s.pause("iaaa")
	res := do(t, request(t, "GET", "http://"+addr+"/", toUser...))
	_, err := io.ReadFull(res.Body, make([]byte, len("begin")))
	require.NoError(t, err)
	for _, fn := range s.onEnd {
		fn("iaaa")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.ReadAll(res.Body)
	}()
	select {
	case <-done:
		t.Fatal("the stream of the new run was broken")
	case <-time.After(50 * time.Millisecond):
	}
}

// Requests come while a sandbox is paused and woken over and over: every one is
// answered by a run of the sandbox, or was in it when it was paused.
func TestPausesRaceWithRequests(t *testing.T) {
	addr, s := startSleeper(t, echo())
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var mu sync.Mutex
	served, broken := 0, 0
	for range 8 {
		client := &http.Transport{}
		t.Cleanup(client.CloseIdleConnections)
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				text := fmt.Sprint("message ", i)
				r := request(t, "POST", "http://"+addr+"/", toUser...)
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
				res, err := client.RoundTrip(r)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(res.Body)
				res.Body.Close()
				mu.Lock()
				if res.StatusCode == http.StatusOK && err == nil && string(got) == text {
					served++
				} else if res.StatusCode == http.StatusBadGateway && strings.Contains(string(got), "paused before it answered") || err != nil {
					broken++
				} else {
					t.Errorf("%d %q %v", res.StatusCode, got, err)
				}
				mu.Unlock()
			}
		})
	}
	for range 50 {
		mu.Lock()
		before := served
		mu.Unlock()
		eventually(t, "requests are served", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return served >= before+20 || t.Failed()
		})
		s.pause("iaaa")
	}
	close(stop)
	wg.Wait()
	t.Logf("%d served, %d broken by 50 pauses", served, broken)
}
