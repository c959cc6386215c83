package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// AddSecret implements store.Secrets.
func (s *Store) AddSecret(ctx context.Context, added store.Secret, most int) error {
	row, err := secretRow(added)
	if err != nil {
		return err
	}
	err = s.write(ctx, func(q *query.Queries) error {
		if n, err := q.CountSecretsOfKey(ctx, added.KeyID); err != nil {
			return err
		} else if most > 0 && n >= int64(most) {
			// A name that is taken is what the caller can do something about.
			if _, err := q.SecretByName(ctx, query.SecretByNameParams{KeyID: added.KeyID, Name: added.Name}); err == nil {
				return store.ErrExists
			}
			return store.ErrFull
		}
		if err := q.AddSecret(ctx, query.AddSecretParams(row)); err != nil {
			return err
		}
		return putSecretValues(ctx, q, added)
	})
	if err != nil {
		return fmt.Errorf("add secret %q: %w", added.Name, err)
	}
	return nil
}

// Secret implements store.Secrets.
func (s *Store) Secret(ctx context.Context, keyID, idOrName string) (found store.Secret, err error) {
	err = s.view(ctx, func(q *query.Queries) error {
		found, err = findSecret(ctx, q, keyID, idOrName)
		return err
	})
	if err != nil {
		return store.Secret{}, fmt.Errorf("find secret %q: %w", idOrName, err)
	}
	return found, nil
}

// Secrets implements store.Secrets.
func (s *Store) Secrets(ctx context.Context, keyID string) (all []store.Secret, changes int64, err error) {
	err = s.view(ctx, func(q *query.Queries) error {
		rows, err := listSecrets(ctx, q, keyID)
		if err != nil {
			return err
		}
		values, err := q.AllSecretValues(ctx)
		if err != nil {
			return err
		}
		of := map[string][]store.SecretValue{}
		for _, v := range values {
			of[v.SecretID] = append(of[v.SecretID], secretValue(v))
		}
		all = make([]store.Secret, len(rows))
		for i, row := range rows {
			if all[i], err = secret(row, of[row.ID]); err != nil {
				return err
			}
		}
		changes, err = q.SecretChanges(ctx)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list secrets: %w", err)
	}
	return all, changes, nil
}

func listSecrets(ctx context.Context, q *query.Queries, keyID string) ([]query.Secret, error) {
	if keyID == "" {
		return q.AllSecrets(ctx)
	}
	return q.SecretsOfKey(ctx, keyID)
}

// SecretChanges implements store.Secrets.
func (s *Store) SecretChanges(ctx context.Context) (int64, error) {
	n, err := s.read.SecretChanges(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask whether secrets changed: %w", err)
	}
	return n, nil
}

// UpdateSecret implements store.Secrets.
func (s *Store) UpdateSecret(ctx context.Context, keyID, idOrName string, change func(*store.Secret) error) (changed store.Secret, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		old, err := findSecret(ctx, q, keyID, idOrName)
		if err != nil {
			return err
		}
		changed = old
		if err := change(&changed); err != nil {
			return err
		}
		changed.ID = old.ID
		row, err := secretRow(changed)
		if err != nil {
			return err
		}
		err = q.UpdateSecret(ctx, query.UpdateSecretParams{
			ID: old.ID, Version: row.Version, Metadata: row.Metadata, Bindings: row.Bindings, UpdatedAt: row.UpdatedAt,
		})
		if err != nil {
			return err
		}
		if err := q.DeleteSecretValues(ctx, old.ID); err != nil {
			return err
		}
		if err := putSecretValues(ctx, q, changed); err != nil {
			return err
		}
		changed, err = findSecret(ctx, q, keyID, old.ID)
		return err
	})
	if err != nil {
		return store.Secret{}, fmt.Errorf("change secret %q: %w", idOrName, err)
	}
	return changed, nil
}

// DeleteSecret implements store.Secrets.
func (s *Store) DeleteSecret(ctx context.Context, keyID, idOrName string) (deleted store.Secret, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		deleted, err = findSecret(ctx, q, keyID, idOrName)
		if err != nil {
			return err
		}
		return deleteSecret(ctx, q, deleted.ID)
	})
	if err != nil {
		return store.Secret{}, fmt.Errorf("delete secret %q: %w", idOrName, err)
	}
	return deleted, nil
}

func deleteSecret(ctx context.Context, q *query.Queries, id string) error {
	if err := q.DeleteSecretValues(ctx, id); err != nil {
		return err
	}
	if err := q.DeleteSecret(ctx, id); err != nil {
		return err
	}
	return q.CountSecretChange(ctx)
}

// putSecretValues writes the values of a secret that has none, and counts the
// change.
func putSecretValues(ctx context.Context, q *query.Queries, of store.Secret) error {
	for _, v := range of.Values {
		err := q.PutSecretValue(ctx, query.PutSecretValueParams{
			SecretID: of.ID, Version: int64(v.Version), Ciphertext: v.Ciphertext, CreatedAt: micros(v.CreatedAt),
		})
		if err != nil {
			return err
		}
	}
	return q.CountSecretChange(ctx)
}

func findSecret(ctx context.Context, q *query.Queries, keyID, idOrName string) (store.Secret, error) {
	row, err := q.SecretByID(ctx, query.SecretByIDParams{KeyID: keyID, ID: idOrName})
	if errors.Is(err, sql.ErrNoRows) {
		row, err = q.SecretByName(ctx, query.SecretByNameParams{KeyID: keyID, Name: idOrName})
	}
	if err != nil {
		return store.Secret{}, err
	}
	rows, err := q.SecretValues(ctx, row.ID)
	if err != nil {
		return store.Secret{}, err
	}
	var values []store.SecretValue
	for _, v := range rows {
		values = append(values, secretValue(v))
	}
	return secret(row, values)
}

func secretRow(s store.Secret) (query.Secret, error) {
	metadata, err := json.Marshal(s.Metadata)
	if err != nil {
		return query.Secret{}, err
	}
	return query.Secret{
		ID: s.ID, KeyID: s.KeyID, Name: s.Name, Version: int64(s.Version), Placeholder: s.Placeholder,
		Metadata: string(metadata), Bindings: string(s.Bindings),
		CreatedAt: micros(s.CreatedAt), UpdatedAt: micros(s.UpdatedAt),
	}, nil
}

func secret(row query.Secret, values []store.SecretValue) (store.Secret, error) {
	metadata, err := decode[map[string]string](row.Metadata)
	if err != nil {
		return store.Secret{}, err
	}
	s := store.Secret{
		ID: row.ID, KeyID: row.KeyID, Name: row.Name, Version: int(row.Version), Placeholder: row.Placeholder,
		Metadata: metadata, CreatedAt: fromMicros(row.CreatedAt), UpdatedAt: fromMicros(row.UpdatedAt), Values: values,
	}
	if row.Bindings != "" {
		s.Bindings = json.RawMessage(row.Bindings)
	}
	return s, nil
}

func secretValue(row query.SecretValue) store.SecretValue {
	return store.SecretValue{Version: int(row.Version), Ciphertext: row.Ciphertext, CreatedAt: fromMicros(row.CreatedAt)}
}

// view runs fn on one state of the database.
func (s *Store) view(ctx context.Context, fn func(q *query.Queries) error) error {
	if s.observe != nil {
		defer func(began time.Time) { s.observe("read", time.Since(began)) }(time.Now())
	}
	tx, err := s.readDB.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin to read: %w", err)
	}
	defer tx.Rollback() // nothing was written
	return storeError(fn(query.New(tx)))
}
