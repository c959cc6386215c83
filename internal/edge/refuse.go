package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// refusal is the edge's own answer. Clients know the first four fields and tell
// by code 502 that a sandbox is dead.
type refusal struct {
	SandboxID string `json:"sandboxId,omitempty"`
	Message   string `json:"message"`
	Port      uint16 `json:"port,omitempty"`
	Code      int    `json:"code"`
	Reason    string `json:"reason,omitempty"` // why the sandbox ended, or is not resumed

	retryAfter time.Duration // 0 when nobody can tell
	hint       string        // for a person with a browser
}

// Error makes a refusal what a step can return instead of going on.
func (f *refusal) Error() string { return f.Message }

// Clients take a sandbox for not running when they get 502 and the message has
// "was not found" in it.
const (
	notFound = "The sandbox was not found"
	asleep   = "The sandbox was not found running: it is paused, and this request does not resume it. Connect to it or resume it to bring it back"
)

var (
	// errNotSent: the sandbox stopped before anything of the request was sent in.
	errNotSent = fmt.Errorf("sandbox stopped before the request came in: %w", sandbox.ErrBusy)
	// errStopped: the sandbox stopped between the request and the answer.
	errStopped = errors.New("sandbox stopped before it answered")
)

func refusalFor(err error, t target) refusal {
	if known := (*refusal)(nil); errors.As(err, &known) {
		return *known
	}
	f := refusal{SandboxID: t.id, Code: http.StatusBadGateway}
	var gone *sandbox.GoneError
	var limit *sandbox.LimitError
	var forbidden *sandbox.DeniedError
	switch {
	case errors.As(err, &forbidden):
		f.Code, f.Message, f.Reason = http.StatusForbidden, forbidden.Error(), forbidden.Reason
	case errors.As(err, &gone):
		f.Message, f.Reason = notFound, gone.Reason
	case errors.Is(err, sandbox.ErrNotFound):
		f.Message = notFound
	case errors.Is(err, sandbox.ErrAsleep), errors.Is(err, sandbox.ErrPaused):
		f.Message = asleep
	case errors.Is(err, errStopped):
		f.Message = "The sandbox was paused before it answered"
	case errors.Is(err, sandbox.ErrBusy):
		f.Code, f.retryAfter = http.StatusConflict, time.Second
		f.Message = "The sandbox is still transitioning. Try again in a moment."
	case errors.As(err, &limit):
		f.Code, f.retryAfter = http.StatusTooManyRequests, limit.RetryAfter
		f.Message, f.Reason = "The sandbox is paused and cannot be resumed now", limit.Error()
	case errors.Is(err, errNotWoken):
		f.Code = http.StatusServiceUnavailable
		f.Message = "The sandbox is paused and could not be resumed: the server's log says why"
	case errors.Is(err, sandbox.ErrPortClosed):
		f.Message, f.Port = "The sandbox is running but port is not open", t.port
	case isTimeout(err):
		f.Code, f.Port = http.StatusGatewayTimeout, t.port
		f.Message = fmt.Sprintf("The sandbox is running but did not take the connection within %s", dialTimeout)
	default:
		f.Port = t.port
		f.Message = "The sandbox is running but the server on the port ended the connection before it answered"
	}
	return f
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// refuse answers browsers with a page and everyone else with JSON.
func refuse(w http.ResponseWriter, r *http.Request, f refusal) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Access-Control-Allow-Origin", "*") // scripts in pages must see why
	h.Set("X-Content-Type-Options", "nosniff")
	if f.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(f.retryAfter.Seconds()))))
	}
	if isBrowser(r) {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		w.WriteHeader(f.Code)
		_ = page.Execute(w, struct {
			refusal
			Hint string
		}{f, f.hint})
		return
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(f.Code)
	_ = json.NewEncoder(w).Encode(f)
}

// isBrowser tells who shows the answer to a person: a browser that loads a page,
// and not a script in one.
func isBrowser(r *http.Request) bool {
	accept := r.Header.Get("Accept")
	return strings.Contains(r.UserAgent(), "Mozilla/") && (accept == "" || strings.Contains(accept, "text/html"))
}

var page = template.Must(template.New("refusal").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Message}}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:20vh auto 0;padding:0 1rem;color:#222}
code{background:#eee;padding:.1em .3em}</style>
<h1>{{.Message}}</h1>
{{with .SandboxID}}<p>Sandbox <code>{{.}}</code></p>{{end}}
{{with .Port}}<p>Port <code>{{.}}</code>: start a server on it in the sandbox, then load this page again.</p>{{end}}
{{with .Hint}}<p>{{.}}</p>{{end}}
{{with .Reason}}<p>Why: {{.}}</p>{{end}}
</html>
`))
