package kernel

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// A programKernel is a process of a program of ours that speaks this driver's
// protocol, in any language. The loop goroutine alone reads the socket and the
// pipes.
type programKernel struct {
	process  *spawn.Process
	defaults map[string]string // variables the kernel has unless the sandbox sets them
	encode   func(request) ([]byte, error)
	group    bool // an interrupt is for the children too

	out        *outputPipe
	err        *outputPipe
	acks       int
	interrupts int // -1 for none

	ready  chan error        // one value: nil, or why it did not start
	warmed chan error        // one value for each warm
	runs   chan chan<- event // the run the loop is to feed next

	writing sync.Mutex // one request at a time; guards socket against its close
	socket  int
	broken  bool
	unread  int               // bytes sent since the last run began
	used    bool              // a run has begun
	begun   byte              // runs, the low byte of their number
	held    map[string][]byte // requests for before the next run, by Op

	swept chan struct{} // closed when no process of the session is left
	ended chan struct{}
}

type request struct {
	Op      string            `json:"op"`
	Code    string            `json:"code,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Seed    string            `json:"seed,omitempty"`
	Modules []string          `json:"modules"`
}

func (k *programKernel) execute(code string, env map[string]string) <-chan event {
	k.writing.Lock()
	defer k.writing.Unlock()
	if k.broken {
		events := make(chan event, 1)
		events <- event{Kind: eventDied, Value: epitaph(k.process)}
		close(events)
		return events
	}
	events := make(chan event)
	k.used = true
	k.begun++
	k.runs <- events
	// A failure means that the kernel is dying: the loop ends the run.
	if k.sendHeldLocked() == nil {
		_ = k.sendLocked(request{Op: "run", Code: code, Env: env})
	}
	return events
}

// refuses nothing: every language of ours can have them.
func (k *programKernel) refuses(map[string]string) error { return nil }

func (k *programKernel) setEnv(env map[string]string) error {
	for name, value := range k.defaults {
		if env[name] == "" {
			env[name] = value
		}
	}
	if err := k.sendOrHold(request{Op: "env", Env: env}); err != nil {
		return fmt.Errorf("set the kernel's environment: %w", err)
	}
	return nil
}

func (k *programKernel) reseed(entropy []byte) error {
	seed := base64.StdEncoding.EncodeToString(entropy)
	if err := k.sendOrHold(request{Op: "seed", Seed: seed}); err != nil {
		return fmt.Errorf("reseed the kernel: %w", err)
	}
	return nil
}

// maxUnread is how much may wait in the socket for a busy kernel, bytes; less
// than its buffer, so that sending never blocks.
const maxUnread = 64 << 10

// sendOrHold sends at once, or keeps the request for the next run: when a busy
// kernel has much to read already; and when it has run nothing yet, so that what a
// new sandbox may never use stays asleep. Of each kind the last one counts.
func (k *programKernel) sendOrHold(r request) error {
	data, err := k.encode(r)
	if err != nil {
		return err
	}
	k.writing.Lock()
	defer k.writing.Unlock()
	if !k.used || k.unread+len(data) > maxUnread || k.held[r.Op] != nil {
		k.held[r.Op] = data
		return nil
	}
	k.unread += len(data)
	return k.writeLocked(data)
}

// sendHeldLocked is for an idle kernel, which has read what was sent or will.
func (k *programKernel) sendHeldLocked() error {
	k.unread = 0
	for op, data := range k.held {
		if err := k.writeLocked(data); err != nil {
			return err
		}
		delete(k.held, op)
	}
	return nil
}

func (k *programKernel) warm(ctx context.Context, modules []string) error {
	if modules == nil {
		modules = []string{}
	}
	if err := k.send(request{Op: "warm", Modules: modules}); err != nil {
		return err
	}
	return k.await(ctx, k.warmed)
}

func (k *programKernel) waitReady(ctx context.Context) error { return k.await(ctx, k.ready) }

func (k *programKernel) await(ctx context.Context, answer <-chan error) error {
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no answer from it: %w", ctx.Err())
	case <-k.ended:
	}
	select {
	case err := <-answer: // it said why before it ended
		return err
	default:
		return errors.New(epitaph(k.process))
	}
}

func (k *programKernel) interrupt(everything bool) {
	var err error
	switch {
	case k.interrupts >= 0:
		k.tellInterrupt()
	case k.group: // a second signal might hit what follows the first
		everything = true
	default:
		err = k.process.Signal(syscall.SIGINT)
	}
	if err == nil && everything && k.alive() {
		_ = syscall.Kill(-k.process.PID, syscall.SIGINT)
	}
	if k.group {
		_ = k.send(request{Op: "interrupted"}) // a failure ends it
	}
}

func (k *programKernel) alive() bool {
	select {
	case <-k.process.Done():
		return false
	default:
		return true
	}
}

// tellInterrupt does not wait: a kernel that does not read has enough to read.
func (k *programKernel) tellInterrupt() {
	k.writing.Lock()
	defer k.writing.Unlock()
	if k.interrupts >= 0 && !k.broken {
		_, _ = unix.Write(k.interrupts, []byte{k.begun})
	}
}

func (k *programKernel) kill(reason string) {
	k.process.SetReason(reason)
	_ = k.process.Signal(syscall.SIGKILL)
}

func (k *programKernel) done() <-chan struct{} { return k.ended }

// sendTimeout bounds the wait for a kernel that does not read; an idle one does.
const sendTimeout = 5 * time.Second

var errKernelGone = errors.New("the kernel has ended")

// send writes one request line to an idle kernel. After a failure the kernel is
// ended, because half a line may be out.
func (k *programKernel) send(r request) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	return k.sendLocked(r)
}

func (k *programKernel) sendLocked(r request) error {
	data, err := k.encode(r)
	if err != nil {
		return err
	}
	return k.writeLocked(data)
}

func (k *programKernel) writeLocked(data []byte) error {
	if k.broken {
		return errKernelGone
	}
	if err := writeAll(k.socket, append(data, '\n'), sendTimeout); err != nil {
		k.broken = true
		_ = k.process.Signal(syscall.SIGKILL)
		return err
	}
	return nil
}

// watch ends what the kernel left behind and lets the loop see the end even
// when a forked child holds the other end of the socket.
func (k *programKernel) watch() {
	k.process.Status()
	killSession(k.process.PID)
	close(k.swept)
	k.writing.Lock()
	defer k.writing.Unlock()
	if k.socket >= 0 {
		_ = unix.Shutdown(k.socket, unix.SHUT_RDWR)
	}
}
