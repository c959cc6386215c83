package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/volume"
)

// Network is the gateway of one sandbox.
type Network interface {
	NamespacePath() string
	// DialContext connects to a port inside; errors.Is finds ECONNREFUSED when
	// nothing listens.
	DialContext(ctx context.Context, port uint16) (net.Conn, error)
	// Hold lets nothing pass in or out until Release; connections live on.
	Hold()
	Release()
	// OwnerChanged is told when NetworkConfig.Owner names another sandbox, or the same
	// one with other options or rules: they are to hold for open connections too.
	OwnerChanged()
	// Detach lets go of the network: the namespace stays for a process that adopts
	// it, connections are lost.
	Detach() error
	Close() error
}

// NetworkConfig says how the network of one sandbox is made.
type NetworkConfig struct {
	Dir string // the sandbox's folder
	// Adopt takes over the network that a process which is gone made in Dir.
	Adopt bool
	// Owner tells whose the network is at this moment; nil while it waits for one, and
	// then nothing may pass. It does not block.
	Owner func() *Owner
}

// Config is what a manager works with.
type Config struct {
	// DataDir is the data folder, absolute.
	DataDir string
	Engine  engine.Engine
	Store   store.Store
	// Network makes the network of a sandbox; SweepNetwork removes what a dead
	// process left of one in a sandbox's folder.
	Network      func(ctx context.Context, c NetworkConfig) (Network, error)
	SweepNetwork func(dir string) error
	// Agent is the program that runs as PID 1 inside.
	Agent []byte
	// Programs lie beside the agent, by their names, in the folder that is mounted
	// into every sandbox.
	Programs map[string][]byte
	// CABundle is PEM given to every sandbox as its system trust store; empty
	// leaves the image's.
	CABundle []byte
	// OnEvent is told of every event, in the order of each sandbox, by the goroutine
	// that made it happen; it may take the time of a database write. Nil is nobody.
	OnEvent func(Event)
	// OnGone is told when nothing is left of a sandbox of which there are no events: one that
	// could not be started, or in which a template was made. Nil is nobody.
	OnGone func(sandboxID string)
	// OnProcess is told of each program that is started in a sandbox, where the engine
	// watches them. Nil is nobody.
	OnProcess func(sandboxID, keyID string, p engine.Process)
	// OnStep is called when a step of a start, a pause or a copy begins (see step.go);
	// what it returns is the step's context and is called at its end. Nil is nobody.
	OnStep func(ctx context.Context, step string) (context.Context, func(error))
	Log    *slog.Logger
	// Pool is how many shells (see pool) wait for each kind of sandbox that was started
	// lately; 0 is none.
	Pool int
	// VolumeSize is what a volume has that is made without a size, bytes; 0 is
	// volume.DefaultSize.
	VolumeSize int64
	// Keep makes sandboxes outlive the process: Leave and a crash leave them running,
	// and the next manager with Keep on the data folder adopts them. One manager with
	// Keep at a time has a data folder.
	Keep bool
}

// Manager makes, finds and ends sandboxes. Safe for concurrent use.
//
// Lock order: sandbox.changing, Manager.mu, sandbox.mu; but for the first, which
// is held for whole changes, no lock is held over I/O.
type Manager struct {
	config   Config
	agentDir string // holds the agent program, mounted into every sandbox
	// agentHeld is that folder, locked against pruning.
	agentHeld *os.File
	caHash    string
	starting  chan struct{} // limits how many are started at once
	onStop    []func(id string)

	ctx    context.Context // ends when the manager closes
	cancel context.CancelFunc
	work   sync.WaitGroup // creates under way and the pruning of records

	mu   sync.RWMutex
	live map[string]*sandbox
	// reserved are what is being built; they count for quotas and are nothing else.
	reserved map[*sandbox]bool
	gone     map[string]string // reasons of sandboxes that ended, the newest goneMost
	goneQ    []string
	rates    map[string]*rate.Limiter // of creates, by key

	cpuTime atomic.Int64 // nanoseconds that sandboxes have used

	inUse    map[string]int  // snapshots that sandboxes are starting from
	unwanted map[string]bool // those of them that go when nothing starts from them any more
	pool     *pool
	volumes  *volume.Volumes

	snapshots sync.Mutex // held while one is added or removed
}

var _ Sandboxes = (*Manager)(nil)

const (
	goneMost = 1000
	// defaultProcesses is how many processes and threads a sandbox may have.
	defaultProcesses = 512
	// startPatience bounds one start, waiting for its turn not included.
	startPatience = 60 * time.Second
	// patiencePerGiB comes on top for a saved state.
	patiencePerGiB = 10 * time.Second
	pruneEvery     = time.Hour
	teardownEvery  = 10 * time.Second
)

// NewManager takes charge of the sandboxes folder of a data folder: it removes
// what processes that died have left there, and with Keep adopts what they kept.
func NewManager(ctx context.Context, config Config) (*Manager, error) {
	m := &Manager{
		config:   config,
		starting: make(chan struct{}, max(2, runtime.NumCPU())),
		live:     map[string]*sandbox{},
		reserved: map[*sandbox]bool{},
		gone:     map[string]string{},
		rates:    map[string]*rate.Limiter{},
		inUse:    map[string]int{},
		unwanted: map[string]bool{},
	}
	m.pool = newPool(m)
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if len(config.CABundle) > 0 {
		m.caHash = hashOf(config.CABundle)
	}
	if err := os.MkdirAll(m.sandboxesDir(), 0o711); err != nil {
		return nil, fmt.Errorf("make sandboxes folder: %w", err)
	}
	var err error
	if m.agentDir, err = m.installAgent(); err != nil {
		return nil, fmt.Errorf("install agent: %w", err)
	}
	if m.volumes, err = volume.Open(filepath.Join(config.DataDir, "volumes"), config.Log); err != nil {
		return nil, err
	}
	m.config.VolumeSize = cmp.Or(config.VolumeSize, volume.DefaultSize)
	if err := m.takeOver(ctx); err != nil {
		return nil, err
	}
	ended, err := config.Store.Sandboxes(ctx, true)
	if err != nil {
		return nil, fmt.Errorf("read ended sandboxes: %w", err)
	}
	for _, record := range ended {
		m.rememberGone(record.ID, record.Reason)
	}
	m.work.Go(m.pruneRecords)
	m.work.Go(m.sample)
	m.work.Go(func() { m.volumes.RestUntil(m.ctx) })
	return m, nil
}

// pruneRecords forgets what ended long ago, until the manager closes.
func (m *Manager) pruneRecords() {
	for {
		if _, err := m.config.Store.PruneSandboxes(m.ctx, time.Now().Add(-store.KeepEnded), store.KeepEndedMost); err != nil && m.ctx.Err() == nil {
			m.config.Log.Error("old records were not removed", "error", err)
		}
		if m.config.Keep {
			if err := m.prune(m.ctx); err != nil && m.ctx.Err() == nil {
				m.config.Log.Error("files nothing needs were not removed", "error", err)
			}
		}
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(pruneEvery):
		}
	}
}

// Close ends every sandbox that runs and returns when nothing is left of them.
// With Keep the paused ones stay for the next manager, else they end as well.
func (m *Manager) Close(ctx context.Context) error {
	return m.close(func(s *sandbox) error {
		if m.config.Keep && s.state() == Paused {
			return m.letGo(ctx, s)
		}
		return m.end(ctx, s, "the server was stopped")
	})
}

// Leave lets go of every sandbox. With Keep they run on and the next manager
// adopts them; without it is Close.
func (m *Manager) Leave(ctx context.Context) error {
	if !m.config.Keep {
		return m.Close(ctx)
	}
	return m.close(func(s *sandbox) error { return m.letGo(ctx, s) })
}

func (m *Manager) close(each func(s *sandbox) error) error {
	m.mu.Lock()
	m.cancel() // starts under way undo themselves, pauses come to their end; no new ones begin
	m.mu.Unlock()
	m.work.Wait()
	m.pool.close()
	all := m.all()
	errs := make([]error, len(all))
	var wait sync.WaitGroup
	for i, s := range all {
		wait.Go(func() { errs[i] = each(s) })
	}
	wait.Wait()
	held := m.agentHeld.Close()
	if errors.Is(held, os.ErrClosed) { // a server leaves, and then closes
		held = nil
	}
	return errors.Join(append(errs, m.volumes.Rest(), held)...)
}

// letGo forgets a sandbox, running or paused, that stays for the next manager.
func (m *Manager) letGo(ctx context.Context, s *sandbox) error {
	select {
	case s.changing <- struct{}{}: // never given back
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ended:
		return nil
	}
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	err := m.record(ctx, s)
	if r := s.present(); r != nil {
		r.leave()
		r.agent.close()
		r.instance.Detach()
		err = errors.Join(err, r.network.Detach())
		if r.lock != nil {
			err = errors.Join(err, r.lock.Close())
		}
	}
	m.closeHistory(s)
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	m.mu.Lock()
	delete(m.live, s.id)
	m.mu.Unlock()
	return err
}

// all are the sandboxes there are now.
func (m *Manager) all() []*sandbox {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Collect(maps.Values(m.live))
}

// OnStop implements Sandboxes.
func (m *Manager) OnStop(fn func(id string)) { m.onStop = append(m.onStop, fn) }

// Get implements Sandboxes.
func (m *Manager) Get(id string) (Info, error) {
	s, err := m.find(id)
	if err != nil {
		return Info{}, err
	}
	return s.snapshotInfo(), nil
}

// find returns a sandbox that runs or is paused, or is on its way to either.
func (m *Manager) find(id string) (*sandbox, error) {
	m.mu.RLock()
	s, ok := m.live[id]
	reason, wasThere := m.gone[id]
	m.mu.RUnlock()
	if ok {
		switch s.state() {
		case Running, Pausing, Paused, Resuming:
			return s, nil
		case Ending, Ended:
			return nil, s.goneError()
		}
	}
	if wasThere {
		return nil, &GoneError{ID: id, Reason: reason}
	}
	return nil, fmt.Errorf("%w: no live sandbox has the id %q", ErrNotFound, id)
}

// findRunning returns a sandbox that runs, and its run.
func (m *Manager) findRunning(id string) (*sandbox, *run, error) {
	s, err := m.find(id)
	if err != nil {
		return nil, nil, err
	}
	r, err := s.running()
	return s, r, err
}

// List implements Sandboxes.
func (m *Manager) List(f Filter) []Info {
	var found []Info
	for _, s := range m.all() {
		if info := s.snapshotInfo(); f.matches(info) {
			found = append(found, info)
		}
	}
	slices.SortFunc(found, func(a, b Info) int {
		if c := a.StartedAt.Compare(b.StartedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return found
}

func (f Filter) matches(info Info) bool {
	if f.KeyID != "" && info.KeyID != f.KeyID {
		return false
	}
	if f.Template != "" && f.Template != info.TemplateID && f.Template != info.TemplateName && f.Template != info.BuildID {
		return false
	}
	if len(f.States) > 0 && !slices.Contains(f.States, info.State) {
		return false
	}
	for k, v := range f.Metadata {
		if have, ok := info.Metadata[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// Kill implements Sandboxes.
func (m *Manager) Kill(ctx context.Context, id, reason string) error {
	s, err := m.find(id)
	if err != nil {
		return err
	}
	return m.end(ctx, s, reason)
}

// SetTimeout implements Sandboxes.
func (m *Manager) SetTimeout(_ context.Context, id string, d time.Duration, extendOnly bool) (Info, error) {
	s, _, err := m.findRunning(id)
	if err != nil {
		return Info{}, err
	}
	info, err := s.setTimeout(d, extendOnly, func() { m.expire(s) })
	if err != nil {
		return Info{}, err
	}
	if err := m.record(m.ctx, s); err != nil {
		return info, err
	}
	m.emit(EventUpdated, s, "its timeout was set")
	return info, nil
}

// SetNetwork implements Sandboxes.
func (m *Manager) SetNetwork(ctx context.Context, id string, change func(*NetworkOptions)) (Info, error) {
	return m.changeOwner(ctx, id, "its network options were set", func(info *Info) {
		before := info.Network
		change(&info.Network)
		info.Network.PrivateTraffic, info.Network.MaskRequestHost, info.Network.HTTPSPorts = before.PrivateTraffic, before.MaskRequestHost, before.HTTPSPorts
	})
}

// SetRules implements Sandboxes.
func (m *Manager) SetRules(ctx context.Context, id string, rules policy.Table) (Info, error) {
	return m.changeOwner(ctx, id, "its rules were set", func(info *Info) { info.Rules = rules })
}

func (m *Manager) changeOwner(ctx context.Context, id, what string, change func(*Info)) (Info, error) {
	s, err := m.find(id)
	if err != nil {
		return Info{}, err
	}
	if err := s.changeOwner(change); err != nil {
		return Info{}, err
	}
	if err := m.record(ctx, s); err != nil {
		return s.snapshotInfo(), err
	}
	m.emit(EventUpdated, s, what)
	return s.snapshotInfo(), nil
}

// expire does what a sandbox is to do when its time is over.
func (m *Manager) expire(s *sandbox) {
	info := s.snapshotInfo()
	why := "its timeout passed at " + info.EndAt.Format(time.RFC3339)
	if !info.Lifecycle.PauseOnTimeout {
		if s.condemn(why, true) {
			m.endCondemned(context.Background(), s, why)
		}
		return
	}
	err := m.pause(context.Background(), s, info.Lifecycle.DiskOnly, why, s.overdue)
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrPaused) {
		m.config.Log.Error("a pause at the timeout failed; it is tried again", "sandbox", s.id, "again_in", pauseAgain, "error", err)
	}
}

// Logs implements Sandboxes.
func (m *Manager) Logs(id string) ([]LogLine, error) {
	s, err := m.find(id)
	if err != nil {
		return nil, err
	}
	return s.log.all(), nil
}

// Dial implements Sandboxes. A port that refuses on the sandbox's address may
// still listen on its loopback; the agent reaches that one.
func (m *Manager) Dial(ctx context.Context, id string, port uint16) (net.Conn, error) {
	_, r, err := m.findRunning(id)
	if err != nil {
		return nil, err
	}
	if port == 0 || port == hostapi.HostPort {
		return nil, ErrPortClosed
	}
	for {
		conn, err := r.dial(ctx, port)
		if !errors.Is(err, ErrPortClosed) || time.Since(r.restored) > listenGrace {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-r.left: // the run is over: say how
			if _, _, err := m.findRunning(id); err != nil {
				return nil, err
			}
			return nil, ErrPortClosed
		case <-time.After(listenEvery):
		}
	}
}

// A restored sandbox's sockets listen again one after the other, in the first
// moments of its run: a port that refuses then is asked again.
const (
	listenGrace = time.Second
	listenEvery = 5 * time.Millisecond
)

func (r *run) dial(ctx context.Context, port uint16) (net.Conn, error) {
	conn, err := r.network.DialContext(ctx, port)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return conn, err
	}
	if port == hostapi.AgentPort || port == hostapi.CodePort {
		return nil, ErrPortClosed
	}
	return r.agent.tunnel(ctx, port)
}

// Create implements Sandboxes.
func (m *Manager) Create(ctx context.Context, req CreateRequest) (Info, error) {
	if req.Timeout <= 0 {
		return Info{}, &InvalidError{"the timeout must be greater than zero"}
	}
	template, err := m.config.Store.Template(ctx, req.Template)
	if errors.Is(err, store.ErrNotFound) || (err == nil && !template.UsableBy(req.KeyID)) {
		return Info{}, fmt.Errorf("%w: %q", ErrTemplateNotFound, req.Template)
	}
	if err != nil {
		return Info{}, err
	}
	defer m.useSnapshot(template.Snapshot)()
	from, err := m.sourceOf(template)
	if err != nil {
		return Info{}, err
	}
	s, err := m.enterNew(ctx, req, template, from)
	if err != nil {
		return Info{}, err
	}
	if err := m.create(ctx, s); err != nil {
		return Info{}, fmt.Errorf("create sandbox from template %s: %w", template.Name, err)
	}
	return s.snapshotInfo(), nil
}

// enterNew admits the sandbox of a request. One with volumes has its record then,
// by which other processes know that they are in use.
func (m *Manager) enterNew(ctx context.Context, req CreateRequest, template store.Template, from source) (*sandbox, error) {
	if len(req.Volumes) == 0 {
		s := newSandbox(req, template)
		s.from = from
		return s, m.admit(req.Quota, s)
	}
	release, err := m.volumes.Hold(false)
	if err != nil {
		return nil, err
	}
	defer release()
	if req.Volumes, err = m.resolveMounts(ctx, req.KeyID, req.Volumes); err != nil {
		return nil, err
	}
	if !from.Volumes && template.SourceSandbox != "" {
		return nil, &InvalidError{fmt.Sprintf("snapshot %s was taken by a version without volumes: none can be mounted in sandboxes made from it", template.ID)}
	}
	if !from.Volumes { // it was built by a version without volumes
		from = m.coldSource(template)
	}
	s := newSandbox(req, template)
	s.from = from
	if err := m.admit(req.Quota, s); err != nil {
		return nil, err
	}
	if err := m.record(ctx, s); err != nil {
		m.withdraw(s)
		return nil, err
	}
	return s, nil
}

// create takes a sandbox that was admitted to running, or undoes all of it.
func (m *Manager) create(ctx context.Context, s *sandbox) error {
	defer m.work.Done()
	// The work outlives a caller that hangs up only to be undone.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	if err := m.start(ctx, s); err != nil {
		m.fail(ctx, s, err)
		return err
	}
	s.log.add("lifecycle", "running")
	m.emit(EventCreated, s, "")
	return nil
}

// takeTurn waits for the right to start a sandbox: as many start at once as there
// are processors.
func (m *Manager) takeTurn(ctx context.Context) error {
	return m.step(ctx, stepTurn, func(ctx context.Context) error {
		select {
		case m.starting <- struct{}{}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func (m *Manager) giveTurn() { <-m.starting }

// start takes a sandbox from its record to running.
func (m *Manager) start(ctx context.Context, s *sandbox) error {
	if err := m.record(ctx, s); err != nil {
		return err
	}
	if err := m.takeTurn(ctx); err != nil {
		return err
	}
	defer m.giveTurn()
	bootCtx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	init := s.init()
	if s.from.CA != m.caHash {
		init.CABundle = m.config.CABundle
	}
	if err := m.claimDir(s); err != nil {
		return err
	}
	if err := m.boot(bootCtx, s, init); err != nil {
		return err
	}
	if s.from.memory == "" && s.template.StartCmd != "" {
		if err := s.runStart(bootCtx, s.told); err != nil {
			return err
		}
	}
	return m.letRun(ctx, s, s.timeout)
}

// watch ends a sandbox whose processes have ended by themselves, until it is
// paused, ended or let go.
func (m *Manager) watch(s *sandbox, r *run) {
	select {
	case <-r.left:
		return
	case <-r.instance.Done():
	}
	select {
	case <-r.left: // the end was ours
		return
	default:
	}
	m.config.Log.Warn("sandbox ended by itself", "sandbox", s.id, "agent", s.log.tail(20))
	m.end(context.Background(), s, r.instance.Exit().Reason)
}

// fail undoes a start that did not succeed.
func (m *Manager) fail(ctx context.Context, s *sandbox, cause error) {
	ctx = context.WithoutCancel(ctx)
	s.setReason(cause.Error())
	s.setState(Failed)
	m.config.Log.Error("create failed", "sandbox", s.id, "error", cause, "agent", s.log.tail(20))
	m.finish(ctx, s)
	m.vanished(s)
}

// vanished tells that nothing is left of a sandbox of which there were no events.
func (m *Manager) vanished(s *sandbox) {
	if m.config.OnGone != nil {
		m.config.OnGone(s.id)
	}
}

// end takes a sandbox down, running or paused, and returns when nothing is left
// of it, whoever began it.
func (m *Manager) end(ctx context.Context, s *sandbox, reason string) error {
	if !s.condemn(reason, false) {
		select {
		case <-s.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return m.endCondemned(ctx, s, reason)
}

func (m *Manager) endCondemned(ctx context.Context, s *sandbox, reason string) error {
	s.changing <- struct{}{} // a change under way has been told to give up
	defer func() { <-s.changing }()
	if err := s.setState(Ending); err != nil {
		return err
	}
	m.config.Log.Info("sandbox ends", "sandbox", s.id, "reason", reason)
	err := m.finish(context.WithoutCancel(ctx), s)
	m.emit(EventEnded, s, reason)
	return err
}

// finish removes what a sandbox has, forgets it and writes its last record.
func (m *Manager) finish(ctx context.Context, s *sandbox) error {
	defer close(s.ended)
	err := m.teardown(ctx, s)
	if s.state() == Ending {
		s.setState(Ended)
	}
	info := s.snapshotInfo()
	m.mu.Lock()
	delete(m.live, s.id)
	m.rememberGoneLocked(s.id, info.Reason)
	m.mu.Unlock()
	for _, fn := range m.onStop {
		fn(s.id)
	}
	if err != nil {
		m.config.Log.Error("sandbox left something behind; trying again", "sandbox", s.id, "error", err)
		go m.retryTeardown(s)
	}
	return errors.Join(err, m.record(ctx, s))
}

// retryTeardown tries until it succeeds or the manager closes; then the next
// start of a server sweeps.
func (m *Manager) retryTeardown(s *sandbox) {
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(teardownEvery):
		}
		if m.teardown(m.ctx, s) == nil {
			return
		}
	}
}

func (m *Manager) rememberGone(id, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rememberGoneLocked(id, reason)
}

func (m *Manager) rememberGoneLocked(id, reason string) {
	if len(m.goneQ) >= goneMost {
		delete(m.gone, m.goneQ[0])
		m.goneQ = m.goneQ[1:]
	}
	m.gone[id] = reason
	m.goneQ = append(m.goneQ, id)
}

// record writes the sandbox's durable record.
func (m *Manager) record(ctx context.Context, s *sandbox) error {
	s.recording.Lock()
	defer s.recording.Unlock()
	if err := m.config.Store.PutSandbox(context.WithoutCancel(ctx), s.record(m.config.Keep)); err != nil {
		return fmt.Errorf("write record of %s: %w", s.id, err)
	}
	return nil
}

func (m *Manager) sandboxesDir() string { return filepath.Join(m.config.DataDir, "sandboxes") }
func (m *Manager) sandboxDir(id string) string {
	return filepath.Join(m.sandboxesDir(), id)
}
func (m *Manager) engineDir(id string) string { return filepath.Join(m.sandboxDir(id), "engine") }
func (m *Manager) imagePath(name string) string {
	return filepath.Join(m.config.DataDir, "images", name)
}
func (m *Manager) agentPath(hash string) string {
	return filepath.Join(m.config.DataDir, "agents", hash)
}
func (m *Manager) snapshotDir(name string) string {
	return filepath.Join(m.config.DataDir, "snapshots", name)
}

// idAlphabet and idLength make an id a DNS label that no other id is a prefix of
// (runsc takes prefixes for ids).
const (
	idAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	idLength   = 20
)

// newID returns a fresh id of 103 random bits after its first letter.
func newID() string {
	id := make([]byte, 0, idLength+1)
	id = append(id, 'i')
	for len(id) <= idLength {
		var b [32]byte
		rand.Read(b[:])
		for _, v := range b {
			// 252 is the largest multiple of 36 in a byte: no letter is favoured.
			if v < 252 && len(id) <= idLength {
				id = append(id, idAlphabet[v%36])
			}
		}
	}
	return string(id)
}

func newToken() string {
	var b [32]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
