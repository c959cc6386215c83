package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/volume"
)

// takeOver puts the sandboxes folder in order when a manager starts. What belongs
// to a living process stays. What a server kept is adopted by a manager with Keep,
// and left alone by another. The rest is removed: folders, processes, control
// groups, networks; and the records say so.
func (m *Manager) takeOver(ctx context.Context) error {
	unlock, err := m.lockSandboxes()
	if err != nil {
		return err
	}
	defer unlock()
	records, err := m.config.Store.Sandboxes(ctx, false)
	if err != nil {
		return fmt.Errorf("read sandboxes: %w", err)
	}
	keep := map[string]bool{}
	var kept []*sandbox
	var swept []store.Sandbox
	for _, record := range records {
		s, lock, err := m.judge(record)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK): // it is another process's
			keep[record.ID] = true
		case err != nil:
			return fmt.Errorf("take over sandbox %s: %w", record.ID, err)
		case s == nil:
			swept = append(swept, record)
		default:
			keep[record.ID] = true
			if s.run != nil {
				keep[s.run.id] = true
			}
			if m.config.Keep {
				s.lock = lock
				kept = append(kept, s)
			}
		}
		if lock != nil && (s == nil || !m.config.Keep) {
			lock.Close()
		}
	}
	if err := m.sweep(ctx, keep); err != nil {
		return err
	}
	for _, record := range swept {
		if err := m.recordEnd(ctx, record, "the server that ran it was killed"); err != nil {
			return err
		}
	}
	if m.config.Keep {
		if err := m.sweepSnapshots(ctx); err != nil {
			m.config.Log.Error("what a killed server was saving was not removed", "error", err)
		}
		if err := m.pruneVolumes(ctx); err != nil {
			m.config.Log.Error("what a killed server left of volumes was not removed", "error", err)
		}
	}
	m.adoptAll(ctx, kept)
	return nil
}

// judge tells what is to become of the sandbox of a record: nil to be removed, or
// else one to be kept. The folder's lock is returned where there is a folder;
// EWOULDBLOCK says that a living process has it.
func (m *Manager) judge(record store.Sandbox) (*sandbox, *os.File, error) {
	dir := m.sandboxDir(record.ID)
	if _, err := os.Stat(dir); err != nil {
		return nil, nil, nil // it was never begun
	}
	lock, err := lockFile(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return nil, nil, err
	}
	var d details
	if json.Unmarshal(record.Data, &d) != nil || !d.Kept {
		return nil, lock, nil
	}
	if state := State(record.State); state != Running && state != Paused {
		return nil, lock, nil
	}
	return fromRecord(record, d), lock, nil
}

// sweep removes every sandbox that keep does not have.
func (m *Manager) sweep(ctx context.Context, keep map[string]bool) error {
	entries, err := os.ReadDir(m.sandboxesDir())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		id := entry.Name()
		if !entry.IsDir() || keep[id] {
			continue
		}
		err := m.sweepOne(ctx, id)
		if errors.Is(err, unix.EWOULDBLOCK) { // made by a living process, its record to come
			keep[id] = true
		} else if err != nil {
			return fmt.Errorf("remove what is left of sandbox %s: %w", id, err)
		}
	}
	if err := m.config.Engine.SweepOthers(ctx, func(id string) bool { return keep[id] }); err != nil {
		return fmt.Errorf("remove leftover processes: %w", err)
	}
	return nil
}

// sweepOne returns EWOULDBLOCK when a living process has the sandbox.
func (m *Manager) sweepOne(ctx context.Context, id string) error {
	dir := m.sandboxDir(id)
	lock, err := lockFile(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return err
	}
	defer lock.Close()
	m.config.Log.Info("removing a sandbox whose server is gone", "sandbox", id)
	if err := m.sweepRun(ctx, id); err != nil {
		return err
	}
	return volume.RemoveAll(dir)
}

// sweepRun removes what is left of the processes of a sandbox.
func (m *Manager) sweepRun(ctx context.Context, id string) error {
	if err := m.config.Engine.Sweep(ctx, id, m.engineDir(id)); err != nil {
		return err
	}
	if err := m.config.SweepNetwork(m.sandboxDir(id)); err != nil {
		return err
	}
	if err := m.closeVolumes(id); err != nil {
		return err
	}
	return os.RemoveAll(m.engineDir(id))
}

func (m *Manager) recordEnd(ctx context.Context, record store.Sandbox, reason string) error {
	record.State, record.Reason, record.EndedAt = string(Ended), reason, time.Now().UTC()
	return m.config.Store.PutSandbox(ctx, record)
}

// adoptAll takes charge of the sandboxes a server kept, all at once. One that
// makes trouble is left as it is, for people to look at, and keeps nobody from
// serving the others.
func (m *Manager) adoptAll(ctx context.Context, kept []*sandbox) {
	var wait sync.WaitGroup
	for _, s := range kept {
		wait.Go(func() {
			if err := m.adopt(ctx, s); err != nil {
				s.lock.Close()
				m.config.Log.Error("a sandbox was not taken over and is left as it is; the next start tries again",
					"sandbox", s.id, "folder", m.sandboxDir(s.id), "error", err)
			}
		})
	}
	wait.Wait()
}

// adopt takes charge of one: of its processes, or of its saved state. One whose
// processes have ended meanwhile is removed and its record says why.
func (m *Manager) adopt(ctx context.Context, s *sandbox) error {
	if s.info.State == Paused {
		return m.adoptPaused(ctx, s)
	}
	m.openHistory(s)
	err := m.adoptRun(ctx, s)
	if err == nil {
		s.log.add("lifecycle", "taken over by a new server")
		m.config.Log.Info("sandbox taken over", "sandbox", s.id)
		if err := m.removeStates(s.id, ""); err != nil { // of a pause that was not written down
			m.config.Log.Error("a superseded state was not removed", "sandbox", s.id, "error", err)
		}
		return nil
	}
	m.closeHistory(s)
	m.config.Log.Warn("a sandbox could not be taken over", "sandbox", s.id, "error", err)
	reason := "it could not be taken over by a new server: " + err.Error()
	if errors.Is(err, engine.ErrGone) {
		reason = "its processes ended while there was no server"
	}
	if err := m.removeRunOf(ctx, s); err != nil {
		return fmt.Errorf("remove its run: %w", err)
	}
	if saved := m.findState(s.id); saved != nil && errors.Is(err, engine.ErrGone) {
		// The server was killed when it had just ended the processes for a pause.
		s.saved, s.info.State, s.info.Reason, s.info.EndAt = saved, Paused, "paused when its server was killed", time.Now().UTC()
		if err := m.adoptPaused(ctx, s); err != nil {
			return err
		}
		return m.record(ctx, s)
	}
	s.lock.Close() // sweepOne takes it
	if err := m.sweepOne(ctx, s.id); err != nil {
		return fmt.Errorf("remove it: %w", err)
	}
	return m.recordEnd(ctx, s.record(true), reason)
}

// removeRunOf removes what there is of a run that could not be taken over.
func (m *Manager) removeRunOf(ctx context.Context, s *sandbox) error {
	r := s.present()
	r.leave()
	if err := r.stop(ctx); err != nil {
		return err
	}
	s.setRun(nil)
	if r.id == s.id {
		return m.sweepRun(ctx, s.id)
	}
	if r.lock != nil {
		r.lock.Close() // sweepOne takes it
	}
	return m.sweepOne(ctx, r.id)
}

// findState finds the saved state in a sandbox's folder that no record names.
func (m *Manager) findState(id string) *savedState {
	entries, err := os.ReadDir(m.sandboxDir(id))
	if err != nil {
		return nil
	}
	for _, entry := range slices.Backward(entries) { // the names are times
		name := entry.Name()
		if strings.HasPrefix(name, statePrefix) && !strings.HasSuffix(name, partialSuffix) {
			dir := filepath.Join(m.sandboxDir(id), name)
			_, err := os.Stat(filepath.Join(dir, memoryName))
			return &savedState{Name: name, DiskOnly: err != nil, Bytes: DiskBytes(dir)}
		}
	}
	return nil
}

func (m *Manager) adoptPaused(ctx context.Context, s *sandbox) error {
	if err := m.sweepRun(ctx, s.id); err != nil {
		return fmt.Errorf("remove what is left of the last run of sandbox %s: %w", s.id, err)
	}
	if s.saved == nil {
		return fmt.Errorf("the record of paused sandbox %s names no saved state", s.id)
	}
	if err := m.removeStates(s.id, s.saved.Name); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(m.sandboxDir(s.id), s.saved.Name)); err != nil {
		return fmt.Errorf("the saved state of paused sandbox %s: %w", s.id, err)
	}
	m.openHistory(s)
	m.enter(s)
	return nil
}

func (m *Manager) enter(s *sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live[s.id] = s
}

func (m *Manager) adoptRun(ctx context.Context, s *sandbox) error {
	r := s.present()
	if r.id != s.id {
		lock, err := lockFile(filepath.Join(m.sandboxDir(r.id), "lock"), unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			return err
		}
		r.lock = lock
	}
	err := m.makeNetwork(ctx, s, r, true)
	if errors.Is(err, fs.ErrNotExist) { // it is removed after the processes only
		return fmt.Errorf("%w: %w", engine.ErrGone, err)
	}
	if err != nil {
		return err
	}
	instance, err := m.config.Engine.Adopt(ctx, m.spec(s, r))
	if err != nil {
		return err
	}
	r.instance = instance
	m.greet(ctx, s, r)
	m.enter(s)
	s.mu.Lock()
	s.timer = time.AfterFunc(time.Until(s.info.EndAt), func() { m.expire(s) })
	s.mu.Unlock()
	go m.watch(s, r)
	return nil
}

// greetPatience bounds what one agent that does not answer can cost the start of a
// server. For 5 s the gateway keeps still towards connections that the last server
// had to the agent.
const greetPatience = 2 * time.Second

// greet tells the agent of an adopted sandbox that it goes on, and what it trusts now, so that it takes
// the connections of before for lost and not for clients that left, which would
// interrupt what they had started. It ends every connection the agent has, so
// nobody may have got one before.
func (m *Manager) greet(ctx context.Context, s *sandbox, r *run) {
	ctx, cancel := context.WithTimeout(ctx, greetPatience)
	defer cancel()
	init := s.init()
	init.Resumed, init.Entropy = true, nil
	if s.from.CA != m.caHash {
		init.CABundle = m.config.CABundle
	}
	if err := r.agent.init(ctx, init); err != nil {
		m.config.Log.Warn("the agent of a sandbox that was taken over does not answer", "sandbox", s.id, "error", err)
		return
	}
	if len(init.CABundle) > 0 {
		s.from.CA = m.caHash
	}
}
