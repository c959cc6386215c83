package edge_test

import (
	"io"
	"net/http"
	"testing"

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

func BenchmarkSmallRequest(b *testing.B) {
	addr, _ := startUser(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	client := &http.Transport{}
	defer client.CloseIdleConnections()
	for b.Loop() {
		res, err := client.RoundTrip(request(b, "GET", "http://"+addr+"/", toUser...))
		require.NoError(b, err)
		res.Body.Close()
	}
}

// straight is the address of the sandbox's server itself: the baseline.
func straight(b *testing.B) string {
	s := newSandboxes()
	s.serve(b, "iaaa", userPort, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
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
