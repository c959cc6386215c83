package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// templateRoutes are the endpoints for templates that are there.
func (a *api) templateRoutes() map[string]handler {
	return map[string]handler{
		"GET /templates":                 a.listTemplatesV1,
		"GET /v2/templates":              a.listTemplatesV2,
		"GET /templates/{id}":            a.getTemplate,
		"GET /templates/aliases/{alias}": a.getAlias,
		"PATCH /templates/{id}":          a.updateTemplateV1,
		"PATCH /v2/templates/{id}":       a.updateTemplateV2,
		"DELETE /templates/{id}":         a.deleteTemplate,
		"GET /templates/{id}/{part}":     a.listTags, // {part} is tags; a template may be named aliases
		"POST /templates/tags":           a.assignTags,
		"DELETE /templates/tags":         a.removeTags,
	}
}

type wireTemplate struct {
	TemplateID    string    `json:"templateID"`
	BuildID       string    `json:"buildID"`
	CPUCount      int       `json:"cpuCount"`
	MemoryMB      int64     `json:"memoryMB"`
	DiskSizeMB    int64     `json:"diskSizeMB"`
	Public        bool      `json:"public"`
	Aliases       []string  `json:"aliases"`
	Names         []string  `json:"names"`
	CreatedAt     time.Time `json:"createdAt"`
	UpdatedAt     time.Time `json:"updatedAt"`
	CreatedBy     *struct{} `json:"createdBy"`     // clients require the field; null
	LastSpawnedAt *string   `json:"lastSpawnedAt"` // likewise
	SpawnCount    int       `json:"spawnCount"`
	BuildCount    int       `json:"buildCount"`
	EnvdVersion   string    `json:"envdVersion"`
	BuildStatus   string    `json:"buildStatus"`
	IsDefault     bool      `json:"isDefault,omitempty"`
}

type wireTemplateWithBuilds struct {
	wireTemplate
	Builds []wireBuild `json:"builds"`
}

type wireBuild struct {
	BuildID     string    `json:"buildID"`
	Status      string    `json:"status"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
	FinishedAt  time.Time `json:"finishedAt,omitzero"`
	CPUCount    int       `json:"cpuCount"`
	MemoryMB    int64     `json:"memoryMB"`
	DiskSizeMB  int64     `json:"diskSizeMB"`
	EnvdVersion string    `json:"envdVersion,omitempty"`
}

// listTemplatesV1 answers all templates by name.
func (a *api) listTemplatesV1(w http.ResponseWriter, r *http.Request, k store.Key) error {
	all, err := a.wholes(r.Context(), k)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(x, y whole) int { return cmp.Or(cmp.Compare(x.alias, y.alias), cmp.Compare(x.id, y.id)) })
	writeJSON(w, http.StatusOK, encodeTemplates(k, all))
	return nil
}

// listTemplatesV2 answers a page of the templates, newest first.
func (a *api) listTemplatesV2(w http.ResponseWriter, r *http.Request, k store.Key) error {
	limit, after, err := parsePaging(r.URL.Query())
	if err != nil {
		return err
	}
	all, err := a.wholes(r.Context(), k)
	if err != nil {
		return err
	}
	place := func(t whole) cursor { return cursor{t.createdAt.UTC(), t.id} }
	writeJSON(w, http.StatusOK, encodeTemplates(k, page(w, all, place, after, false, limit)))
	return nil
}

// getTemplate answers one template with a page of its builds, newest first.
func (a *api) getTemplate(w http.ResponseWriter, r *http.Request, k store.Key) error {
	limit, after, err := parsePaging(r.URL.Query())
	if err != nil {
		return err
	}
	t, err := a.usable(r.Context(), k, r.PathValue("id"))
	if err != nil {
		return err
	}
	place := func(b wireBuild) cursor { return cursor{b.CreatedAt, b.BuildID} }
	writeJSON(w, http.StatusOK, wireTemplateWithBuilds{
		wireTemplate: t.encode(k),
		Builds:       page(w, t.encodeBuilds(), place, after, false, limit),
	})
	return nil
}

// getAlias tells whether a name means something. 403 says no more than that about
// another key's.
func (a *api) getAlias(w http.ResponseWriter, r *http.Request, k store.Key) error {
	t, err := a.find(r.Context(), k, r.PathValue("alias"))
	if err != nil {
		return err
	}
	if len(t.builds) == 0 { // its first build runs or has failed
		return templateNotFound(r.PathValue("alias"))
	}
	if !t.usableBy(k) {
		return failure(http.StatusForbidden, "the name '%s' belongs to another key", r.PathValue("alias"))
	}
	writeJSON(w, http.StatusOK, struct {
		TemplateID string `json:"templateID"`
		Public     bool   `json:"public"`
	}{t.id, t.isPublic()})
	return nil
}

func (a *api) updateTemplateV1(w http.ResponseWriter, r *http.Request, k store.Key) error {
	if _, err := a.updateTemplate(w, r, k); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct{}{})
	return nil
}

func (a *api) updateTemplateV2(w http.ResponseWriter, r *http.Request, k store.Key) error {
	t, err := a.updateTemplate(w, r, k)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Names []string `json:"names"`
	}{names(k, t.keyID, t.alias)})
	return nil
}

// updateTemplate publishes a template or takes that back.
func (a *api) updateTemplate(w http.ResponseWriter, r *http.Request, k store.Key) (whole, error) {
	var body struct {
		Public *bool `json:"public"`
	}
	if err := decode(w, r, &body, false); err != nil {
		return whole{}, err
	}
	ref := r.PathValue("id")
	t, err := a.owned(r.Context(), k, ref)
	if err != nil || body.Public == nil {
		return t, err
	}
	err = a.store.SetPublic(r.Context(), t.id, *body.Public)
	if errors.Is(err, store.ErrNotFound) {
		return t, failure(http.StatusConflict, "template '%s' has no build that is ready: build it first", ref)
	}
	return t, err
}

// deleteTemplate deletes a template or snapshot, or one tag of it. Sandboxes made
// from it live on, builds of it under way are cancelled.
func (a *api) deleteTemplate(w http.ResponseWriter, r *http.Request, k store.Key) error {
	name := r.PathValue("id")
	t, err := a.owned(r.Context(), k, name)
	if err != nil {
		return err
	}
	ref := t.id
	if tagged(name) {
		n, _ := splitName(k, name)
		ref += ":" + n.Tag
	} else {
		a.builds.CancelTemplate(t.id)
	}
	err = a.sandboxes.DeleteTemplate(r.Context(), ref)
	if errors.Is(err, sandbox.ErrTemplateNotFound) { // deleted just now
		return templateNotFound(name)
	}
	if err != nil {
		return fmt.Errorf("delete template %s: %w", ref, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

type wireTag struct {
	Tag       string    `json:"tag"`
	BuildID   string    `json:"buildID"`
	CreatedAt time.Time `json:"createdAt"` // of the assignment
}

// listTags answers the tags of a template, the latest assignment first.
func (a *api) listTags(w http.ResponseWriter, r *http.Request, k store.Key) error {
	if r.PathValue("part") != "tags" {
		return failure(http.StatusNotFound, "there is no endpoint %.100s", r.URL.Path)
	}
	t, err := a.usable(r.Context(), k, r.PathValue("id"))
	if err != nil {
		return err
	}
	list := []wireTag{}
	if len(t.builds) > 0 {
		tags, err := a.store.TemplateTags(r.Context(), t.id)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		for _, tag := range tags {
			list = append(list, wireTag{tag.Name, tag.BuildID, tag.AssignedAt})
		}
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// assignTags points tags at the build that a name means.
func (a *api) assignTags(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := decode(w, r, &body, false); err != nil {
		return err
	}
	if body.Target == "" {
		return invalid("target is missing: give the name of a template with a tag")
	}
	tags, err := parseTags(body.Tags)
	if err != nil {
		return err
	}
	t, err := a.owned(r.Context(), k, body.Target)
	if err != nil {
		return err
	}
	n, _ := splitName(k, body.Target)
	done, err := a.sandboxes.TagTemplate(r.Context(), t.id+":"+n.Tag, tags)
	if errors.Is(err, sandbox.ErrTemplateNotFound) {
		return templateNotFound(body.Target)
	}
	if err != nil {
		return fmt.Errorf("tag template %s: %w", body.Target, err)
	}
	writeJSON(w, http.StatusCreated, struct {
		BuildID string   `json:"buildID"`
		Tags    []string `json:"tags"`
	}{done.BuildID, tags})
	return nil
}

// removeTags takes tags off a template.
func (a *api) removeTags(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := decode(w, r, &body, false); err != nil {
		return err
	}
	if body.Name == "" {
		return invalid("name is missing: give the name of a template")
	}
	tags, err := parseTags(body.Tags)
	if err != nil {
		return err
	}
	name, _, _ := strings.Cut(body.Name, ":") // a tag behind it says nothing
	t, err := a.owned(r.Context(), k, name)
	if err != nil {
		return err
	}
	err = a.sandboxes.UntagTemplate(r.Context(), t.id, tags)
	if errors.Is(err, sandbox.ErrTemplateNotFound) { // deleted just now, or not built yet
		return templateNotFound(body.Name)
	}
	if err != nil {
		return fmt.Errorf("remove tags of template %s: %w", body.Name, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// parseTags checks a list of tags and brings it to the form they are kept in.
func parseTags(list []string) ([]string, error) {
	if len(list) == 0 {
		return nil, invalid("tags is missing: give one tag or more")
	}
	if len(list) > store.MaxTags {
		return nil, invalid("tags has %d entries, at most %d are possible", len(list), store.MaxTags)
	}
	var tags []string
	for _, tag := range list {
		tag = strings.ToLower(strings.TrimSpace(tag))
		if err := store.CheckTag(tag); err != nil {
			return nil, invalid("%s", err)
		}
		if !slices.Contains(tags, tag) {
			tags = append(tags, tag)
		}
	}
	return tags, nil
}

// template finds the build that a key may start sandboxes from by the name of a
// template.
func (a *api) template(ctx context.Context, k store.Key, ref string) (store.Template, error) {
	name, ok, err := a.usableName(ctx, k, ref)
	if err != nil {
		return store.Template{}, err
	}
	if !ok || name.Alias == "" {
		return store.Template{}, templateNotFound(ref)
	}
	t, err := a.store.Template(ctx, name.String())
	if errors.Is(err, store.ErrNotFound) || err == nil && !t.UsableBy(k.ID) {
		return store.Template{}, templateNotFound(ref)
	}
	return t, err
}
