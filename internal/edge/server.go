package edge

import (
	"log/slog"
	"net/http"
	"time"
)

// Server makes an HTTP server for an edge, with every limit set that a listener
// open to strangers needs. A client that is slow to say what it wants is dropped
// and meanwhile costs one goroutine; what streams may stream for ever, so there
// is no limit on whole requests or answers.
func Server(h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true) // over TLS
	return &http.Server{
		Handler:           h,
		Protocols:         protocols,
		ReadHeaderTimeout: 10 * time.Second,
		// Clients keep idle connections for up to 5 minutes and do not expect the
		// server to close them first.
		IdleTimeout:    10 * time.Minute,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug), // strangers can fill it,
	}
}
