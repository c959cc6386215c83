package record_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/audit"
)

type records chan audit.Record

func (c records) Append(r audit.Record) { c <- r }

func TestWhoLooksIsRecorded(t *testing.T) {
	log := make(records, 10)
	mux := http.NewServeMux()
	for _, path := range []string{"GET /log", "GET /other"} {
		mux.HandleFunc(path, func(_ http.ResponseWriter, r *http.Request) { record.Look(r.Context()) })
	}
	mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
		record.Caller(r.Context(), "key:"+r.Header.Get("who"), "")
		record.Look(r.Context())
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /page", func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewServer(record.Requests{Log: log, API: "owner", Actor: "owner"}.Wrap(mux))
	defer server.Close()
	get := func(path, who string) io.Closer {
		r, err := http.NewRequest(http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		r.Header.Set("who", who)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		return answer.Body
	}
	for range 3 {
		get("/log", "").Close()
		get("/page", "").Close()
	}
	get("/other", "").Close()
	require.Equal(t, "GET /log", (<-log).What)
	require.Equal(t, "GET /other", (<-log).What, "the same again within a minute is not")

	first := get("/stream", "a")
	r := <-log
	require.Equal(t, "GET /stream", r.What, "a stream is recorded when it begins")
	require.Equal(t, "key:a", r.Actor)
	second := get("/stream", "b")
	require.Equal(t, "key:b", (<-log).Actor)
	first.Close()
	second.Close()
	server.Close()
	require.Empty(t, log, "and not again when it ends")
}

func TestAnswersPassUnchanged(t *testing.T) {
	log := make(records, 10)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /stream", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // what was flushed reaches the client, who goes away then
	})
	mux.HandleFunc("POST /upgrade", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nhello")
		conn.Close()
	})
	mux.HandleFunc("POST /abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("POST /nothing", func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewServer(record.Requests{Log: log, API: "owner", Actor: "owner"}.Wrap(mux))
	defer server.Close()
	post := func(path string) (*http.Response, error) {
		r, err := http.NewRequest(http.MethodPost, server.URL+path, nil)
		require.NoError(t, err)
		if path == "/upgrade" {
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "tcp")
		}
		return http.DefaultClient.Do(r)
	}

	answer, err := post("/stream")
	require.NoError(t, err)
	first := make([]byte, 3)
	_, err = io.ReadFull(answer.Body, first)
	require.NoError(t, err)
	answer.Body.Close()
	require.Contains(t, string((<-log).Detail), `"status":200`)

	answer, err = post("/upgrade")
	require.NoError(t, err)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Equal(t, "hello", string(text))
	require.Contains(t, string((<-log).Detail), `"status":101`)

	_, err = post("/abort")
	require.Error(t, err)
	require.Contains(t, string((<-log).Detail), `"status":0`)

	_, err = post("/nothing")
	require.NoError(t, err)
	r := <-log
	require.Contains(t, string(r.Detail), `"status":200`)
	require.Equal(t, "POST /nothing", r.What)
	require.Equal(t, "owner", r.Actor)
}

func TestNothingIsRecordedWithoutARecorder(t *testing.T) {
	record.Caller(t.Context(), "owner", "")
	record.Sandbox(t.Context(), "sb")
	record.Note(t.Context(), "name", "value")
}

func TestLongPathsAreCut(t *testing.T) {
	log := make(records, 1)
	h := record.Requests{Log: log}.Wrap(http.NewServeMux())
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/"+strings.Repeat("x", 1<<20), nil))
	r := <-log
	require.Less(t, len(r.Detail), 1000)
	require.Equal(t, audit.Nobody, r.Actor)
}

// BenchmarkRequest is what recording adds to a request, with the log on the disk.
func BenchmarkRequest(b *testing.B) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sandboxes/{id}/pause", func(w http.ResponseWriter, r *http.Request) {
		record.Caller(r.Context(), "key:k", "k")
		w.WriteHeader(http.StatusNoContent)
	})
	log, err := audit.Open(audit.Dir(b.TempDir()), audit.Options{})
	require.NoError(b, err)
	defer log.Close()
	for name, h := range map[string]http.Handler{"without": mux, "with": record.Requests{Log: log, API: "e2b"}.Wrap(mux)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(discard{}, httptest.NewRequest(http.MethodPost, "/sandboxes/i0001/pause", nil))
			}
		})
	}
}

type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}
