package edge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

const (
	// wakePatience bounds how long requests wait for their sandbox to run (E2B's
	// edge waits as long).
	wakePatience = time.Minute
	// stateEvery is how often a state is looked at that nobody announces, by one
	// goroutine for all requests that wait for the same sandbox.
	stateEvery = 5 * time.Millisecond
)

// errNotWoken: the machine failed to bring a sandbox back; it is still paused.
var errNotWoken = errors.New("sandbox could not be resumed")

// waker waits for sandboxes that do not run, once for all who wait at a time.
type waker struct {
	sandboxes sandbox.Sandboxes
	mu        sync.Mutex
	underWay  map[wanted]*waiting
}

// wanted is what requests wait for.
type wanted struct {
	id   string
	wake bool // resume it when it is paused
}

type waiting struct {
	done chan struct{}
	err  error // read after done
}

func newWaker(s sandbox.Sandboxes) *waker {
	return &waker{sandboxes: s, underWay: map[wanted]*waiting{}}
}

// wait returns when the sandbox runs: a change of its state is waited for, and a
// paused one is woken if wake says so, else it is ErrAsleep. The waking goes on
// when ctx ends, for others may wait. Errors: those of Sandboxes.Get and Wake,
// ErrBusy only after wakePatience, and errNotWoken for those nobody decides on.
func (k *waker) wait(ctx context.Context, id string, wake bool) error {
	want := wanted{id, wake}
	k.mu.Lock()
	w := k.underWay[want]
	if w == nil {
		w = &waiting{done: make(chan struct{})}
		k.underWay[want] = w
		go k.run(context.WithoutCancel(ctx), want, w)
	}
	k.mu.Unlock()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *waker) run(ctx context.Context, want wanted, w *waiting) {
	ctx, cancel := context.WithTimeout(ctx, wakePatience)
	defer cancel()
	w.err = k.untilRunning(ctx, want)
	if w.err != nil && ctx.Err() != nil {
		w.err = fmt.Errorf("%w for longer than %s", sandbox.ErrBusy, wakePatience)
	}
	k.mu.Lock()
	delete(k.underWay, want)
	k.mu.Unlock()
	close(w.done)
}

func (k *waker) untilRunning(ctx context.Context, want wanted) error {
	for {
		info, err := k.sandboxes.Get(want.id)
		if err != nil || info.State == sandbox.Running {
			return err
		}
		if info.State == sandbox.Paused && !want.wake {
			return sandbox.ErrAsleep
		}
		if info.State == sandbox.Paused {
			if err := k.sandboxes.Wake(ctx, want.id); !errors.Is(err, sandbox.ErrBusy) {
				return told(err)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(stateEvery):
		}
	}
}

// told leaves the errors that the contract of Wake names and makes any other an
// errNotWoken.
func told(err error) error {
	var limit *sandbox.LimitError
	if err == nil || errors.As(err, &limit) || errors.Is(err, sandbox.ErrAsleep) || errors.Is(err, sandbox.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w: %w", errNotWoken, err)
}
