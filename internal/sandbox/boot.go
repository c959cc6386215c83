package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/volume"
)

// agentMount is where the agent program is seen inside. It is mounted, not part
// of the image, so that a new agent needs no new images, only new snapshots.
const agentMount = "/.tombolo"

// source is what a run of a sandbox is started from. What is exported is kept in
// the sandbox's record: it holds for the run as long as it lives, and for what is
// saved of it.
type source struct {
	Agent  string `json:"agent"`        // folder below agents/; a snapshot's memory holds pages of that program
	Engine string `json:"engine"`       // Engine.Version
	Image  string `json:"image"`        // imageStamp of the image
	CA     string `json:"ca,omitempty"` // hash of the trust store inside
	// Volumes: it has the mount that volumes are seen by. What was saved without it
	// is restored without it.
	Volumes bool `json:"volumes,omitempty"`
	// Seen are volumes that the memory has seen and that need not be the sandbox's.
	Seen []string `json:"seen,omitempty"`

	memory string // folder to restore from
	disk   string // folder whose disk to boot from
	upper  string // file with what to boot with over the image, where there is neither
}

// sourceOf is what sandboxes of a template start from. A snapshot belongs to the
// engine that wrote it. Where that is gone a template that was built boots from
// its image, slower, until it is built again; the snapshot of a sandbox cannot.
func (m *Manager) sourceOf(t store.Template) (source, error) {
	stamp := m.imageStamp(t.Image)
	if t.SourceSandbox != "" && stamp != t.ImageStamp {
		return source{}, fmt.Errorf("the image %s of snapshot %s is not on this machine any more, or was made again", t.Image, t.ID)
	}
	if t.DiskOnly && m.config.Engine.Has(t.EngineHash) {
		return source{
			Agent: filepath.Base(m.agentDir), Engine: t.EngineHash, Image: stamp, Volumes: true,
			disk: filepath.Join(m.snapshotDir(t.Snapshot), diskName),
		}, nil
	}
	if t.Snapshot != "" && !t.DiskOnly && m.config.Engine.Has(t.EngineHash) {
		meta := m.snapshotMeta(t.Snapshot)
		return source{
			Agent: t.AgentHash, Engine: t.EngineHash, Image: stamp, CA: meta.CAHash, Volumes: meta.Volumes, Seen: meta.Seen,
			memory: filepath.Join(m.snapshotDir(t.Snapshot), memoryName),
		}, nil
	}
	if t.SourceSandbox != "" {
		return source{}, fmt.Errorf("snapshot %s was written by engine version %q, whose program is not on this machine any more", t.ID, t.EngineHash)
	}
	return m.coldSource(t), nil
}

// coldSource boots an image with what this program has.
func (m *Manager) coldSource(t store.Template) source {
	from := source{Agent: filepath.Base(m.agentDir), Engine: m.config.Engine.Version(), Image: m.imageStamp(t.Image), Volumes: true}
	if t.Upper != "" {
		from.upper = m.imagePath(t.Upper)
	}
	return from
}

// imageStamp tells an image from one that was made again under the same name: what
// was saved of a sandbox fits the very file it ran from. Empty when there is none.
func (m *Manager) imageStamp(name string) string {
	info, err := os.Stat(m.imagePath(name))
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d-%d", info.Size(), info.ModTime().Unix())
}

// ImagesInUse names the images that sandboxes, running or paused, were started
// from.
func (m *Manager) ImagesInUse(ctx context.Context) (map[string]bool, error) {
	records, err := m.config.Store.Sandboxes(ctx, false)
	if err != nil {
		return nil, err
	}
	images := map[string]bool{}
	for _, record := range records {
		var d details
		if json.Unmarshal(record.Data, &d) == nil {
			images[d.Template.Image], images[d.Template.Upper] = true, true
		}
	}
	return images, nil
}

// boot makes a run and returns when its agent has been told who it is. On error
// what was made is left to endRun.
func (m *Manager) boot(ctx context.Context, s *sandbox, init hostapi.Init) error {
	r, err := m.startRun(ctx, s)
	if err != nil {
		return err
	}
	err = m.step(ctx, stepAgent, func(ctx context.Context) error { return r.introduce(ctx, init) })
	if err != nil {
		return err
	}
	if len(init.CABundle) > 0 {
		s.from.CA = m.caHash
	}
	return nil
}

// bootUnseen makes a run whose agent is told nothing and whose network is held.
func (m *Manager) bootUnseen(ctx context.Context, s *sandbox) (*run, error) {
	return m.withStandIns(ctx, s, func(standIns []standIn) (*run, error) {
		r := newRun(s.id)
		s.setRun(r) // so that endRun finds what is made for it
		if err := m.makeNetwork(ctx, s, r, false); err != nil {
			return nil, err
		}
		r.network.Hold()
		return r, m.startEngine(ctx, s, r, standIns)
	})
}

func (m *Manager) startRun(ctx context.Context, s *sandbox) (*run, error) {
	return m.withStandIns(ctx, s, func(standIns []standIn) (*run, error) { return m.tryRun(ctx, s, standIns) })
}

// withStandIns starts a run. One whose memory had files open on volumes that are
// not there any more finds empty ones in their place while it is restored.
func (m *Manager) withStandIns(ctx context.Context, s *sandbox, start func([]standIn) (*run, error)) (*run, error) {
	var standIns []standIn
	for try := 1; ; try++ {
		r, err := start(standIns)
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		missing := (*engine.MissingError)(nil)
		if try > maxStandIns || !errors.As(err, &missing) || !canStandIn(missing) {
			return r, s.blameVolumes(err)
		}
		standIns = append(standIns, standIn{path: missing.Path, mode: missing.Type})
		if err := m.endRun(context.WithoutCancel(ctx), s); err != nil {
			return nil, err
		}
	}
}

func (m *Manager) tryRun(ctx context.Context, s *sandbox, standIns []standIn) (*run, error) {
	if s.from.memory != "" {
		if sh := m.pool.take(kindOf(s), s); sh != nil {
			os.Remove(m.pool.mark(sh))
			s.setRun(sh.run) // so that endRun finds what is made for it
			s.introduceNetwork(sh.run)
			err := m.startEngine(ctx, s, sh.run, standIns)
			missing := (*engine.MissingError)(nil)
			if err == nil || ctx.Err() != nil || errors.As(err, &missing) {
				return sh.run, err
			}
			m.config.Log.Warn("a sandbox could not be started in its shell and is started without", "sandbox", s.id, "error", err)
			if err := m.endRun(context.WithoutCancel(ctx), s); err != nil {
				return nil, err
			}
		}
	}
	r := newRun(s.id)
	s.setRun(r)
	if err := m.makeNetwork(ctx, s, r, false); err != nil {
		return nil, err
	}
	return r, m.startEngine(ctx, s, r, standIns)
}

func newRun(id string) *run { return &run{id: id, left: make(chan struct{})} }

func (m *Manager) makeNetwork(ctx context.Context, s *sandbox, r *run, adopt bool) error {
	return m.step(ctx, stepNetwork, func(ctx context.Context) error {
		if err := m.openNetwork(ctx, r, NetworkConfig{Adopt: adopt, Owner: s.owner.Load}); err != nil {
			return err
		}
		s.introduceNetwork(r)
		return nil
	})
}

// told notes what the start command prints.
func (s *sandbox) told(line string) { s.log.add("start", line) }

func (m *Manager) openNetwork(ctx context.Context, r *run, c NetworkConfig) error {
	c.Dir = m.sandboxDir(r.id)
	network, err := m.config.Network(ctx, c)
	if err != nil {
		return fmt.Errorf("make network: %w", err)
	}
	r.network, r.agent = network, newAgentClient(network.DialContext)
	return nil
}

func (m *Manager) startEngine(ctx context.Context, s *sandbox, r *run, standIns []standIn) error {
	spec := m.spec(s, r)
	err := os.Mkdir(spec.Dir, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) { // a shell has it
		return err
	}
	if s.from.Volumes {
		if err := m.openVolumes(r); err != nil {
			return err
		}
		if err := m.showVolumes(ctx, s, r); err != nil {
			return err
		}
		remove, err := makeStandIns(m.volumesDir(r.id), standIns)
		defer remove()
		if err != nil {
			return err
		}
	}
	return m.step(ctx, stepEngine, func(ctx context.Context) error {
		if s.from.memory != "" {
			r.instance, err = m.config.Engine.Restore(ctx, spec, s.from.memory)
			r.restored = time.Now()
		} else {
			if spec.Disk = s.from.disk; spec.Disk == "" {
				spec.Upper = s.from.upper
			}
			r.instance, err = m.config.Engine.Start(ctx, spec)
		}
		return err
	})
}

func (m *Manager) spec(s *sandbox, r *run) engine.Spec {
	spec := m.specOf(kindOf(s), r)
	spec.Output = &s.log
	if m.config.OnProcess != nil {
		id, keyID := s.id, s.info.KeyID
		spec.OnProcess = func(p engine.Process) { m.config.OnProcess(id, keyID, p) }
	}
	spec.OnPressure = func(ctx context.Context, p engine.Pressure) error { return m.relieve(ctx, s, r, p) }
	return spec
}

// specOf is what all sandboxes of a kind have in common.
func (m *Manager) specOf(k kind, r *run) engine.Spec {
	mounts := []engine.Mount{{Source: m.agentPath(k.agent), Target: agentMount, ReadOnly: true}}
	if k.volumes {
		mounts = append(mounts, volumesMount(m.volumesDir(r.id)))
	}
	return engine.Spec{
		ID:               r.id,
		Dir:              m.engineDir(r.id),
		Version:          k.engine,
		Image:            m.imagePath(k.image),
		Mounts:           mounts,
		NetworkNamespace: r.network.NamespacePath(),
		Args:             []string{agentMount + "/agent"},
		Env:              []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
		Hostname:         hostname,
		Limits: engine.Limits{
			CPUs:        float64(k.cpus),
			MemoryBytes: k.memory,
			DiskBytes:   k.disk,
			Processes:   defaultProcesses,
		},
	}
}

// init is what the agent is told of this sandbox.
func (s *sandbox) init() hostapi.Init {
	env := maps.Clone(s.template.EnvVars)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, s.env)
	entropy := make([]byte, 64)
	rand.Read(entropy)
	return hostapi.Init{
		SandboxID:      s.id,
		TemplateID:     s.info.TemplateID,
		AccessToken:    s.info.AccessToken,
		EnvVars:        env,
		DefaultUser:    s.template.User,
		DefaultWorkdir: s.template.Workdir,
		Hostname:       hostname,
		Timestamp:      time.Now().UTC(),
		Entropy:        entropy,
		MemoryLimit:    s.template.MemoryBytes,
		ProcessLimit:   defaultProcesses,
		Volumes:        agentMounts(s.info.Volumes),
	}
}

// introduce tells the agent who it is. An agent that ends is not waited for.
func (r *run) introduce(ctx context.Context, init hostapi.Init) error {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-r.instance.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	err := r.agent.init(ctx, init)
	cancel()
	watch.Wait()
	if err == nil {
		return nil
	}
	select {
	case <-r.instance.Done():
		return fmt.Errorf("the sandbox ended while it started: %s", r.instance.Exit().Reason)
	default:
		return err
	}
}

// relievePatience bounds one call; the engine calls again.
const relievePatience = 3 * time.Second

// relieve has the agent end the process that uses most memory.
func (m *Manager) relieve(ctx context.Context, s *sandbox, r *run, p engine.Pressure) error {
	ctx, cancel := context.WithTimeout(ctx, relievePatience)
	defer cancel()
	relieved, err := r.agent.relieve(ctx, p.LimitBytes)
	switch {
	case err != nil:
		s.log.warn("lifecycle", "out of memory, and the agent did not answer: "+err.Error())
		return err
	case relieved.PID == 0:
		s.log.warn("lifecycle", "out of memory, and there is no process to end")
	default:
		s.log.warn("lifecycle", fmt.Sprintf("out of memory: ended %s (pid %d, %d MiB) at the limit of %d MiB",
			relieved.Name, relieved.PID, relieved.RSSBytes>>20, p.LimitBytes>>20))
	}
	return nil
}

// teardown ends the processes and removes the folder. It goes on after an error
// and may be called again.
func (m *Manager) teardown(ctx context.Context, s *sandbox) error {
	if err := m.endRun(ctx, s); err != nil || s.lock == nil {
		return err
	}
	m.closeHistory(s)
	if err := volume.RemoveAll(m.sandboxDir(s.id)); err != nil {
		return err
	}
	err := s.lock.Close()
	s.lock = nil
	return err
}

// claimDir makes the sandbox's folder.
func (m *Manager) claimDir(s *sandbox) (err error) {
	s.lock, err = m.claim(s.id)
	if err == nil {
		m.openHistory(s)
	}
	return err
}

// claim makes a folder and locks it for as long as this process lives, so that
// another process on the data folder knows it is in use.
func (m *Manager) claim(id string) (*os.File, error) {
	unlock, err := m.lockSandboxes()
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir := m.sandboxDir(id)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	return lockFile(filepath.Join(dir, "lock"), unix.LOCK_EX|unix.LOCK_NB)
}

// lockSandboxes keeps other processes from making or sweeping folders meanwhile.
func (m *Manager) lockSandboxes() (unlock func() error, err error) {
	file, err := lockFile(filepath.Join(m.sandboxesDir(), ".lock"), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return file.Close, nil
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

// installAgent writes the agent and the programs beside it into the data folder,
// once for each version of them. They share a folder and its name: a saved state
// may hold pages of any of them.
func (m *Manager) installAgent() (_ string, err error) {
	all := bytes.Clone(m.config.Agent)
	names := slices.Sorted(maps.Keys(m.config.Programs))
	for _, name := range names {
		all = append(all, m.config.Programs[name]...)
	}
	dir := m.agentPath(hashOf(all))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if m.agentHeld, err = holdFolder(dir, unix.LOCK_SH); err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "agent")); err == nil {
		return dir, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, name := range names {
		if err := installProgram(filepath.Join(dir, name), m.config.Programs[name]); err != nil {
			return "", err
		}
	}
	return dir, installProgram(filepath.Join(dir, "agent"), m.config.Agent) // last: with it the folder is complete
}

// installProgram writes a program in one step.
func installProgram(path string, program []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), "new-")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(program)
	if err := errors.Join(err, temporary.Chmod(0o755), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}

// hashOf names content: the first 128 bits of its SHA-256.
func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}
