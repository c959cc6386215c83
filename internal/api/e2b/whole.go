package e2b

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// whole is a template with all of its builds.
type whole struct {
	id, alias, keyID string
	public           bool
	createdAt        time.Time
	builds           []store.Template // that sandboxes can start from, newest first
	works            []store.Build    // records of the work, newest first
}

// wholes are a key's templates and the machine's. Snapshots are left out, as E2B
// does: GET /snapshots has them.
func (a *api) wholes(ctx context.Context, k store.Key) ([]whole, error) {
	builds, err := a.store.Templates(ctx)
	if err != nil {
		return nil, err
	}
	works, err := a.store.Builds(ctx, store.BuildFilter{KeyID: k.ID, NewestFirst: true})
	if err != nil {
		return nil, err
	}
	all := map[string]whole{}
	for _, t := range builds {
		if t.SourceSandbox == "" && (t.KeyID == "" || t.KeyID == k.ID) {
			all[t.ID] = all[t.ID].withBuild(t)
		}
	}
	for _, b := range works {
		all[b.TemplateID] = all[b.TemplateID].withWork(b)
	}
	return slices.Collect(maps.Values(all)), nil
}

// find finds a template by id or by name; of the key's own also one that was never
// built. With a tag it has to have that tag. It may be any key's.
func (a *api) find(ctx context.Context, k store.Key, ref string) (whole, error) {
	name, ok, err := a.usableName(ctx, k, ref)
	if err != nil {
		return whole{}, err
	}
	if !ok || name.Alias == "" {
		return whole{}, templateNotFound(ref)
	}
	var t whole
	builds, err := a.store.TemplateBuilds(ctx, name.Alias)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return t, err
	}
	for _, b := range builds {
		t = t.withBuild(b)
	}
	works, err := a.worksOf(ctx, k, t, name.Alias)
	if err != nil {
		return t, err
	}
	for _, work := range works {
		t = t.withWork(work)
	}
	if t.id == "" || tagged(ref) && !t.hasTag(name.Tag) {
		return t, templateNotFound(ref)
	}
	return t, nil
}

// worksOf finds the records of the work on a template of the key's, the newest
// first. One without builds is found by the id or alias in them.
func (a *api) worksOf(ctx context.Context, k store.Key, t whole, idOrAlias string) ([]store.Build, error) {
	if t.keyID != k.ID && len(t.builds) > 0 {
		return nil, nil
	}
	id := t.id
	works, err := a.store.Builds(ctx, store.BuildFilter{KeyID: k.ID, NewestFirst: true})
	if i := slices.IndexFunc(works, func(b store.Build) bool { return b.TemplateID == idOrAlias || b.Alias == idOrAlias }); id == "" && i >= 0 {
		id = works[i].TemplateID
	}
	return slices.DeleteFunc(works, func(b store.Build) bool { return b.TemplateID != id }), err
}

// usable finds a template that a key may use.
func (a *api) usable(ctx context.Context, k store.Key, ref string) (whole, error) {
	t, err := a.find(ctx, k, ref)
	if err == nil && !t.usableBy(k) {
		err = templateNotFound(ref)
	}
	return t, err
}

// owned finds a template that a key may change.
func (a *api) owned(ctx context.Context, k store.Key, ref string) (whole, error) {
	t, err := a.usable(ctx, k, ref)
	switch {
	case err != nil || t.keyID == k.ID:
		return t, err
	case t.keyID == "":
		return t, failure(http.StatusForbidden, "template '%s' belongs to the machine, not to this key: `tombolo template` on the machine changes it", ref)
	}
	return t, failure(http.StatusForbidden, "template '%s' belongs to another key, which made it public", ref)
}

func (t whole) withBuild(b store.Template) whole {
	t.id, t.alias, t.keyID, t.public, t.createdAt = b.ID, b.Name, b.KeyID, b.Public, b.CreatedAt
	t.builds = append(t.builds, b)
	return t
}

func (t whole) withWork(b store.Build) whole {
	if len(t.builds) == 0 { // else it is known
		t.id, t.alias, t.keyID, t.createdAt = b.TemplateID, b.Alias, b.KeyID, b.CreatedAt
	}
	t.works = append(t.works, b)
	return t
}

func (t whole) usableBy(k store.Key) bool { return t.keyID == "" || t.keyID == k.ID || t.public }

// isPublic tells whether every key may use it.
func (t whole) isPublic() bool { return t.keyID == "" || t.public }

func (t whole) hasTag(tag string) bool {
	return slices.ContainsFunc(t.builds, func(b store.Template) bool { return slices.Contains(b.Tags, tag) })
}

func encodeTemplates(k store.Key, all []whole) []wireTemplate {
	list := make([]wireTemplate, len(all)) // an empty list is [], not null
	for i, t := range all {
		list[i] = t.encode(k)
	}
	return list
}

// encode shows a template as the build that its name alone means, else its newest.
func (t whole) encode(k store.Key) wireTemplate {
	builds := t.encodeBuilds()
	latest := slices.MaxFunc(builds, func(x, y wireBuild) int { return x.CreatedAt.Compare(y.CreatedAt) })
	shown := latest
	if i := slices.IndexFunc(t.builds, func(b store.Template) bool { return slices.Contains(b.Tags, store.DefaultTag) }); i >= 0 {
		shown = encodeReady(t.builds[i])
	} else if len(t.builds) > 0 {
		shown = encodeReady(t.builds[0])
	}
	return wireTemplate{
		TemplateID:  t.id,
		BuildID:     shown.BuildID,
		CPUCount:    shown.CPUCount,
		MemoryMB:    shown.MemoryMB,
		DiskSizeMB:  shown.DiskSizeMB,
		Public:      t.isPublic(),
		Aliases:     aliases(t.alias),
		Names:       names(k, t.keyID, t.alias),
		CreatedAt:   t.createdAt.UTC(),
		UpdatedAt:   latest.UpdatedAt,
		BuildCount:  len(builds),
		EnvdVersion: hostapi.EnvdVersion,
		BuildStatus: latest.Status,
		IsDefault:   t.keyID == "",
	}
}

// encodeBuilds joins what there is with the records of the work: of a build there
// may be either or both.
func (t whole) encodeBuilds() []wireBuild {
	begun := map[string]time.Time{}
	var list []wireBuild
	for _, work := range t.works {
		begun[work.ID] = work.CreatedAt
		if !slices.ContainsFunc(t.builds, func(b store.Template) bool { return b.BuildID == work.ID }) {
			list = append(list, encodeWork(work))
		}
	}
	for _, b := range t.builds {
		ready := encodeReady(b)
		if at, ok := begun[b.BuildID]; ok {
			ready.CreatedAt = at.UTC()
		}
		list = append(list, ready)
	}
	return list
}

func encodeReady(t store.Template) wireBuild {
	return wireBuild{
		BuildID:     t.BuildID,
		Status:      string(store.BuildReady),
		CreatedAt:   t.BuiltAt.UTC(),
		UpdatedAt:   t.BuiltAt.UTC(),
		FinishedAt:  t.BuiltAt.UTC(),
		CPUCount:    t.CPUs,
		MemoryMB:    t.MemoryBytes / mib,
		DiskSizeMB:  t.DiskBytes / mib,
		EnvdVersion: hostapi.EnvdVersion,
	}
}

func encodeWork(b store.Build) wireBuild {
	updated := b.UpdatedAt
	if updated.IsZero() {
		updated = b.CreatedAt
	}
	return wireBuild{
		BuildID:    b.ID,
		Status:     string(b.State),
		CreatedAt:  b.CreatedAt.UTC(),
		UpdatedAt:  updated.UTC(),
		FinishedAt: b.FinishedAt.UTC(),
		CPUCount:   b.CPUs,
		MemoryMB:   b.MemoryBytes / mib,
		DiskSizeMB: b.DiskBytes / mib,
	}
}
