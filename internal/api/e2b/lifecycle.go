package e2b

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

const (
	// pauseTimeout bounds a pause that goes on after its client left.
	pauseTimeout = 10 * time.Minute
	// A request for a sandbox that is on its way to another state waits for its turn,
	// asking every busyEvery, for busyPatience; clients give a request 60 s.
	busyPatience = 30 * time.Second
	busyEvery    = 50 * time.Millisecond
	// healthPatience is how long an agent may take to say that it is well.
	healthPatience = 5 * time.Second
)

// pause saves a sandbox and ends its processes. It goes on when the client
// leaves, whose repeat is then told that the sandbox is paused.
func (a *api) pause(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body struct {
		Memory *bool `json:"memory"`
		// RequireHealthyGuest refuses the pause when the agent does not answer.
		RequireHealthyGuest bool `json:"requireHealthyGuest"`
	}
	if err := decode(w, r, &body, true); err != nil {
		return err
	}
	info, err := a.own(r, k)
	if err != nil {
		return err
	}
	if body.RequireHealthyGuest && info.State == sandbox.Running {
		if err := a.checkAgent(r.Context(), info.ID); err != nil {
			e := failure(http.StatusServiceUnavailable, "sandbox '%s' was not paused and runs on: its agent does not answer: %s", info.ID, err)
			e.noRetry = true
			return e
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), pauseTimeout)
	defer cancel()
	diskOnly := body.Memory != nil && !*body.Memory
	_, err = settled(r.Context(), func() (struct{}, error) {
		return struct{}{}, a.sandboxes.Pause(ctx, info.ID, diskOnly)
	})
	switch {
	case errors.Is(err, sandbox.ErrPaused):
		return failure(http.StatusConflict, "sandbox '%s' is paused already", info.ID)
	case errors.Is(err, sandbox.ErrBusy):
		// 409 would tell clients that it is paused.
		e := failure(http.StatusServiceUnavailable, "sandbox '%s' was not paused: it is being resumed or saved just now; ask again in a moment", info.ID)
		e.retryAfter = time.Second
		return e
	case err != nil:
		return a.gone(r, k, info.ID, fmt.Errorf("pause sandbox %s: %w", info.ID, err))
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// checkAgent asks the agent how it is.
func (a *api) checkAgent(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, healthPatience)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return a.sandboxes.Dial(ctx, id, hostapi.AgentPort)
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/health", nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("it answers %s", response.Status)
	}
	return nil
}

// connect answers as create does. It resumes a paused sandbox (201) and gives a
// running one more time, never less (200).
func (a *api) connect(g generation) handler {
	return func(w http.ResponseWriter, r *http.Request, k store.Key) error {
		var body struct {
			Timeout *int64 `json:"timeout"` // seconds
			Memory  *bool  `json:"memory"`
		}
		if err := decode(w, r, &body, !g.timeoutRequired); err != nil {
			return err
		}
		if g.timeoutRequired && body.Timeout == nil {
			return invalid("timeout is missing: give seconds from now")
		}
		d, err := timeout(body.Timeout, g.defaultTimeout, k)
		if err != nil {
			return err
		}
		info, err := a.own(r, k)
		if err != nil {
			return err
		}
		info, resumed, err := a.bringBack(r, k, info, d, body.Memory)
		if err != nil {
			return err
		}
		code := http.StatusOK
		if resumed {
			code = http.StatusCreated
		}
		writeJSON(w, code, a.created(info))
		return nil
	}
}

// resume is the older form of connect, for paused sandboxes only.
func (a *api) resume(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body struct {
		Timeout   *int64 `json:"timeout"` // seconds
		AutoPause *bool  `json:"autoPause"`
		Memory    *bool  `json:"memory"`
	}
	if err := decode(w, r, &body, true); err != nil {
		return err
	}
	d, err := timeout(body.Timeout, v1.defaultTimeout, k)
	if err != nil {
		return err
	}
	info, err := a.own(r, k)
	if err != nil {
		return err
	}
	running := failure(http.StatusConflict, "sandbox '%s' is running already", info.ID)
	if info.State == sandbox.Running {
		return running
	}
	if body.AutoPause != nil && *body.AutoPause != info.Lifecycle.PauseOnTimeout {
		return unsupported(fmt.Sprintf("autoPause: %t for a sandbox that was created with another value", *body.AutoPause), "leave it out")
	}
	info, resumed, err := a.bringBack(r, k, info, d, body.Memory)
	if err != nil {
		return err
	}
	if !resumed { // somebody else did, just now
		return running
	}
	writeJSON(w, http.StatusCreated, a.created(info))
	return nil
}

// bringBack resumes a paused sandbox or gives a running one more time.
func (a *api) bringBack(r *http.Request, k store.Key, info sandbox.Info, d time.Duration, memory *bool) (now sandbox.Info, resumed bool, err error) {
	req := sandbox.ResumeRequest{
		Quota:   sandbox.QuotaOf(k),
		Timeout: bounded(d, info, k),
		Reboot:  memory != nil && !*memory,
	}
	now, err = settled(r.Context(), func() (now sandbox.Info, err error) {
		now, resumed, err = a.sandboxes.Resume(r.Context(), info.ID, req)
		return now, err
	})
	if err != nil {
		return now, false, a.gone(r, k, info.ID, fmt.Errorf("connect to sandbox %s: %w", info.ID, err))
	}
	return now, resumed, nil
}

// settled does something to a sandbox as soon as no other change to it is under
// way. It is ErrBusy when that takes too long.
func settled[T any](ctx context.Context, do func() (T, error)) (T, error) {
	deadline := time.Now().Add(busyPatience)
	for {
		result, err := do()
		if !errors.Is(err, sandbox.ErrBusy) || time.Now().After(deadline) {
			return result, err
		}
		select {
		case <-time.After(busyEvery):
		case <-ctx.Done():
			return result, ctx.Err()
		}
	}
}
