package edge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// refusal is the edge's own answer. Clients know the first four fields and tell
// by code 502 that a sandbox is dead.
type refusal struct {
	SandboxID string `json:"sandboxId,omitempty"`
	Message   string `json:"message"`
	Port      uint16 `json:"port,omitempty"`
	Code      int    `json:"code"`
	Reason    string `json:"reason,omitempty"` // why the sandbox ended
}

func refusalFor(err error, t target) refusal {
	if gone := (*sandbox.GoneError)(nil); errors.As(err, &gone) {
		return refusal{SandboxID: t.id, Message: "The sandbox was not found", Code: http.StatusBadGateway, Reason: gone.Reason}
	}
	if errors.Is(err, sandbox.ErrNotFound) {
		return refusal{SandboxID: t.id, Message: "The sandbox was not found", Code: http.StatusBadGateway}
	}
	if errors.Is(err, sandbox.ErrPortClosed) {
		return refusal{SandboxID: t.id, Message: "The sandbox is running but port is not open", Port: t.port, Code: http.StatusBadGateway}
	}
	if isTimeout(err) {
		return refusal{
			SandboxID: t.id, Port: t.port, Code: http.StatusGatewayTimeout,
			Message: fmt.Sprintf("The sandbox is running but did not take the connection within %s", dialTimeout),
		}
	}
	return refusal{
		SandboxID: t.id, Port: t.port, Code: http.StatusBadGateway,
		Message: "The sandbox is running but the server on the port ended the connection before it answered",
	}
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
	if isBrowser(r) {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		w.WriteHeader(f.Code)
		_ = page.Execute(w, f)
		return
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(f.Code)
	_ = json.NewEncoder(w).Encode(f)
}

func isBrowser(r *http.Request) bool {
	return strings.Contains(r.UserAgent(), "Mozilla/") && strings.Contains(r.Header.Get("Accept"), "text/html")
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
{{with .Reason}}<p>It ended: {{.}}</p>{{end}}
</html>
`))
