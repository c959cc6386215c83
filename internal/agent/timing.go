package agent

import (
	"net/http"
	"strconv"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// timed tells, in the answer to a request that is part of a trace, how long it
// took to begin the answer.
func timed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(hostapi.TraceHeader) != "" {
			w = &timedAnswer{ResponseWriter: w, began: time.Now()}
		}
		next.ServeHTTP(w, r)
	})
}

type timedAnswer struct {
	http.ResponseWriter
	began time.Time
	told  bool
}

func (a *timedAnswer) tell() {
	if !a.told {
		a.told = true
		milliseconds := float64(time.Since(a.began)) / float64(time.Millisecond)
		a.Header().Add(hostapi.TimingHeader, hostapi.TimingEntry+strconv.FormatFloat(milliseconds, 'f', 3, 64))
	}
}

func (a *timedAnswer) WriteHeader(code int) {
	a.tell()
	a.ResponseWriter.WriteHeader(code)
}

func (a *timedAnswer) Write(p []byte) (int, error) {
	a.tell()
	return a.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController calls.
func (a *timedAnswer) FlushError() error {
	a.tell()
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Flush is for handlers that do not use http.ResponseController.
func (a *timedAnswer) Flush() { _ = a.FlushError() }

// Unwrap gives http.ResponseController the rest.
func (a *timedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
