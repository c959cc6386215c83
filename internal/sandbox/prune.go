package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// Unneeded is something in the data folder that nothing needs.
type Unneeded struct {
	Kind  string `json:"kind"` // snapshot, agent or engine
	Name  string `json:"name"` // of the folder
	Bytes int64  `json:"bytes"`
}

// Kinds of what a manager prunes.
const (
	UnneededSnapshot = "snapshot"
	UnneededAgent    = "agent"
	UnneededEngine   = "engine"
)

// use is what templates and sandboxes are started from.
type use struct{ snapshots, agents, engines map[string]bool }

func (m *Manager) needed(ctx context.Context) (use, error) {
	templates, err := m.config.Store.Templates(ctx)
	if err != nil {
		return use{}, err
	}
	records, err := m.config.Store.Sandboxes(ctx, false)
	if err != nil {
		return use{}, err
	}
	return useOf(templates, records, filepath.Base(m.agentDir)), nil
}

func useOf(templates []store.Template, records []store.Sandbox, agent string) use {
	u := use{map[string]bool{}, map[string]bool{agent: true}, map[string]bool{}}
	for _, t := range templates {
		u.snapshots[t.Snapshot], u.agents[t.AgentHash], u.engines[t.EngineHash] = true, true, true
	}
	for _, record := range records {
		var d details
		if json.Unmarshal(record.Data, &d) == nil {
			u.agents[d.From.Agent], u.engines[d.From.Engine] = true, true
		}
	}
	return u
}

// Prune removes snapshots that no template refers to, and the agents and the
// programs of engines that no template and no sandbox was made with. It tells what
// that was, or with dryRun would be. Of engines it does not tell the bytes.
func (m *Manager) Prune(ctx context.Context, dryRun bool) ([]Unneeded, error) {
	used, err := m.needed(ctx)
	if err != nil {
		return nil, err
	}
	gone, err := m.unneededSnapshots(used.snapshots)
	if err != nil {
		return nil, err
	}
	agents, err := m.pruneAgents(used.agents, dryRun)
	gone = append(gone, agents...)
	err = errors.Join(err, m.config.Engine.Prune(func(version string) bool {
		if !used.engines[version] {
			gone = append(gone, Unneeded{Kind: UnneededEngine, Name: version})
		}
		return dryRun || used.engines[version]
	}))
	if !dryRun {
		err = errors.Join(err, m.pruneSnapshots(used.snapshots))
	}
	return gone, err
}

// unneededSnapshots are those that pruneSnapshots removes.
func (m *Manager) unneededSnapshots(wanted map[string]bool) ([]Unneeded, error) {
	entries, err := os.ReadDir(m.snapshotDir(""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var found []Unneeded
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !entry.IsDir() || wanted[entry.Name()] || strings.HasSuffix(entry.Name(), partialSuffix) {
			continue
		}
		if time.Since(info.ModTime()) > pruneAfter && !m.startsFrom(entry.Name()) {
			found = append(found, Unneeded{UnneededSnapshot, entry.Name(), DiskBytes(m.snapshotDir(entry.Name()))})
		}
	}
	return found, nil
}

// startsFrom tells whether sandboxes are starting from a snapshot.
func (m *Manager) startsFrom(name string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.inUse[name] > 0
}

// pruneAgents removes agents but those of managers that run, which hold a lock on
// theirs.
func (m *Manager) pruneAgents(wanted map[string]bool, dryRun bool) ([]Unneeded, error) {
	entries, err := os.ReadDir(m.agentPath(""))
	if err != nil {
		return nil, err
	}
	var gone []Unneeded
	var errs []error
	for _, entry := range entries {
		if wanted[entry.Name()] || !entry.IsDir() {
			continue
		}
		dir := m.agentPath(entry.Name())
		held, err := holdFolder(dir, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		gone = append(gone, Unneeded{UnneededAgent, entry.Name(), DiskBytes(dir)})
		if !dryRun {
			errs = append(errs, os.RemoveAll(dir))
		}
		errs = append(errs, held.Close())
	}
	return gone, errors.Join(errs...)
}

// holdFolder locks a folder.
func holdFolder(dir string, how int) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}
