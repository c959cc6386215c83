package approval

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
)

const (
	defaultPatience = 5 * time.Minute
	// maxPatience is the longest that a hold may wait.
	maxPatience = 24 * time.Hour
	// writeTimeout bounds one write; whoever asked for it may be gone meanwhile.
	writeTimeout = 10 * time.Second
	// lookEvery is how often the desk looks for what another process changed, and
	// tidyEvery how often it removes what is over.
	lookEvery = 2 * time.Second
	tidyEvery = time.Minute
	// tellEvery is how often watchers hear that an action is tried again and again.
	tellEvery = time.Second
)

// What is kept of holds that ended.
const (
	Keep           = 7 * 24 * time.Hour
	KeepPerSandbox = 100
)

// Store is what the desk keeps its records in.
type Store interface {
	store.Approvals
	Sandbox(ctx context.Context, id string) (store.Sandbox, error)
}

// Limits bound what waits and what is kept. Zero values are the defaults.
type Limits struct {
	PerSandbox int // pending holds of one sandbox: 32
	PerKey     int // of the sandboxes of one key: 256
	InAll      int // 1024
	Grants     int // 4096
	// ActionBytes is how large an action may be, as JSON, that a person is asked about;
	// 32 KiB.
	ActionBytes int
	// OnceFor is how long an approval of one action is good for when nobody waits for it
	// any more; 10 min.
	OnceFor time.Duration
	// DeniedFor is how long the denial of an action answers equal ones too, so that a
	// program that tries again does not ask again; 1 min.
	DeniedFor time.Duration
	// UnknownFor is how long what waits or was granted is kept for a sandbox that has no
	// record, as that of a build; one day. Whoever ends one tells it at once, by Forget.
	UnknownFor time.Duration
}

func (l Limits) withDefaults() Limits {
	l.PerSandbox = cmp.Or(l.PerSandbox, 32)
	l.PerKey = cmp.Or(l.PerKey, 256)
	l.InAll = cmp.Or(l.InAll, 1024)
	l.Grants = cmp.Or(l.Grants, 4096)
	l.ActionBytes = cmp.Or(l.ActionBytes, 32<<10)
	l.OnceFor = cmp.Or(l.OnceFor, 10*time.Minute)
	l.DeniedFor = cmp.Or(l.DeniedFor, time.Minute)
	l.UnknownFor = cmp.Or(l.UnknownFor, 24*time.Hour)
	return l
}

// Config is what a desk works with. Store is required.
type Config struct {
	Store Store
	// Patience is how long a hold waits where the asking side does not say; 5 min.
	Patience time.Duration
	Limits   Limits
	Log      *slog.Logger
	// OnChange is told of each hold that was made, got a proposal or ended, after
	// that was written and in this order. Other changes of the desk wait until it
	// returns, so it must not make any; it may read.
	OnChange func(Hold)
}

// Desk is where actions wait for people, and people answer. Several processes may
// have desks over one store: an answer given at one reaches those who wait at
// another within seconds. Safe for concurrent use.
type Desk struct {
	config Config
	grants atomic.Pointer[grantSet]

	// writing is held over each change of the store together with that of what is in
	// memory of it. It is taken before mu.
	writing sync.Mutex
	changes int64 // store.ApprovalChanges when the store was read last

	mu       sync.Mutex
	pending  map[string]*pending // by id
	byHash   map[string]*pending
	denied   map[string]denial // by hash
	watchers map[*watcher]struct{}
	closed   bool

	done    chan struct{} // closed by Close
	working sync.WaitGroup
}

// pending is a hold that waits, with those who wait for it.
type pending struct {
	hold  Hold
	timer *time.Timer
	// settled is closed when the hold is no longer pending; hold stays as it is then.
	settled chan struct{}
	// free: those who waited when it was approved go on. Else they look for a grant.
	free      bool
	proposals int
	telling   bool // watchers will be told in a moment
}

// denial is a hold that was denied, for equal actions for a while.
type denial struct {
	hold  Hold
	until time.Time
}

// Open reads what the store has and begins to keep it. Holds whose deadline passed
// while no server ran have expired.
func Open(ctx context.Context, c Config) (*Desk, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.OnChange == nil {
		c.OnChange = func(Hold) {}
	}
	c.Patience = min(cmp.Or(c.Patience, defaultPatience), maxPatience)
	c.Limits = c.Limits.withDefaults()
	d := &Desk{
		config: c, pending: map[string]*pending{}, byHash: map[string]*pending{}, denied: map[string]denial{},
		watchers: map[*watcher]struct{}{}, done: make(chan struct{}), changes: -1,
	}
	d.grants.Store(newGrantSet(nil))
	if err := d.look(ctx); err != nil {
		return nil, err
	}
	d.tidy(ctx)
	d.working.Go(d.keep)
	return d, nil
}

// Close ends the desk. Whoever waits gets ErrClosed; what waits stays in the store
// and can be answered when it is opened again.
func (d *Desk) Close() {
	d.writing.Lock()
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		close(d.done)
		for _, p := range d.pending {
			p.timer.Stop()
		}
	}
	d.mu.Unlock()
	d.writing.Unlock()
	d.working.Wait()
}

// keep follows the store until the desk is closed.
func (d *Desk) keep() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	look, tidy := time.NewTicker(lookEvery), time.NewTicker(tidyEvery)
	defer look.Stop()
	defer tidy.Stop()
	for {
		select {
		case <-d.done:
			return
		case <-look.C:
			if err := d.look(ctx); err != nil {
				d.config.Log.Error("approvals could not be read", "error", err)
			}
		case <-tidy.C:
			d.tidy(ctx)
		}
	}
}

// look takes over what the store has, where it changed since the last look.
func (d *Desk) look(ctx context.Context) error {
	changes, err := d.config.Store.ApprovalChanges(ctx)
	if err != nil {
		return err
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	if changes == d.changes || d.isClosed() {
		return nil
	}
	if err := d.readGrants(ctx); err != nil { // first, since who waits looks for them
		return err
	}
	if err := d.readHolds(ctx); err != nil {
		return err
	}
	d.changes = changes
	return nil
}

func (d *Desk) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// readHolds makes what waits here what waits in the store. writing is held.
func (d *Desk) readHolds(ctx context.Context) error {
	records, err := d.config.Store.PendingHolds(ctx)
	if err != nil {
		return err
	}
	stored := map[string]bool{}
	for _, r := range records {
		stored[r.ID] = true
		if d.find(r.ID) != nil {
			continue
		}
		h, err := fromRecord(r)
		if err != nil {
			d.config.Log.Error("a hold cannot be read and is left out", "hold", r.ID, "error", err)
			continue
		}
		d.adopt(h)
	}
	for _, id := range d.ids() {
		if !stored[id] {
			d.takeOutcome(ctx, id)
		}
	}
	return nil
}

// takeOutcome ends a hold here that another process ended. writing is held.
func (d *Desk) takeOutcome(ctx context.Context, id string) {
	p := d.find(id)
	h, err := d.stored(ctx, id)
	if errors.Is(err, ErrNotFound) { // and forgot
		h = d.copyOf(p)
		h.State, h.EndedAt = Expired, now()
		err = nil
	}
	if err != nil {
		d.config.Log.Error("what became of a hold could not be read", "hold", id, "error", err)
		return
	}
	d.end(p, h, false)
}

// tidy removes what is over: grants, what is kept for too long, and all that is of
// sandboxes that ended without anybody having told.
func (d *Desk) tidy(ctx context.Context) {
	at := time.Now()
	d.mu.Lock()
	for hash, denied := range d.denied {
		if at.After(denied.until) {
			delete(d.denied, hash)
		}
	}
	d.mu.Unlock()
	for id, latest := range d.sandboxes() {
		s, err := d.config.Store.Sandbox(ctx, id)
		// One without a record is that of a build, or was never made.
		unknown := errors.Is(err, store.ErrNotFound) && at.Sub(latest) > d.config.Limits.UnknownFor
		if err == nil && !s.EndedAt.IsZero() || unknown {
			d.Forget(id)
		}
	}
	if err := d.pruneGrants(ctx, at); err != nil {
		d.config.Log.Error("grants that are over could not be removed", "error", err)
	}
	if _, err := d.config.Store.PruneHolds(ctx, at.Add(-Keep), KeepPerSandbox); err != nil {
		d.config.Log.Error("old holds could not be removed", "error", err)
	}
}

// sandboxes are those that something waits for or that have grants of their own, with when
// the latest of that came.
func (d *Desk) sandboxes() map[string]time.Time {
	latest := d.grants.Load().sandboxes()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pending {
		if id := p.hold.Subject.SandboxID; id != "" && p.hold.CreatedAt.After(latest[id]) {
			latest[id] = p.hold.CreatedAt
		}
	}
	return latest
}

func (d *Desk) find(id string) *pending {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pending[id]
}

func (d *Desk) ids() (ids []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.pending {
		ids = append(ids, id)
	}
	return ids
}

func (d *Desk) copyOf(p *pending) Hold {
	d.mu.Lock()
	defer d.mu.Unlock()
	return p.hold
}

// adopt enters a hold that the store has as pending, with as many as wait for it here,
// whom a record does not have. writing is held.
func (d *Desk) adopt(h Hold) *pending {
	p := &pending{hold: h, settled: make(chan struct{})}
	p.timer = time.AfterFunc(time.Until(h.Deadline), func() { d.expire(h.ID) })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending[h.ID] = p
	if d.byHash[h.Hash] == nil {
		d.byHash[h.Hash] = p
	}
	d.tell(h)
	return p
}

// end takes a hold off those that are pending, as h, and lets those go who wait.
// It tells how many did. writing is held.
func (d *Desk) end(p *pending, h Hold, free bool) (waited int) {
	p.timer.Stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	waited = p.hold.Waiting
	h.Count, h.Waiting = p.hold.Count, 0
	p.hold, p.free = h, free
	delete(d.pending, h.ID)
	if d.byHash[h.Hash] == p {
		delete(d.byHash, h.Hash)
	}
	if h.State == Denied && h.Answer != nil {
		d.denied[h.Hash] = denial{h, time.Now().Add(d.config.Limits.DeniedFor)}
	}
	close(p.settled)
	d.tell(h)
	return waited
}

// writeContext is for a write that goes on when whoever wanted it is gone.
func writeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
}

// now has the resolution of the store.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// home is the narrowest scope that a subject is in: its sandbox or, before there is
// one, its key.
func home(s policy.Subject) policy.Scope {
	if s.SandboxID == "" {
		return policy.Scope{Kind: policy.KeyScope, ID: s.KeyID}
	}
	return policy.Scope{Kind: policy.SandboxScope, ID: s.SandboxID}
}
