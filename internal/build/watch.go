package build

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// watchEvery is how often builds under way are looked after.
const watchEvery = 10 * time.Second

// Why builds end that nobody may have any more.
const (
	keyDeleted      = "its key was deleted"
	templateDeleted = "its template was deleted"
)

// watch ends builds whose key or template was deleted, by whatever process, until Close.
func (b *Builds) watch() {
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-time.After(watchEvery):
		}
		if err := b.endOrphans(b.ctx); err != nil && b.ctx.Err() == nil {
			b.config.Log.Error("builds were not looked after", "error", err)
		}
	}
}

func (b *Builds) endOrphans(ctx context.Context) error {
	b.mu.Lock()
	runs := slices.Collect(maps.Values(b.live))
	b.mu.Unlock()
	if len(runs) == 0 {
		return nil
	}
	keys, err := b.config.Store.Keys(ctx)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if !owned(run.record.KeyID, keys) {
			run.cancel(&StepError{Message: keyDeleted})
			continue
		}
		_, err := b.config.Store.Build(ctx, run.record.ID)
		if errors.Is(err, store.ErrNotFound) { // it goes with the template
			run.cancel(&StepError{Message: templateDeleted})
		} else if err != nil {
			return err
		}
	}
	return nil
}

// owned tells whether a key is there; no key is the machine itself.
func owned(keyID string, keys []store.Key) bool {
	return keyID == "" || slices.ContainsFunc(keys, func(k store.Key) bool { return k.ID == keyID })
}
