package agent

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/tombolo-dev/tombolo/internal/agent/identity"
)

// authorize lets a request through that carries the sandbox's token. /health
// tells nothing worth guarding, and /files judges signed URLs itself.
func authorize(who *identity.State, next http.Handler) http.Handler {
	rpc := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		open := r.URL.Path == "/health" || r.URL.Path == "/files"
		if open || who.Authorized(r.Header.Get("X-Access-Token")) {
			next.ServeHTTP(w, r)
			return
		}
		const message = "unauthorized access, please provide a valid access token or method signing if supported"
		if rpc.IsSupported(r) {
			_ = rpc.Write(w, r, connect.NewError(connect.CodeUnauthenticated, errors.New(message)))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(map[string]any{"code": http.StatusUnauthorized, "message": message})
	})
}

// exposedHeaders are those that scripts of other origins may read.
var exposedHeaders = strings.Join([]string{
	"Accept-Ranges", "Content-Disposition", "Content-Encoding", "Content-Length", "Content-Range",
	"Content-Type", "Connect-Content-Encoding", "ETag", "Grpc-Message", "Grpc-Status", "Last-Modified",
	"Location", "Cache-Control", "X-Content-Type-Options",
}, ", ")

// cors lets browsers call from any page: a page that has the token may use it.
func cors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") == "" {
			next.ServeHTTP(w, r)
			return
		}
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			h.Set("Access-Control-Expose-Headers", exposedHeaders)
			next.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
		h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
		h.Set("Access-Control-Max-Age", "7200")
		h.Add("Vary", "Access-Control-Request-Headers")
		w.WriteHeader(http.StatusNoContent)
	})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v)
}
