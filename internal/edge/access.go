package edge

import (
	"crypto/subtle"
	"net/http"
	"slices"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Headers with the tokens of a sandbox.
const (
	accessTokenHeader  = "X-Access-Token"           // the agent's, and passed on to it
	trafficTokenHeader = "E2b-Traffic-Access-Token" // the edge's alone
)

// denied says why a request may not enter its sandbox, or nil. What it may do
// inside is up to the server there.
func denied(r *http.Request, t target, info sandbox.Info) error {
	if isPrivate(t, info) {
		given := trafficTokens(r, t)
		if !slices.ContainsFunc(given, func(token string) bool { return same(token, info.TrafficToken) }) {
			return trafficRefusal(t, len(given) > 0)
		}
	}
	if info.State != sandbox.Running && info.Lifecycle.AutoResume && !isHealth(r, t) && !mayWake(r, t, info) {
		return &refusal{
			SandboxID: t.id, Code: http.StatusForbidden,
			Message: "This sandbox can't be resumed with the credentials provided. Check your access token and try again.",
		}
	}
	return nil
}

// isPrivate tells whether a port takes the traffic token only. The agent has a
// token of its own.
func isPrivate(t target, info sandbox.Info) bool {
	return info.Network.PrivateTraffic && t.port != hostapi.AgentPort
}

// trafficRefusal is for a request without the token of a sandbox whose ports are
// private. The words are E2B's.
func trafficRefusal(t target, given bool) *refusal {
	what := "Token header 'e2b-traffic-access-token' is missing"
	if given {
		what = "Provided token in header 'e2b-traffic-access-token' is invalid"
	}
	f := &refusal{
		SandboxID: t.id, Code: http.StatusForbidden,
		Message: "Sandbox is secured with traffic access token. " + what,
	}
	if t.byName() {
		f.hint = "Add ?" + trafficTokenName + "=TOKEN to the address once: this browser keeps it."
	}
	return f
}

// mayWake tells whether a request may resume a paused sandbox: whoever could do
// nothing in it may not start it either. What the agent serves without a token is
// not worth a start.
func mayWake(r *http.Request, t target, info sandbox.Info) bool {
	if info.AccessToken == "" {
		return true
	}
	switch {
	case t.port == hostapi.AgentPort:
		return same(r.Header.Get(accessTokenHeader), info.AccessToken) || signedBy(r, info.AccessToken, time.Now())
	case t.port == hostapi.CodePort && r.URL.Path == "/execute":
		return same(r.Header.Get(accessTokenHeader), info.AccessToken)
	}
	return true
}

// same compares a token in constant time. No token is never the right one.
func same(given, token string) bool {
	return token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1
}

// isHealth tells the question whether a sandbox runs. It needs no token and does
// not wake it, and clients read 502 as no.
func isHealth(r *http.Request, t target) bool {
	return t.port == hostapi.AgentPort && r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}
