// Package tombolo is the server's own HTTP API: approvals, rules, secrets, the
// network of sandboxes and the audit log. The handler is served twice: on the main
// port, to the holders of keys with the roles that a route takes, and on the owner's
// control socket. Package tombolo has both ends, the handler and the client of the
// command line.
//
// # Routes
//
// All are below /tombolo/v1. "own" is a key with the role sandboxes, about its own
// sandboxes; the owner may use them all.
//
//	GET    /approvals?state=&sandbox=&before=&limit=  approve, own  []approval.Hold, newest first
//	GET    /approvals/{id}                            approve, own  approval.Hold
//	GET    /approvals/stream                          approve, own  events "hold": approval.Hold
//	POST   /approvals/{id}/answer                     approve       AnswerRequest -> approval.Hold
//	POST   /approvals/{id}/proposal                   own           approval.Proposal -> approval.Hold
//	GET    /grants                                    approve, own  []approval.Grant
//	DELETE /grants/{id}                               approve, own
//
//	GET    /policy                                    policy        Policy
//	PUT    /policy?dry-run=                           policy        Policy -> Policy
//	POST   /policy/explain                            policy, own   ExplainRequest -> Explanation
//
//	GET    /sandboxes/{id}/rules                      policy, own   options.Rules
//	PUT    /sandboxes/{id}/rules                      own           SandboxRules -> options.Rules
//	GET    /sandboxes/{id}/network                    own           Network
//	PUT    /sandboxes/{id}/network                    own           options.Network -> sandbox.NetworkOptions
//
//	GET    /secrets?key=                              own           []secret.Secret
//	POST   /secrets?key=                              own           SecretRequest -> secret.Secret
//	GET    /secrets/{name or id}?key=                 own           secret.Secret
//	PUT    /secrets/{name or id}?key=                 own           SecretRequest -> secret.Secret
//	DELETE /secrets/{name or id}?key=                 own
//
//	GET    /audit?sandbox=&key=&actor=&kind=&decision=&since=&until=&last=&follow=
//	                                                  audit         lines of audit.Record
//	GET    /audit/head                                audit         Head
//
// key is for the owner, who has no secrets of his own.
//
// An error is {"error": {"code": "…", "message": "…"}}; the codes are the constants
// Code….
package tombolo

import (
	"context"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/api/auth"
	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Prefix is where the API is.
const Prefix = "/tombolo/v1"

// Options are what the API is made of. Store and Sandboxes are required; routes
// whose part is nil answer CodeUnavailable.
type Options struct {
	Store     store.Store
	Sandboxes sandbox.Sandboxes
	Desk      Desk
	Rules     Rules
	Networks  Networks
	Vault     Vault
	AuditDir  string       // of the log; empty where there is none
	Log       *slog.Logger // slog.Default() when nil
}

// API serves the routes.
type API struct {
	Options
	keys    auth.Keys
	routes  *http.ServeMux
	streams *streams
	feed    *feed
	stop    context.CancelFunc // of what fills the feed
	filled  sync.WaitGroup
	writing sync.Mutex // held over a look at the rules and their change

	heartbeat time.Duration
}

// New makes the API. Close ends it.
func New(o Options) *API {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	a := &API{
		Options: o,
		keys:    auth.Keys{Store: o.Store, Log: o.Log},
		routes:  http.NewServeMux(),
		streams: newStreams(),
		feed:    newFeed(),

		heartbeat: heartbeat,
	}
	var ctx context.Context
	ctx, a.stop = context.WithCancel(context.Background())
	if o.Desk != nil {
		a.filled.Go(func() { a.feed.fill(ctx, o.Desk) })
	}
	for _, r := range a.table() {
		a.routes.HandleFunc(r.method+" "+Prefix+r.path, func(w http.ResponseWriter, req *http.Request) { a.serve(w, req, r) })
	}
	return a
}

// Close ends the streams, which would else hold up the end of the server.
func (a *API) Close() {
	a.streams.close()
	a.stop()
	a.filled.Wait()
}

// ForKeys serves those who send a key.
func (a *API) ForKeys() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, err := a.keys.Key(r)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		a.dispatch(w, r, auth.OfKey(k))
	})
}

// ForOwner serves whoever can reach it with all rights: it is for the control socket.
func (a *API) ForOwner() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.dispatch(w, r, auth.Owner()) })
}

// Split passes what is meant for this API to it and everything else on.
func Split(api, other http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tombolo" || strings.HasPrefix(r.URL.Path, "/tombolo/") {
			api.ServeHTTP(w, r)
			return
		}
		other.ServeHTTP(w, r)
	})
}

func (a *API) dispatch(w http.ResponseWriter, r *http.Request, p auth.Principal) {
	r = auth.Request(r, p)
	// An unclean path would be answered by a redirect.
	if escaped := r.URL.EscapedPath(); path.Clean(escaped) != escaped {
		a.fail(w, r, notFound("there is no endpoint %.100s", r.URL.Path))
		return
	}
	if _, pattern := a.routes.Handler(r); pattern == "" {
		a.fail(w, r, a.noRoute(w, r))
		return
	}
	a.routes.ServeHTTP(w, r)
}

// noRoute tells an unknown path from an unknown method on a known one.
func (a *API) noRoute(w http.ResponseWriter, r *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := a.routes.Handler(other); pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return notFound("there is no endpoint %.100s", r.URL.Path)
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return fail(http.StatusMethodNotAllowed, CodeMethod, "%.20s is not possible on %.100s, only %s", r.Method, r.URL.Path, strings.Join(allowed, ", "))
}

// route is one endpoint. serve answers by what it returns, or, where it returns
// written, by itself.
type route struct {
	method, path string
	roles        []store.Role // one of them is needed
	part         any          // what it works with; nil where the server runs without
	serve        func(c *call) (any, error)
}

// written is returned by those who wrote the answer themselves.
var written = new(struct{})

// call is one request with its caller.
type call struct {
	w    http.ResponseWriter
	r    *http.Request
	auth auth.Principal
}

func (c *call) context() context.Context { return c.r.Context() }

// table is all routes.
func (a *API) table() []route {
	return slices.Concat(a.approvalRoutes(), a.policyRoutes(), a.sandboxRoutes(), a.secretRoutes(), a.auditRoutes())
}

func (a *API) serve(w http.ResponseWriter, r *http.Request, to route) {
	c := &call{w: w, r: r, auth: auth.From(r.Context())}
	answer, err := a.admit(c, to)
	switch {
	case err != nil:
		a.fail(w, r, err)
	case answer == written:
	case answer == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		writeJSON(w, http.StatusOK, answer)
	}
}

// admit serves those who have a role for a route.
func (a *API) admit(c *call, to route) (any, error) {
	if err := c.auth.Need(to.roles...); err != nil {
		return nil, err
	}
	if to.part == nil {
		return nil, fail(http.StatusNotImplemented, CodeUnavailable, "this server runs without what %s is about", to.path)
	}
	if to.method == http.MethodGet && slices.ContainsFunc(looked, func(path string) bool { return strings.HasPrefix(to.path, path) }) {
		record.Look(c.context())
	}
	return to.serve(c)
}

// looked are routes of which it is recorded that somebody read them.
var looked = []string{"/audit", "/approvals", "/grants"}

// fail answers an error.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := encodeError(err)
	if e.Status == http.StatusInternalServerError {
		if r.Context().Err() == nil {
			a.Log.Error("a request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		}
		if auth.From(r.Context()).IsOwner() { // who may read the log
			e.Message = err.Error()
		}
	}
	writeError(w, e)
}
