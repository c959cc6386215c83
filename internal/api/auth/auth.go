// Package auth says who makes a request to one of the server's APIs, and what that
// caller may do.
package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Errors of a request whose caller is not known. Their texts are for the caller.
var (
	ErrNoKey      = errors.New("no API key: send one in the header X-API-KEY (`tombolo env` prints what clients need, `tombolo key create` makes a key)")
	ErrUnknownKey = errors.New("unknown API key: this server has no such key (`tombolo key list` shows its keys, `tombolo env` prints the default one)")
)

// ErrRole: the caller's key has not the role that this takes.
type ErrRole struct{ Missing store.Role }

func (e *ErrRole) Error() string {
	return fmt.Sprintf("this API key has not the role %q: use a key that has it (`tombolo key create NAME --role %s` makes one, `tombolo key list` shows the roles of each)", e.Missing, e.Missing)
}

// Keys finds the keys of requests.
type Keys struct {
	Store store.Keys
	Log   *slog.Logger
}

// Key finds the key whose secret is in the header X-API-KEY or, where that is not there, in
// Authorization as a Bearer token. The secret is looked up by its hash, so that no time it
// takes depends on a stored secret. Errors: ErrNoKey, ErrUnknownKey, or that of a store which
// failed.
func (k Keys) Key(r *http.Request) (store.Key, error) {
	secret := secretOf(r)
	if secret == "" {
		return store.Key{}, ErrNoKey
	}
	hash, err := store.HashSecret(secret)
	if err != nil {
		return store.Key{}, ErrUnknownKey
	}
	found, err := k.Store.KeyByHash(r.Context(), hash)
	if errors.Is(err, store.ErrNotFound) {
		return store.Key{}, ErrUnknownKey
	}
	if err != nil {
		return store.Key{}, fmt.Errorf("check the API key: %w", err)
	}
	record.Caller(r.Context(), OfKey(found).Actor(), found.ID)
	k.touch(r.Context(), found)
	return found, nil
}

func (k Keys) touch(ctx context.Context, found store.Key) {
	now := time.Now()
	if now.Sub(found.LastUsed) < store.TouchEvery {
		return
	}
	if err := k.Store.TouchKey(ctx, found.ID, now); err != nil && ctx.Err() == nil {
		k.Log.Warn("cannot note that a key was used", "key", found.ID, "error", err)
	}
}

func secretOf(r *http.Request) string {
	if secret := r.Header.Get("X-API-KEY"); secret != "" {
		return secret
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// Principal is who makes a request. The zero Principal may do nothing.
type Principal struct {
	key   store.Key
	owner bool
}

// Owner is root on the machine, who may do everything.
func Owner() Principal { return Principal{owner: true} }

// OfKey is whoever has the secret of a key.
func OfKey(k store.Key) Principal { return Principal{key: k} }

// IsOwner tells the machine's owner from the holders of keys.
func (p Principal) IsOwner() bool { return p.owner }

// KeyID is that of the key; empty for the owner.
func (p Principal) KeyID() string { return p.key.ID }

// Actor is what records call the caller: "owner" or "key:<id>"; empty for the zero
// Principal.
func (p Principal) Actor() string {
	switch {
	case p.owner:
		return "owner"
	case p.key.ID == "":
		return ""
	}
	return "key:" + p.key.ID
}

// Has tells whether the caller has a role. The owner has all.
func (p Principal) Has(r store.Role) bool { return p.owner || p.key.Has(r) }

// Need is an *ErrRole when the caller has none of some roles.
func (p Principal) Need(roles ...store.Role) error {
	for _, r := range roles {
		if p.Has(r) {
			return nil
		}
	}
	return &ErrRole{Missing: roles[0]}
}

// Owns tells whether sandboxes and secrets of a key are the caller's.
func (p Principal) Owns(keyID string) bool {
	return p.owner || p.key.Has(store.RoleSandboxes) && p.key.ID != "" && p.key.ID == keyID
}

// AnswersFor tells whether the caller may answer what sandboxes of a key ask for.
func (p Principal) AnswersFor(keyID string) bool { return p.owner || p.key.AnswersFor(keyID) }

// Sees tells whether the caller may see what sandboxes of a key ask for.
func (p Principal) Sees(keyID string) bool { return p.Owns(keyID) || p.AnswersFor(keyID) }

// Bound tells whether the caller answers for some keys only.
func (p Principal) Bound() bool { return !p.owner && len(p.key.Approves) > 0 }

type contextKey struct{}

// With keeps the caller in a context, and tells the record of the request.
func With(ctx context.Context, p Principal) context.Context {
	record.Caller(ctx, p.Actor(), p.KeyID())
	return context.WithValue(ctx, contextKey{}, p)
}

// Request is a request with its caller. It is the same one, so that who passed it on sees
// what a mux writes into it.
func Request(r *http.Request, p Principal) *http.Request {
	*r = *r.WithContext(With(r.Context(), p))
	return r
}

// From is the caller of a context; the zero Principal where there is none.
func From(ctx context.Context) Principal {
	p, _ := ctx.Value(contextKey{}).(Principal)
	return p
}

// Same tells whether a caller that was found a while ago has the same rights still.
func (k Keys) Same(ctx context.Context, p Principal) bool {
	if p.owner {
		return true
	}
	now, err := k.Store.KeyByHash(ctx, p.key.Hash)
	return err == nil && now.ID == p.key.ID && slices.Equal(now.Roles, p.key.Roles) &&
		slices.Equal(now.Approves, p.key.Approves) && now.SelfApproval == p.key.SelfApproval
}
