// Package edge owns the way of a request: to the control API, or into a sandbox.
// It finds the sandbox a request means, refuses what may not enter, wakes what is
// paused and streams both ways. It reads nothing of what it streams, and touches
// neither store nor disk: what it needs is in memory, behind sandbox.Sandboxes.
package edge

import (
	"errors"
	"log"
	"log/slog"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Options are what an edge is made of. Sandboxes and Control are required.
type Options struct {
	Sandboxes sandbox.Sandboxes
	Control   http.Handler // serves what is meant for no sandbox
	Log       *slog.Logger // slog.Default() when nil
	// Guard decides about what requests do in sandboxes; nil lets all pass.
	Guard Guard
	// Inside wraps what sends requests into a sandbox, for whoever follows them
	// there. Upgraded connections pass through it too. Nil leaves it.
	Inside func(http.RoundTripper) http.RoundTripper
}

type edge struct {
	sandboxes  sandbox.Sandboxes
	control    http.Handler
	upstreams  *upstreams
	waker      *waker
	load       *load
	signatures *signatures
	guard      Guard
	buffers    *buffers
	log        *slog.Logger
	proxyLog   *log.Logger
}

// New makes the handler for the listener. Call it before the first sandbox is
// created: it asks to be told of every stop.
func New(o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Inside == nil {
		o.Inside = func(rt http.RoundTripper) http.RoundTripper { return rt }
	}
	return &edge{
		sandboxes:  o.Sandboxes,
		control:    o.Control,
		upstreams:  newUpstreams(o.Sandboxes, o.Inside),
		waker:      newWaker(o.Sandboxes),
		load:       newLoad(),
		signatures: newSignatures(o.Sandboxes),
		guard:      o.Guard,
		buffers:    newBuffers(copyBuffer),
		log:        o.Log,
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
				Message: "No sandbox signed this URL: it ended, or the path, the user or the signature was changed",
			})
			return
		}
		e.serveTarget(w, r, t)
		return
	}
	e.control.ServeHTTP(w, r)
}

// serveTarget serves a request for a sandbox, once it may enter.
func (e *edge) serveTarget(w http.ResponseWriter, r *http.Request, t target) {
	if hostOnly(t.port, r) {
		refuse(w, r, refusal{SandboxID: t.id, Code: http.StatusNotFound, Message: "Not found"})
		return
	}
	if f := e.load.enter(t.id); f != nil {
		refuse(w, r, *f)
		return
	}
	defer e.load.leave(t.id)
	info, err := e.sandboxes.Get(t.id)
	if err == nil && info.State != sandbox.Running && isAgentPreflight(r, t) {
		allowHeaders(w, r) // as the agent does, without waking it
		return
	}
	if err == nil && isPrivate(t, info) && takeToken(w, r, t, info.TrafficToken) {
		return
	}
	r, body := ownBody(w, r)
	defer body.finish() // after the answer is written
	if err == nil {
		err = denied(r, t, info)
	}
	if err == nil {
		err = e.admit(r, body, t, info)
	}
	if err == nil {
		err = e.deliver(w, r, body, t, info)
	}
	if err == nil || r.Context().Err() != nil {
		return // answered, or the client left
	}
	if errors.Is(err, errNotWoken) {
		e.log.Error("traffic could not wake a sandbox", "sandbox", t.id, "error", err)
	}
	refuse(w, r, refusalFor(err, t))
}

// maxDeliveries bounds how often a request is taken to a sandbox that stops each
// time before the request came in.
const maxDeliveries = 3

// deliver takes a request into its sandbox, waking that first if need be. A
// request of which nothing was sent when the sandbox stopped is taken there
// again. An error means that nothing was answered yet.
func (e *edge) deliver(w http.ResponseWriter, r *http.Request, body *requestBody, t target, info sandbox.Info) error {
	for try := 1; ; try++ {
		if err := denied(r, t, info); err != nil {
			return err
		}
		var err error
		if info.State != sandbox.Running {
			if err = e.waker.wait(r.Context(), t.id, !isHealth(r, t)); err != nil {
				return err
			}
			if info, err = e.sandboxes.Get(t.id); err != nil {
				return err
			}
		}
		err = e.pass(w, r, t, info)
		if !errors.Is(err, errNotSent) || !body.untouched() || try == maxDeliveries {
			return err
		}
		if info, err = e.sandboxes.Get(t.id); err != nil {
			return err
		}
	}
}
