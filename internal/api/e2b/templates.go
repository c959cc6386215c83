package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

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
	FinishedAt  time.Time `json:"finishedAt"`
	CPUCount    int       `json:"cpuCount"`
	MemoryMB    int64     `json:"memoryMB"`
	DiskSizeMB  int64     `json:"diskSizeMB"`
	EnvdVersion string    `json:"envdVersion"`
}

// listTemplates leaves snapshots out, as E2B does: GET /snapshots has them.
func (a *api) listTemplates(w http.ResponseWriter, r *http.Request, k store.Key) error {
	all, err := a.store.Templates(r.Context())
	if err != nil {
		return err
	}
	visible := []wireTemplate{}
	for _, t := range all {
		if t.UsableBy(k.ID) && t.SourceSandbox == "" {
			visible = append(visible, encodeTemplate(k, t))
		}
	}
	writeJSON(w, http.StatusOK, visible)
	return nil
}

func (a *api) getTemplate(w http.ResponseWriter, r *http.Request, k store.Key) error {
	t, err := a.template(r.Context(), k, r.PathValue("id"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, wireTemplateWithBuilds{
		wireTemplate: encodeTemplate(k, t),
		Builds: []wireBuild{{
			BuildID:     t.BuildID,
			Status:      "ready",
			CreatedAt:   t.BuiltAt.UTC(),
			UpdatedAt:   t.BuiltAt.UTC(),
			FinishedAt:  t.BuiltAt.UTC(),
			CPUCount:    t.CPUs,
			MemoryMB:    t.MemoryBytes / mib,
			DiskSizeMB:  t.DiskBytes / mib,
			EnvdVersion: hostapi.EnvdVersion,
		}},
	})
	return nil
}

func (a *api) getAlias(w http.ResponseWriter, r *http.Request, k store.Key) error {
	t, err := a.template(r.Context(), k, r.PathValue("alias"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		TemplateID string `json:"templateID"`
		Public     bool   `json:"public"`
	}{t.ID, t.KeyID == ""})
	return nil
}

// deleteTemplate deletes a template or snapshot. Sandboxes made from it live on.
func (a *api) deleteTemplate(w http.ResponseWriter, r *http.Request, k store.Key) error {
	t, err := a.template(r.Context(), k, r.PathValue("id"))
	if err != nil {
		return err
	}
	if t.KeyID != k.ID {
		return failure(http.StatusForbidden, "template '%s' belongs to the machine, not to this key: `tombolo template delete` on the machine deletes it", r.PathValue("id"))
	}
	ref := t.ID
	if name, _ := splitName(k, r.PathValue("id")); tagged(r.PathValue("id")) {
		ref += ":" + name.Tag
	}
	err = a.sandboxes.DeleteTemplate(r.Context(), ref)
	if errors.Is(err, sandbox.ErrTemplateNotFound) { // deleted just now
		return templateNotFound(r.PathValue("id"))
	}
	if err != nil {
		return fmt.Errorf("delete template %s: %w", t.ID, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// template finds what a key may use by id or name.
func (a *api) template(ctx context.Context, k store.Key, idOrName string) (store.Template, error) {
	name, own := splitName(k, idOrName)
	if !own || name.Alias == "" {
		return store.Template{}, templateNotFound(idOrName)
	}
	t, err := a.store.Template(ctx, name.String())
	if errors.Is(err, store.ErrNotFound) || err == nil && !t.UsableBy(k.ID) {
		return store.Template{}, templateNotFound(idOrName)
	}
	return t, err
}

func encodeTemplate(k store.Key, t store.Template) wireTemplate {
	return wireTemplate{
		TemplateID:  t.ID,
		BuildID:     t.BuildID,
		CPUCount:    t.CPUs,
		MemoryMB:    t.MemoryBytes / mib,
		DiskSizeMB:  t.DiskBytes / mib,
		Public:      t.KeyID == "",
		Aliases:     aliases(t),
		Names:       fullNames(k, t),
		CreatedAt:   t.CreatedAt.UTC(),
		UpdatedAt:   t.BuiltAt.UTC(),
		BuildCount:  1,
		EnvdVersion: hostapi.EnvdVersion,
		BuildStatus: "ready",
	}
}
