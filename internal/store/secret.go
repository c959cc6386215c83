package store

import (
	"context"
	"encoding/json"
	"time"
)

// Secrets are values that sandboxes use and never have. The store keeps them as
// whoever writes them has encrypted them.
type Secrets interface {
	// AddSecret stores a new one with its values. ErrExists when its key has one of
	// this name, or any has its id or placeholder; ErrFull when its key has most
	// already; 0 is no limit.
	AddSecret(ctx context.Context, s Secret, most int) error
	// Secret finds one of a key's by id, else by name.
	Secret(ctx context.Context, keyID, idOrName string) (Secret, error)
	// Secrets lists those of a key, oldest first, or all where keyID is empty, and
	// what SecretChanges was at that moment.
	Secrets(ctx context.Context, keyID string) (all []Secret, changes int64, err error)
	// SecretChanges tells how often secrets, of any key, were added, changed or deleted:
	// a cheap way to see whether what was listed is still true.
	SecretChanges(ctx context.Context) (int64, error)
	// UpdateSecret changes one as change says and returns what it became; ID, KeyID,
	// Name, Placeholder and CreatedAt stay, and Values are all that it has from then
	// on. An error of change is returned and nothing is stored. change must not use the
	// store.
	UpdateSecret(ctx context.Context, keyID, idOrName string, change func(*Secret) error) (Secret, error)
	// DeleteSecret removes one of a key's with all its values, and returns it.
	DeleteSecret(ctx context.Context, keyID, idOrName string) (Secret, error)
}

// Secret is the record of a secret of a key.
type Secret struct {
	ID          string            `json:"id"`
	KeyID       string            `json:"keyID"`
	Name        string            `json:"name"`    // unique among those of its key
	Version     int               `json:"version"` // of the value in use
	Placeholder string            `json:"placeholder"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	// Bindings say where it may go. The store does not look into them.
	Bindings  json.RawMessage `json:"bindings,omitempty"`
	CreatedAt time.Time       `json:"createdAt"`
	UpdatedAt time.Time       `json:"updatedAt"`
	// Values are the value in use and some before it, the newest first. They are in no
	// JSON, though encrypted.
	Values []SecretValue `json:"-"`
}

// SecretValue is one version of a secret's value.
type SecretValue struct {
	Version    int
	Ciphertext []byte
	CreatedAt  time.Time
}
