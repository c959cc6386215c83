package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// Fork implements Sandboxes. Copies that the quota has no place for are errors
// among the results; when it has place for none nothing is done.
func (m *Manager) Fork(ctx context.Context, id string, req ForkRequest) ([]Fork, error) {
	if req.Count < 1 || req.Count > MaxForks {
		return nil, &InvalidError{fmt.Sprintf("the count must be 1 to %d, not %d", MaxForks, req.Count)}
	}
	if req.Timeout <= 0 {
		return nil, &InvalidError{"the timeout must be greater than zero"}
	}
	parent, _, err := m.findRunning(id)
	if err != nil {
		return nil, err
	}
	forks := make([]Fork, req.Count)
	copies := make([]*sandbox, req.Count)
	admitted := 0
	for i := range forks {
		copies[i] = parent.copy(req)
		if forks[i].Err = m.admit(req.Quota, copies[i]); forks[i].Err == nil {
			admitted++
		}
	}
	if admitted == 0 {
		return nil, forks[0].Err
	}
	shared, err := m.saveShared(ctx, parent, forkPrefix+newID(), false)
	if err != nil {
		for i := range forks {
			if forks[i].Err == nil {
				m.withdraw(copies[i])
			}
		}
		return nil, fmt.Errorf("fork sandbox %s: %w", id, err)
	}
	defer shared.discard()
	var starts sync.WaitGroup
	for i := range forks {
		if forks[i].Err != nil {
			continue
		}
		starts.Go(func() {
			copies[i].from = shared.from
			if err := m.create(ctx, copies[i]); err != nil {
				forks[i].Err = fmt.Errorf("fork sandbox %s: %w", id, err)
				return
			}
			forks[i].Info = copies[i].snapshotInfo()
		})
	}
	starts.Wait()
	m.emit(EventCheckpointed, parent, "forked into "+strconv.Itoa(admitted))
	return forks, nil
}

// copy is a new sandbox with the settings of this one and an identity of its own.
func (s *sandbox) copy(req ForkRequest) *sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return newSandbox(CreateRequest{
		KeyID: s.keyID, Quota: req.Quota, Timeout: req.Timeout,
		Metadata: s.info.Metadata, EnvVars: s.env, Lifecycle: s.info.Lifecycle, Network: s.info.Network,
		Volumes: s.info.Volumes, Rules: s.info.Rules, Secrets: s.info.Secrets,
	}, s.template)
}

// What the names of folders below snapshots/ begin with that are not named by what
// they hold. Only servers make them.
const (
	forkPrefix     = "fork-"
	snapshotPrefix = "of-"
)

// sharedState is a saved state beside the snapshots of templates, of which
// sandboxes are started. Its lock tells other processes that it is in use.
type sharedState struct {
	m    *Manager
	name string
	from source // what those sandboxes start from
	lock *os.File
}

// saveShared writes the state of a running sandbox, which stands still meanwhile.
// The caller discards it.
func (m *Manager) saveShared(ctx context.Context, s *sandbox, name string, diskOnly bool) (*sharedState, error) {
	ctx, done, err := s.change(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	r, err := s.running()
	if err != nil {
		return nil, err
	}
	seen := s.seen()
	if len(seen) > seenMost {
		return nil, &InvalidError{Message: fmt.Sprintf("the memory of sandbox %s has seen %d volumes, %d are possible: start from an older snapshot", s.id, len(seen), seenMost)}
	}
	if err := os.MkdirAll(m.snapshotDir(""), 0o711); err != nil {
		return nil, err
	}
	lock, err := lockFile(m.snapshotDir(name+lockSuffix), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	shared := &sharedState{m: m, name: name, from: s.from, lock: lock}
	partial := m.snapshotDir(name + partialSuffix)
	shared.from.memory, shared.from.disk = filepath.Join(partial, memoryName), ""
	shared.from.Seen = seen
	err = os.Mkdir(partial, 0o700)
	if err == nil {
		err = m.step(ctx, stepSave, func(ctx context.Context) error { return m.checkpoint(ctx, r, partial, diskOnly) })
	}
	if err != nil {
		shared.discard()
		if s.isEnding(r) {
			return nil, s.goneError()
		}
		return nil, err
	}
	return shared, nil
}

// discard removes the state unless it became a snapshot.
func (st *sharedState) discard() {
	err := errors.Join(
		os.RemoveAll(st.m.snapshotDir(st.name+partialSuffix)),
		os.Remove(st.m.snapshotDir(st.name+lockSuffix)), st.lock.Close(),
	)
	if err != nil {
		st.m.config.Log.Error("a saved state was not removed; the next prune does it", "name", st.name, "error", err)
	}
}

// Snapshot implements Sandboxes.
func (m *Manager) Snapshot(ctx context.Context, id string, req SnapshotRequest) (store.Template, error) {
	s, _, err := m.findRunning(id)
	if err != nil {
		return store.Template{}, err
	}
	if err := m.mayAddSnapshot(ctx, s.asTemplate(req, &sharedState{}), req.Quota, 1); err != nil {
		return store.Template{}, err
	}
	shared, err := m.saveShared(ctx, s, snapshotPrefix+newID(), req.DiskOnly)
	if err != nil {
		return store.Template{}, fmt.Errorf("take a snapshot of sandbox %s: %w", id, err)
	}
	defer shared.discard()
	t, err := m.addSnapshot(ctx, s, shared, req)
	if err != nil {
		return store.Template{}, fmt.Errorf("take a snapshot of sandbox %s: %w", id, err)
	}
	m.emit(EventCheckpointed, s, "snapshot "+t.ID)
	return t, nil
}

// mayAddSnapshot checks the name of a snapshot, and the quota, which must have room for
// so many bytes more than its files.
func (m *Manager) mayAddSnapshot(ctx context.Context, snapshot store.Template, q Quota, more int64) error {
	templates, err := m.config.Store.Templates(ctx)
	if err != nil {
		return err
	}
	count := 1
	for _, t := range templates {
		if t.Name != "" && t.Name == snapshot.Name {
			if t.KeyID != snapshot.KeyID {
				return templateError(t.Name, store.ErrExists)
			}
			if t.SourceSandbox == "" {
				return &InvalidError{fmt.Sprintf("the name %q belongs to a template that was built: choose another, or delete that one", t.Name)}
			}
		}
		if t.SourceSandbox != "" && t.KeyID == snapshot.KeyID && !replaces(snapshot, t) {
			count++
		}
	}
	if q.Snapshots > 0 && count > q.Snapshots {
		return &LimitError{What: "snapshots", Limit: strconv.Itoa(q.Snapshots), Flag: "max-snapshots"}
	}
	if KeptRoom(m.config.DataDir, q, templates, snapshot) < more {
		return q.KeptLimit()
	}
	return nil
}

// addSnapshot makes the shared state a snapshot and writes its record.
func (m *Manager) addSnapshot(ctx context.Context, s *sandbox, shared *sharedState, req SnapshotRequest) (store.Template, error) {
	m.snapshots.Lock()
	defer m.snapshots.Unlock()
	t := s.asTemplate(req, shared)
	saved := DiskBytes(m.snapshotDir(shared.name + partialSuffix))
	if err := m.mayAddSnapshot(ctx, t, req.Quota, saved); err != nil { // another was faster, or it is too large
		return store.Template{}, err
	}
	if err := m.commitSnapshot(shared.name, snapshotMeta{
		CAHash: shared.from.CA, Engine: shared.from.Engine, Volumes: shared.from.Volumes, Seen: shared.from.Seen,
	}); err != nil {
		return store.Template{}, err
	}
	t.SizeBytes = DiskBytes(m.snapshotDir(shared.name)) + DiskBytes(m.imagePath(t.Image))
	stored, replaced, err := m.config.Store.PutTemplate(ctx, t)
	if err != nil {
		return store.Template{}, errors.Join(templateError(t.Name, err), os.RemoveAll(m.snapshotDir(shared.name)))
	}
	m.removeBuilds(ctx, replaced)
	return stored, nil
}

// asTemplate is the record of a snapshot of the sandbox.
func (s *sandbox) asTemplate(req SnapshotRequest, shared *sharedState) store.Template {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, name := s.template, store.SplitName(req.Name)
	t.ID, t.Name, t.KeyID, t.CreatedAt = newID()[1:], name.Alias, s.keyID, time.Now().UTC()
	t.Tags, t.Public = []string{name.Tag}, false
	t.BuildID, t.BuiltAt = uuid.NewString(), t.CreatedAt
	t.Snapshot, t.AgentHash, t.EngineHash = shared.name, shared.from.Agent, shared.from.Engine
	t.ImageStamp, t.Upper = shared.from.Image, ""
	t.SourceSandbox, t.DiskOnly, t.RecipeHash = s.id, req.DiskOnly, ""
	t.EnvVars = maps.Clone(t.EnvVars)
	if t.EnvVars == nil {
		t.EnvVars = map[string]string{}
	}
	maps.Copy(t.EnvVars, s.env)
	return t
}

// DeleteTemplate implements Sandboxes.
func (m *Manager) DeleteTemplate(ctx context.Context, ref string) error {
	m.snapshots.Lock()
	defer m.snapshots.Unlock()
	removed, err := m.config.Store.DeleteTemplate(ctx, ref)
	if err != nil {
		return templateError(ref, err)
	}
	m.removeBuilds(ctx, removed)
	return nil
}

// TagTemplate implements Sandboxes.
func (m *Manager) TagTemplate(ctx context.Context, ref string, tags []string) (store.Template, error) {
	m.snapshots.Lock()
	defer m.snapshots.Unlock()
	tagged, replaced, err := m.config.Store.TagTemplate(ctx, ref, tags)
	if err != nil {
		return store.Template{}, templateError(ref, err)
	}
	m.removeBuilds(ctx, replaced)
	return tagged, nil
}

// UntagTemplate implements Sandboxes.
func (m *Manager) UntagTemplate(ctx context.Context, idOrAlias string, tags []string) error {
	m.snapshots.Lock()
	defer m.snapshots.Unlock()
	removed, err := m.config.Store.UntagTemplate(ctx, idOrAlias, tags)
	if err != nil {
		return templateError(idOrAlias, err)
	}
	m.removeBuilds(ctx, removed)
	return nil
}

// templateError says in the core's errors what the store refused.
func templateError(ref string, err error) error {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("%w: %q", ErrTemplateNotFound, ref)
	case errors.Is(err, store.ErrExists):
		return &InvalidError{fmt.Sprintf("the name %q belongs to a template of somebody else: choose another", ref)}
	case errors.Is(err, store.ErrFull):
		return &InvalidError{fmt.Sprintf("a template may have %d tags: remove some of those of %q first", store.MaxTags, ref)}
	case errors.Is(err, store.ErrDefaultTag):
		return &InvalidError{fmt.Sprintf("the tag %q cannot be removed: point it at another build, or delete the template", store.DefaultTag)}
	}
	return err
}

// removeBuilds removes the files of builds whose records are gone.
func (m *Manager) removeBuilds(ctx context.Context, gone []store.Template) {
	for _, t := range gone {
		m.removeSnapshot(ctx, t.Snapshot)
	}
}

// useSnapshot keeps a snapshot from being removed until done is called.
func (m *Manager) useSnapshot(name string) (done func()) {
	m.mu.Lock()
	m.inUse[name]++
	m.mu.Unlock()
	m.touchSnapshot(name)
	return func() {
		if m.endUse(name) {
			m.removeSnapshot(context.Background(), name) // a record may name it again by now
		}
	}
}

// touchEvery is how old the time of a snapshot's last use may be, far below pruneAfter.
const touchEvery = time.Minute

// touchSnapshot tells other processes that prune when a snapshot was used last: they
// do not know what starts here.
func (m *Manager) touchSnapshot(name string) {
	dir := m.snapshotDir(name)
	if info, err := os.Stat(dir); name != "" && err == nil && time.Since(info.ModTime()) > touchEvery {
		now := time.Now()
		os.Chtimes(dir, now, now)
	}
}

// endUse takes back one useSnapshot, and tells whether the snapshot is to go now.
func (m *Manager) endUse(name string) (remove bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inUse[name]--; m.inUse[name] > 0 {
		return false
	}
	delete(m.inUse, name)
	remove = m.unwanted[name]
	delete(m.unwanted, name)
	return remove
}

// removeSnapshot removes a snapshot whose record is gone, unless another record
// names it. If sandboxes are just starting from it, the last of them does it.
func (m *Manager) removeSnapshot(ctx context.Context, name string) {
	if name == "" {
		return
	}
	templates, err := m.config.Store.Templates(ctx)
	if err != nil || slices.ContainsFunc(templates, func(t store.Template) bool { return t.Snapshot == name }) {
		return
	}
	m.mu.Lock()
	used := m.inUse[name] > 0
	if used {
		m.unwanted[name] = true
	}
	m.mu.Unlock()
	if !used {
		m.removeFiles(name)
	}
}

func (m *Manager) removeFiles(snapshot string) {
	if err := os.RemoveAll(m.snapshotDir(snapshot)); err != nil {
		m.config.Log.Error("a snapshot was not removed; a later prune does it", "snapshot", snapshot, "error", err)
	}
}
