package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// AddKey implements store.Keys.
func (s *Store) AddKey(ctx context.Context, k store.Key) error {
	err := s.write(ctx, func(q *query.Queries) error {
		return q.AddKey(ctx, query.AddKeyParams{
			ID:           k.ID,
			Name:         k.Name,
			Hash:         k.Hash,
			Prefix:       k.Prefix,
			CreatedAt:    micros(k.CreatedAt),
			LastUsed:     micros(k.LastUsed),
			MaxSandboxes: int64(k.MaxSandboxes),
			MaxTimeout:   k.MaxTimeout.Microseconds(),

			MaxCreateRate: k.MaxCreateRate,
			MaxCpus:       int64(k.MaxCPUs),
			MaxMemory:     k.MaxMemory,
			MaxDisk:       k.MaxDisk,
			MaxSnapshots:  int64(k.MaxSnapshots),

			Roles:        joined(k.Roles),
			Approves:     joined(k.Approves),
			SelfApproval: flag(k.SelfApproval),
		})
	})
	if err != nil {
		return fmt.Errorf("add key %q: %w", k.Name, err)
	}
	return nil
}

// KeyByHash implements store.Keys.
func (s *Store) KeyByHash(ctx context.Context, hash string) (store.Key, error) {
	row, err := s.read.KeyByHash(ctx, hash)
	if err != nil {
		return store.Key{}, fmt.Errorf("find a key: %w", storeError(err))
	}
	return key(row), nil
}

// Keys implements store.Keys.
func (s *Store) Keys(ctx context.Context) ([]store.Key, error) {
	rows, err := s.read.Keys(ctx)
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	keys := make([]store.Key, len(rows))
	for i, row := range rows {
		keys[i] = key(row)
	}
	return keys, nil
}

// TouchKey implements store.Keys.
func (s *Store) TouchKey(ctx context.Context, id string, at time.Time) error {
	last, err := s.read.KeyLastUsed(ctx, id)
	if err != nil {
		return fmt.Errorf("find key %s: %w", id, storeError(err))
	}
	if at.Sub(fromMicros(last)) < store.TouchEvery {
		return nil
	}
	return s.write(ctx, func(q *query.Queries) error {
		return q.TouchKey(ctx, query.TouchKeyParams{At: micros(at), ID: id})
	})
}

// UpdateKey implements store.Keys.
func (s *Store) UpdateKey(ctx context.Context, idOrName string, change func(*store.Key) error) (changed store.Key, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		row, err := findKey(ctx, q, idOrName)
		if err != nil {
			return err
		}
		k := key(row)
		if err := change(&k); err != nil {
			return err
		}
		err = q.UpdateKey(ctx, query.UpdateKeyParams{
			ID:            row.ID,
			Name:          k.Name,
			MaxSandboxes:  int64(k.MaxSandboxes),
			MaxTimeout:    k.MaxTimeout.Microseconds(),
			MaxCreateRate: k.MaxCreateRate,
			MaxCpus:       int64(k.MaxCPUs),
			MaxMemory:     k.MaxMemory,
			MaxDisk:       k.MaxDisk,
			MaxSnapshots:  int64(k.MaxSnapshots),
			Roles:         joined(k.Roles),
			Approves:      joined(k.Approves),
			SelfApproval:  flag(k.SelfApproval),
		})
		if err != nil {
			return err
		}
		row, err = q.KeyByID(ctx, row.ID)
		changed = key(row)
		return err
	})
	if err != nil {
		return store.Key{}, fmt.Errorf("change key %q: %w", idOrName, err)
	}
	return changed, nil
}

// DeleteKey implements store.Keys.
func (s *Store) DeleteKey(ctx context.Context, idOrName string) error {
	err := s.write(ctx, func(q *query.Queries) error {
		row, err := findKey(ctx, q, idOrName)
		if err != nil {
			return err
		}
		hooks, err := q.WebhooksOfKey(ctx, row.ID)
		if err != nil {
			return err
		}
		for _, w := range hooks {
			if err := deleteWebhook(ctx, q, w.ID); err != nil {
				return err
			}
		}
		secrets, err := q.SecretsOfKey(ctx, row.ID)
		if err != nil {
			return err
		}
		for _, secret := range secrets {
			if err := deleteSecret(ctx, q, secret.ID); err != nil {
				return err
			}
		}
		return errors.Join(q.DeleteKey(ctx, row.ID), q.DeleteOrphanedPolicies(ctx))
	})
	if err != nil {
		return fmt.Errorf("delete key %q: %w", idOrName, err)
	}
	return nil
}

func findKey(ctx context.Context, q *query.Queries, idOrName string) (query.Key, error) {
	row, err := q.KeyByID(ctx, idOrName)
	if errors.Is(err, sql.ErrNoRows) {
		row, err = q.KeyByName(ctx, idOrName)
	}
	return row, err
}

func key(row query.Key) store.Key {
	return store.Key{
		ID:           row.ID,
		Name:         row.Name,
		Hash:         row.Hash,
		Prefix:       row.Prefix,
		CreatedAt:    fromMicros(row.CreatedAt),
		LastUsed:     fromMicros(row.LastUsed),
		MaxSandboxes: int(row.MaxSandboxes),
		MaxTimeout:   time.Duration(row.MaxTimeout) * time.Microsecond,

		MaxCreateRate: row.MaxCreateRate,
		MaxCPUs:       int(row.MaxCpus),
		MaxMemory:     row.MaxMemory,
		MaxDisk:       row.MaxDisk,
		MaxSnapshots:  int(row.MaxSnapshots),

		Roles:        split[store.Role](row.Roles),
		Approves:     split[string](row.Approves),
		SelfApproval: row.SelfApproval != 0,
	}
}

// joined is a list of words without commas as the database keeps it.
func joined[T ~string](words []T) string {
	texts := make([]string, len(words))
	for i, w := range words {
		texts[i] = string(w)
	}
	return strings.Join(texts, ",")
}

func split[T ~string](text string) (words []T) {
	if text == "" {
		return nil
	}
	for word := range strings.SplitSeq(text, ",") {
		words = append(words, T(word))
	}
	return words
}

// micros is a time as the database keeps it; the zero time is 0.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
