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

// writeApprovals is write for what others are to see as a change of approvals.
func (s *Store) writeApprovals(ctx context.Context, fn func(q *query.Queries) error) error {
	return s.write(ctx, func(q *query.Queries) error {
		if err := fn(q); err != nil {
			return err
		}
		return q.ApprovalsChanged(ctx)
	})
}

// AddHold implements store.Approvals.
func (s *Store) AddHold(ctx context.Context, h store.Hold) error {
	err := s.writeApprovals(ctx, func(q *query.Queries) error {
		return q.AddHold(ctx, query.AddHoldParams{
			ID: h.ID, SandboxID: h.SandboxID, KeyID: h.KeyID, State: h.State, EndedAt: micros(h.EndedAt), Record: string(h.Data),
		})
	})
	if err != nil {
		return fmt.Errorf("add hold %s: %w", h.ID, err)
	}
	return nil
}

// Hold implements store.Approvals.
func (s *Store) Hold(ctx context.Context, id string) (store.Hold, error) {
	row, err := s.read.Hold(ctx, id)
	if err != nil {
		return store.Hold{}, fmt.Errorf("find hold %q: %w", id, storeError(err))
	}
	return hold(row), nil
}

// Holds implements store.Approvals.
func (s *Store) Holds(ctx context.Context, f store.HoldFilter) ([]store.Hold, error) {
	states, err := jsonList(f.States)
	if err != nil {
		return nil, err
	}
	rows, err := s.read.Holds(ctx, query.HoldsParams{
		SandboxID: f.SandboxID, KeyID: f.KeyID, States: states, Before: f.Before, Most: int64(f.Most),
	})
	if err != nil {
		return nil, fmt.Errorf("list holds: %w", err)
	}
	return holds(rows), nil
}

// PendingHolds implements store.Approvals.
func (s *Store) PendingHolds(ctx context.Context) ([]store.Hold, error) {
	rows, err := s.read.PendingHolds(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pending holds: %w", err)
	}
	return holds(rows), nil
}

// UpdateHold implements store.Approvals.
func (s *Store) UpdateHold(ctx context.Context, h store.Hold, leaves ...store.Grant) error {
	err := s.writeApprovals(ctx, func(q *query.Queries) error {
		n, err := q.UpdateHold(ctx, query.UpdateHoldParams{
			ID: h.ID, State: h.State, EndedAt: micros(h.EndedAt), Record: string(h.Data),
		})
		if err != nil {
			return err
		}
		if n == 0 {
			if _, err := q.Hold(ctx, h.ID); err != nil {
				return err
			}
			return store.ErrEnded
		}
		for _, g := range leaves {
			if err := addGrant(ctx, q, g); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("change hold %q: %w", h.ID, err)
	}
	return nil
}

// PruneHolds implements store.Approvals.
func (s *Store) PruneHolds(ctx context.Context, endedBefore time.Time, keepPerSandbox int) (deleted int, err error) {
	sandboxes, err := s.read.SandboxesWithHolds(ctx)
	if err != nil {
		return 0, fmt.Errorf("prune holds: %w", err)
	}
	for _, id := range sandboxes {
		n, err := s.pruneHoldsOf(ctx, id, endedBefore, keepPerSandbox)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("prune holds of sandbox %s: %w", id, err)
		}
	}
	return deleted, nil
}

func (s *Store) pruneHoldsOf(ctx context.Context, sandboxID string, endedBefore time.Time, keep int) (deleted int, err error) {
	last, err := s.read.HoldBeyond(ctx, query.HoldBeyondParams{SandboxID: sandboxID, Skip: int64(keep)})
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, err
	}
	for {
		var n int64
		err := s.write(ctx, func(q *query.Queries) (err error) {
			n, err = q.PruneHolds(ctx, query.PruneHoldsParams{
				SandboxID: sandboxID, Last: last, Before: micros(endedBefore), Most: pruneChunk,
			})
			return err
		})
		if err != nil || n == 0 {
			return deleted, err
		}
		deleted += int(n)
	}
}

// AddGrant implements store.Approvals.
func (s *Store) AddGrant(ctx context.Context, g store.Grant) error {
	err := s.writeApprovals(ctx, func(q *query.Queries) error { return addGrant(ctx, q, g) })
	if err != nil {
		return fmt.Errorf("add grant %s: %w", g.ID, err)
	}
	return nil
}

func addGrant(ctx context.Context, q *query.Queries, g store.Grant) error {
	return q.AddGrant(ctx, query.AddGrantParams{ID: g.ID, SandboxID: g.SandboxID, Until: micros(g.Until), Record: string(g.Data)})
}

// Grants implements store.Approvals.
func (s *Store) Grants(ctx context.Context) ([]store.Grant, error) {
	rows, err := s.read.Grants(ctx)
	if err != nil {
		return nil, fmt.Errorf("list grants: %w", err)
	}
	all := make([]store.Grant, len(rows))
	for i, row := range rows {
		all[i] = store.Grant{ID: row.ID, SandboxID: row.SandboxID, Until: fromMicros(row.Until), Data: json.RawMessage(row.Record)}
	}
	return all, nil
}

// DeleteGrant implements store.Approvals.
func (s *Store) DeleteGrant(ctx context.Context, id string) error {
	err := s.writeApprovals(ctx, func(q *query.Queries) error {
		n, err := q.DeleteGrant(ctx, id)
		if err == nil && n == 0 {
			err = store.ErrNotFound
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete grant %q: %w", id, err)
	}
	return nil
}

// DeleteGrantsOf implements store.Approvals.
func (s *Store) DeleteGrantsOf(ctx context.Context, sandboxID string) (int, error) {
	if sandboxID == "" {
		return 0, nil // those go with none
	}
	n, err := s.deleteGrants(ctx, func(q *query.Queries) (int64, error) { return q.DeleteGrantsOf(ctx, sandboxID) })
	if err != nil {
		return 0, fmt.Errorf("delete the grants of sandbox %s: %w", sandboxID, err)
	}
	return n, nil
}

// PruneGrants implements store.Approvals.
func (s *Store) PruneGrants(ctx context.Context, now time.Time) (int, error) {
	n, err := s.deleteGrants(ctx, func(q *query.Queries) (int64, error) { return q.PruneGrants(ctx, micros(now)) })
	if err != nil {
		return 0, fmt.Errorf("prune grants: %w", err)
	}
	return n, nil
}

func (s *Store) deleteGrants(ctx context.Context, fn func(q *query.Queries) (int64, error)) (deleted int, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		n, err := fn(q)
		if err != nil || n == 0 {
			return err
		}
		deleted = int(n)
		return q.ApprovalsChanged(ctx)
	})
	return deleted, err
}

// ApprovalChanges implements store.Approvals.
func (s *Store) ApprovalChanges(ctx context.Context) (int64, error) {
	n, err := s.read.ApprovalChanges(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask for changes of approvals: %w", err)
	}
	return n, nil
}

func holds(rows []query.Hold) []store.Hold {
	all := make([]store.Hold, len(rows))
	for i, row := range rows {
		all[i] = hold(row)
	}
	return all
}

func hold(row query.Hold) store.Hold {
	return store.Hold{
		ID: row.ID, SandboxID: row.SandboxID, KeyID: row.KeyID,
		State: row.State, EndedAt: fromMicros(row.EndedAt), Data: json.RawMessage(row.Record),
	}
}
