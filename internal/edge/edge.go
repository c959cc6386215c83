// Package edge owns the way of a request: to the control API, or into a sandbox.
// It finds the sandbox a request means, refuses what may not enter, and streams
// both ways. It reads nothing of what it streams, and touches neither store nor
// disk: what it needs is in memory, behind sandbox.Sandboxes.
package edge

import (
	"log"
	"log/slog"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Options are what an edge is made of. All but Log are required.
type Options struct {
	Sandboxes sandbox.Sandboxes
	Control   http.Handler // serves what is meant for no sandbox
	Log       *slog.Logger // slog.Default() when nil
}

type edge struct {
	sandboxes  sandbox.Sandboxes
	control    http.Handler
	upstreams  *upstreams
	signatures *signatures
	buffers    *buffers
	proxyLog   *log.Logger
}

// New makes the handler for the listener. Call it before the first sandbox is
// created: it asks to be told of every end.
func New(o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &edge{
		sandboxes:  o.Sandboxes,
		control:    o.Control,
		upstreams:  newUpstreams(o.Sandboxes),
		signatures: newSignatures(o.Sandboxes),
		buffers:    newBuffers(copyBuffer),
		// What goes wrong while streaming is the client's or the sandbox's doing and
		// either can repeat it at will: not worth a line of a normal log.
		proxyLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
}

// ServeHTTP routes in this order, the first that matches: host label, headers,
// signed file URL, control API.
func (e *edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if t, ok := labelTarget(r.Host); ok {
		e.serveTarget(w, r, t)
		return
	}
	if named(r.Header) {
		t, err := headerTarget(r.Header)
		if err != nil {
			refuse(w, r, refusal{Code: http.StatusBadRequest, Message: err.Error()})
			return
		}
		e.serveTarget(w, r, t)
		return
	}
	if isHeaderPreflight(r) {
		allowHeaders(w, r)
		return
	}
	if isSignedFile(r) {
		t, ok := e.signatures.target(r)
		if !ok {
			refuse(w, r, refusal{
				Code:    http.StatusUnauthorized,
				Message: "No running sandbox signed this URL: it ended, or the path, the user or the signature was changed",
			})
			return
		}
		e.serveTarget(w, r, t)
		return
	}
	e.control.ServeHTTP(w, r)
}

func (e *edge) serveTarget(w http.ResponseWriter, r *http.Request, t target) {
	if hostOnly(t.port, r) {
		refuse(w, r, refusal{SandboxID: t.id, Code: http.StatusNotFound, Message: "Not found"})
		return
	}
	up, err := e.upstreams.get(t.id)
	if err != nil {
		refuse(w, r, refusalFor(err, t))
		return
	}
	if !up.enter() {
		refuse(w, r, refusal{
			SandboxID: t.id,
			Code:      http.StatusTooManyRequests,
			Message:   "The sandbox has too many connections open: close some and try again",
		})
		return
	}
	defer up.leave()
	e.proxy(up, t).ServeHTTP(w, r)
}
