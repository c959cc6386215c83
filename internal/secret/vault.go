package secret

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// keptValues is how many versions of a value are kept: the one in use, and the one
// before it, which is still taken out of answers.
const keptValues = 2

// watchEvery is how often [Vault.Watch] looks for what other processes wrote.
const watchEvery = time.Second

// Vault has the secrets of a data folder. It is safe for concurrent use.
//
// All but the values is in memory, so that a request waits for no database. Changes by
// this vault hold at once, those by other processes once [Vault.Refresh] has run,
// which [Vault.Watch] does each second.
type Vault struct {
	store store.Secrets
	keys  *keyring
	log   *slog.Logger
	cache cache
	now   func() time.Time

	refresh sync.Mutex // one at a time
	current atomic.Pointer[index]
}

// index is what there is at one moment.
type index struct {
	changes int64
	byID    map[string]*entry
	byName  map[ownName]*entry
}

type ownName struct{ keyID, name string }

// entry is one secret. It does not change.
type entry struct {
	Secret
	bounds []bound
	values []store.SecretValue // newest first
}

// Open reads the secrets of a data folder. log may be nil.
func Open(ctx context.Context, dataDir string, records store.Secrets, log *slog.Logger) (*Vault, error) {
	if log == nil {
		log = slog.Default()
	}
	v := &Vault{store: records, keys: &keyring{path: KeyFile(dataDir), store: records}, log: log, now: time.Now}
	v.current.Store(&index{changes: -1})
	if err := v.Refresh(ctx); err != nil {
		return nil, err
	}
	return v, nil
}

// Watch takes over what other processes write, until ctx ends.
func (v *Vault) Watch(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			v.cache.dropAll()
			return
		case now := <-ticker.C:
			v.cache.dropUnused(now.Add(-keepUnused))
		}
		err := v.Refresh(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			v.log.Error("secrets cannot be read again; those known before are used", "error", err)
		}
		failing = err != nil
	}
}

// Refresh reads the secrets again when any process has changed one.
func (v *Vault) Refresh(ctx context.Context) error {
	v.refresh.Lock()
	defer v.refresh.Unlock()
	changes, err := v.store.SecretChanges(ctx)
	if err != nil || changes == v.current.Load().changes {
		return err
	}
	all, changes, err := v.store.Secrets(ctx, "")
	if err != nil {
		return err
	}
	next := &index{changes: changes, byID: map[string]*entry{}, byName: map[ownName]*entry{}}
	for _, record := range all {
		e, err := newEntry(record)
		if err != nil {
			// Written by another version: it is not used, and not lost.
			v.log.Error("a secret cannot be used", "secret", record.Name, "key", record.KeyID, "error", err)
			e.bounds = nil
		}
		next.byID[e.ID], next.byName[ownName{e.KeyID, e.Name}] = e, e
	}
	v.current.Store(next)
	v.cache.keep(func(of valueID) bool {
		e := next.byID[of.secret]
		return e != nil && e.hasVersion(of.version)
	})
	return nil
}

func newEntry(record store.Secret) (*entry, error) {
	e := &entry{values: record.Values, Secret: Secret{
		ID: record.ID, KeyID: record.KeyID, Name: record.Name, Version: record.Version, Metadata: record.Metadata,
		CreatedAt: record.CreatedAt, UpdatedAt: record.UpdatedAt, Placeholder: record.Placeholder,
	}}
	if len(record.Bindings) > 0 {
		if err := json.Unmarshal(record.Bindings, &e.Bindings); err != nil {
			return e, fmt.Errorf("its bindings cannot be read: %w", err)
		}
	}
	var err error
	e.bounds, err = compileBindings(e.Bindings)
	return e, err
}

func (e *entry) hasVersion(version int) bool {
	for _, v := range e.values {
		if v.Version == version {
			return true
		}
	}
	return false
}

// New is what a secret is made with.
type New struct {
	Name     string // lower-cased
	Value    Value
	Metadata map[string]string
	// Bindings may be given by Metadata instead, see [metadataBindings].
	Bindings []Binding
	// PlaceholderPrefix begins the placeholder, for clients that look at it; "ghp_".
	PlaceholderPrefix string
}

// Change is what becomes of a secret; nil and the zero Value leave what is there.
type Change struct {
	Value    Value
	Metadata *map[string]string
	Bindings *[]Binding
}

// Create makes a secret of a key. ErrExists, ErrFull, *InvalidError.
func (v *Vault) Create(ctx context.Context, keyID string, n New) (Secret, error) {
	n.Name = NormalName(n.Name)
	if n.PlaceholderPrefix == "" {
		n.PlaceholderPrefix = n.Metadata[metadataPrefix]
	}
	if err := errors.Join(checkName(n.Name), n.Value.check(), checkPrefix(n.PlaceholderPrefix), checkMetadata(n.Metadata)); err != nil {
		return Secret{}, firstOf(err)
	}
	bindings, err := n.bindings()
	if err != nil {
		return Secret{}, err
	}
	ciphertext, err := v.keys.encrypt(ctx, n.Value)
	if err != nil {
		return Secret{}, err
	}
	now := v.now().UTC().Truncate(time.Microsecond)
	record := store.Secret{
		ID: newID(), KeyID: keyID, Name: n.Name, Version: 1, Placeholder: newPlaceholder(n.PlaceholderPrefix, n.Name),
		Metadata: n.Metadata, CreatedAt: now, UpdatedAt: now,
		Values: []store.SecretValue{{Version: 1, Ciphertext: ciphertext, CreatedAt: now}},
	}
	if record.Bindings, err = json.Marshal(bindings); err != nil {
		return Secret{}, err
	}
	if err := v.store.AddSecret(ctx, record, MaxSecrets); err != nil {
		return Secret{}, storeError(err, n.Name)
	}
	return v.changed(ctx, record)
}

func (n New) bindings() ([]Binding, error) {
	bindings, given, err := metadataBindings(n.Metadata)
	switch {
	case err != nil:
		return nil, err
	case given && n.Bindings != nil:
		return nil, invalid("bindings: metadata give some as well (%s…); give one of both", metadataMark)
	case !given:
		bindings = n.Bindings
	}
	_, err = compileBindings(bindings)
	return bindings, err
}

// Update changes a secret of a key, found by id or name; a value given is its new
// version. ErrNotFound, *InvalidError.
func (v *Vault) Update(ctx context.Context, keyID, idOrName string, c Change) (Secret, error) {
	ciphertext, err := v.checkChange(ctx, c)
	if err != nil {
		return Secret{}, err
	}
	record, err := v.store.UpdateSecret(ctx, keyID, NormalName(idOrName), func(s *store.Secret) error {
		if err := c.bind(s); err != nil {
			return err
		}
		if c.Metadata != nil {
			s.Metadata = *c.Metadata
		}
		s.UpdatedAt = v.now()
		if ciphertext != nil {
			s.Version++
			value := store.SecretValue{Version: s.Version, Ciphertext: ciphertext, CreatedAt: s.UpdatedAt}
			s.Values = append([]store.SecretValue{value}, s.Values[:min(len(s.Values), keptValues-1)]...)
		}
		return nil
	})
	if err != nil {
		return Secret{}, storeError(err, idOrName)
	}
	return v.changed(ctx, record)
}

// checkChange refuses what cannot be, and encrypts the value if there is one.
func (v *Vault) checkChange(ctx context.Context, c Change) ([]byte, error) {
	if c.Metadata != nil {
		if err := checkMetadata(*c.Metadata); err != nil {
			return nil, err
		}
	}
	if c.Value.IsZero() {
		return nil, nil
	}
	if err := c.Value.check(); err != nil {
		return nil, err
	}
	return v.keys.encrypt(ctx, c.Value)
}

// bind changes the bindings: to those given, or to what new metadata say. Bindings that
// metadata gave go when new metadata give none; others stay.
func (c Change) bind(s *store.Secret) error {
	metadata := s.Metadata
	if c.Metadata != nil {
		metadata = *c.Metadata
	}
	told, given, err := metadataBindings(metadata)
	if err != nil {
		return err
	}
	_, before, _ := metadataBindings(s.Metadata)
	var bindings []Binding
	switch {
	case c.Bindings != nil && given:
		return invalid("bindings: the metadata give some (%s…); change those, or take them out of the metadata", metadataMark)
	case c.Bindings != nil:
		bindings = *c.Bindings
	case c.Metadata != nil && (given || before):
		bindings = told
	default:
		return nil
	}
	if _, err := compileBindings(bindings); err != nil {
		return err
	}
	s.Bindings, err = json.Marshal(bindings)
	return err
}

// Delete removes a secret of a key and all its values. ErrNotFound.
func (v *Vault) Delete(ctx context.Context, keyID, idOrName string) (Secret, error) {
	record, err := v.store.DeleteSecret(ctx, keyID, NormalName(idOrName))
	if err != nil {
		return Secret{}, storeError(err, idOrName)
	}
	return v.changed(ctx, record)
}

// changed has this vault know what was just written.
func (v *Vault) changed(ctx context.Context, record store.Secret) (Secret, error) {
	if err := v.Refresh(context.WithoutCancel(ctx)); err != nil {
		return Secret{}, err
	}
	e, err := newEntry(record)
	return e.Secret, err
}

// Get finds a secret of a key by id or name. ErrNotFound.
func (v *Vault) Get(ctx context.Context, keyID, idOrName string) (Secret, error) {
	record, err := v.store.Secret(ctx, keyID, NormalName(idOrName))
	if err != nil {
		return Secret{}, storeError(err, idOrName)
	}
	e, err := newEntry(record)
	return e.Secret, err
}

// List has the secrets of a key, oldest first, or of all keys where keyID is empty.
func (v *Vault) List(ctx context.Context, keyID string) ([]Secret, error) {
	records, _, err := v.store.Secrets(ctx, keyID)
	if err != nil {
		return nil, err
	}
	all := make([]Secret, len(records))
	for i, record := range records {
		e, err := newEntry(record)
		if err != nil {
			return nil, fmt.Errorf("secret %q: %w", record.Name, err)
		}
		all[i] = e.Secret
	}
	return all, nil
}

// storeError puts this package's errors in place of the store's.
func storeError(err error, name string) error {
	var bad *InvalidError
	switch {
	case errors.As(err, &bad):
		return bad
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("secret %.120q: %w", name, ErrNotFound)
	case errors.Is(err, store.ErrExists):
		return fmt.Errorf("secret %.120q: %w", name, ErrExists)
	case errors.Is(err, store.ErrFull):
		return ErrFull
	}
	return err
}

// firstOf is the first of joined errors: who asked mends one after the other.
func firstOf(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()[0]
	}
	return err
}
