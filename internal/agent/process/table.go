package process

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/tombolo-dev/tombolo/internal/agent/awake"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
)

const (
	// liveLimit is how many processes callers may have at once.
	liveLimit = 1024
	// memory is how long awake an ended process still tells its end (E2B: about 30 s),
	// and memoryLimit how many do at once.
	memory      = 30 * time.Second
	memoryLimit = 1024
)

// table finds processes.
type table struct {
	clock *awake.Clock

	mu       sync.Mutex
	starting int
	live     map[int]*process
	recent   []past // oldest first
}

type past struct {
	process *process
	at      time.Duration // awake
}

func newTable(clock *awake.Clock) *table { return &table{clock: clock, live: map[int]*process{}} }

// reserve keeps a place for a process about to start; release or add gives it
// back.
func (t *table) reserve() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.live)+t.starting >= liveLimit {
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d processes run already, which is the limit; end some first", liveLimit))
	}
	t.starting++
	return nil
}

func (t *table) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starting--
}

func (t *table) add(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starting--
	t.live[p.child.PID] = p
}

// remove moves a process from the running to the remembered. Its pid may belong
// to another one by now.
func (t *table) remove(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live[p.child.PID] == p {
		delete(t.live, p.child.PID)
	}
	t.forget()
	if len(t.recent) == memoryLimit {
		t.recent = slices.Delete(t.recent, 0, 1)
	}
	t.recent = append(t.recent, past{p, t.clock.Now()})
}

func (t *table) forget() {
	old, now := 0, t.clock.Now()
	for old < len(t.recent) && now-t.recent[old].at > memory {
		old++
	}
	t.recent = slices.Delete(t.recent, 0, old)
}

// list returns the running processes by pid.
func (t *table) list() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*process, 0, len(t.live))
	for _, p := range t.live {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *process) int { return cmp.Compare(a.child.PID, b.child.PID) })
	return all
}

// find selects a running process, or with ended a remembered one. The error is
// a connect error.
func (t *table) find(selector *pb.ProcessSelector, ended bool) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch by := selector.GetSelector().(type) {
	case *pb.ProcessSelector_Pid:
		if p := t.match(ended, func(p *process) bool { return p.child.PID == int(by.Pid) }); p != nil {
			return p, nil
		}
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", by.Pid))
	case *pb.ProcessSelector_Tag:
		if p := t.match(ended, func(p *process) bool { return p.tag != nil && *p.tag == by.Tag }); p != nil {
			return p, nil
		}
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with tag %q not found", by.Tag))
	}
	return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("select the process by pid or tag"))
}

// match prefers the running over the ended and the youngest of each.
func (t *table) match(ended bool, is func(*process) bool) *process {
	var found *process
	for _, p := range t.live {
		if is(p) && (found == nil || p.started.After(found.started)) {
			found = p
		}
	}
	if found != nil || !ended {
		return found
	}
	t.forget()
	for _, r := range slices.Backward(t.recent) {
		if is(r.process) {
			return r.process
		}
	}
	return nil
}
