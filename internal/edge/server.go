package edge

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Server makes an HTTP server for an edge, with every limit set that a listener
// open to strangers needs. A client that is slow to say what it wants is dropped
// and meanwhile costs one goroutine; what streams may stream for ever, so there
// is no limit on whole requests or answers.
func Server(h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)            // over TLS
	protocols.SetUnencryptedHTTP2(true) // by prior knowledge
	return &http.Server{
		Handler:   h,
		Protocols: protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxRequestsPerSandbox,
			// More than one stream may hold, so that an upload nobody reads leaves the
			// others of its connection moving.
			MaxReceiveBufferPerConnection: 4 << 20,
			MaxReceiveBufferPerStream:     1 << 20,
		},
		ReadHeaderTimeout: 10 * time.Second,
		// Clients keep idle connections for up to 5 minutes and do not expect the
		// server to close them first.
		IdleTimeout:    10 * time.Minute,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug), // strangers can fill it,
	}
}

// OnlyLocalPlain serves what comes over TLS or from this machine, and sends
// others who speak plain HTTP to https: their keys would pass in the open.
func OnlyLocalPlain(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil || isLocal(r) {
			h.ServeHTTP(w, r)
			return
		}
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			w.Header().Set("Location", "https://"+r.Host+r.URL.RequestURI())
		}
		w.Header().Set("Connection", "close")
		f := refusal{Code: http.StatusForbidden, Message: "This server takes plain http from its own machine only: use https"}
		if w.Header().Get("Location") != "" {
			f.Code = http.StatusPermanentRedirect
		}
		refuse(w, r, f)
	})
}

// isLocal tells whether the client is on this machine.
func isLocal(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr := remote.Addr().Unmap()
	if addr.IsLoopback() {
		return true
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.AddrPort().Addr().Unmap() == addr
}
