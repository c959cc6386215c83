// Package inside is what programs in a sandbox see at http://tombolo.internal/: who
// the sandbox is, what it was refused and why, what waits for a person, and a way to
// propose a rule. It serves one sandbox, knows of no other, and can allow nothing:
// who asks here is who is to be held.
//
//	GET  /                        a page of all that follows
//	GET  /refusals                what was refused lately, the latest first
//	GET  /refusals/{request id}   the refusal that named this id
//	GET  /holds                   what waits, or waited, for a person
//	GET  /holds/{id}
//	POST /holds/{id}/proposal     {"match": {…}, "reason": "…"}
//	GET  /rules                   the rules for this sandbox
//	GET  /ca.pem                  the certificate of who ends TLS here
//
// Answers are text; with Accept: application/json they are JSON.
package inside

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
)

// Hosts are the names that the page is served under. A request for another came by a
// name that somebody else controls.
var Hosts = []string{"tombolo.internal", "10.0.0.1"}

// Sandbox is what is told of one sandbox. Its methods are called by several goroutines at once.
type Sandbox interface {
	// ID is empty while no sandbox has the network yet.
	ID() string
	Refusals() *Refusals
	// Holds are those of this sandbox, newest first, at most MaxHolds.
	Holds(ctx context.Context) ([]approval.Hold, error)
	// Propose adds a proposal to a hold of this sandbox.
	Propose(ctx context.Context, holdID string, p approval.Proposal) (approval.Hold, error)
	// Rules are the tables that this sandbox is in, from the widest scope on.
	Rules() []policy.Table
	// CA is the certificate of who ends TLS, PEM; empty where nobody does.
	CA() []byte
}

// MaxHolds is how many holds are shown.
const MaxHolds = 50

// Limits of requests.
const (
	maxBody    = 16 << 10 // bytes
	maxAtOnce  = 8        // requests
	maxRate    = 20       // requests a second
	maxBurst   = 100      // the same, after a pause
	askTimeout = 10 * time.Second
)

type handler struct {
	sandbox Sandbox
	routes  *http.ServeMux
	slots   chan struct{}
	rate    *rate.Limiter
}

// New returns the handler for one sandbox.
func New(s Sandbox) http.Handler {
	h := &handler{sandbox: s, routes: http.NewServeMux(), slots: make(chan struct{}, maxAtOnce), rate: rate.NewLimiter(maxRate, maxBurst)}
	for pattern, serve := range map[string]func(*http.Request) (view, error){
		"GET /{$}":                  h.page,
		"GET /refusals":             h.refusals,
		"GET /refusals/{id}":        h.refusal,
		"GET /holds":                h.holds,
		"GET /holds/{id}":           h.hold,
		"POST /holds/{id}/proposal": h.propose,
		"GET /rules":                h.rules,
		"GET /ca.pem":               h.ca,
	} {
		h.routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := serve(r)
			if err != nil {
				writeFailure(w, r, err)
				return
			}
			write(w, r, http.StatusOK, v)
		})
	}
	return h
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		writeFailure(w, r, failure{http.StatusTooManyRequests, "too many requests at once from this sandbox"})
		return
	}
	if !h.rate.Allow() {
		w.Header().Set("Retry-After", "1")
		writeFailure(w, r, failure{http.StatusTooManyRequests, "too many requests in a short time from this sandbox"})
		return
	}
	if !isHost(r.Host) {
		writeFailure(w, r, failure{http.StatusMisdirectedRequest, "this is http://tombolo.internal/ and serves no other name"})
		return
	}
	if h.sandbox.ID() == "" {
		writeFailure(w, r, failure{http.StatusServiceUnavailable, "no sandbox has this network yet"})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if _, pattern := h.routes.Handler(r); pattern == "" || path.Clean(r.URL.Path) != r.URL.Path {
		writeFailure(w, r, failure{http.StatusNotFound, "there is nothing here; http://tombolo.internal/ says what there is"})
		return
	}
	h.routes.ServeHTTP(w, r)
}

func isHost(host string) bool {
	if name, port, err := net.SplitHostPort(host); err == nil {
		if port != "80" {
			return false
		}
		host = name
	}
	return slices.Contains(Hosts, strings.TrimSuffix(strings.ToLower(host), "."))
}

// failure is an error with the code of its answer.
type failure struct {
	code    int
	message string
}

func (f failure) Error() string { return f.message }

func toFailure(err error) failure {
	var f failure
	var bad *approval.InvalidError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &bad):
		return failure{http.StatusBadRequest, bad.Message}
	case errors.Is(err, approval.ErrNotFound):
		return failure{http.StatusNotFound, "there is nothing here with this id"}
	case errors.Is(err, approval.ErrDecided), errors.Is(err, approval.ErrExpired), errors.Is(err, approval.ErrWithdrawn):
		return failure{http.StatusConflict, err.Error()}
	case errors.Is(err, approval.ErrFull):
		return failure{http.StatusTooManyRequests, err.Error()}
	}
	// What failed within the server is nobody's business here.
	return failure{http.StatusInternalServerError, "the server could not answer; ask again later"}
}

// hold is the one that the path names, if it is one that is shown.
func (h *handler) find(r *http.Request) (approval.Hold, error) {
	holds, err := h.shown(r.Context())
	if err != nil {
		return approval.Hold{}, err
	}
	id := r.PathValue("id")
	if i := slices.IndexFunc(holds, func(h approval.Hold) bool { return h.ID == id }); i >= 0 {
		return holds[i], nil
	}
	return approval.Hold{}, approval.ErrNotFound
}

// shown are the holds of what code inside did itself. What callers outside do (their
// commands, the files they read) waits outside, and may be nothing for its eyes.
func (h *handler) shown(ctx context.Context) ([]approval.Hold, error) {
	holds, err := h.sandbox.Holds(ctx)
	if err != nil {
		return nil, err
	}
	own := slices.DeleteFunc(slices.Clone(holds), func(hold approval.Hold) bool {
		return hold.Subject.SandboxID != h.sandbox.ID() || !isInside(hold.Action.Kind)
	})
	return own[:min(len(own), MaxHolds)], nil
}

// isInside tells what code inside does itself from what callers outside do.
func isInside(kind policy.Kind) bool { return kind == policy.Egress || kind == policy.Secret }

// refused is what code inside was refused, the latest first.
func (h *handler) refused() []Refusal {
	return slices.DeleteFunc(h.sandbox.Refusals().List(), func(r Refusal) bool { return !isInside(r.Kind) })
}

func (h *handler) propose(r *http.Request) (view, error) {
	hold, err := h.find(r)
	if err != nil {
		return nil, err
	}
	var p approval.Proposal
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	err = decoder.Decode(&p)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return nil, failure{http.StatusRequestEntityTooLarge, "the proposal is too large"}
	}
	if err != nil {
		return nil, failure{http.StatusBadRequest, `send {"match": {"host": ["api.example.com"]}, "reason": "why"}: ` + strings.TrimPrefix(err.Error(), "json: ")}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, failure{http.StatusBadRequest, "something follows the JSON object"}
	}
	if hold, err = h.sandbox.Propose(r.Context(), hold.ID, p); err != nil {
		return nil, err
	}
	return newHoldView(hold), nil
}
