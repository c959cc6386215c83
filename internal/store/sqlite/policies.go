package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// PutPolicy implements store.Policies.
func (s *Store) PutPolicy(ctx context.Context, p store.Policy) error {
	err := s.write(ctx, func(q *query.Queries) error { return putPolicy(ctx, q, p) })
	if err != nil {
		return fmt.Errorf("write the rules of %s %s: %w", p.Scope, p.ScopeID, err)
	}
	return nil
}

func putPolicy(ctx context.Context, q *query.Queries, p store.Policy) error {
	return q.PutPolicy(ctx, query.PutPolicyParams{
		Scope: p.Scope, ScopeID: p.ScopeID, Record: string(p.Record), UpdatedAt: micros(p.UpdatedAt),
	})
}

// Policies implements store.Policies.
func (s *Store) Policies(ctx context.Context) ([]store.Policy, error) {
	rows, err := s.read.Policies(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the rules: %w", err)
	}
	all := make([]store.Policy, len(rows))
	for i, row := range rows {
		all[i] = store.Policy{
			Scope: row.Scope, ScopeID: row.ScopeID, Record: json.RawMessage(row.Record), UpdatedAt: fromMicros(row.UpdatedAt),
		}
	}
	return all, nil
}

// ReplacePolicies implements store.Policies.
func (s *Store) ReplacePolicies(ctx context.Context, all []store.Policy) error {
	err := s.write(ctx, func(q *query.Queries) error {
		if err := q.DeletePoliciesBut(ctx, store.SandboxPolicy); err != nil {
			return err
		}
		for _, p := range all {
			if err := putPolicy(ctx, q, p); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("replace the rules: %w", err)
	}
	return nil
}

// DeletePolicy implements store.Policies.
func (s *Store) DeletePolicy(ctx context.Context, scope, scopeID string) error {
	err := s.write(ctx, func(q *query.Queries) error {
		n, err := q.DeletePolicy(ctx, query.DeletePolicyParams{Scope: scope, ScopeID: scopeID})
		if err == nil && n == 0 {
			err = store.ErrNotFound
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("delete the rules of %s %s: %w", scope, scopeID, err)
	}
	return nil
}
