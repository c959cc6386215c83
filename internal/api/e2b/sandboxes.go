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

const (
	maxRefresh     = 3600 // seconds
	defaultRefresh = 15 * time.Second
)

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
	d, err := timeout(body.Timeout, 0, k)
	if err != nil {
		return err
	}
	if err := a.prolong(r, k, d, false); err != nil {
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
	d, err := timeout(body.Duration, defaultRefresh, k)
	if err != nil {
		return err
	}
	if err := a.prolong(r, k, d, true); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// prolong gives a running sandbox another timeout, from now. One that is paused
// has none, and is answered as one that is not there, as E2B does: clients then
// stop prolonging it.
func (a *api) prolong(r *http.Request, k store.Key, d time.Duration, extendOnly bool) error {
	info, err := a.own(r, k)
	if err != nil {
		return err
	}
	_, err = settled(r.Context(), func() (sandbox.Info, error) {
		return a.sandboxes.SetTimeout(r.Context(), info.ID, bounded(d, info, k), extendOnly)
	})
	if errors.Is(err, sandbox.ErrPaused) {
		return failure(http.StatusNotFound, "sandbox '%s' is not running but paused, and has no timeout: connect to it, which resumes it", info.ID)
	}
	if err != nil {
		return a.gone(r, k, info.ID, fmt.Errorf("set the timeout of sandbox %s: %w", info.ID, err))
	}
	return nil
}

// bounded shortens a timeout from now where the run would become longer than the
// key allows, as E2B does.
func bounded(d time.Duration, info sandbox.Info, k store.Key) time.Duration {
	if k.MaxTimeout <= 0 || wireState(info.State) != sandbox.Running {
		return d // a resume begins a new run
	}
	left := time.Until(info.StartedAt.Add(k.MaxTimeout))
	return max(min(d, left), time.Millisecond) // its timer is about to end it
}

// plainID is a sandbox's id without the client id that old clients append.
func plainID(id string) string {
	id, _, _ = strings.Cut(id, "-")
	return id
}

// own finds the sandbox a path names, running or paused. To any key but its
// owner's it is not there.
func (a *api) own(r *http.Request, k store.Key) (sandbox.Info, error) {
	id := plainID(r.PathValue("id"))
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
	record, noRecord := a.store.Sandbox(r.Context(), id)
	if noRecord != nil || record.KeyID != k.ID {
		return notFound(id)
	}
	reason := record.Reason
	if gone := (*sandbox.GoneError)(nil); record.EndedAt.IsZero() && errors.As(err, &gone) {
		reason = gone.Reason // it is just ending, and its record has an older word
	}
	if reason == "" {
		return notFound(id)
	}
	return failure(http.StatusNotFound, "sandbox '%s' not found: it ended: %s", id, reason)
}

func notFound(id string) error {
	return failure(http.StatusNotFound, "sandbox '%.64s' not found", id)
}
