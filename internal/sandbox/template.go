package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	filesystemrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem/filesystemconnect"
	processrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/process/processconnect"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Time limits of a build, as E2B's: a start command without a ready command gets
// a fixed wait; a ready command is tried until it succeeds.
const (
	startWait     = 20 * time.Second
	readyPatience = 10 * time.Minute
	readyEvery    = 2 * time.Second
	readyFirst    = 50 * time.Millisecond // before it is tried again at first
	// pruneAfter is how long a snapshot nobody refers to stays after its last use, so
	// that a create of another process that is just reading it can finish.
	pruneAfter = 10 * time.Minute
)

// What is beside a snapshot's folder while it is made.
const (
	lockSuffix    = ".lock"
	partialSuffix = ".partial"
)

// snapshotMeta is written beside a snapshot's memory.
type snapshotMeta struct {
	CAHash string `json:"caHash"` // of the trust store in it
	Engine string `json:"engine"` // Engine.Version that wrote it
	// Volumes and Seen are as in source.
	Volumes bool     `json:"volumes,omitempty"`
	Seen    []string `json:"seen,omitempty"`
}

// BuildTemplate makes t what t.Tags of t.Name mean: it boots a sandbox from t.Image,
// starts what t says, takes the snapshot and writes the record. The fields of t
// that describe the build (times, snapshot, hashes, size, and ids where there are
// none) are filled in here. With cold there is no snapshot and every sandbox boots from the image.
//
// Snapshots are named by what they hold: one that is there already is taken. One
// build of a snapshot runs at a time; a build that ends half-way leaves the
// template as it was. progress is told each step.
func (m *Manager) BuildTemplate(ctx context.Context, t store.Template, cold bool, progress func(string)) (store.Template, error) {
	return m.buildTemplate(ctx, t, cold, progress, m.config.Store.PutTemplate)
}

// FinishBuild is BuildTemplate for what the build with the record t.BuildID made:
// store.ErrNotFound when the record was deleted meanwhile, *LimitError when its key
// would have more on the disk than the quota lets it.
func (m *Manager) FinishBuild(ctx context.Context, q Quota, t store.Template, progress func(string)) (store.Template, error) {
	return m.buildTemplate(ctx, t, false, progress, func(ctx context.Context, t store.Template) (stored store.Template, replaced []store.Template, err error) {
		m.snapshots.Lock() // so that no two share the last room
		defer m.snapshots.Unlock()
		templates, err := m.config.Store.Templates(ctx)
		if err != nil {
			return stored, nil, err
		}
		if KeptRoom(m.config.DataDir, q, templates, t) < 0 {
			return stored, nil, q.KeptLimit()
		}
		return m.config.Store.PutBuiltTemplate(ctx, t)
	})
}

// RefreshTemplate takes the snapshot of a build that is there anew, if it has one.
// store.ErrNotFound when the build was replaced or deleted meanwhile.
func (m *Manager) RefreshTemplate(ctx context.Context, t store.Template, progress func(string)) (store.Template, error) {
	return m.buildTemplate(ctx, t, t.Snapshot == "", progress, func(ctx context.Context, t store.Template) (store.Template, []store.Template, error) {
		stored, err := m.config.Store.RefreshTemplate(ctx, t)
		return stored, nil, err
	})
}

// put stores a template that has been built.
type put func(ctx context.Context, t store.Template) (stored store.Template, replaced []store.Template, err error)

func (m *Manager) buildTemplate(ctx context.Context, t store.Template, cold bool, progress func(string), put put) (store.Template, error) {
	t.CreatedAt = time.Now().UTC()
	t.BuiltAt = t.CreatedAt
	t.ID = cmp.Or(t.ID, NewTemplateID())
	t.BuildID = cmp.Or(t.BuildID, uuid.NewString())
	t.AgentHash = filepath.Base(m.agentDir)
	t.EngineHash = m.config.Engine.Version()
	if !cold {
		name, err := m.snapshotName(t)
		if err != nil {
			return store.Template{}, err
		}
		t.Snapshot = name
		defer m.useSnapshot(name)() // one that is there already may be about to be removed
		if err := m.ensureSnapshot(ctx, t, progress); err != nil {
			return store.Template{}, fmt.Errorf("build template %s: %w", t.Name, err)
		}
	}
	t.SizeBytes = DiskBytes(m.imagePath(t.Image))
	if t.Upper != "" {
		t.SizeBytes += DiskBytes(m.imagePath(t.Upper))
	}
	if t.Snapshot != "" {
		t.SizeBytes += DiskBytes(m.snapshotDir(t.Snapshot))
	}
	stored, _, err := put(ctx, t)
	if err != nil {
		return store.Template{}, fmt.Errorf("write template %s: %w", t.Name, templateError(t.Name, err))
	}
	// The template is what it is meant to be, however the cleaning ends.
	if err := m.prune(context.WithoutCancel(ctx)); err != nil {
		m.config.Log.Error("files nothing needs were not removed", "error", err)
	}
	return stored, nil
}

// Current tells whether a template's build fits this program: its snapshot is
// there, and agent and engine are those it was built with.
func (m *Manager) Current(t store.Template) bool {
	if t.AgentHash != filepath.Base(m.agentDir) || t.EngineHash != m.config.Engine.Version() {
		return false
	}
	if _, err := os.Stat(m.imagePath(t.Image)); err != nil {
		return false
	}
	if t.Snapshot == "" {
		return true
	}
	_, err := os.Stat(m.metaFile(t.Snapshot))
	return err == nil
}

// snapshotName hashes everything that shapes a snapshot. An image's name says how
// it was made; size and time tell it from one made again in the same way.
func (m *Manager) snapshotName(t store.Template) (string, error) {
	image, err := os.Stat(m.imagePath(t.Image))
	if err != nil {
		return "", fmt.Errorf("image of template %s: %w", t.Name, err)
	}
	shape, err := json.Marshal(struct {
		Image, Upper, Agent, Engine, CA, Start, Ready, User, Workdir string
		CPUs                                                         int
		Size, Time, Memory, Disk, Processes                          int64
		Env                                                          map[string]string
		Kernels                                                      []string
		Volumes                                                      bool
	}{
		t.Image, t.Upper, t.AgentHash, t.EngineHash, m.caHash, t.StartCmd, t.ReadyCmd, t.User, t.Workdir,
		t.CPUs, image.Size(), image.ModTime().Unix(), t.MemoryBytes, t.DiskBytes, defaultProcesses, t.EnvVars, t.Kernels, true,
	})
	if err != nil {
		return "", err
	}
	return hashOf(shape), nil
}

// ensureSnapshot makes the snapshot unless it is there.
func (m *Manager) ensureSnapshot(ctx context.Context, t store.Template, progress func(string)) error {
	if err := os.MkdirAll(m.snapshotDir(""), 0o711); err != nil {
		return err
	}
	lock, err := m.lockSnapshot(ctx, t.Snapshot, progress)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := os.Stat(m.metaFile(t.Snapshot)); err == nil {
		progress("snapshot is there already")
		return nil
	}
	partial := m.snapshotDir(t.Snapshot + partialSuffix)
	if err := os.RemoveAll(partial); err != nil { // of a build that was killed
		return err
	}
	if err := os.Mkdir(partial, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(partial)
	if err := m.takeSnapshot(ctx, t, filepath.Join(partial, memoryName), progress); err != nil {
		return err
	}
	return m.commitSnapshot(t.Snapshot, snapshotMeta{CAHash: m.caHash, Engine: t.EngineHash, Volumes: true})
}

// lockPoll is how often a build looks whether the one it waits for has ended.
const lockPoll = 100 * time.Millisecond

// lockSnapshot waits for the right to make a snapshot. Who prunes may remove the file
// between its opening and its locking, so that it is no longer the one that others lock.
func (m *Manager) lockSnapshot(ctx context.Context, name string, progress func(string)) (*os.File, error) {
	path, said := m.snapshotDir(name+lockSuffix), false
	for {
		lock, err := lockFile(path, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			if isFile(lock, path) {
				return lock, nil
			}
			lock.Close()
			continue
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, err
		}
		if !said {
			progress("waiting for an equal snapshot that is being made")
			said = true
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(lockPoll):
		}
	}
}

// isFile tells whether a path still leads to an open file.
func isFile(open *os.File, path string) bool {
	a, err := open.Stat()
	if err != nil {
		return false
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// commitSnapshot gives a snapshot that was written beside its place its name.
func (m *Manager) commitSnapshot(name string, about snapshotMeta) error {
	meta, err := json.Marshal(about)
	if err != nil {
		return err
	}
	partial := m.snapshotDir(name + partialSuffix)
	if err := os.WriteFile(filepath.Join(partial, "snapshot.json"), meta, 0o600); err != nil {
		return err
	}
	if err := syncFiles(partial); err != nil { // the name below must not outlive what it names
		return err
	}
	if err := os.RemoveAll(m.snapshotDir(name)); err != nil {
		return err
	}
	return os.Rename(partial, m.snapshotDir(name))
}

// syncFiles brings the file system that holds dir to the disk.
func syncFiles(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// takeSnapshot boots the template once and checkpoints it into the folder to.
func (m *Manager) takeSnapshot(ctx context.Context, t store.Template, to string, progress func(string)) (err error) {
	s := newSandbox(CreateRequest{}, t)
	s.judgeAs(t.KeyID)
	s.from = m.coldSource(t)
	defer func() {
		if err != nil {
			if tail := s.log.tail(20); tail != "" {
				err = fmt.Errorf("%w\nlast lines of the agent:\n%s", err, tail)
			}
		}
		err = errors.Join(err, m.teardown(context.WithoutCancel(ctx), s))
		m.vanished(s)
	}()
	progress("booting")
	s.info.AccessToken = ""
	init := s.init()
	init.CABundle = m.config.CABundle
	if err := m.claimDir(s); err != nil {
		return err
	}
	if err := m.boot(ctx, s, init); err != nil {
		return err
	}
	r := s.present()
	if err := s.checkAccount(ctx); err != nil {
		return err
	}
	if len(t.Kernels) > 0 {
		progress(fmt.Sprintf("warming kernels %v", t.Kernels))
		if err := r.agent.warm(ctx, t.Kernels); err != nil {
			return err
		}
	}
	if t.StartCmd != "" || t.ReadyCmd != "" {
		progress("running the start command")
		if err := s.runStart(ctx, progress); err != nil {
			return err
		}
	}
	r.agent.close()
	progress("taking the snapshot")
	return r.instance.Checkpoint(ctx, to)
}

// checkAccount sees that the template's user has an account: nothing else may have asked
// for one while it was built. A working directory that is not there is no failure: what
// names none starts in / then.
func (s *sandbox) checkAccount(ctx context.Context) error {
	t := s.template
	if t.User == "" {
		return nil
	}
	calls := s.calls()
	defer calls.CloseIdleConnections()
	request := connect.NewRequest(&filesystemrpc.StatRequest{Path: "/"})
	request.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(t.User+":")))
	request.Header().Set("X-Access-Token", s.info.AccessToken)
	_, err := filesystemconnect.NewFilesystemClient(&http.Client{Transport: calls}, "http://agent").Stat(ctx, request)
	if code := connect.CodeOf(err); code == connect.CodeUnauthenticated || code == connect.CodeInvalidArgument {
		return fmt.Errorf("the user %q of the template has no account in it", t.User)
	}
	return err
}

// calls reaches the agent.
func (s *sandbox) calls() *http.Transport {
	network := s.present().network
	return &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return network.DialContext(ctx, hostapi.AgentPort)
	}}
}

// runStart runs the template's start command and waits until it is ready. What the
// command prints until then is told line by line.
func (s *sandbox) runStart(ctx context.Context, told func(line string)) error {
	t, transport := s.template, s.calls()
	defer transport.CloseIdleConnections()
	client := processconnect.NewProcessClient(&http.Client{Transport: transport}, "http://agent")
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	failed := make(chan error, 1) // at most one value
	if t.StartCmd != "" {
		start, err := client.Start(ctx, s.shell(t, t.StartCmd))
		if err != nil {
			return fmt.Errorf("start command %q: %w", t.StartCmd, err)
		}
		if !start.Receive() {
			start.Close()
			return fmt.Errorf("start command %q: %w", t.StartCmd, start.Err())
		}
		var follow sync.WaitGroup
		follow.Go(func() { failed <- followStart(start, told) })
		defer follow.Wait()
		defer cancel() // the process goes on
	}
	if t.ReadyCmd == "" {
		select {
		case <-time.After(startWait):
			return nil
		case err := <-failed:
			if err != nil {
				return fmt.Errorf("start command %q: %w", t.StartCmd, err)
			}
			return nil // it has done what it does
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for pause := readyFirst; ; pause = min(2*pause, readyEvery) {
		ready, err := s.succeeds(ctx, client, t)
		if ready {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("ready command %q did not succeed: %w", t.ReadyCmd, ctx.Err())
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case err := <-failed:
			if err != nil {
				return fmt.Errorf("start command %q: %w before the ready command %q succeeded", t.StartCmd, err, t.ReadyCmd)
			}
		case <-ctx.Done():
			return fmt.Errorf("ready command %q did not succeed: %w", t.ReadyCmd, ctx.Err())
		}
	}
}

// StartPrefix begins the lines of BuildTemplate's progress that a start command
// printed.
const StartPrefix = "[start] "

// followStart tells what the start command prints until nobody waits any more; an
// error when it ends and has failed.
func followStart(start *connect.ServerStreamForClient[processrpc.StartResponse], told func(line string)) error {
	defer start.Close()
	for start.Receive() {
		event := start.Msg().GetEvent()
		for _, output := range [][]byte{event.GetData().GetStdout(), event.GetData().GetStderr()} {
			for line := range bytes.Lines(output) {
				told(StartPrefix + string(bytes.TrimRight(line, "\r\n")))
			}
		}
		if end := event.GetEnd(); end != nil && ending(end) != "" {
			return fmt.Errorf("it ended with %s", ending(end))
		}
	}
	return nil
}

// succeeds runs the ready command once.
func (s *sandbox) succeeds(ctx context.Context, client processconnect.ProcessClient, t store.Template) (bool, error) {
	stream, err := client.Start(ctx, s.shell(t, t.ReadyCmd))
	if err != nil {
		return false, fmt.Errorf("ready command %q: %w", t.ReadyCmd, err)
	}
	defer stream.Close()
	for stream.Receive() {
		if end := stream.Msg().GetEvent().GetEnd(); end != nil {
			return ending(end) == "", nil
		}
	}
	return false, fmt.Errorf("ready command %q: %w", t.ReadyCmd, stream.Err())
}

func (s *sandbox) shell(t store.Template, command string) *connect.Request[processrpc.StartRequest] {
	request := connect.NewRequest(&processrpc.StartRequest{Process: &processrpc.ProcessConfig{
		Cmd:  "/bin/bash",
		Args: []string{"-l", "-c", command},
	}})
	if t.User != "" {
		request.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(t.User+":")))
	}
	request.Header().Set("X-Access-Token", s.info.AccessToken)
	return request
}

// prune removes the snapshots no template refers to, what killed builds left, and
// the engine programs that nothing was written by.
func (m *Manager) prune(ctx context.Context) error {
	used, err := m.needed(ctx)
	if err != nil {
		return err
	}
	return errors.Join(
		m.pruneSnapshots(used.snapshots),
		m.config.Engine.Prune(func(version string) bool { return used.engines[version] }),
	)
}

// sweepSnapshots removes what a server that was killed was just saving. It is
// called when there is no server yet that could be.
func (m *Manager) sweepSnapshots(ctx context.Context) error {
	templates, err := m.config.Store.Templates(ctx)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, t := range templates {
		wanted[t.Snapshot] = true
	}
	entries, err := os.ReadDir(m.snapshotDir(""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, entry := range entries {
		name := entry.Name()
		ours := strings.HasPrefix(name, forkPrefix) || strings.HasPrefix(name, snapshotPrefix)
		if ours && !wanted[name] {
			errs = append(errs, os.RemoveAll(m.snapshotDir(name)))
		}
	}
	return errors.Join(errs...)
}

func (m *Manager) pruneSnapshots(wanted map[string]bool) error {
	entries, err := os.ReadDir(m.snapshotDir(""))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || wanted[entry.Name()] {
			continue
		}
		if !entry.IsDir() {
			m.removeLock(entry.Name(), info.ModTime())
			continue
		}
		if name, partial := strings.CutSuffix(entry.Name(), partialSuffix); partial {
			err = m.removePartial(name)
		} else if time.Since(info.ModTime()) > pruneAfter && !m.goesLater(name) {
			err = os.RemoveAll(m.snapshotDir(name))
		}
		if err != nil {
			return fmt.Errorf("remove superseded snapshot: %w", err)
		}
	}
	return nil
}

// goesLater tells whether sandboxes are starting from a snapshot that is to go: the
// last of them removes it.
func (m *Manager) goesLater(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inUse[name] == 0 {
		return false
	}
	m.unwanted[name] = true
	return true
}

// removeLock removes the lock of a snapshot that is gone. One that was made a
// moment ago may belong to one that is just beginning.
func (m *Manager) removeLock(file string, made time.Time) {
	name, isLock := strings.CutSuffix(file, lockSuffix)
	if !isLock || time.Since(made) < pruneAfter {
		return
	}
	if _, err := os.Stat(m.snapshotDir(name)); err == nil {
		return
	}
	if lock, err := lockFile(m.snapshotDir(file), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		os.Remove(lock.Name())
		lock.Close()
	}
}

// removePartial removes a half-made snapshot unless its build is under way.
func (m *Manager) removePartial(name string) error {
	lock, err := lockFile(m.snapshotDir(name+lockSuffix), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	return os.RemoveAll(m.snapshotDir(name + partialSuffix))
}

// snapshotMeta is what was written beside a snapshot; the zero one when there is none.
func (m *Manager) snapshotMeta(name string) snapshotMeta {
	var meta snapshotMeta
	raw, err := os.ReadFile(m.metaFile(name))
	if err != nil || json.Unmarshal(raw, &meta) != nil {
		return snapshotMeta{}
	}
	return meta
}

func (m *Manager) metaFile(snapshot string) string {
	return filepath.Join(m.snapshotDir(snapshot), "snapshot.json")
}

// DiskBytes is what a file or folder takes on disk, bytes.
func DiskBytes(path string) int64 {
	var total int64
	filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				total += stat.Blocks * 512
			}
		}
		return nil
	})
	return total
}
