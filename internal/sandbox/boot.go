package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// agentMount is where the agent program is seen inside. It is mounted, not part
// of the image, so that a new agent needs no new images, only new snapshots.
const agentMount = "/.tombolo"

// bootFiles are what a sandbox is made from, host paths.
type bootFiles struct {
	image    string
	agent    string // folder; that of the snapshot's build, whose program is in its memory
	snapshot string // folder to restore from; empty boots from the image alone
}

// bootFiles picks the files for a template. A snapshot belongs to the engine that
// wrote it; with another its sandboxes boot from the image, slower, until the
// template is built again.
func (m *Manager) bootFiles(t store.Template) bootFiles {
	if t.Snapshot == "" || t.EngineHash != m.config.Engine.Version() {
		return bootFiles{image: m.imagePath(t.Image), agent: m.agentDir}
	}
	return bootFiles{
		image:    m.imagePath(t.Image),
		agent:    m.agentPath(t.AgentHash),
		snapshot: filepath.Join(m.snapshotDir(t.Snapshot), "memory"),
	}
}

// boot makes everything a sandbox consists of and returns when its agent has
// been told who it is. On error what was made is left to teardown.
func (m *Manager) boot(ctx context.Context, s *sandbox, files bootFiles, init hostapi.Init) error {
	began := time.Now()
	step := func(name string) {
		m.config.Log.Debug("boot step", "sandbox", s.id, "step", name, "since_begin", time.Since(began))
	}
	dir, err := m.claimDir(s)
	if err != nil {
		return err
	}
	step("folder")
	s.network, err = m.config.Network(ctx, NetworkConfig{
		Dir:          dir,
		DenyInternet: s.info.Network.DenyInternet,
		Refused:      func(what, reason string) { s.log.add("network", "refused "+what+": "+reason) },
	})
	if err != nil {
		return fmt.Errorf("make network: %w", err)
	}
	step("network")
	s.agent = newAgentClient(s.network.DialContext)
	spec := engine.Spec{
		ID:               s.id,
		Dir:              filepath.Join(dir, "engine"),
		Image:            files.image,
		Mounts:           []engine.Mount{{Source: files.agent, Target: agentMount, ReadOnly: true}},
		NetworkNamespace: s.network.NamespacePath(),
		Args:             []string{agentMount + "/agent"},
		Env:              []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
		Hostname:         hostname,
		Limits: engine.Limits{
			CPUs:        float64(s.info.CPUs),
			MemoryBytes: s.info.MemoryBytes,
			DiskBytes:   s.info.DiskBytes,
			Processes:   defaultProcesses,
		},
		Output:     &s.log,
		OnPressure: func(ctx context.Context, p engine.Pressure) error { return m.relieve(ctx, s, p) },
	}
	if err := os.Mkdir(spec.Dir, 0o700); err != nil {
		return err
	}
	if files.snapshot == "" {
		s.instance, err = m.config.Engine.Start(ctx, spec)
	} else {
		s.instance, err = m.config.Engine.Restore(ctx, spec, files.snapshot)
	}
	if err != nil {
		return err
	}
	step("engine")
	if err := s.introduce(ctx, init); err != nil {
		return err
	}
	step("agent")
	return nil
}

// introduce tells the agent who it is. An agent that ends is not waited for.
func (s *sandbox) introduce(ctx context.Context, init hostapi.Init) error {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-s.instance.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	err := s.agent.init(ctx, init)
	cancel()
	watch.Wait()
	if err == nil {
		return nil
	}
	select {
	case <-s.instance.Done():
		return fmt.Errorf("the sandbox ended while it started: %s", s.instance.Exit().Reason)
	default:
		return err
	}
}

// relieve has the agent end the process that uses most memory.
func (m *Manager) relieve(ctx context.Context, s *sandbox, p engine.Pressure) error {
	relieved, err := s.agent.relieve(ctx, p.LimitBytes)
	switch {
	case err != nil:
		s.log.add("lifecycle", "out of memory, and the agent did not answer: "+err.Error())
		return err
	case relieved.PID == 0:
		s.log.add("lifecycle", "out of memory, and there is no process to end")
	default:
		s.log.add("lifecycle", fmt.Sprintf("out of memory: ended %s (pid %d, %d MiB) at the limit of %d MiB",
			relieved.Name, relieved.PID, relieved.RSSBytes>>20, p.LimitBytes>>20))
	}
	return nil
}

// teardown removes what boot made, as far as it came. It goes on after an error
// and may be called again.
func (m *Manager) teardown(ctx context.Context, s *sandbox) error {
	var errs []error
	if s.agent != nil {
		s.agent.close()
	}
	if s.instance != nil {
		errs = append(errs, s.instance.Stop(ctx))
	}
	if s.network != nil {
		errs = append(errs, s.network.Close())
	}
	if s.lock != nil && errors.Join(errs...) == nil {
		errs = append(errs, os.RemoveAll(m.sandboxDir(s.id)), s.lock.Close())
		s.lock = nil
	}
	return errors.Join(errs...)
}

// claimDir makes the sandbox's folder and locks it for as long as this process
// lives, so that another process on the data folder knows it is in use.
func (m *Manager) claimDir(s *sandbox) (string, error) {
	unlock, err := m.lockSandboxes()
	if err != nil {
		return "", err
	}
	defer unlock()
	dir := m.sandboxDir(s.id)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return "", err
	}
	s.lock, err = lockFile(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
	return dir, err
}

// lockSandboxes keeps other processes from making or sweeping folders meanwhile.
func (m *Manager) lockSandboxes() (unlock func() error, err error) {
	file, err := lockFile(filepath.Join(m.sandboxesDir(), ".lock"), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return file.Close, nil
}

// sweep removes every sandbox whose process is gone: folder, processes, control
// groups, network, and its record says so.
func (m *Manager) sweep(ctx context.Context) error {
	unlock, err := m.lockSandboxes()
	if err != nil {
		return err
	}
	defer unlock()
	entries, err := os.ReadDir(m.sandboxesDir())
	if err != nil {
		return err
	}
	inUse := map[string]bool{}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		id := entry.Name()
		err := m.sweepOne(ctx, id)
		if errors.Is(err, unix.EWOULDBLOCK) {
			inUse[id] = true
		} else if err != nil {
			return fmt.Errorf("remove what is left of sandbox %s: %w", id, err)
		}
	}
	if err := m.config.Engine.SweepOthers(ctx, func(id string) bool { return inUse[id] }); err != nil {
		return fmt.Errorf("remove leftover processes: %w", err)
	}
	return m.sweepRecords(ctx, inUse)
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
	if err := m.config.Engine.Sweep(ctx, id, filepath.Join(dir, "engine")); err != nil {
		return err
	}
	if err := m.config.SweepNetwork(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (m *Manager) sweepRecords(ctx context.Context, inUse map[string]bool) error {
	records, err := m.config.Store.Sandboxes(ctx, false)
	if err != nil {
		return fmt.Errorf("read sandboxes: %w", err)
	}
	for _, record := range records {
		if inUse[record.ID] {
			continue
		}
		record.State = string(Ended)
		record.Reason = "the server that ran it was killed"
		record.EndedAt = time.Now().UTC()
		if err := m.config.Store.PutSandbox(ctx, record); err != nil {
			return err
		}
	}
	return nil
}

// lockFile opens and locks a file; the lock goes with the descriptor. The error
// is EWOULDBLOCK when another has it and how has LOCK_NB.
func lockFile(path string, how int) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(file.Fd()), how)
		if err == nil {
			return file, nil
		}
		if err != unix.EINTR {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

// installAgent writes the agent program into the data folder, once for each
// version of it.
func (m *Manager) installAgent() (string, error) {
	dir := m.agentPath(hashOf(m.config.Agent))
	if _, err := os.Stat(filepath.Join(dir, "agent")); err == nil {
		return dir, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	temporary, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return "", err
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(m.config.Agent)
	if err := errors.Join(err, temporary.Chmod(0o755), temporary.Close()); err != nil {
		return "", err
	}
	return dir, os.Rename(temporary.Name(), filepath.Join(dir, "agent"))
}

// hashOf names content: the first 128 bits of its SHA-256.
func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}
