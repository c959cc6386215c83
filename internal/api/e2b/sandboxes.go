package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// killTimeout bounds a kill that goes on after its client left.
const killTimeout = time.Minute

// maxRefresh is the longest refresh, seconds.
const maxRefresh = 3600

func (a *api) get(w http.ResponseWriter, r *http.Request, k store.Key) error {
	info, err := a.own(r, k)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, a.detail(info))
	return nil
}

// kill goes on when the client leaves: half a kill helps nobody.
func (a *api) kill(w http.ResponseWriter, r *http.Request, k store.Key) error {
	info, err := a.own(r, k)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), killTimeout)
	defer cancel()
	if err := a.sandboxes.Kill(ctx, info.ID, "killed by its owner"); err != nil {
		return a.gone(r, k, info.ID, fmt.Errorf("kill sandbox %s: %w", info.ID, err))
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// connect answers as create does and gives the sandbox more time, never less.
func (a *api) connect(g generation) handler {
	return func(w http.ResponseWriter, r *http.Request, k store.Key) error {
		var body struct {
			Timeout *int64 `json:"timeout"` // seconds
		}
		if err := decode(w, r, &body, !g.timeoutRequired); err != nil {
			return err
		}
		if g.timeoutRequired && body.Timeout == nil {
			return invalid("timeout is missing: give seconds from now")
		}
		d, err := timeout(body.Timeout, g, k)
		if err != nil {
			return err
		}
		info, err := a.prolong(r, k, d, true)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, a.created(info))
		return nil
	}
}

func (a *api) setTimeout(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body struct {
		Timeout *int64 `json:"timeout"` // seconds
	}
	if err := decode(w, r, &body, false); err != nil {
		return err
	}
	if body.Timeout == nil {
		return invalid("timeout is missing: give seconds from now")
	}
	d, err := timeout(body.Timeout, v1, k)
	if err != nil {
		return err
	}
	if _, err := a.prolong(r, k, d, false); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *api) refresh(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body struct {
		Duration *int64 `json:"duration"` // seconds
	}
	if err := decode(w, r, &body, true); err != nil {
		return err
	}
	if d := body.Duration; d != nil && (*d < 0 || *d > maxRefresh) {
		return invalid("duration must be 0 to %d seconds, not %d", maxRefresh, *d)
	}
	if body.Duration != nil && *body.Duration == 0 { // extends nothing
		if _, err := a.own(r, k); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	d, err := timeout(body.Duration, v1, k)
	if err != nil {
		return err
	}
	if _, err := a.prolong(r, k, d, true); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (a *api) prolong(r *http.Request, k store.Key, d time.Duration, extendOnly bool) (sandbox.Info, error) {
	info, err := a.own(r, k)
	if err != nil {
		return sandbox.Info{}, err
	}
	later, err := a.sandboxes.SetTimeout(info.ID, d, extendOnly)
	if err != nil {
		return sandbox.Info{}, a.gone(r, k, info.ID, fmt.Errorf("set the timeout of sandbox %s: %w", info.ID, err))
	}
	return later, nil
}

// own finds the sandbox a path names. To any key but its owner's it is not there.
func (a *api) own(r *http.Request, k store.Key) (sandbox.Info, error) {
	id, _, _ := strings.Cut(r.PathValue("id"), "-") // old clients append a client id
	info, err := a.sandboxes.Get(id)
	if err != nil {
		return sandbox.Info{}, a.gone(r, k, id, err)
	}
	if info.KeyID != k.ID {
		return sandbox.Info{}, notFound(id)
	}
	return info, nil
}

// gone says of a sandbox that is not there any more why it ended, to its owner
// only. Other errors it returns as they are.
func (a *api) gone(r *http.Request, k store.Key, id string, err error) error {
	if !errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	record, err := a.store.Sandbox(r.Context(), id)
	if err != nil || record.KeyID != k.ID || record.Reason == "" {
		return notFound(id)
	}
	return failure(http.StatusNotFound, "sandbox '%s' not found: it ended: %s", id, record.Reason)
}

func notFound(id string) error {
	return failure(http.StatusNotFound, "sandbox '%.64s' not found", id)
}
