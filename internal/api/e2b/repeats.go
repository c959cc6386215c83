package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// Limits of what is remembered of idempotent requests.
const (
	maxRepeatKey = 255 // bytes of Idempotency-Key, as clients have it
	keepRepeats  = 24 * time.Hour
	maxRepeats   = 10_000
)

// repeats makes a request that makes something, and that a client repeats with
// one Idempotency-Key (Python from 2.63 can send it with create), make it once.
// It lives as long as the process: a repeat over a restart makes a second one.
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
	done    chan struct{} // closed when made and err are set
	made    any
	err     error
}

func newRepeats(now func() time.Time) *repeats {
	return &repeats{now: now, byKey: map[string]*repeat{}}
}

// once calls make, or answers as the call with the same key did. A call that
// failed is forgotten. A request without the header has no memory.
func once[T any](r *repeats, request *http.Request, k store.Key, body any, make func(context.Context) (T, error)) (made T, err error) {
	ctx, idempotencyKey := request.Context(), request.Header.Get("Idempotency-Key")
	if idempotencyKey == "" {
		return make(ctx)
	}
	if len(idempotencyKey) > maxRepeatKey {
		return made, invalid("Idempotency-Key has %d characters, at most %d are possible", len(idempotencyKey), maxRepeatKey)
	}
	fingerprint, err := fingerprint(request, body)
	if err != nil {
		return made, err
	}
	one, first := r.begin(k.ID+"/"+idempotencyKey, fingerprint)
	if one.request != fingerprint {
		e := failure(http.StatusConflict, "the Idempotency-Key was used for another request: give each request its own")
		e.ErrorCode = "idempotency_request_mismatch"
		return made, e
	}
	if first {
		made, one.err = make(ctx)
		one.made = made
		if one.err != nil {
			r.forget(one)
		}
		close(one.done)
		return made, one.err
	}
	select {
	case <-one.done:
		return one.made.(T), one.err
	case <-ctx.Done():
		return made, ctx.Err()
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

// fingerprint tells requests apart. Both generations of create are one request.
func fingerprint(request *http.Request, body any) ([sha256.Size]byte, error) {
	canonical, err := json.Marshal(body)
	path := strings.TrimPrefix(request.URL.Path, "/v2")
	return sha256.Sum256(append([]byte(path+"\n"), canonical...)), err
}
