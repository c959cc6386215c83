package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// PutTemplate implements store.Templates.
func (s *Store) PutTemplate(ctx context.Context, t store.Template) (stored, replaced store.Template, err error) {
	t.CreatedAt, t.BuiltAt = normal(t.CreatedAt), normal(t.BuiltAt)
	err = s.write(ctx, func(q *query.Queries) error {
		old, err := templateToReplace(ctx, q, t)
		if err != nil {
			return err
		}
		if old.ID == "" {
			stored = t
			return addTemplate(ctx, q, t)
		}
		stored, replaced = t, old
		stored.ID, stored.KeyID, stored.CreatedAt = old.ID, old.KeyID, old.CreatedAt
		return replaceTemplate(ctx, q, stored)
	})
	if err != nil {
		return store.Template{}, store.Template{}, fmt.Errorf("write template %q: %w", nameOrID(t), err)
	}
	return stored, replaced, nil
}

// Template implements store.Templates.
func (s *Store) Template(ctx context.Context, idOrName string) (store.Template, error) {
	t, err := findTemplate(ctx, s.read, idOrName)
	if err != nil {
		return store.Template{}, fmt.Errorf("find template %q: %w", idOrName, storeError(err))
	}
	return t, nil
}

// Templates implements store.Templates.
func (s *Store) Templates(ctx context.Context) ([]store.Template, error) {
	records, err := s.read.Templates(ctx)
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	return decodeAll[store.Template](records)
}

// DeleteTemplate implements store.Templates.
func (s *Store) DeleteTemplate(ctx context.Context, idOrName string) (deleted store.Template, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		if deleted, err = findTemplate(ctx, q, idOrName); err != nil {
			return err
		}
		return q.DeleteTemplate(ctx, deleted.ID)
	})
	if err != nil {
		return store.Template{}, fmt.Errorf("delete template %q: %w", idOrName, err)
	}
	return deleted, nil
}

// templateToReplace finds the template that has t's name, or t's ID where t has
// no name. It is the zero Template when there is none.
func templateToReplace(ctx context.Context, q *query.Queries, t store.Template) (store.Template, error) {
	find, by := q.TemplateByName, t.Name
	if t.Name == "" {
		find, by = q.TemplateByID, t.ID
	}
	record, err := find(ctx, by)
	if errors.Is(err, sql.ErrNoRows) {
		return store.Template{}, nil
	}
	if err != nil {
		return store.Template{}, err
	}
	old, err := decode[store.Template](record)
	if err != nil {
		return store.Template{}, err
	}
	if old.Name != t.Name {
		return store.Template{}, store.ErrExists
	}
	return old, nil
}

func addTemplate(ctx context.Context, q *query.Queries, t store.Template) error {
	record, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return q.AddTemplate(ctx, query.AddTemplateParams{ID: t.ID, Name: t.Name, Record: string(record)})
}

func replaceTemplate(ctx context.Context, q *query.Queries, t store.Template) error {
	record, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return q.ReplaceTemplate(ctx, query.ReplaceTemplateParams{ID: t.ID, Record: string(record)})
}

func findTemplate(ctx context.Context, q *query.Queries, idOrName string) (store.Template, error) {
	record, err := q.TemplateByID(ctx, idOrName)
	if errors.Is(err, sql.ErrNoRows) {
		record, err = q.TemplateByName(ctx, idOrName)
	}
	if err != nil {
		return store.Template{}, err
	}
	return decode[store.Template](record)
}

func nameOrID(t store.Template) string {
	if t.Name != "" {
		return t.Name
	}
	return t.ID
}
