package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Limits of what is remembered of idempotent requests.
const (
	maxRepeatKey = 255 // bytes of Idempotency-Key, as clients have it
	keepRepeats  = 24 * time.Hour
	maxRepeats   = 10_000
)

// repeats makes a create that a client repeats with one Idempotency-Key (Python
// from 2.63 can send it) start one sandbox. It lives as long as the process: a
// repeat over a restart starts a second one.
type repeats struct {
	now func() time.Time

	mu    sync.Mutex
	byKey map[string]*repeat
	order []*repeat // oldest first; may hold some that are forgotten already
}

type repeat struct {
	key     string
	request [sha256.Size]byte
	begun   time.Time
	done    chan struct{} // closed when info and err are set
	info    sandbox.Info
	err     error
}

func newRepeats(now func() time.Time) *repeats {
	return &repeats{now: now, byKey: map[string]*repeat{}}
}

// once calls create, or answers as the call with the same key did. A call that
// failed is forgotten. An empty idempotency key means no memory.
func (r *repeats) once(ctx context.Context, keyID, idempotencyKey string, request any, create func(context.Context) (sandbox.Info, error)) (sandbox.Info, error) {
	if idempotencyKey == "" {
		return create(ctx)
	}
	if len(idempotencyKey) > maxRepeatKey {
		return sandbox.Info{}, invalid("Idempotency-Key has %d characters, at most %d are possible", len(idempotencyKey), maxRepeatKey)
	}
	fingerprint, err := fingerprint(request)
	if err != nil {
		return sandbox.Info{}, err
	}
	one, first := r.begin(keyID+"/"+idempotencyKey, fingerprint)
	if one.request != fingerprint {
		return sandbox.Info{}, failure(http.StatusConflict, "the Idempotency-Key was used for another request: give each request its own")
	}
	if first {
		one.info, one.err = create(ctx)
		if one.err != nil {
			r.forget(one)
		}
		close(one.done)
		return one.info, one.err
	}
	select {
	case <-one.done:
		return one.info, one.err
	case <-ctx.Done():
		return sandbox.Info{}, ctx.Err()
	}
}

func (r *repeats) begin(key string, request [sha256.Size]byte) (one *repeat, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prune()
	if one := r.byKey[key]; one != nil {
		return one, false
	}
	one = &repeat{key: key, request: request, begun: r.now(), done: make(chan struct{})}
	r.byKey[key] = one
	r.order = append(r.order, one)
	return one, true
}

func (r *repeats) prune() {
	oldest := r.now().Add(-keepRepeats)
	for len(r.order) > 0 && (len(r.order) >= maxRepeats || r.order[0].begun.Before(oldest)) {
		r.drop(r.order[0])
		r.order = r.order[1:]
	}
}

func (r *repeats) forget(one *repeat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(one)
}

func (r *repeats) drop(one *repeat) {
	if r.byKey[one.key] == one {
		delete(r.byKey, one.key)
	}
}

func fingerprint(request any) ([sha256.Size]byte, error) {
	canonical, err := json.Marshal(request)
	return sha256.Sum256(canonical), err
}
