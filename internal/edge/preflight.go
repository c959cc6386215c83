package edge

import (
	"net/http"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// isHeaderPreflight tells a browser's question whether it may send our routing
// headers. The question itself carries none, so no sandbox can be asked it.
func isHeaderPreflight(r *http.Request) bool {
	return isPreflight(r) &&
		strings.Contains(strings.ToLower(r.Header.Get("Access-Control-Request-Headers")), strings.ToLower(idHeader))
}

func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
}

// isAgentPreflight tells a preflight that the agent would answer.
func isAgentPreflight(r *http.Request, t target) bool {
	return isPreflight(r) && (t.port == hostapi.AgentPort || t.port == hostapi.CodePort)
}

// allowHeaders says yes, as the agent does to requests that reach it. No cookie
// and no other credential that a browser adds by itself opens a sandbox.
func allowHeaders(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	h.Set("Access-Control-Max-Age", "7200")
	h.Set("Vary", "Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
}
