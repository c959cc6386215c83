package process

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/tombolo-dev/tombolo/internal/agent/awake"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// Sizes of one data event, bytes. They are E2B's.
const (
	pipeChunk = 32 << 10
	ptyChunk  = 16 << 10
)

// drain is how long the output of an ended process may still arrive when other
// processes hold its pipes.
const drain = 50 * time.Millisecond

// process is one that a caller started. Life: newProcess, subscribe, run; run
// pumps the output to the subscribers, waits for the end, publishes it and
// closes everything.
type process struct {
	config  *pb.ProcessConfig
	tag     *string
	child   *spawn.Process
	spawner *spawn.Spawner
	started time.Time
	stall   time.Duration
	timeout *awake.Timer  // nil without; set before run
	orphans time.Duration // how long to wait for who else holds the output, 0 for ever; set before run

	files *files
	input chan struct{} // holds one token; who has it may write to stdin or the tty

	abandon     chan struct{} // closed when the output need not end any more
	abandonOnce sync.Once

	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
	end         *pb.ProcessEvent // set before ended is closed
	ended       chan struct{}
}

func newProcess(spawner *spawn.Spawner, child *spawn.Process, req *pb.StartRequest, files *files, stall time.Duration) *process {
	p := &process{
		spawner:     spawner,
		config:      req.GetProcess(),
		tag:         req.Tag,
		child:       child,
		started:     time.Now(),
		stall:       stall,
		files:       files,
		input:       make(chan struct{}, 1),
		abandon:     make(chan struct{}),
		subscribers: map[*subscriber]struct{}{},
		ended:       make(chan struct{}),
	}
	p.input <- struct{}{}
	return p
}

// run owns the process until its end has been published; then it calls removed.
func (p *process) run(removed func()) {
	var pumps sync.WaitGroup
	if p.files.tty != nil {
		pumps.Go(func() { p.pump(p.files.tty, ptyChunk, terminalEvent) })
	} else {
		pumps.Go(func() { p.pump(p.files.stdout, pipeChunk, stdoutEvent) })
		pumps.Go(func() { p.pump(p.files.stderr, pipeChunk, stderrEvent) })
	}
	status, _ := p.child.Status()
	p.awaitOutput(status, &pumps)
	if p.timeout != nil {
		p.timeout.Stop()
	}
	p.publishEnd(status)
	removed()
	p.files.closeParent()
}

// awaitOutput returns when the output has ended. Children that the process left
// behind may hold it open for ever: they are waited for after an ordinary exit,
// as a shell's caller expects of "server & client", unless the caller has said how
// long, but neither after a signal nor when the terminal's owner is gone.
func (p *process) awaitOutput(status syscall.WaitStatus, pumps *sync.WaitGroup) {
	finished := make(chan struct{})
	go func() {
		pumps.Wait()
		close(finished)
	}()
	if status.Signaled() || p.files.tty != nil {
		p.stopWaiting()
	} else if p.orphans > 0 {
		defer time.AfterFunc(p.orphans, p.stopWaiting).Stop()
	}
	select {
	case <-finished:
		return
	case <-p.abandon:
	}
	soon := time.Now().Add(drain)
	for _, f := range []*os.File{p.files.stdout, p.files.stderr, p.files.tty} {
		if f != nil {
			_ = f.SetReadDeadline(soon)
		}
	}
	<-finished
}

func (p *process) stopWaiting() { p.abandonOnce.Do(func() { close(p.abandon) }) }

func (p *process) publishEnd(status syscall.WaitStatus) {
	end := &pb.ProcessEvent_EndEvent{
		ExitCode: int32(status.ExitStatus()),
		Exited:   status.Exited(),
		Status:   describe(status),
	}
	if end.ExitCode != 0 {
		reason := end.Status
		if r := p.child.Reason(); r != "" {
			reason = r
		}
		end.Error = &reason
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = &pb.ProcessEvent{Event: &pb.ProcessEvent_End{End: end}}
	for sub := range p.subscribers {
		close(sub.events)
	}
	clear(p.subscribers)
	close(p.ended)
}

// describe words a status as Go's os.ProcessState does, which E2B's clients see.
func describe(status syscall.WaitStatus) string {
	if !status.Signaled() {
		return fmt.Sprintf("exit status %d", status.ExitStatus())
	}
	text := "signal: " + status.Signal().String()
	if status.CoreDump() {
		text += " (core dumped)"
	}
	return text
}

// terminate asks the process to end.
func (p *process) terminate() {
	_ = p.child.Signal(syscall.SIGTERM)
	p.stopWaiting()
}

// kill ends the process and its group. The group may outlive its leader, but an
// empty one gives its number back, and then another process may have it.
func (p *process) kill() {
	defer p.stopWaiting()
	select {
	case <-p.ended:
		return
	default:
	}
	if now, ok := p.spawner.Find(p.child.PID); ok && now != p.child {
		return
	}
	_ = syscall.Kill(-p.child.PID, syscall.SIGKILL)
}

// over tells that the process has ended and nobody waits for its children.
func (p *process) over() bool {
	select {
	case <-p.child.Done():
	default:
		return false
	}
	select {
	case <-p.abandon:
		return true
	default:
		return false
	}
}

func (p *process) resize(size *pb.PTY_Size) error {
	if p.files.tty == nil {
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %d has no terminal to resize; start it with a pty", p.child.PID))
	}
	if err := setSize(p.files.tty, size); err != nil {
		return connect.NewError(connect.CodeInternal, err)
	}
	return nil
}
