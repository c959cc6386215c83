// Package e2b speaks E2B's control API over the core: it decodes a request,
// checks it, calls the core and encodes what comes back. It owns the wire format
// and nothing else: no sandbox, no record and no limit is kept here but the
// answers to idempotent requests.
//
// The wire facts (paths, fields, codes) are what E2B's own clients send and
// expect, from generation 2.45 to 2.63.
package e2b

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/api/auth"
	"github.com/tombolo-dev/tombolo/internal/build"
	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Options are what the dialect is made of. Sandboxes, Store, Webhooks, Builds,
// Volumes and Secrets are required.
type Options struct {
	Sandboxes sandbox.Sandboxes
	Store     store.Store
	Webhooks  *event.Webhooks
	Builds    *build.Builds
	Volumes   sandbox.Volumes
	Secrets   *secret.Vault
	// AdmitVolume decides on a file of a volume that its token's holder reads; an error
	// refuses it. Nil admits all.
	AdmitVolume func(ctx context.Context, volumeID, keyID, file string) error
	Log         *slog.Logger // slog.Default() when nil
	// Version of the server, for messages about what it cannot do.
	Version string
	// Domain under which <port>-<id>.<Domain> reaches this server by https, with a
	// port where it is not 443. Empty tells clients none. A client with no
	// E2B_SANDBOX_URL goes to https at the domain it is told, so set it only where
	// that works.
	Domain string
}

type api struct {
	sandboxes sandbox.Sandboxes
	store     store.Store
	keys      auth.Keys
	webhooks  *event.Webhooks
	builds    *build.Builds
	volumes   sandbox.Volumes
	secrets   *secret.Vault
	admit     func(ctx context.Context, volumeID, keyID, file string) error
	log       *slog.Logger
	version   string
	domain    string
	repeats   *repeats
	prepared  prepared
	// uploadSecret signs upload links; each server has its own.
	uploadSecret []byte
	routes       *http.ServeMux
}

// handler serves one endpoint for the owner of a key. An error it returns is
// answered by api.fail; it has written nothing then.
type handler func(w http.ResponseWriter, r *http.Request, k store.Key) error

// New makes the handler of the control API.
func New(o Options) http.Handler {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	a := &api{
		sandboxes: o.Sandboxes,
		store:     o.Store,
		keys:      auth.Keys{Store: o.Store, Log: o.Log},
		webhooks:  o.Webhooks,
		builds:    o.Builds,
		volumes:   o.Volumes,
		secrets:   o.Secrets,
		admit:     o.AdmitVolume,
		log:       o.Log,
		version:   o.Version,
		domain:    o.Domain,
		repeats:   newRepeats(time.Now),
		routes:    http.NewServeMux(),

		uploadSecret: make([]byte, 32),
	}
	rand.Read(a.uploadSecret)
	for pattern, h := range map[string]handler{
		"POST /sandboxes":                 a.create(v1),
		"POST /v2/sandboxes":              a.create(v2),
		"GET /sandboxes":                  a.listV1,
		"GET /v2/sandboxes":               a.listV2,
		"GET /sandboxes/{id}":             a.get,
		"DELETE /sandboxes/{id}":          a.kill,
		"POST /sandboxes/{id}/connect":    a.connect(v1),
		"POST /v2/sandboxes/{id}/connect": a.connect(v2),
		"POST /sandboxes/{id}/timeout":    a.setTimeout,
		"POST /sandboxes/{id}/refreshes":  a.refresh,
		"PUT /sandboxes/{id}/network":     a.setNetwork,

		"POST /sandboxes/{id}/pause":     a.pause,
		"POST /sandboxes/{id}/resume":    a.resume,
		"POST /sandboxes/{id}/fork":      a.fork,
		"POST /sandboxes/{id}/snapshots": a.createSnapshot,
		"GET /snapshots":                 a.listSnapshots,

		"GET /sandboxes/{id}/metrics": a.metrics,
		"GET /sandboxes/metrics":      a.latestMetrics,

		"GET /sandboxes/{id}/logs":    a.logsV1,
		"GET /v2/sandboxes/{id}/logs": a.logsV2,
	} {
		a.handle(pattern, h)
	}
	for pattern, h := range a.eventRoutes() {
		a.handle(pattern, h)
	}
	for pattern, h := range a.templateRoutes() {
		a.handle(pattern, h)
	}
	for pattern, h := range a.buildRoutes() {
		a.handle(pattern, h)
	}
	for pattern, h := range a.volumeRoutes() {
		a.handle(pattern, h)
	}
	for pattern, h := range a.secretRoutes() {
		a.handle(pattern, h)
	}
	for pattern, h := range contentRoutes {
		a.routes.HandleFunc(pattern, a.content(h))
	}
	for pattern, what := range missing {
		a.handle(pattern, a.notSupported(what))
	}
	return a
}

// ServeHTTP answers /health to anyone, takes uploads by their signed links, gives
// the content of a volume to its token and answers everything else to a key.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		health(w, r)
		return
	}
	if r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, uploadPrefix) {
		r.Pattern = "PUT " + uploadPrefix + "{key}/{hash}" // for the record of the request
		if err := a.upload(w, r); err != nil {
			a.fail(w, r, err)
		}
		return
	}
	// An unclean path would be answered by a redirect, to anyone.
	if _, pattern := a.routes.Handler(r); pattern == "" || !clean(r.URL.EscapedPath()) {
		a.serve(w, r, a.noRoute)
		return
	}
	a.routes.ServeHTTP(w, r)
}

func (a *api) handle(pattern string, h handler) {
	a.routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { a.serve(w, r, h) })
}

func (a *api) serve(w http.ResponseWriter, r *http.Request, h handler) {
	k, err := a.authenticate(r)
	if err == nil {
		err = h(w, auth.Request(r, auth.OfKey(k)), k)
	}
	if err != nil {
		a.fail(w, r, err)
	}
}

// noRoute tells an unknown path from an unknown method on a known one.
func (a *api) noRoute(w http.ResponseWriter, r *http.Request, _ store.Key) error {
	if !clean(r.URL.EscapedPath()) {
		return failure(http.StatusNotFound, "there is no endpoint %.100s", r.URL.Path)
	}
	plain, _ := a.routes.Handler(r)
	answer := &headOnly{header: http.Header{}}
	plain.ServeHTTP(answer, r)
	if answer.code == http.StatusMethodNotAllowed {
		allow := answer.header.Get("Allow")
		w.Header().Set("Allow", allow)
		return failure(http.StatusMethodNotAllowed, "%s is not possible on %s, only %s", r.Method, r.URL.Path, allow)
	}
	return failure(http.StatusNotFound, "there is no endpoint %.100s", r.URL.Path)
}

func clean(escaped string) bool {
	return escaped == "/" || path.Clean(escaped) == strings.TrimSuffix(escaped, "/")
}

// headOnly keeps the code and headers of an answer.
type headOnly struct {
	header http.Header
	code   int
}

func (h *headOnly) Header() http.Header         { return h.header }
func (h *headOnly) WriteHeader(code int)        { h.code = code }
func (h *headOnly) Write(p []byte) (int, error) { return len(p), nil }

// health says the text that upstream's integration test asserts.
func health(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		writeFailure(w, failure(http.StatusMethodNotAllowed, "%s is not possible on /health, only GET", r.Method))
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("Health check successful"))
}
