package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// PutTemplate implements store.Templates.
func (s *Store) PutTemplate(ctx context.Context, t store.Template) (stored store.Template, replaced []store.Template, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		stored, replaced, err = putTemplate(ctx, q, t)
		return err
	})
	if err != nil {
		return store.Template{}, nil, fmt.Errorf("write template %q: %w", cmp.Or(t.Name, t.ID), err)
	}
	return stored, replaced, nil
}

// PutBuiltTemplate implements store.Templates.
func (s *Store) PutBuiltTemplate(ctx context.Context, t store.Template) (stored store.Template, replaced []store.Template, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		if _, err := q.Build(ctx, t.BuildID); err != nil {
			return err
		}
		stored, replaced, err = putTemplate(ctx, q, t)
		return err
	})
	if err != nil {
		return store.Template{}, nil, fmt.Errorf("write template %q: %w", cmp.Or(t.Name, t.ID), err)
	}
	return stored, replaced, nil
}

// RefreshTemplate implements store.Templates.
func (s *Store) RefreshTemplate(ctx context.Context, t store.Template) (stored store.Template, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		if _, err := q.TemplateBuild(ctx, t.BuildID); err != nil {
			return err
		}
		if err := putTemplateBuild(ctx, q, t.ID, t); err != nil {
			return err
		}
		stored, err = oneTemplate(q.TemplateBuild(ctx, t.BuildID))
		return err
	})
	if err != nil {
		return store.Template{}, fmt.Errorf("write build %q of template %q: %w", t.BuildID, t.ID, err)
	}
	return stored, nil
}

func putTemplate(ctx context.Context, q *query.Queries, t store.Template) (stored store.Template, replaced []store.Template, err error) {
	row, err := templateFor(ctx, q, t)
	if err != nil {
		return stored, nil, err
	}
	if err := putTemplateBuild(ctx, q, row.ID, t); err != nil {
		return stored, nil, err
	}
	tags := t.Tags
	if len(tags) == 0 {
		tags = []string{store.DefaultTag}
	}
	if replaced, err = assignTags(ctx, q, row.ID, t.BuildID, tags); err != nil {
		return stored, nil, err
	}
	stored, err = oneTemplate(q.TemplateBuild(ctx, t.BuildID))
	return stored, replaced, err
}

// Template implements store.Templates.
func (s *Store) Template(ctx context.Context, ref string) (store.Template, error) {
	t, err := findBuild(ctx, s.read, ref)
	if err != nil {
		return store.Template{}, fmt.Errorf("find template %q: %w", ref, storeError(err))
	}
	return t, nil
}

// Templates implements store.Templates.
func (s *Store) Templates(ctx context.Context) ([]store.Template, error) {
	all, err := manyTemplates(s.read.Templates(ctx))
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}
	return all, nil
}

// TemplateBuilds implements store.Templates.
func (s *Store) TemplateBuilds(ctx context.Context, idOrAlias string) (builds []store.Template, err error) {
	row, err := findTemplate(ctx, s.read, idOrAlias)
	if err == nil {
		builds, err = manyTemplates(s.read.BuildsOfTemplate(ctx, row.ID))
	}
	if err == nil && len(builds) == 0 {
		err = store.ErrNotFound // it went just now
	}
	if err != nil {
		return nil, fmt.Errorf("list the builds of template %q: %w", idOrAlias, storeError(err))
	}
	return builds, nil
}

// TemplateTags implements store.Templates.
func (s *Store) TemplateTags(ctx context.Context, idOrAlias string) ([]store.Tag, error) {
	row, err := findTemplate(ctx, s.read, idOrAlias)
	if err != nil {
		return nil, fmt.Errorf("list the tags of template %q: %w", idOrAlias, storeError(err))
	}
	rows, err := s.read.TagsOfTemplate(ctx, row.ID)
	if err != nil {
		return nil, fmt.Errorf("list the tags of template %q: %w", idOrAlias, err)
	}
	tags := make([]store.Tag, len(rows))
	for i, tag := range rows {
		tags[i] = store.Tag{Name: tag.Tag, BuildID: tag.BuildID, AssignedAt: fromMicros(tag.AssignedAt)}
	}
	return tags, nil
}

// TagTemplate implements store.Templates.
func (s *Store) TagTemplate(ctx context.Context, ref string, tags []string) (tagged store.Template, replaced []store.Template, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		t, err := findBuild(ctx, q, ref)
		if err != nil {
			return err
		}
		if replaced, err = assignTags(ctx, q, t.ID, t.BuildID, tags); err != nil {
			return err
		}
		tagged, err = oneTemplate(q.TemplateBuild(ctx, t.BuildID))
		return err
	})
	if err != nil {
		return store.Template{}, nil, fmt.Errorf("tag template %q: %w", ref, err)
	}
	return tagged, replaced, nil
}

// UntagTemplate implements store.Templates.
func (s *Store) UntagTemplate(ctx context.Context, idOrAlias string, tags []string) (removed []store.Template, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		if slices.Contains(tags, store.DefaultTag) {
			return store.ErrDefaultTag
		}
		row, err := findTemplate(ctx, q, idOrAlias)
		if err != nil {
			return err
		}
		removed, err = removeTags(ctx, q, row.ID, tags)
		return errors.Join(err, q.DeleteOrphanedPolicies(ctx))
	})
	if err != nil {
		return nil, fmt.Errorf("remove tags of template %q: %w", idOrAlias, err)
	}
	return removed, nil
}

// SetPublic implements store.Templates.
func (s *Store) SetPublic(ctx context.Context, idOrAlias string, public bool) error {
	err := s.write(ctx, func(q *query.Queries) error {
		row, err := findTemplate(ctx, q, idOrAlias)
		if err != nil {
			return err
		}
		return q.SetTemplatePublic(ctx, query.SetTemplatePublicParams{ID: row.ID, Public: flag(public)})
	})
	if err != nil {
		return fmt.Errorf("change template %q: %w", idOrAlias, err)
	}
	return nil
}

// DeleteTemplate implements store.Templates.
func (s *Store) DeleteTemplate(ctx context.Context, ref string) (removed []store.Template, err error) {
	err = s.write(ctx, func(q *query.Queries) error {
		if removed, err = deleteByRef(ctx, q, ref); err != nil {
			return err
		}
		return q.DeleteOrphanedPolicies(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("delete template %q: %w", ref, err)
	}
	return removed, nil
}

// deleteByRef removes a build, a tag or a whole template, as ref says.
func deleteByRef(ctx context.Context, q *query.Queries, ref string) ([]store.Template, error) {
	if t, err := oneTemplate(q.TemplateBuild(ctx, ref)); !errors.Is(err, sql.ErrNoRows) {
		if err != nil {
			return nil, err
		}
		return removeTags(ctx, q, t.ID, t.Tags)
	}
	name, tag, tagged := strings.Cut(ref, ":")
	if !tagged {
		return deleteTemplate(ctx, q, name)
	}
	row, err := findTemplate(ctx, q, name)
	if err != nil {
		return nil, err
	}
	if _, err := q.Tag(ctx, query.TagParams{TemplateID: row.ID, Tag: tag}); err != nil {
		return nil, err
	}
	return removeTags(ctx, q, row.ID, []string{tag})
}

// deleteTemplate removes a whole template with everything that is recorded of it.
func deleteTemplate(ctx context.Context, q *query.Queries, idOrAlias string) (removed []store.Template, err error) {
	id := idOrAlias
	row, err := findTemplate(ctx, q, idOrAlias)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		unbuilt, err := buildOfAlias(ctx, q, idOrAlias, "")
		if err != nil {
			return nil, err
		}
		id = cmp.Or(unbuilt.TemplateID, id)
	case err != nil:
		return nil, err
	default:
		id = row.ID
		tags, err := q.TagsOfTemplate(ctx, id)
		if err != nil {
			return nil, err
		}
		var names []string
		for _, tag := range tags {
			names = append(names, tag.Tag)
		}
		if removed, err = removeTags(ctx, q, id, names); err != nil {
			return nil, err
		}
	}
	n, err := q.DeleteBuildsOf(ctx, id)
	if err == nil && n == 0 && removed == nil {
		err = store.ErrNotFound
	}
	return removed, err
}

// templateFor finds the template that t is a build of, or adds it.
func templateFor(ctx context.Context, q *query.Queries, t store.Template) (query.Template, error) {
	id, err := templateIDFor(ctx, q, t.Name, t.KeyID, t.ID)
	if err != nil {
		return query.Template{}, err
	}
	err = q.PutTemplate(ctx, query.PutTemplateParams{
		ID: id, Alias: t.Name, KeyID: t.KeyID, Public: flag(t.Public), CreatedAt: micros(t.CreatedAt),
	})
	if err != nil {
		return query.Template{}, err
	}
	return q.TemplateRow(ctx, id)
}

// templateIDFor is the id of the template with this alias, whether it is there or
// about to be built, else the proposed one. What is there has to be the key's.
func templateIDFor(ctx context.Context, q *query.Queries, alias, keyID, proposed string) (string, error) {
	if alias != "" {
		row, err := q.TemplateRowByAlias(ctx, alias)
		if err == nil {
			return row.ID, sameOwner(row.KeyID, keyID)
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return "", err
		}
		unbuilt, err := buildOfAlias(ctx, q, alias, keyID)
		if err != nil {
			return "", err
		}
		if unbuilt.ID != "" {
			return unbuilt.TemplateID, sameOwner(unbuilt.KeyID, keyID)
		}
	}
	row, err := q.TemplateRow(ctx, proposed)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return proposed, nil
	case err != nil:
		return "", err
	case alias != "" && row.Alias != alias:
		return "", store.ErrExists
	}
	return proposed, sameOwner(row.KeyID, keyID)
}

func sameOwner(keyID, other string) error {
	if keyID != other {
		return store.ErrExists
	}
	return nil
}

// putTemplateBuild stores t as a build of a template. What other tables have is
// not in its record.
func putTemplateBuild(ctx context.Context, q *query.Queries, templateID string, t store.Template) error {
	have, err := oneTemplate(q.TemplateBuild(ctx, t.BuildID))
	if err == nil && have.ID != templateID {
		return store.ErrExists
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	t.ID, t.Name, t.KeyID, t.Public, t.Tags = "", "", "", false, nil
	t.CreatedAt, t.BuiltAt = time.Time{}, normal(t.BuiltAt)
	record, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return q.PutTemplateBuild(ctx, query.PutTemplateBuildParams{
		ID: t.BuildID, TemplateID: templateID, BuiltAt: micros(t.BuiltAt), Record: string(record),
	})
}

// assignTags points tags at a build and removes the builds that lost their last one.
func assignTags(ctx context.Context, q *query.Queries, templateID, buildID string, tags []string) ([]store.Template, error) {
	var left []string
	for _, tag := range tags {
		old, err := q.Tag(ctx, query.TagParams{TemplateID: templateID, Tag: tag})
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
		if err == nil && old.BuildID != buildID {
			left = append(left, old.BuildID)
		}
		err = q.PutTag(ctx, query.PutTagParams{
			TemplateID: templateID, Tag: tag, BuildID: buildID, AssignedAt: micros(time.Now()),
		})
		if err != nil {
			return nil, err
		}
	}
	has, err := q.TagsOfTemplate(ctx, templateID)
	if err != nil {
		return nil, err
	}
	if len(has) > store.MaxTags {
		return nil, store.ErrFull
	}
	return removeUntagged(ctx, q, left, has)
}

// removeTags takes tags off a template and removes what has none any more: builds
// and, with its last build, the template.
func removeTags(ctx context.Context, q *query.Queries, templateID string, tags []string) ([]store.Template, error) {
	var left []string
	for _, tag := range tags {
		old, err := q.Tag(ctx, query.TagParams{TemplateID: templateID, Tag: tag})
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return nil, err
		}
		left = append(left, old.BuildID)
		if err := q.DeleteTag(ctx, query.DeleteTagParams{TemplateID: templateID, Tag: tag}); err != nil {
			return nil, err
		}
	}
	has, err := q.TagsOfTemplate(ctx, templateID)
	if err != nil {
		return nil, err
	}
	removed, err := removeUntagged(ctx, q, left, has)
	if err != nil || len(has) > 0 {
		return removed, err
	}
	return removed, errors.Join(q.DeleteTemplate(ctx, templateID), q.DeleteFinishedBuildsOf(ctx, templateID))
}

// removeUntagged removes those of some builds that no tag of their template points
// at, and returns them.
func removeUntagged(ctx context.Context, q *query.Queries, buildIDs []string, tags []query.TemplateTag) (removed []store.Template, err error) {
	slices.Sort(buildIDs)
	for _, id := range slices.Compact(buildIDs) {
		if slices.ContainsFunc(tags, func(tag query.TemplateTag) bool { return tag.BuildID == id }) {
			continue
		}
		t, err := oneTemplate(q.TemplateBuild(ctx, id))
		if err != nil {
			return nil, err
		}
		if err := q.DeleteTemplateBuild(ctx, id); err != nil {
			return nil, err
		}
		removed = append(removed, t)
	}
	return removed, nil
}

// findBuild finds what a ref means.
func findBuild(ctx context.Context, q *query.Queries, ref string) (store.Template, error) {
	name, tag, tagged := strings.Cut(ref, ":")
	t, err := oneTemplate(q.TemplateByTag(ctx, query.TemplateByTagParams{IDOrAlias: name, Tag: cmp.Or(tag, store.DefaultTag)}))
	if errors.Is(err, sql.ErrNoRows) && !tagged {
		return oneTemplate(q.TemplateBuild(ctx, ref))
	}
	return t, err
}

func findTemplate(ctx context.Context, q *query.Queries, idOrAlias string) (query.Template, error) {
	row, err := q.TemplateRow(ctx, idOrAlias)
	if errors.Is(err, sql.ErrNoRows) {
		row, err = q.TemplateRowByAlias(ctx, idOrAlias)
	}
	return row, err
}

func oneTemplate(row query.TemplatesFlat, err error) (store.Template, error) {
	if err != nil {
		return store.Template{}, err
	}
	t, err := decode[store.Template](row.Record)
	if err != nil {
		return store.Template{}, err
	}
	tags, err := decode[[]string](row.Tags)
	if err != nil {
		return store.Template{}, err
	}
	slices.Sort(tags)
	if len(tags) == 0 {
		tags = nil // it has just lost them
	}
	t.ID, t.Name, t.KeyID, t.Public, t.Tags = row.ID, row.Alias, row.KeyID, row.Public != 0, tags
	t.CreatedAt = fromMicros(row.CreatedAt)
	return t, nil
}

func manyTemplates(rows []query.TemplatesFlat, err error) ([]store.Template, error) {
	if err != nil {
		return nil, err
	}
	all := make([]store.Template, len(rows))
	for i, row := range rows {
		if all[i], err = oneTemplate(row, nil); err != nil {
			return nil, err
		}
	}
	return all, nil
}
