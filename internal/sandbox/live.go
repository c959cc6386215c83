package sandbox

import (
	"crypto/rand"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// hostname is every sandbox's; the images' /etc/hosts has it, which sudo needs.
const hostname = "sandbox"

// sandbox is one that lives, from its admission to its end. What is above mu is
// set by the goroutine that starts it, before anybody else sees it running.
type sandbox struct {
	id       string
	keyID    string
	created  time.Time
	env      map[string]string
	build    string
	lock     *os.File // held while the sandbox's folder is in use
	network  Network
	instance engine.Instance
	agent    *agentClient
	log      logbook
	expire   func()        // called when its time is over
	ended    chan struct{} // closed when nothing is left of it

	mu      sync.Mutex
	info    Info
	timeout time.Duration
	endedAt time.Time
	timer   *time.Timer
}

func newSandbox(req CreateRequest, template store.Template) *sandbox {
	id, created := newID(), time.Now().UTC()
	return &sandbox{
		id:      id,
		keyID:   req.KeyID,
		created: created,
		env:     maps.Clone(req.EnvVars),
		build:   template.BuildID,
		ended:   make(chan struct{}),
		timeout: req.Timeout,
		info: Info{
			ID:           id,
			TemplateID:   template.ID,
			TemplateName: template.Name,
			KeyID:        req.KeyID,
			State:        Starting,
			StartedAt:    created,
			EndAt:        created.Add(req.Timeout),
			CPUs:         template.CPUs,
			MemoryBytes:  template.MemoryBytes,
			DiskBytes:    template.DiskBytes,
			Metadata:     maps.Clone(req.Metadata),
			AccessToken:  newToken(),
			Network:      req.Network,
			Lifecycle:    req.Lifecycle,
			BuildID:      template.BuildID,
		},
	}
}

// init is what the agent is told of this sandbox.
func (s *sandbox) init(template store.Template) hostapi.Init {
	env := maps.Clone(template.EnvVars)
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
		DefaultUser:    template.User,
		DefaultWorkdir: template.Workdir,
		Hostname:       hostname,
		Timestamp:      time.Now().UTC(),
		Entropy:        entropy,
		MemoryLimit:    template.MemoryBytes,
		ProcessLimit:   defaultProcesses,
	}
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
	if err := checkTransition(s.info.State, to); err != nil {
		return err
	}
	s.info.State = to
	switch to {
	case Running:
		s.info.StartedAt = time.Now().UTC()
		s.info.EndAt = s.info.StartedAt.Add(s.timeout)
		s.timer = time.AfterFunc(s.timeout, s.expire)
	case Ending:
		s.timer.Stop()
	case Ended, Failed:
		s.endedAt = time.Now().UTC()
	}
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
	info := s.info
	info.Metadata = maps.Clone(info.Metadata)
	return info
}

func (s *sandbox) setTimeout(d time.Duration, extendOnly bool) Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	endAt := time.Now().UTC().Add(d)
	if s.info.State == Running && (!extendOnly || endAt.After(s.info.EndAt)) && s.timer.Stop() {
		s.info.EndAt = endAt
		s.timer = time.AfterFunc(d, s.expire)
	}
	info := s.info
	info.Metadata = maps.Clone(info.Metadata)
	return info
}

func (s *sandbox) record() store.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.Sandbox{
		ID:            s.id,
		State:         string(s.info.State),
		Reason:        s.info.Reason,
		KeyID:         s.keyID,
		TemplateID:    s.info.TemplateID,
		TemplateName:  s.info.TemplateName,
		TemplateBuild: s.build,
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
	}
}
