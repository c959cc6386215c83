// Package spawn starts and reaps the processes of a sandbox. The agent is PID 1,
// so it inherits every orphan; one loop waits for all of them and hands the
// status to whoever started the process. Nothing else in the agent may call
// wait, os/exec included.
//
// Processes are forked from a locked thread that sits in a process-count cgroup
// of its own, so that a fork bomb meets its limit and the agent does not. A second
// such group, small, is held in reserve: what the caller asks for while the first
// is full (a pkill) still starts.
package spawn

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Spawner starts processes. Create one per agent with [New].
type Spawner struct {
	forkers []chan request // a thread each, tried in order
	reapAll bool

	// The lock is never held over a system call that can take long, so that Find
	// answers when memory is out and a fork hangs.
	mu      sync.Mutex
	procs   map[int]*Process
	forking int            // forks that go on
	early   map[int]ending // reaped while a fork goes on, may be its child
}

type ending struct {
	status syscall.WaitStatus
	usage  syscall.Rusage
}

// Process is a started child. Its fields are set before Start returns.
type Process struct {
	PID int

	mu     sync.Mutex
	reason string

	done   chan struct{}
	status syscall.WaitStatus
	usage  syscall.Rusage
}

type request struct {
	path string
	argv []string
	attr *syscall.ProcAttr
	out  chan result
}

type result struct {
	process *Process
	err     error
}

// New starts the spawner's threads and its reaper; they run until the agent
// ends. groups are cgroup v1 "tasks" files that limit the count of processes; a
// process is started in the first that is not full. None is no limit. reapAll
// makes it wait for every child of this process (the agent as PID 1); without it
// only for those it started, which is what a test inside another program wants.
func New(groups []string, reapAll bool) (*Spawner, error) {
	s := &Spawner{reapAll: reapAll, procs: map[int]*Process{}}
	if len(groups) == 0 {
		groups = []string{""}
	}
	for _, tasksFile := range groups {
		requests, ready := make(chan request), make(chan error)
		go s.forkLoop(tasksFile, requests, ready)
		if err := <-ready; err != nil {
			return nil, err
		}
		s.forkers = append(s.forkers, requests)
	}
	if reapAll {
		children := make(chan os.Signal, 1)
		signal.Notify(children, unix.SIGCHLD)
		go s.reapLoop(children)
	}
	return s, nil
}

// Start runs path with argv. The caller owns the files in attr and closes its
// copies afterwards. The errors are those of fork and exec: EAGAIN when the
// sandbox is at its process limit, ENOENT, EACCES.
func (s *Spawner) Start(path string, argv []string, attr *syscall.ProcAttr) (*Process, error) {
	var r result
	for _, requests := range s.forkers {
		out := make(chan result, 1)
		requests <- request{path, argv, attr, out}
		if r = <-out; r.err != syscall.EAGAIN {
			break
		}
	}
	return r.process, r.err
}

// Find returns the live process with this pid if this spawner started it.
func (s *Spawner) Find(pid int) (*Process, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.procs[pid]
	return p, ok
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status blocks until the process has ended.
func (p *Process) Status() (syscall.WaitStatus, syscall.Rusage) {
	<-p.done
	return p.status, p.usage
}

// Signal sends sig to the process alone; os.ErrProcessDone if it has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	select {
	case <-p.done:
		return os.ErrProcessDone
	default:
		return syscall.Kill(p.PID, sig)
	}
}

// SetReason records in words why the process, or one of its descendants, was
// ended from outside (out of memory). The first reason stays.
func (p *Process) SetReason(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason == "" {
		p.reason = reason
	}
}

// Reason is what SetReason recorded, empty for none.
func (p *Process) Reason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reason
}

// forkLoop owns the thread that forks. The thread never leaves its cgroup, so
// the goroutine never unlocks it.
func (s *Spawner) forkLoop(tasksFile string, requests <-chan request, ready chan<- error) {
	runtime.LockOSThread()
	if tasksFile != "" {
		tid := fmt.Sprint(unix.Gettid())
		if err := os.WriteFile(tasksFile, []byte(tid), 0); err != nil {
			ready <- fmt.Errorf("join process limit %s: %w", tasksFile, err)
			return
		}
	}
	ready <- nil
	for r := range requests {
		r.out <- s.fork(r)
	}
}

func (s *Spawner) fork(r request) result {
	s.mu.Lock()
	s.forking++
	s.mu.Unlock()

	pid, err := syscall.ForkExec(r.path, r.argv, r.attr)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.forking--
	early := s.early
	if s.forking == 0 {
		s.early = nil
	}
	if err != nil {
		return result{nil, err}
	}
	p := &Process{PID: pid, done: make(chan struct{})}
	if end, over := early[pid]; over {
		delete(early, pid)
		p.finish(end)
		return result{p, nil}
	}
	s.procs[pid] = p
	if !s.reapAll {
		go s.waitOne(p)
	}
	return result{p, nil}
}

// reapLoop collects every child there is after each SIGCHLD, orphans included.
func (s *Spawner) reapLoop(children <-chan os.Signal) {
	for range children {
		for {
			var status syscall.WaitStatus
			var usage syscall.Rusage
			pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, &usage)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			s.finish(pid, ending{status, usage})
		}
	}
}

func (s *Spawner) waitOne(p *Process) {
	var status syscall.WaitStatus
	var usage syscall.Rusage
	for {
		_, err := syscall.Wait4(p.PID, &status, 0, &usage)
		if err != syscall.EINTR {
			break
		}
	}
	s.finish(p.PID, ending{status, usage})
}

// finish hands an ending to its process. A child may end before fork has
// registered it, so while one is forked the endings of strangers are kept.
func (s *Spawner) finish(pid int, end ending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.procs[pid]
	if ok {
		delete(s.procs, pid)
		p.finish(end)
		return
	}
	if s.forking == 0 {
		return
	}
	if s.early == nil {
		s.early = map[int]ending{}
	}
	s.early[pid] = end
}

func (p *Process) finish(end ending) {
	p.status, p.usage = end.status, end.usage
	close(p.done)
}
