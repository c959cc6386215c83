package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Folders and prefixes below builds/ of the data folder.
const (
	uploadsDir    = "uploads"  // archives of clients, by key and hash
	layersDir     = "layers"   // disks of stages, by key of the step
	rootsDir      = "roots"    // the files that were made of a stage, by its key
	logsDir       = "logs"     // of builds, lines of JSON; a lock beside each that runs
	partialPrefix = "partial-" // what is being written
)

// Files under images/ that builds make.
const (
	imagePrefix = sandbox.BuiltPrefix
	upperSuffix = ".upper" // see rootFiles
)

// Limits on builds.
const (
	// waitingMost is how many builds of one key may run or wait for their turn.
	waitingMost = 20
	// requestedMost is how many more of one key may be requested and not started yet.
	requestedMost = 100
	// patience bounds one build, waiting not included.
	patience = time.Hour
	// buildDisk is what the steps of a build may write, bytes.
	buildDisk = 20 << 30
	// buildsKept is how many builds that ended are remembered of each template, and
	// logsKept for how long.
	buildsKept = 20
	logsKept   = 30 * 24 * time.Hour
	// layersBytes is how much the layers may take in all, bytes. Between two prunings,
	// which spare what was used in the last hour, it is twice as much.
	layersBytes = 20 << 30
	layersKept  = 30 * 24 * time.Hour
	// importsBytes is how much the imported images may take that no template and no
	// sandbox has, bytes. Between two prunings, which spare what was made a moment ago, it
	// is twice as much and what is being imported.
	importsBytes = 20 << 30
	uploadsMost  = 20 << 30 // bytes, of one key
	uploadFiles  = 10_000   // of one key
)

// Errors that callers decide on.
var (
	// ErrNotFound: there is no such build.
	ErrNotFound = errors.New("build not found")
	// ErrStarted: the build was started already.
	ErrStarted = errors.New("the build was started already")
	// ErrTooMany: the key has as many builds under way as it may.
	ErrTooMany = fmt.Errorf("at most %d builds of a key may run or wait; wait for one to end", waitingMost)
)

// Config is what builds work with.
type Config struct {
	DataDir string // the data folder, absolute
	Manager *sandbox.Manager
	Store   store.Store
	Images  image.Builder
	Log     *slog.Logger
	// Told is given each line of each build's log at once; nil is nobody.
	Told func(Entry)
	// Admit decides on a build, with all commands it will run, before it is started; it may
	// take as long as a person does. Nil lets all be built.
	Admit func(ctx context.Context, b store.Build, commands []Command) error
}

// Builds runs builds. Safe for concurrent use, also by several processes on one
// data folder.
//
// The life of a build: Request gives it an id and says what it is to make, Start
// lets it wait for its turn, and when its turn has come it runs to "ready" or
// "error". Only then a name or a tag means what it made: a build that fails, is
// cancelled or dies with its process changes nothing and leaves nothing but its
// record, its log, and layers that the next build can use.
type Builds struct {
	config Config
	ctx    context.Context // ends when Close is called
	cancel context.CancelFunc
	work   sync.WaitGroup
	turns  *queue
	layers sync.RWMutex  // held to replace a layer; shared to take hold of one
	ended  chan struct{} // says that builds have ended, for KeepPruned

	layersMost, importsMost int64 // layersBytes, importsBytes

	mu    sync.Mutex
	live  map[string]*build // started and not ended
	inUse map[string]int    // files under images/ that they use
}

// New makes the folder and ends what builds of processes that died have left.
func New(ctx context.Context, config Config) (*Builds, error) {
	b := &Builds{config: config, turns: newQueue(atOnce()), live: map[string]*build{}, inUse: map[string]int{}, ended: make(chan struct{}, 1), layersMost: layersBytes, importsMost: importsBytes}
	b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for _, dir := range []string{uploadsDir, layersDir, rootsDir, logsDir} {
		if err := os.MkdirAll(b.dir(dir), 0o700); err != nil {
			return nil, fmt.Errorf("make the folder of builds: %w", err)
		}
	}
	if err := b.sweep(ctx); err != nil {
		return nil, fmt.Errorf("look after builds that were cut off: %w", err)
	}
	b.work.Go(b.watch)
	return b, nil
}

// Close cancels the builds that run and returns when nothing is left of them.
func (b *Builds) Close() {
	b.cancel()
	b.work.Wait()
}

func (b *Builds) dir(name string) string { return filepath.Join(b.config.DataDir, "builds", name) }

func (b *Builds) logPath(id string) string  { return filepath.Join(b.dir(logsDir), id+".jsonl") }
func (b *Builds) lockPath(id string) string { return filepath.Join(b.dir(logsDir), id+".lock") }

// Request is what a build is to make.
type Request struct {
	KeyID string
	Alias string   // name of the template; empty makes one without
	Tags  []string // empty is the default tag
	// CPUs and MemoryBytes of the template's sandboxes, 0 for the defaults;
	// DiskBytes is what they may write, 0 for DefaultDiskOf the quota.
	CPUs                   int
	MemoryBytes, DiskBytes int64
	// Quota is the key's.
	Quota sandbox.Quota
}

// Limits on what a request may ask for (E2B's, and memory for two more).
const (
	MaxCPUs        = 32
	MinMemory      = 128 << 20
	MaxMemory      = 256 << 30
	MaxDisk        = 1 << 40
	defaultCPUs    = 2
	defaultMemory  = 1 << 30
	MinDisk        = 256 << 20
	DefaultDisk    = 10 << 30
	memoryMultiple = 2 << 20
)

// DefaultDiskOf is DefaultDisk, or less where a quota lets a sandbox have less: nobody
// asked for the default.
func DefaultDiskOf(q sandbox.Quota) int64 {
	if q.DiskBytes > 0 {
		return max(MinDisk, min(DefaultDisk, q.DiskBytes))
	}
	return DefaultDisk
}

func (r *Request) check() error {
	if r.CPUs == 0 {
		r.CPUs = defaultCPUs
	}
	if r.MemoryBytes == 0 {
		r.MemoryBytes = defaultMemory
	}
	if r.DiskBytes == 0 {
		r.DiskBytes = DefaultDiskOf(r.Quota)
	}
	switch {
	case r.CPUs < 1 || r.CPUs > MaxCPUs:
		return &sandbox.InvalidError{Message: fmt.Sprintf("CPU count must be between 1 and %d, not %d", MaxCPUs, r.CPUs)}
	case r.CPUs > 1 && r.CPUs%2 != 0:
		return &sandbox.InvalidError{Message: fmt.Sprintf("CPU count must be 1 or an even number, not %d", r.CPUs)}
	case r.MemoryBytes < MinMemory || r.MemoryBytes > MaxMemory:
		return &sandbox.InvalidError{Message: fmt.Sprintf("memory must be between %d and %d MiB, not %d", MinMemory>>20, MaxMemory>>20, r.MemoryBytes>>20)}
	case r.MemoryBytes%memoryMultiple != 0:
		return &sandbox.InvalidError{Message: fmt.Sprintf("memory must be an even number of MiB, not %d", r.MemoryBytes>>20)}
	case r.DiskBytes < MinDisk || r.DiskBytes > MaxDisk:
		return &sandbox.InvalidError{Message: fmt.Sprintf("disk must be between %d MiB and %d GiB", MinDisk>>20, int64(MaxDisk)>>30)}
	}
	return nil
}

// Request notes a build that is to be started. Errors: *sandbox.InvalidError,
// *sandbox.LimitError when no sandbox of the template could run within the quota, or what
// the key has fills it,
// store.ErrExists when the alias is another key's, ErrTooMany.
func (b *Builds) Request(ctx context.Context, r Request) (store.Build, error) {
	if err := r.check(); err != nil {
		return store.Build{}, err
	}
	if err := r.Quota.Holds(store.Template{CPUs: r.CPUs, MemoryBytes: r.MemoryBytes, DiskBytes: r.DiskBytes}); err != nil {
		return store.Build{}, err
	}
	tags := r.Tags
	if len(tags) == 0 {
		tags = []string{store.DefaultTag}
	}
	if left, err := b.keptRoom(ctx, r.Quota, store.Template{KeyID: r.KeyID, Name: r.Alias, Tags: tags}); err != nil {
		return store.Build{}, err
	} else if left < 1 {
		return store.Build{}, r.Quota.KeptLimit()
	}
	if err := b.makeRoom(ctx, r.KeyID); err != nil {
		return store.Build{}, err
	}
	now := time.Now().UTC()
	return b.config.Store.AddBuild(ctx, store.Build{
		ID: uuid.NewString(), TemplateID: sandbox.NewTemplateID(), KeyID: r.KeyID, Alias: r.Alias, Tags: tags,
		State: store.BuildWaiting, CPUs: r.CPUs, MemoryBytes: r.MemoryBytes, DiskBytes: r.DiskBytes,
		CreatedAt: now, UpdatedAt: now,
	})
}

// keptRoom is sandbox.KeptRoom of the templates that there are.
func (b *Builds) keptRoom(ctx context.Context, q sandbox.Quota, t store.Template) (int64, error) {
	if q.DiskBytes <= 0 {
		return math.MaxInt64, nil
	}
	templates, err := b.config.Store.Templates(ctx)
	return sandbox.KeptRoom(b.config.DataDir, q, templates, t), err
}

// makeRoom sees that a key may request one more build. Clients request a build before
// they look at the files it needs, so those that fail there leave requests that
// nobody will start: they do not count, and the oldest of them give way.
func (b *Builds) makeRoom(ctx context.Context, keyID string) error {
	under, err := b.config.Store.Builds(ctx, store.BuildFilter{KeyID: keyID, States: []store.BuildState{store.BuildWaiting, store.Building}})
	if err != nil {
		return err
	}
	// To the filter no key is any key.
	under = slices.DeleteFunc(under, func(r store.Build) bool { return r.KeyID != keyID })
	requested := slices.DeleteFunc(slices.Clone(under), b.started)
	if len(under)-len(requested) >= waitingMost {
		return ErrTooMany
	}
	slices.SortFunc(requested, func(x, y store.Build) int { return x.CreatedAt.Compare(y.CreatedAt) })
	var errs []error
	for _, old := range requested[:max(0, len(requested)-requestedMost+1)] {
		errs = append(errs, b.giveUp(ctx, old.ID, "the build was not started, and many others were requested since"))
	}
	return errors.Join(errs...)
}

// started tells whether a build that has not ended was started, for then it has a lock.
func (b *Builds) started(record store.Build) bool {
	_, err := os.Stat(b.lockPath(record.ID))
	return err == nil
}

// giveUp notes the end of a build that nobody runs.
func (b *Builds) giveUp(ctx context.Context, id, reason string) error {
	_, err := b.config.Store.UpdateBuild(ctx, id, func(r *store.Build) error {
		r.State, r.Reason, r.FinishedAt = store.BuildError, reason, time.Now().UTC()
		return nil
	})
	return err
}

// waiting is the record of a build that was not started yet.
func (b *Builds) waiting(ctx context.Context, id string) (store.Build, error) {
	record, err := b.config.Store.Build(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return record, ErrNotFound
	}
	if err == nil && record.State != store.BuildWaiting {
		err = ErrStarted
	}
	return record, err
}

// Start lets a build that was requested wait for its turn and run. It checks the
// plan: *sandbox.InvalidError. ErrNotFound, ErrStarted, ErrTooMany, or that of Config.Admit.
func (b *Builds) Start(ctx context.Context, id string, plan Plan) error {
	if err := plan.check(); err != nil {
		return err
	}
	record, err := b.waiting(ctx, id)
	if err != nil {
		return err
	}
	if b.config.Admit != nil {
		if err := b.config.Admit(ctx, record, plan.Commands()); err != nil {
			return err
		}
	}
	// The lock before the log: that of a build that runs elsewhere must not be emptied.
	lock, err := b.lockPatiently(ctx, id)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrStarted
	}
	if err != nil {
		return fmt.Errorf("lock build %s: %w", id, err)
	}
	if record, err = b.waiting(ctx, id); err == nil { // all this may have taken long
		err = b.begin(record, plan, lock)
	}
	if err != nil {
		return errors.Join(err, os.Remove(lock.Name()), lock.Close())
	}
	return nil
}

// begin has a build live that this process has locked.
func (b *Builds) begin(record store.Build, plan Plan, lock *os.File) error {
	id := record.ID
	b.mu.Lock()
	defer b.mu.Unlock()
	ofKey := 0
	for _, run := range b.live {
		if run.record.KeyID == record.KeyID {
			ofKey++
		}
	}
	switch {
	case b.ctx.Err() != nil || b.live[id] != nil:
		return ErrStarted
	case ofKey >= waitingMost:
		return ErrTooMany
	}
	if _, err := lock.WriteAt([]byte(startedMark), 0); err != nil {
		return fmt.Errorf("write the lock of build %s: %w", id, err)
	}
	log, err := newJournal(b.logPath(id), b.config.Told)
	if err != nil {
		return fmt.Errorf("make the log of build %s: %w", id, err)
	}
	run := &build{b: b, record: record, plan: plan, log: log, lock: lock, done: make(chan struct{}), outside: map[From]*stage{}, images: map[From]image.Imported{}, wrote: map[*stage]int64{}}
	run.ctx, run.cancel = context.WithCancelCause(b.ctx)
	b.live[id] = run
	b.work.Add(1)
	go run.live()
	return nil
}

// Wait returns the record of a build when it has ended. When ctx ends before, the
// build is cancelled and its end awaited.
func (b *Builds) Wait(ctx context.Context, id string) (store.Build, error) {
	if run := b.running(id); run != nil {
		select {
		case <-run.done:
		case <-ctx.Done():
			b.Cancel(id, "it was cancelled")
			<-run.done
		}
	}
	return b.Get(context.WithoutCancel(ctx), id)
}

// Get returns the record of a build. ErrNotFound.
func (b *Builds) Get(ctx context.Context, id string) (store.Build, error) {
	record, err := b.config.Store.Build(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return store.Build{}, ErrNotFound
	}
	return record, err
}

// Cancel ends a build that runs or waits here.
func (b *Builds) Cancel(id, reason string) {
	if run := b.running(id); run != nil {
		run.cancel(&StepError{Message: reason})
	}
}

// CancelTemplate ends the builds of a template.
func (b *Builds) CancelTemplate(templateID string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, run := range b.live {
		if run.record.TemplateID == templateID {
			run.cancel(&StepError{Message: templateDeleted})
		}
	}
}

// Log returns what is kept of a build's log, oldest first.
func (b *Builds) Log(id string) ([]Entry, error) {
	if run := b.running(id); run != nil {
		return run.log.all(), nil
	}
	if uuid.Validate(id) != nil {
		return nil, ErrNotFound
	}
	return readJournal(b.logPath(id))
}

func (b *Builds) running(id string) *build {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live[id]
}

// sweep notes the end of builds whose process has died and removes what was half
// written.
func (b *Builds) sweep(ctx context.Context) error {
	errs := []error{b.sweepRecords(ctx)}
	if len(b.others()) == 0 {
		errs = append(errs, b.removePartial())
	}
	errs = append(errs, b.config.Images.Sweep())
	return errors.Join(errs...)
}

// sweepRecords notes the end of builds whose process has died, and of those that were
// requested long ago and not started.
func (b *Builds) sweepRecords(ctx context.Context) error {
	records, err := b.config.Store.Builds(ctx, store.BuildFilter{States: []store.BuildState{store.BuildWaiting, store.Building}, Most: 10_000})
	if err != nil {
		return err
	}
	var errs []error
	for _, record := range records {
		young := time.Since(record.CreatedAt) < uploadTime
		create := os.O_CREATE
		if young {
			create = 0
		}
		lock, err := openLock(b.lockPath(record.ID), create)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was requested and not started yet: the client uploads
			continue
		case errors.Is(err, unix.EWOULDBLOCK): // it runs
			continue
		case err != nil:
			errs = append(errs, err)
			continue
		}
		if young && record.State == store.BuildWaiting && !marked(lock) { // it is just being started
			errs = append(errs, lock.Close())
			continue
		}
		errs = append(errs, b.giveUpLeft(ctx, record.ID), os.Remove(lock.Name()), lock.Close())
	}
	return errors.Join(errs...)
}

// giveUpLeft notes the end of a build that nobody runs, unless it has ended meanwhile.
func (b *Builds) giveUpLeft(ctx context.Context, id string) error {
	_, err := b.config.Store.UpdateBuild(ctx, id, func(r *store.Build) error {
		if !r.FinishedAt.IsZero() {
			return nil
		}
		r.Reason = "the build was not started in time"
		if r.State == store.Building {
			r.Reason = "the server was stopped while it was building"
		}
		r.State, r.FinishedAt = store.BuildError, time.Now().UTC()
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil // its template was deleted
	}
	return err
}

// uploadTime is how long a build that was requested may wait to be started.
const uploadTime = 2 * time.Hour

// others are the builds that processes run now.
func (b *Builds) others() []string {
	locks, _ := filepath.Glob(b.lockPath("*"))
	var running []string
	for _, path := range locks {
		lock, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just ended
		}
		// Shared, so that who looks does not keep out others who look.
		if err != nil || unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
			running = append(running, strings.TrimSuffix(filepath.Base(path), ".lock"))
		}
		lock.Close()
	}
	return running
}

// removePartial removes what was half written; nobody builds now.
func (b *Builds) removePartial() error {
	var errs []error
	for _, dir := range []string{layersDir, logsDir} {
		found, _ := filepath.Glob(filepath.Join(b.dir(dir), partialPrefix+"*"))
		for _, path := range found {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	uploads, _ := filepath.Glob(filepath.Join(b.dir(uploadsDir), "*", partialPrefix+"*"))
	for _, path := range uploads {
		lock, err := lockFile(path)
		if err != nil {
			continue // a server receives it
		}
		errs = append(errs, os.Remove(path), lock.Close())
	}
	return errors.Join(errs...)
}

// lockPatiently is lockFile for the lock of a build, which somebody may just be looking at
// (others). It gives up when the build was started here.
func (b *Builds) lockPatiently(ctx context.Context, id string) (*os.File, error) {
	for began := time.Now(); ; {
		lock, err := lockFile(b.lockPath(id))
		if !errors.Is(err, unix.EWOULDBLOCK) || b.running(id) != nil || time.Since(began) > lookMost {
			return lock, err
		}
		select {
		case <-time.After(lookTime):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// For how long, and after what time, a lock is tried again that is looked at. Who looks has
// it for some microseconds, and for longer where something stops that process.
const (
	lookMost = 20 * time.Second
	lookTime = 5 * time.Millisecond
)

// lockFile makes and locks a file, without waiting: unix.EWOULDBLOCK.
func lockFile(path string) (*os.File, error) { return openLock(path, os.O_CREATE) }

// openLock is lockFile that makes the file only where how says so (os.O_CREATE).
func openLock(path string, how int) (*os.File, error) {
	file, err := os.OpenFile(path, how|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		return nil, err
	}
	if !isAt(file, path) { // who had it has removed it meanwhile
		file.Close()
		return nil, unix.EWOULDBLOCK
	}
	return file, nil
}

// startedMark is in the lock of a build that was started: between the making of a lock and
// its locking others may take it, who look for builds that nobody runs.
const startedMark = "started\n"

func marked(lock *os.File) bool {
	info, err := lock.Stat()
	return err != nil || info.Size() > 0
}

// isAt tells whether a path is still that of an open file.
func isAt(file *os.File, path string) bool {
	is, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(is, there)
}

// spareBytes is what a build leaves free on the disk, for the sandboxes.
const spareBytes = 2 << 30

// roomFor returns a *StepError unless the disk has room for so many bytes.
func (b *Builds) roomFor(bytes int64) error {
	if need := bytes + spareBytes; b.freeBytes() < need {
		return &StepError{Message: fmt.Sprintf("the server's disk is too full: this needs %d MB free; `tombolo prune` may help", need/1e6)}
	}
	return nil
}

// freeBytes is what the disk of the data folder has left.
func (b *Builds) freeBytes() int64 {
	var st unix.Statfs_t
	if unix.Statfs(b.config.DataDir, &st) != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}
