package e2b

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
)

var (
	errNoKey      = failure(http.StatusUnauthorized, "no API key: send one in the header X-API-KEY (`tombolo env` prints what clients need, `tombolo key create` makes a key)")
	errUnknownKey = failure(http.StatusUnauthorized, "unknown API key: this server has no such key (`tombolo key list` shows its keys, `tombolo env` prints the default one)")
)

// authenticate finds the key of a request. The secret is looked up by its hash,
// so that no time it takes depends on a stored secret.
func (a *api) authenticate(r *http.Request) (store.Key, error) {
	secret := r.Header.Get("X-API-KEY")
	if secret == "" {
		return store.Key{}, errNoKey
	}
	hash, err := store.HashSecret(secret)
	if err != nil {
		return store.Key{}, errUnknownKey
	}
	k, err := a.store.KeyByHash(r.Context(), hash)
	if errors.Is(err, store.ErrNotFound) {
		return store.Key{}, errUnknownKey
	}
	if err != nil {
		return store.Key{}, fmt.Errorf("check the API key: %w", err)
	}
	if now := time.Now(); now.Sub(k.LastUsed) >= store.TouchEvery {
		if err := a.store.TouchKey(r.Context(), k.ID, now); err != nil && r.Context().Err() == nil {
			a.log.Warn("cannot note that a key was used", "key", k.ID, "error", err)
		}
	}
	return k, nil
}
