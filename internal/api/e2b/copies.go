package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// forkResult is one copy: either of its fields is set.
type forkResult struct {
	Sandbox *createdSandbox `json:"sandbox,omitempty"`
	Error   *wireError      `json:"error,omitempty"`
}

// fork copies a running sandbox. A failure of the whole is an error, that of a
// copy is in its place of the list.
func (a *api) fork(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body struct {
		Timeout *int64 `json:"timeout"` // seconds
		Count   *int64 `json:"count"`
	}
	if err := decode(w, r, &body, true); err != nil {
		return err
	}
	d, err := timeout(body.Timeout, v1.defaultTimeout, k)
	if err != nil {
		return err
	}
	count := int64(1)
	if body.Count != nil {
		count = *body.Count
	}
	if count < 1 || count > sandbox.MaxForks {
		return invalid("count must be 1 to %d, not %d", sandbox.MaxForks, count)
	}
	info, err := a.own(r, k)
	if err != nil {
		return err
	}
	req := sandbox.ForkRequest{Quota: sandbox.QuotaOf(k), Count: int(count), Timeout: d}
	forks, err := once(a.repeats, r, k, body, func(ctx context.Context) ([]sandbox.Fork, error) {
		return settled(ctx, func() ([]sandbox.Fork, error) { return a.sandboxes.Fork(ctx, info.ID, req) })
	})
	if err != nil {
		return a.copyError(r, k, info.ID, "fork", err)
	}
	for i, f := range forks {
		record.Note(r.Context(), fmt.Sprintf("fork %d", i+1), f.Info.ID)
	}
	writeJSON(w, http.StatusCreated, a.encodeForks(forks))
	return nil
}

func (a *api) encodeForks(forks []sandbox.Fork) []forkResult {
	results := make([]forkResult, len(forks))
	for i, f := range forks {
		if f.Err != nil {
			results[i].Error = encodeError(f.Err)
			if results[i].Error.Code == http.StatusInternalServerError {
				a.log.Error("fork failed", "error", f.Err)
			}
			continue
		}
		created := a.created(f.Info)
		results[i].Sandbox = &created
	}
	return results
}

// copyError says what a sandbox must be like to be copied or saved.
func (a *api) copyError(r *http.Request, k store.Key, id, what string, err error) error {
	if errors.Is(err, sandbox.ErrPaused) {
		return failure(http.StatusConflict, "sandbox '%s' is paused: connect to it, which resumes it, and then %s it", id, what)
	}
	return a.gone(r, k, id, fmt.Errorf("%s sandbox %s: %w", what, id, err))
}

// wireSnapshot is a snapshot: a template that was taken of a sandbox.
type wireSnapshot struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func encodeSnapshot(k store.Key, t store.Template) wireSnapshot {
	return wireSnapshot{SnapshotID: snapshotID(k, t), Names: tagNames(k, t)}
}

// createSnapshot saves a running sandbox as a template.
func (a *api) createSnapshot(w http.ResponseWriter, r *http.Request, k store.Key) error {
	var body struct {
		Name   string `json:"name"`
		Memory *bool  `json:"memory"`
	}
	if err := decode(w, r, &body, true); err != nil {
		return err
	}
	name, err := newName(k, body.Name)
	if err != nil {
		return err
	}
	info, err := a.own(r, k)
	if err != nil {
		return err
	}
	if err := a.checkFree(r.Context(), k, name); err != nil {
		return err
	}
	req := sandbox.SnapshotRequest{Quota: sandbox.QuotaOf(k), Name: name, DiskOnly: body.Memory != nil && !*body.Memory}
	t, err := once(a.repeats, r, k, body, func(ctx context.Context) (store.Template, error) {
		return settled(ctx, func() (store.Template, error) { return a.sandboxes.Snapshot(ctx, info.ID, req) })
	})
	if err != nil {
		return a.copyError(r, k, info.ID, "save", err)
	}
	record.Note(r.Context(), "template", t.ID)
	writeJSON(w, http.StatusCreated, encodeSnapshot(k, t))
	return nil
}

// checkFree refuses a name whose alias, with whatever tag, is that of a template
// which is not a snapshot of this key.
func (a *api) checkFree(ctx context.Context, k store.Key, name string) error {
	if name == "" {
		return nil
	}
	all, err := a.store.Templates(ctx)
	if err != nil {
		return err
	}
	alias := store.SplitName(name).Alias
	for _, t := range all {
		if t.Name != alias {
			continue
		}
		switch {
		case t.KeyID == "":
			return failure(http.StatusConflict, "the name '%s' is that of a template of the machine: choose another", alias)
		case t.KeyID != k.ID:
			return failure(http.StatusConflict, "the name '%s' belongs to another key: choose another", alias)
		case t.SourceSandbox == "":
			return failure(http.StatusConflict, "the name '%s' is that of a template that was built: choose another, or delete that one first", alias)
		}
	}
	return nil
}

// listSnapshots answers a page of the key's snapshots, newest first.
func (a *api) listSnapshots(w http.ResponseWriter, r *http.Request, k store.Key) error {
	q, err := parseSnapshotQuery(r.URL.Query())
	if err != nil {
		return err
	}
	all, err := a.store.Templates(r.Context())
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(t store.Template) bool { return !q.selects(k, t) })
	snapshots := []wireSnapshot{}
	for _, t := range page(w, all, placeOfSnapshot, q.after, false, q.limit) {
		snapshots = append(snapshots, encodeSnapshot(k, t))
	}
	writeJSON(w, http.StatusOK, snapshots)
	return nil
}

// placeOfSnapshot orders snapshots by when they were taken.
func placeOfSnapshot(t store.Template) cursor { return cursor{t.BuiltAt.UTC(), t.BuildID} }

type snapshotQuery struct {
	sandboxID string
	name      string // id or name; without a tag it means every tag
	limit     int
	after     cursor
}

func parseSnapshotQuery(v url.Values) (q snapshotQuery, err error) {
	q.sandboxID, q.name = plainID(v.Get("sandboxID")), v.Get("name")
	q.limit, q.after, err = parsePaging(v)
	return q, err
}

func (q snapshotQuery) selects(k store.Key, t store.Template) bool {
	if t.KeyID != k.ID || t.SourceSandbox == "" || q.sandboxID != "" && t.SourceSandbox != q.sandboxID {
		return false
	}
	if q.name == "" {
		return true
	}
	wanted, own := splitName(k, q.name)
	if !own {
		return false
	}
	if wanted.Alias != t.ID && wanted.Alias != t.Name {
		return false
	}
	return !tagged(q.name) || slices.Contains(t.Tags, wanted.Tag)
}
