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

// AddBuild implements store.Builds.
func (s *Store) AddBuild(ctx context.Context, b store.Build) (store.Build, error) {
	err := s.write(ctx, func(q *query.Queries) (err error) {
		if b.TemplateID, err = templateIDFor(ctx, q, b.Alias, b.KeyID, b.TemplateID); err != nil {
			return err
		}
		var record string
		if b, record, err = encodeBuild(b); err != nil {
			return err
		}
		return q.AddBuild(ctx, query.AddBuildParams{
			ID: b.ID, TemplateID: b.TemplateID, KeyID: b.KeyID, Alias: b.Alias, State: string(b.State),
			CreatedAt: micros(b.CreatedAt), FinishedAt: micros(b.FinishedAt), Record: record,
		})
	})
	if err != nil {
		return store.Build{}, fmt.Errorf("add build %s: %w", b.ID, err)
	}
	return b, nil
}

// Build implements store.Builds.
func (s *Store) Build(ctx context.Context, id string) (store.Build, error) {
	record, err := s.read.Build(ctx, id)
	if err != nil {
		return store.Build{}, fmt.Errorf("find build %q: %w", id, storeError(err))
	}
	return decode[store.Build](record)
}

// Builds implements store.Builds.
func (s *Store) Builds(ctx context.Context, f store.BuildFilter) ([]store.Build, error) {
	states, err := jsonList(f.States)
	if err != nil {
		return nil, err
	}
	most := int64(f.Most)
	if most == 0 {
		most = -1 // SQLite's word for no limit
	}
	var records []string
	if f.NewestFirst {
		records, err = s.read.BuildsNewestFirst(ctx, query.BuildsNewestFirstParams{
			TemplateID: f.TemplateID, KeyID: f.KeyID, States: states, Most: most, Skip: int64(f.Skip),
		})
	} else {
		records, err = s.read.Builds(ctx, query.BuildsParams{
			TemplateID: f.TemplateID, KeyID: f.KeyID, States: states, Most: most, Skip: int64(f.Skip),
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list builds: %w", err)
	}
	return decodeAll[store.Build](records)
}

// UpdateBuild implements store.Builds.
func (s *Store) UpdateBuild(ctx context.Context, id string, change func(*store.Build) error) (changed store.Build, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		record, err := q.Build(ctx, id)
		if err != nil {
			return err
		}
		b, err := decode[store.Build](record)
		if err != nil {
			return err
		}
		changed = b
		if err := change(&changed); err != nil {
			return err
		}
		changed.ID, changed.TemplateID, changed.KeyID, changed.Alias, changed.CreatedAt = b.ID, b.TemplateID, b.KeyID, b.Alias, b.CreatedAt
		if changed, record, err = encodeBuild(changed); err != nil {
			return err
		}
		return q.UpdateBuild(ctx, query.UpdateBuildParams{
			ID: id, State: string(changed.State), FinishedAt: micros(changed.FinishedAt), Record: record,
		})
	})
	if err != nil {
		return store.Build{}, fmt.Errorf("change build %q: %w", id, err)
	}
	return changed, nil
}

// PruneBuilds implements store.Builds.
func (s *Store) PruneBuilds(ctx context.Context, finishedBefore time.Time, keepPerTemplate int) (ids []string, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		ids, err = q.PrunableBuilds(ctx, query.PrunableBuildsParams{Before: micros(finishedBefore), Keep: int64(keepPerTemplate)})
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := q.DeleteBuild(ctx, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("prune builds: %w", err)
	}
	return ids, nil
}

// buildOfAlias finds the build that an alias belongs to while there is no template
// of that alias: one under way, else the last of this key. It is the zero Build
// when there is none.
func buildOfAlias(ctx context.Context, q *query.Queries, alias, keyID string) (store.Build, error) {
	record, err := q.BuildOfAlias(ctx, query.BuildOfAliasParams{Alias: alias, KeyID: keyID})
	if errors.Is(err, sql.ErrNoRows) {
		return store.Build{}, nil
	}
	if err != nil {
		return store.Build{}, err
	}
	return decode[store.Build](record)
}

// encodeBuild returns b as it will be read back, and its record.
func encodeBuild(b store.Build) (store.Build, string, error) {
	for _, t := range []*time.Time{&b.CreatedAt, &b.UpdatedAt, &b.FinishedAt} {
		*t = normal(*t)
	}
	record, err := json.Marshal(b)
	return b, string(record), err
}
