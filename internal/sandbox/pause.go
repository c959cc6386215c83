package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/volume"
)

const (
	// statePrefix begins the names of the folders of saved states.
	statePrefix = "state-"
	// pauseAgain is when a pause at the timeout that failed is tried again. The
	// sandbox is kept running until then: who asked for a pause wants to keep it.
	pauseAgain = 30 * time.Second
	// memoryName and diskName are what is in the folder of a saved state.
	memoryName, diskName = "memory", "disk"
)

// Pause implements Sandboxes.
func (m *Manager) Pause(ctx context.Context, id string, diskOnly bool) error {
	s, err := m.find(id)
	if err != nil {
		return err
	}
	return m.pause(ctx, s, diskOnly, "paused by its owner", func() bool { return true })
}

// pause saves a sandbox and ends its processes. still is asked when it is this
// pause's turn whether it is still wanted.
func (m *Manager) pause(ctx context.Context, s *sandbox, diskOnly bool, why string, still func() bool) error {
	ctx, done, err := s.change(ctx)
	if err != nil {
		return err
	}
	defer done()
	if !still() {
		return nil
	}
	r, err := s.running()
	if err != nil {
		return err
	}
	if err := s.setState(Pausing); err != nil {
		return fmt.Errorf("pause sandbox %s: %w", s.id, ErrBusy)
	}
	// From here on nothing the sandbox does is seen outside, so that nothing is
	// seen that the saved state does not know of.
	r.network.Hold()
	saved, err := m.save(ctx, s, r, diskOnly)
	if err == nil {
		err = m.commitPause(ctx, s, saved, why)
	}
	if err != nil && s.isEnding(r) {
		return s.goneError()
	}
	if err != nil {
		r.network.Release()
		s.goOn(pauseAgain, func() { m.expire(s) })
		s.log.warn("lifecycle", "could not be paused and runs on: "+err.Error())
		return fmt.Errorf("pause sandbox %s: %w: %w", s.id, ErrRunsOn, err)
	}
	if err := m.endRun(context.WithoutCancel(ctx), s); err != nil {
		m.config.Log.Error("a paused sandbox left something behind; a resume tries again", "sandbox", s.id, "error", err)
	}
	for _, fn := range m.onStop {
		fn(s.id)
	}
	s.log.add("lifecycle", why)
	m.emit(EventPaused, s, why)
	m.bringToDisk(s, saved)
	return nil
}

// save writes the sandbox's state into a folder of its own.
func (m *Manager) save(ctx context.Context, s *sandbox, r *run, diskOnly bool) (*savedState, error) {
	saved := &savedState{Name: statePrefix + strconv.FormatInt(time.Now().UnixNano(), 36), DiskOnly: diskOnly}
	dir := filepath.Join(m.sandboxDir(s.id), saved.Name)
	partial := dir + partialSuffix
	if err := os.Mkdir(partial, 0o700); err != nil {
		return nil, err
	}
	err := m.step(ctx, stepSave, func(ctx context.Context) error { return m.checkpoint(ctx, r, partial, diskOnly) })
	if err == nil {
		err = os.Rename(partial, dir)
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(partial))
	}
	saved.Bytes = DiskBytes(dir)
	return saved, nil
}

func (m *Manager) checkpoint(ctx context.Context, r *run, dir string, diskOnly bool) error {
	if err := m.checkRoom(ctx, r, dir, diskOnly); err != nil {
		return err
	}
	var err error
	if diskOnly {
		err = r.instance.CheckpointDisk(ctx, filepath.Join(dir, diskName))
	} else {
		err = r.instance.Checkpoint(ctx, filepath.Join(dir, memoryName))
	}
	if stale := (*engine.StaleError)(nil); errors.As(err, &stale) {
		return &StaleFileError{Path: stale.Path}
	}
	return err
}

// bringToDisk has the files of a saved state written out, after the fact: until
// then a loss of power, and nothing less, can take them.
func (m *Manager) bringToDisk(s *sandbox, saved *savedState) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.ctx.Err() != nil {
		return
	}
	m.work.Go(func() {
		err := syncTree(filepath.Join(m.sandboxDir(s.id), saved.Name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // resumed or ended meanwhile
			m.config.Log.Error("the state of a paused sandbox was not brought to the disk", "sandbox", s.id, "error", err)
		}
	})
}

func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(file.Sync(), file.Close())
	})
}

// roomReserve is what a saved state leaves free on the disk, bytes.
const roomReserve = 64 << 20

// checkRoom refuses to save what the disk has no room for. To try would fill the
// disk, which every sandbox writes to, for as long as it takes to fail.
func (m *Manager) checkRoom(ctx context.Context, r *run, dir string, diskOnly bool) error {
	stats, err := r.instance.Stats(ctx)
	if err != nil {
		return err
	}
	need := stats.DiskBytes + roomReserve
	if !diskOnly {
		need += stats.MemoryBytes
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return err
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < need {
		return fmt.Errorf("its state may take %d MiB, %d MiB are free: %w", need>>20, free>>20, unix.ENOSPC)
	}
	return nil
}

// commitPause makes the saved state what the sandbox is.
func (m *Manager) commitPause(ctx context.Context, s *sandbox, saved *savedState, why string) error {
	s.mu.Lock()
	err := ctx.Err() // somebody wants it ended
	if err == nil {
		err = s.setStateLocked(Paused)
	}
	before := s.info.EndAt
	if err == nil {
		s.saved, s.info.EndAt, s.info.Reason = saved, time.Now().UTC(), why
	}
	s.mu.Unlock()
	if err == nil {
		if err = m.record(ctx, s); err == nil {
			return nil
		}
		s.mu.Lock()
		s.info.State, s.saved, s.info.EndAt, s.info.Reason = Pausing, nil, before, "" // as it was
		s.mu.Unlock()
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(m.sandboxDir(s.id), saved.Name)))
}

// Resume implements Sandboxes.
func (m *Manager) Resume(ctx context.Context, id string, req ResumeRequest) (Info, bool, error) {
	if req.Timeout <= 0 {
		return Info{}, false, &InvalidError{"the timeout must be greater than zero"}
	}
	s, err := m.find(id)
	if err != nil {
		return Info{}, false, err
	}
	resumed, err := m.resume(ctx, s, req)
	if err != nil {
		return Info{}, false, err
	}
	return s.snapshotInfo(), resumed, nil
}

// Wake implements Sandboxes.
func (m *Manager) Wake(ctx context.Context, id string) error {
	s, err := m.find(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	state, wakes, timeout := s.info.State, s.info.Lifecycle.AutoResume, s.timeout
	quota := s.quota
	s.mu.Unlock()
	if state == Running {
		return nil
	}
	if !wakes {
		return fmt.Errorf("sandbox %s: %w", id, ErrAsleep)
	}
	_, err = m.resume(ctx, s, ResumeRequest{Quota: quota, Timeout: quota.bound(max(timeout, MinWake)), onlyWake: true})
	return err
}

// resume brings a paused sandbox back, or gives one that runs more time.
func (m *Manager) resume(ctx context.Context, s *sandbox, req ResumeRequest) (resumed bool, err error) {
	if s.state() == Running {
		return false, m.extend(s, req)
	}
	ctx, done, err := s.change(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	if s.state() == Running { // meanwhile
		return false, m.extend(s, req)
	}
	if s.state() != Paused {
		return false, fmt.Errorf("resume sandbox %s: %w", s.id, ErrBusy)
	}
	if err := m.readmit(req.Quota, s); err != nil {
		return false, err
	}
	defer m.work.Done()
	s.setQuota(req.Quota)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	if err := m.bringBack(ctx, s, req); err != nil {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, m.endRun(ctx, s))
		s.setState(Paused)
		if s.doomed.Err() != nil {
			return false, s.goneError()
		}
		if m.ctx.Err() != nil {
			return false, fmt.Errorf("resume sandbox %s: %w: %w", s.id, ErrStillPaused, ErrStopping)
		}
		s.log.warn("lifecycle", "could not be resumed and is still paused: "+err.Error())
		m.config.Log.Error("resume failed", "sandbox", s.id, "error", err, "agent", s.log.tail(20))
		return false, fmt.Errorf("resume sandbox %s: %w: %w", s.id, ErrStillPaused, err)
	}
	s.log.add("lifecycle", "resumed")
	m.emit(EventResumed, s, "")
	return true, nil
}

// extend gives a running sandbox more time, unless there is only traffic for it.
func (m *Manager) extend(s *sandbox, req ResumeRequest) error {
	if req.onlyWake {
		return nil
	}
	_, err := m.SetTimeout(m.ctx, s.id, req.Timeout, true)
	return err
}

// bringBack starts a run from the saved state, and removes the state.
func (m *Manager) bringBack(ctx context.Context, s *sandbox, req ResumeRequest) error {
	if err := m.takeTurn(ctx); err != nil {
		return err
	}
	defer m.giveTurn()
	if err := m.endRun(ctx, s); err != nil { // what the pause left behind
		return err
	}
	if m.imageStamp(s.template.Image) != s.from.Image {
		return fmt.Errorf("the image %s it was started from is not on this machine any more, or was made again", s.template.Image)
	}
	if req.Reboot && !s.saved.DiskOnly {
		if err := m.dropMemory(ctx, s); err != nil {
			return fmt.Errorf("drop its memory: %w", err)
		}
	}
	saved := *s.saved
	dir := filepath.Join(m.sandboxDir(s.id), saved.Name)
	patience := startPatience + time.Duration(saved.Bytes>>30)*patiencePerGiB
	startCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	init := s.init()
	if saved.DiskOnly {
		s.from = source{Agent: filepath.Base(m.agentDir), Engine: s.from.Engine, Image: s.from.Image, Volumes: true, disk: filepath.Join(dir, diskName)}
		init.CABundle = m.config.CABundle
	} else {
		s.from.memory = filepath.Join(dir, memoryName)
		init.Resumed, init.Entropy = true, nil
		if s.from.CA != m.caHash {
			init.CABundle = m.config.CABundle
		}
	}
	if err := m.boot(startCtx, s, init); err != nil {
		return err
	}
	if saved.DiskOnly && s.template.StartCmd != "" {
		if err := s.runStart(ctx, s.told); err != nil {
			return err
		}
	}
	s.mu.Lock()
	s.info.ExecutionID = uuid.NewString()
	s.mu.Unlock()
	if err := m.letRun(ctx, s, req.Timeout); err != nil {
		return err
	}
	m.work.Go(func() {
		if err := os.RemoveAll(dir); err != nil {
			m.config.Log.Error("superseded state was not removed", "sandbox", s.id, "error", err)
		}
	})
	return nil
}

// letRun makes a booted run the sandbox's and writes that down. On an error the
// sandbox is resuming or starting as before.
func (m *Manager) letRun(ctx context.Context, s *sandbox, timeout time.Duration) error {
	was, saved := s.state(), s.saved
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.begin(timeout, func() { m.expire(s) }); err != nil {
		return err
	}
	if err := m.record(ctx, s); err != nil {
		s.mu.Lock()
		s.timer.Stop()
		s.info.State, s.saved = was, saved
		s.mu.Unlock()
		return err
	}
	go m.watch(s, s.present())
	if s.from.memory != "" {
		m.pool.want(kindOf(s))
	}
	return nil
}

// dropMemory replaces the saved memory and disk by the disk alone: the sandbox
// comes to life unseen for as long as it takes to save that.
func (m *Manager) dropMemory(ctx context.Context, s *sandbox) error {
	old := *s.saved
	s.from.memory = filepath.Join(m.sandboxDir(s.id), old.Name, memoryName)
	r, err := m.bootUnseen(ctx, s)
	if err != nil {
		return err
	}
	saved, err := m.save(ctx, s, r, true)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.saved = saved
	s.mu.Unlock()
	if err := errors.Join(m.record(ctx, s), m.endRun(ctx, s)); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(m.sandboxDir(s.id), old.Name))
}

// endRun ends the processes of a sandbox and removes what the engine and the
// gateway made for them. It may be called again after an error.
func (m *Manager) endRun(ctx context.Context, s *sandbox) error {
	r := s.present()
	if r == nil {
		return nil
	}
	r.leave()
	if err := r.stop(ctx); err != nil {
		return err
	}
	if err := m.closeVolumes(r.id); err != nil {
		return err
	}
	if err := m.removeRun(r, s.id); err != nil {
		return err
	}
	s.setRun(nil)
	return nil
}

// removeRun removes the files of a run that has ended.
func (m *Manager) removeRun(r *run, sandboxID string) error {
	if r.id == sandboxID {
		return os.RemoveAll(m.engineDir(r.id))
	}
	err := volume.RemoveAll(m.sandboxDir(r.id))
	if r.lock != nil {
		err = errors.Join(err, r.lock.Close())
		r.lock = nil
	}
	return err
}

// leave ends the watching of a run.
func (r *run) leave() {
	select {
	case <-r.left:
	default:
		close(r.left)
	}
}

func (r *run) stop(ctx context.Context) error {
	var errs []error
	if r.agent != nil {
		r.agent.close()
	}
	if r.instance != nil {
		errs = append(errs, r.instance.Stop(ctx))
	}
	if r.network != nil {
		errs = append(errs, r.network.Close())
	}
	return errors.Join(errs...)
}

// removeStates removes the saved states in a sandbox's folder but one, and what a
// pause that did not come to its end left.
func (m *Manager) removeStates(id, but string) error {
	entries, err := os.ReadDir(m.sandboxDir(id))
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, statePrefix) && name != but {
			errs = append(errs, os.RemoveAll(filepath.Join(m.sandboxDir(id), name)))
		}
	}
	return errors.Join(errs...)
}
