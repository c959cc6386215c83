package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// hostname is every sandbox's; the images' /etc/hosts has it, which sudo needs.
const hostname = "sandbox"

// sandbox is one that lives, from its admission to its end.
//
// What changes it as a whole (a pause, a resume, a copy, its end) holds the one
// place in changing for as long as it takes, so that there is one at a time; mu
// is held for moments only.
type sandbox struct {
	id       string
	keyID    string
	created  time.Time
	template store.Template // as it was when the sandbox was made
	log      logbook
	metrics  series
	ended    chan struct{} // closed when nothing is left of it

	changing chan struct{}
	// doomed ends when somebody wants the sandbox ended: changes under way give up.
	doomed context.Context
	doom   context.CancelFunc

	// Set and used by whoever holds changing.
	lock *os.File // of the folder, while it is in use
	from source   // what the next run starts from, or the present one was started from

	owner atomic.Pointer[Owner] // what its network knows of it

	recording sync.Mutex // held while its record is written, so that no older one comes after

	mu      sync.Mutex
	info    Info
	quota   Quota // of its key, when last seen; for resumes that no key asks for
	env     map[string]string
	run     *run // its processes; nil while it has none
	timeout time.Duration
	endedAt time.Time
	timer   *time.Timer
	saved   *savedState // set while it is paused
}

// run is one sandbox's processes, from a start or a resume to a pause or the end.
// Its fields are set before the sandbox is seen running.
type run struct {
	// id names the run to the engine, and the folder with what belongs to it: the
	// sandbox's own, or that of the shell it was started in.
	id       string
	lock     *os.File // of the folder of a shell; nil for the sandbox's own
	network  Network
	known    bool // the network is there and follows its owner; under the sandbox's mu
	instance engine.Instance
	agent    *agentClient
	restored time.Time     // when it was restored; zero when it booted or was adopted
	left     chan struct{} // closed when nobody watches it any more
}

// savedState is what a pause left in the sandbox's folder.
type savedState struct {
	Name     string `json:"name"` // of the folder
	DiskOnly bool   `json:"diskOnly,omitempty"`
	Bytes    int64  `json:"bytes"` // on disk
}

func newSandbox(req CreateRequest, template store.Template) *sandbox {
	s := emptySandbox(newID())
	s.keyID, s.created, s.template = req.KeyID, time.Now().UTC(), template
	s.env, s.timeout, s.quota = maps.Clone(req.EnvVars), req.Timeout, req.Quota
	s.info = Info{
		ID:           s.id,
		TemplateID:   template.ID,
		TemplateName: template.Name,
		BuildID:      template.BuildID,
		KeyID:        req.KeyID,
		State:        Starting,
		StartedAt:    s.created,
		EndAt:        s.created.Add(req.Timeout),
		CPUs:         template.CPUs,
		MemoryBytes:  template.MemoryBytes,
		DiskBytes:    template.DiskBytes,
		Metadata:     maps.Clone(req.Metadata),
		AccessToken:  newToken(),
		User:         template.User,
		ExecutionID:  uuid.NewString(),
		Lifecycle:    req.Lifecycle,
		Network:      req.Network,
		Volumes:      slices.Clone(req.Volumes),
		Rules:        req.Rules,
		Secrets:      slices.Clone(req.Secrets),
	}
	if req.Network.PrivateTraffic {
		s.info.TrafficToken = newToken()
	}
	s.setOwner()
	return s
}

func emptySandbox(id string) *sandbox {
	s := &sandbox{id: id, ended: make(chan struct{}), changing: make(chan struct{}, 1)}
	s.doomed, s.doom = context.WithCancel(context.Background())
	return s
}

// change waits for the right to change the sandbox as a whole. The context it
// returns ends when somebody wants the sandbox ended, but not with ctx: half a
// change helps nobody, and the engine does not stand one that is given up and
// begun again. done gives the right back.
func (s *sandbox) change(ctx context.Context) (_ context.Context, done func(), err error) {
	select {
	case s.changing <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-s.doomed.Done():
		return nil, nil, s.goneError()
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopDoom := context.AfterFunc(s.doomed, cancel)
	return ctx, func() {
		stopDoom()
		cancel()
		<-s.changing
	}, nil
}

func (s *sandbox) goneError() error {
	return &GoneError{ID: s.id, Reason: s.snapshotInfo().Reason}
}

// deathGrace is how long the death of an engine may take to be noticed.
const deathGrace = 200 * time.Millisecond

// isEnding tells whether a change failed because the sandbox ends: somebody wants
// it to, or its processes have died, which the one who watches them is noticing.
func (s *sandbox) isEnding(r *run) bool {
	select {
	case <-s.doomed.Done():
		return true
	case <-r.instance.Done():
	case <-time.After(deathGrace):
		return false
	}
	select {
	case <-s.doomed.Done():
		return true
	case <-time.After(10 * deathGrace):
		return false
	}
}

// condemn says that the sandbox is to end, and why; with ifOverdue only when its
// time is over. It is false when it does not, or when that was said before.
func (s *sandbox) condemn(reason string, ifOverdue bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doomed.Err() != nil || ifOverdue && !s.overdueLocked() {
		return false
	}
	s.info.Reason = reason
	s.doom()
	return true
}

func (s *sandbox) state() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info.State
}

// setState is the one place where a sandbox changes state.
func (s *sandbox) setState(to State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.setStateLocked(to)
}

func (s *sandbox) setStateLocked(to State) error {
	if err := checkTransition(s.info.State, to); err != nil {
		return err
	}
	s.info.State = to
	if to != Running && s.timer != nil {
		s.timer.Stop()
	}
	if to == Ended || to == Failed {
		s.endedAt = time.Now().UTC()
	}
	return nil
}

// begin makes a new run the sandbox's; expire is called when its time is over.
func (s *sandbox) begin(timeout time.Duration, expire func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.setStateLocked(Running); err != nil {
		return err
	}
	s.saved, s.info.Reason = nil, ""
	s.info.StartedAt = time.Now().UTC()
	s.info.EndAt = s.info.StartedAt.Add(timeout)
	s.timer = time.AfterFunc(timeout, expire)
	return nil
}

// goOn takes a sandbox that could not be paused back to its run; its time ends
// when it would have, or after grace when that is later.
func (s *sandbox) goOn(grace time.Duration, expire func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.setStateLocked(Running); err != nil {
		return err
	}
	s.timer = time.AfterFunc(max(time.Until(s.info.EndAt), grace), expire)
	return nil
}

func (s *sandbox) setReason(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.info.Reason = reason
}

func (s *sandbox) snapshotInfo() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.infoLocked()
}

func (s *sandbox) infoLocked() Info {
	info := s.info
	info.Metadata = maps.Clone(info.Metadata)
	info.Volumes = slices.Clone(info.Volumes)
	info.Secrets = slices.Clone(info.Secrets)
	info.DiskOnly = s.saved != nil && s.saved.DiskOnly
	return info
}

func (s *sandbox) setQuota(q Quota) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quota = q
}

// present is the run there is, running or not; nil when there is none.
func (s *sandbox) present() *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run
}

func (s *sandbox) setRun(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run = r
}

// running is the run of a sandbox that runs. ErrPaused, ErrBusy, or a *GoneError.
func (s *sandbox) running() (*run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run, s.mustRunLocked()
}

func (s *sandbox) mustRunLocked() error {
	switch {
	case s.doomed.Err() != nil:
		return &GoneError{ID: s.id, Reason: s.info.Reason}
	case s.info.State == Running:
		return nil
	case s.info.State == Resuming:
		return fmt.Errorf("sandbox %s: %w", s.id, ErrBusy)
	case s.info.State == Pausing, s.info.State == Paused:
		return fmt.Errorf("sandbox %s: %w", s.id, ErrPaused)
	}
	return &GoneError{ID: s.id, Reason: s.info.Reason}
}

// setTimeout gives a running sandbox another end. A timer that has fired already
// asks whether the sandbox is overdue when its turn comes, and it is not any more.
func (s *sandbox) setTimeout(d time.Duration, extendOnly bool, expire func()) (Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mustRunLocked(); err != nil {
		return Info{}, err
	}
	endAt := time.Now().UTC().Add(d)
	if !extendOnly || endAt.After(s.info.EndAt) {
		s.timer.Stop()
		s.info.EndAt = endAt
		s.timer = time.AfterFunc(d, expire)
	}
	return s.infoLocked(), nil
}

// overdue tells whether the time of a run is over, and not because it was given
// more meanwhile.
func (s *sandbox) overdue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overdueLocked()
}

func (s *sandbox) overdueLocked() bool {
	return s.info.State == Running && !time.Now().Before(s.info.EndAt)
}

// setOwner tells the network's policy what holds from now on. s.mu is held, or nobody
// else has s.
func (s *sandbox) setOwner() {
	s.owner.Store(&Owner{
		Subject: s.info.Subject(), Network: s.info.Network, Rules: s.info.Rules, Secrets: s.info.Secrets,
		Log: func(warn bool, text string) {
			if warn {
				s.log.warn("network", text)
			} else {
				s.log.add("network", text)
			}
		},
	})
}

// judgeAs has the rules of a key hold for a sandbox that belongs to none, in which a
// template of that key is made. Nobody else has s.
func (s *sandbox) judgeAs(keyID string) {
	o := *s.owner.Load()
	o.KeyID = keyID
	s.owner.Store(&o)
}

// changeOwner changes what the network's policy knows of the sandbox. A sandbox
// that is ending is not changed.
func (s *sandbox) changeOwner(change func(*Info)) error {
	s.mu.Lock()
	if s.doomed.Err() != nil {
		defer s.mu.Unlock()
		return &GoneError{ID: s.id, Reason: s.info.Reason}
	}
	change(&s.info)
	s.setOwner()
	r := s.run
	known := r != nil && r.known
	s.mu.Unlock()
	if known {
		r.network.OwnerChanged()
	}
	return nil
}

// introduceNetwork has the network of a run know its sandbox, and what was changed of
// that while the network was made.
func (s *sandbox) introduceNetwork(r *run) {
	s.mu.Lock()
	r.known = true
	s.mu.Unlock()
	r.network.OwnerChanged()
}

// details is what a record has of a sandbox besides the store's own fields.
type details struct {
	// Kept: a server made it, and the next server takes it over.
	Kept         bool           `json:"kept,omitempty"`
	Lifecycle    Lifecycle      `json:"lifecycle,omitzero"`
	Network      NetworkOptions `json:"network,omitzero"`
	TrafficToken string         `json:"trafficToken,omitempty"`
	Volumes      []VolumeMount  `json:"volumes,omitempty"`
	Rules        policy.Table   `json:"rules,omitzero"`
	Secrets      []string       `json:"secrets,omitempty"`
	ExecutionID  string         `json:"executionID,omitempty"`
	Timeout      time.Duration  `json:"timeout"` // of the create
	Template     store.Template `json:"template"`
	Quota        Quota          `json:"quota,omitzero"`
	From         source         `json:"from"`
	Run          string         `json:"run,omitempty"` // id of the run there is, when it is not the sandbox's
	Saved        *savedState    `json:"saved,omitempty"`
}

// record is the durable form. Changes under way are left out: after a crash the
// sandbox is what it was before.
func (s *sandbox) record(kept bool) store.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.info.State
	switch state {
	case Pausing:
		state = Running
	case Resuming:
		state = Paused
	}
	runID := ""
	if s.run != nil && s.run.id != s.id && state == Running {
		runID = s.run.id
	}
	data, err := json.Marshal(details{
		Kept: kept, Lifecycle: s.info.Lifecycle, Network: s.info.Network, TrafficToken: s.info.TrafficToken,
		Volumes: s.info.Volumes, ExecutionID: s.info.ExecutionID, Timeout: s.timeout, Template: s.template, Quota: s.quota,
		From: s.from, Run: runID, Saved: s.saved, Rules: s.info.Rules, Secrets: s.info.Secrets,
	})
	if err != nil {
		panic(err) // strings, numbers and times always encode
	}
	return store.Sandbox{
		ID:            s.id,
		State:         string(state),
		Reason:        s.info.Reason,
		KeyID:         s.keyID,
		TemplateID:    s.info.TemplateID,
		TemplateName:  s.info.TemplateName,
		TemplateBuild: s.info.BuildID,
		CreatedAt:     s.created,
		StartedAt:     s.info.StartedAt,
		EndAt:         s.info.EndAt,
		EndedAt:       s.endedAt,
		CPUs:          s.info.CPUs,
		MemoryBytes:   s.info.MemoryBytes,
		DiskBytes:     s.info.DiskBytes,
		Metadata:      maps.Clone(s.info.Metadata),
		EnvVars:       maps.Clone(s.env),
		DenyInternet:  s.info.Network.DenyInternet,
		AccessToken:   s.info.AccessToken,
		Data:          data,
	}
}

// fromRecord is the sandbox a record tells of, without a run.
func fromRecord(record store.Sandbox, d details) *sandbox {
	s := emptySandbox(record.ID)
	s.keyID, s.created, s.template = record.KeyID, record.CreatedAt, d.Template
	s.env, s.timeout, s.quota, s.from, s.saved = record.EnvVars, d.Timeout, d.Quota, d.From, d.Saved
	s.info = Info{
		ID:           record.ID,
		TemplateID:   record.TemplateID,
		TemplateName: record.TemplateName,
		BuildID:      record.TemplateBuild,
		KeyID:        record.KeyID,
		State:        State(record.State),
		Reason:       record.Reason,
		StartedAt:    record.StartedAt,
		EndAt:        record.EndAt,
		CPUs:         record.CPUs,
		MemoryBytes:  record.MemoryBytes,
		DiskBytes:    record.DiskBytes,
		Metadata:     record.Metadata,
		AccessToken:  record.AccessToken,
		User:         d.Template.User,
		ExecutionID:  d.ExecutionID,
		Lifecycle:    d.Lifecycle,
		Network:      d.Network,
		TrafficToken: d.TrafficToken,
		Volumes:      d.Volumes,
		Rules:        d.Rules,
		Secrets:      d.Secrets,
	}
	s.setOwner()
	if s.info.State == Running {
		s.run = newRun(cmp.Or(d.Run, s.id))
	}
	return s
}
