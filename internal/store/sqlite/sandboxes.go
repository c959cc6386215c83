package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// PutSandbox implements store.Sandboxes.
func (s *Store) PutSandbox(ctx context.Context, sb store.Sandbox) error {
	for _, t := range []*time.Time{&sb.CreatedAt, &sb.StartedAt, &sb.EndAt, &sb.EndedAt} {
		*t = normal(*t)
	}
	record, err := json.Marshal(sb)
	if err != nil {
		return fmt.Errorf("encode the record of sandbox %s: %w", sb.ID, err)
	}
	err = s.write(ctx, func(q *query.Queries) error {
		return q.PutSandbox(ctx, query.PutSandboxParams{
			ID:        sb.ID,
			CreatedAt: micros(sb.CreatedAt),
			EndedAt:   micros(sb.EndedAt),
			Record:    string(record),
		})
	})
	if err != nil {
		return fmt.Errorf("write the record of sandbox %s: %w", sb.ID, err)
	}
	return nil
}

// Sandbox implements store.Sandboxes.
func (s *Store) Sandbox(ctx context.Context, id string) (store.Sandbox, error) {
	record, err := s.read.Sandbox(ctx, id)
	if err != nil {
		return store.Sandbox{}, fmt.Errorf("find sandbox %q: %w", id, storeError(err))
	}
	return decode[store.Sandbox](record)
}

// Sandboxes implements store.Sandboxes.
func (s *Store) Sandboxes(ctx context.Context, ended bool) ([]store.Sandbox, error) {
	list := s.read.LivingSandboxes
	if ended {
		list = s.read.EndedSandboxes
	}
	records, err := list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	return decodeAll[store.Sandbox](records)
}

// PruneSandboxes implements store.Sandboxes.
func (s *Store) PruneSandboxes(ctx context.Context, endedBefore time.Time, keep int) (int, error) {
	var deleted int
	err := s.write(ctx, func(q *query.Queries) error {
		if err := q.DeleteOrphanedPolicies(ctx); err != nil {
			return err // first, while the records say which sandboxes ended
		}
		n, err := q.PruneSandboxesBefore(ctx, micros(endedBefore))
		if err != nil {
			return err
		}
		beyond, err := q.EndedBeyond(ctx, int64(keep))
		if err != nil {
			return err
		}
		for _, id := range beyond {
			if err := q.DeleteSandbox(ctx, id); err != nil {
				return err
			}
		}
		deleted = int(n) + len(beyond)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("prune ended sandboxes: %w", err)
	}
	return deleted, nil
}

// normal is a time as it will be read back: UTC, whole microseconds, no
// monotonic part.
func normal(t time.Time) time.Time { return fromMicros(micros(t)) }

func decode[T any](record string) (T, error) {
	var v T
	if err := json.Unmarshal([]byte(record), &v); err != nil {
		return v, fmt.Errorf("decode a %T record: %w", v, err)
	}
	return v, nil
}

func decodeAll[T any](records []string) ([]T, error) {
	all := make([]T, len(records))
	for i, record := range records {
		v, err := decode[T](record)
		if err != nil {
			return nil, err
		}
		all[i] = v
	}
	return all, nil
}
