package e2b

import (
	"errors"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/api/auth"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// authenticate finds the key of a request, which must be one for sandboxes. The
// dialect knows no caller but by the header X-API-KEY.
func (a *api) authenticate(r *http.Request) (store.Key, error) {
	if r.Header.Get("X-API-KEY") == "" {
		return store.Key{}, failure(http.StatusUnauthorized, "%s", auth.ErrNoKey)
	}
	k, err := a.keys.Key(r)
	if errors.Is(err, auth.ErrUnknownKey) {
		return store.Key{}, failure(http.StatusUnauthorized, "%s", err)
	}
	if err != nil {
		return store.Key{}, err
	}
	if err := auth.OfKey(k).Need(store.RoleSandboxes); err != nil {
		return store.Key{}, failure(http.StatusForbidden, "%s", err)
	}
	return k, nil
}
