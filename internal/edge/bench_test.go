package edge_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const benchSize = 100 << 20

func BenchmarkUpload(b *testing.B) {
	addr, _ := startUser(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	b.Run("through the edge", func(b *testing.B) { upload(b, addr) })
	b.Run("straight", func(b *testing.B) { upload(b, straight(b)) })
}

func BenchmarkDownload(b *testing.B) {
	addr, _ := startUser(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.CopyN(w, zeros{}, benchSize) }))
	b.SetBytes(benchSize)
	for b.Loop() {
		res := do(b, request(b, "GET", "http://"+addr+"/", toUser...))
		n, err := io.Copy(io.Discard, res.Body)
		require.NoError(b, err)
		require.EqualValues(b, benchSize, n)
	}
}

// BenchmarkRequest tells by p50-µs what the edge adds to a request: the
// difference to "straight", the same server asked without it.
func BenchmarkRequest(b *testing.B) {
	s := newSandboxes()
	s.serve(b, "iaaa", userPort, names("a"))
	plain := start(b, s)
	secure, pool := startTLS(b, s)
	for name, ask := range map[string]func() (*http.Response, error){
		"straight":  asker(b, http.DefaultClient, "http://"+straight(b)+"/"),
		"http":      asker(b, http.DefaultClient, "http://"+plain+"/"),
		"https h1":  asker(b, client(b, secure, pool, http1), "https://8000-iaaa.sbx.localhost/"),
		"https h2":  asker(b, client(b, secure, pool, http2), "https://8000-iaaa.sbx.localhost/"),
		"both, h2c": asker(b, client(b, secure, pool, h2c), "http://8000-iaaa.sbx.localhost/"),
	} {
		b.Run(name, func(b *testing.B) { measure(b, ask) })
	}
}

// BenchmarkHeldConnections keeps 1,000 clients connected, each in turn asking,
// and tells what a held one costs and that the answer does not get slower.
func BenchmarkHeldConnections(b *testing.B) {
	s := newSandboxes()
	s.serve(b, "iaaa", userPort, names("a"))
	addr := start(b, s)
	const held = 1000
	asks := make([]func() (*http.Response, error), held)
	var wg sync.WaitGroup
	for i := range asks {
		transport := &http.Transport{}
		b.Cleanup(transport.CloseIdleConnections)
		asks[i] = asker(b, &http.Client{Transport: transport}, "http://"+addr+"/")
		wg.Go(func() { done(b, asks[i]) })
	}
	wg.Wait()
	next := 0
	measure(b, func() (*http.Response, error) {
		next = (next + 1) % held
		return asks[next]()
	})
}

func asker(b *testing.B, c *http.Client, url string) func() (*http.Response, error) {
	return func() (*http.Response, error) { return c.Do(request(b, "GET", url, toUser...)) }
}

func done(b *testing.B, ask func() (*http.Response, error)) {
	res, err := ask()
	if err != nil || res.StatusCode != http.StatusOK {
		b.Error(res, err)
		return
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
}

// measure reports the middle of all times besides the mean.
func measure(b *testing.B, ask func() (*http.Response, error)) {
	done(b, ask)
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		done(b, ask)
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1000, "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1000, "p99-µs")
}

// straight is the address of a sandbox's server itself: the baseline.
func straight(b *testing.B) string {
	s := newSandboxes()
	s.serve(b, "iaaa", userPort, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		names("a").ServeHTTP(w, r)
	}))
	return s.live["iaaa"].ports[userPort]
}

func upload(b *testing.B, addr string) {
	b.SetBytes(benchSize)
	for b.Loop() {
		r := request(b, "POST", "http://"+addr+"/", toUser...)
		r.Body = io.NopCloser(io.LimitReader(zeros{}, benchSize))
		res := do(b, r)
		require.Equal(b, http.StatusOK, res.StatusCode)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestThousandIdleConnectionsAreHeld is the promise of BenchmarkHeldConnections.
func TestThousandIdleConnectionsAreHeld(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", userPort, echo())
	addr := start(t, s)
	clients := make([]*http.Transport, 1000)
	ask := func(i int) {
		text := fmt.Append(nil, "message ", i)
		r := request(t, "POST", "http://"+addr+"/", toUser...)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		res, err := clients[i].RoundTrip(r)
		if err != nil {
			t.Error(err)
			return
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if err != nil || !bytes.Equal(text, got) {
			t.Errorf("%q %v", got, err)
		}
	}
	dials := 0
	var mu sync.Mutex
	for i := range clients {
		clients[i] = countDials(&mu, &dials)
		t.Cleanup(clients[i].CloseIdleConnections)
	}
	for range 3 {
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() { ask(i) })
		}
		wg.Wait()
	}
	require.Equal(t, len(clients), dials, "every connection was kept")
}

func countDials(mu *sync.Mutex, dials *int) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		mu.Lock()
		*dials++
		mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
}
