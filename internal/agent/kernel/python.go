package kernel

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

//go:embed chart.py
var chartProgram string

//go:embed kernel.py
var kernelProgram string

const pipeSize = 256 << 10 // bytes

// startTimeout bounds the start of a kernel: Python, IPython and its imports
// take about 3 s in a cold sandbox on a slow machine.
const startTimeout = 60 * time.Second

// Figures become results of the run, unless the sandbox's environment says
// otherwise.
const (
	plotVariable = "MPLBACKEND"
	plotBackend  = "module://matplotlib_inline.backend_inline"
)

// python starts kernels of the template's own python3 with kernel.py.
type python struct {
	spawner *spawn.Spawner
	path    string // of the interpreter; empty finds python3 in PATH
}

func (p *python) start(ctx context.Context, dir string, env []string) (driver, error) {
	path, err := p.find(env)
	if err != nil {
		return nil, err
	}
	k, err := p.spawn(path, dir, env)
	if err != nil {
		return nil, fmt.Errorf("start the Python kernel: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := k.waitReady(ctx); err != nil {
		k.kill("it did not start")
		<-k.done()
		return nil, fmt.Errorf("start the Python kernel: %w", err)
	}
	return k, nil
}

func (p *python) find(env []string) (string, error) {
	if p.path != "" {
		return p.path, nil
	}
	search := lookup(env, "PATH")
	if search == "" {
		search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	for _, dir := range filepath.SplitList(search) {
		path := filepath.Join(dir, "python3")
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", errors.New("the template has no python3: add the packages python3, ipython and matplotlib-inline to it")
}

// spawn starts the process with the descriptors that kernel.py describes.
func (p *python) spawn(path, dir string, env []string) (*pythonKernel, error) {
	var mine, theirs fds
	defer func() { theirs.close() }()
	keep := false
	defer func() {
		if !keep {
			mine.close()
		}
	}()

	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/null: %w", err)
	}
	theirs.add(null)
	for range 2 {
		pipe := make([]int, 2)
		if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		mine.add(pipe[0])
		theirs.add(pipe[1])
		// Fewer rounds for commands that write much; the default serves too.
		_, _ = unix.FcntlInt(uintptr(pipe[0]), unix.F_SETPIPE_SZ, pipeSize)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	mine.add(pair[0])
	theirs.add(pair[1])
	acks := make([]int, 2)
	if err := unix.Pipe2(acks, unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	mine.add(acks[1])
	theirs.add(acks[0])
	program, err := programFile()
	if err != nil {
		return nil, err
	}
	theirs.add(program)
	for _, fd := range mine {
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("make descriptor %d non-blocking: %w", fd, err)
		}
	}

	if lookup(env, plotVariable) == "" {
		env = append(env[:len(env):len(env)], plotVariable+"="+plotBackend)
	}
	process, err := p.spawner.Start(path, []string{path, "/proc/self/fd/5"}, &syscall.ProcAttr{
		Dir:   dir,
		Env:   env,
		Files: theirs.files(),
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("run %s in %s: %w", path, dir, err)
	}
	keep = true
	k := &pythonKernel{
		process: process,
		out:     &outputPipe{fd: mine[0], kind: eventStdout},
		err:     &outputPipe{fd: mine[1], kind: eventStderr},
		socket:  mine[2],
		acks:    mine[3],
		ready:   make(chan error, 1),
		warmed:  make(chan error, 1),
		runs:    make(chan chan<- event, 1),
		held:    map[string][]byte{},
		swept:   make(chan struct{}),
		ended:   make(chan struct{}),
	}
	go k.watch()
	go k.loop()
	return k, nil
}

// programFile puts the program in a memory file, so that the template needs no
// copy of it and cannot have a wrong one.
func programFile() (int, error) {
	fd, err := unix.MemfdCreate("kernel.py", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a memory file for the kernel program: %w", err)
	}
	for rest := []byte(chartProgram + "\n" + kernelProgram); len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("write the kernel program: %w", err)
		}
		rest = rest[n:]
	}
	return fd, nil
}

// pythonKernel drives one process of kernel.py. The loop goroutine alone reads
// the socket and the pipes.
type pythonKernel struct {
	process *spawn.Process
	out     *outputPipe
	err     *outputPipe
	acks    int

	ready  chan error        // one value: nil, or why it did not start
	warmed chan error        // one value for each warm
	runs   chan chan<- event // the run the loop is to feed next

	writing sync.Mutex // one request at a time; guards socket against its close
	socket  int
	broken  bool
	unread  int               // bytes sent since the last run began
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

func (k *pythonKernel) execute(code string, env map[string]string) <-chan event {
	k.writing.Lock()
	defer k.writing.Unlock()
	if k.broken {
		events := make(chan event, 1)
		events <- event{Kind: eventDied, Value: k.epitaph()}
		close(events)
		return events
	}
	events := make(chan event)
	k.runs <- events
	// A failure means that the kernel is dying: the loop ends the run.
	if k.sendHeldLocked() == nil {
		_ = k.sendLocked(request{Op: "run", Code: code, Env: env})
	}
	return events
}

func (k *pythonKernel) setEnv(env map[string]string) error {
	if env[plotVariable] == "" {
		env[plotVariable] = plotBackend
	}
	if err := k.sendOrHold(request{Op: "env", Env: env}); err != nil {
		return fmt.Errorf("set the kernel's environment: %w", err)
	}
	return nil
}

func (k *pythonKernel) reseed(entropy []byte) error {
	seed := base64.StdEncoding.EncodeToString(entropy)
	if err := k.sendOrHold(request{Op: "seed", Seed: seed}); err != nil {
		return fmt.Errorf("reseed the kernel: %w", err)
	}
	return nil
}

// maxUnread is how much may wait in the socket for a busy kernel, bytes; less
// than its buffer, so that sending never blocks.
const maxUnread = 64 << 10

// sendOrHold sends at once, or keeps the request for the next run when a busy
// kernel has much to read already. Of each kind the last one counts.
func (k *pythonKernel) sendOrHold(r request) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	k.writing.Lock()
	defer k.writing.Unlock()
	if k.unread+len(data) > maxUnread || k.held[r.Op] != nil {
		k.held[r.Op] = data
		return nil
	}
	k.unread += len(data)
	return k.writeLocked(data)
}

// sendHeldLocked is for an idle kernel, which has read what was sent or will.
func (k *pythonKernel) sendHeldLocked() error {
	k.unread = 0
	for op, data := range k.held {
		if err := k.writeLocked(data); err != nil {
			return err
		}
		delete(k.held, op)
	}
	return nil
}

func (k *pythonKernel) warm(ctx context.Context, modules []string) error {
	if modules == nil {
		modules = []string{}
	}
	if err := k.send(request{Op: "warm", Modules: modules}); err != nil {
		return err
	}
	return k.await(ctx, k.warmed)
}

func (k *pythonKernel) waitReady(ctx context.Context) error { return k.await(ctx, k.ready) }

func (k *pythonKernel) await(ctx context.Context, answer <-chan error) error {
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
		return errors.New(k.epitaph())
	}
}

func (k *pythonKernel) interrupt(everything bool) {
	if err := k.process.Signal(syscall.SIGINT); err == nil && everything {
		_ = syscall.Kill(-k.process.PID, syscall.SIGINT)
	}
}

func (k *pythonKernel) kill(reason string) {
	k.process.SetReason(reason)
	_ = k.process.Signal(syscall.SIGKILL)
}

func (k *pythonKernel) done() <-chan struct{} { return k.ended }

// sendTimeout bounds the wait for a kernel that does not read; an idle one does.
const sendTimeout = 5 * time.Second

var errKernelGone = errors.New("the kernel has ended")

// send writes one request line to an idle kernel. After a failure the kernel is
// ended, because half a line may be out.
func (k *pythonKernel) send(r request) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	return k.sendLocked(r)
}

func (k *pythonKernel) sendLocked(r request) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return k.writeLocked(data)
}

func (k *pythonKernel) writeLocked(data []byte) error {
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
func (k *pythonKernel) watch() {
	k.process.Status()
	killSession(k.process.PID)
	close(k.swept)
	k.writing.Lock()
	defer k.writing.Unlock()
	if k.socket >= 0 {
		_ = unix.Shutdown(k.socket, unix.SHUT_RDWR)
	}
}

// epitaph says how the kernel ended; call it after its end.
func (k *pythonKernel) epitaph() string {
	status, _ := k.process.Status()
	how := fmt.Sprintf("it exited with code %d", status.ExitStatus())
	if status.Signaled() {
		how = fmt.Sprintf("it was ended by signal %d (%s)", int(status.Signal()), status.Signal())
	}
	if reason := k.process.Reason(); reason != "" {
		how += ": " + reason
	}
	return "the kernel died: " + how
}

// fds are descriptors that are closed together.
type fds []int

func (f *fds) add(fd int) { *f = append(*f, fd) }

func (f fds) close() {
	for _, fd := range f {
		_ = unix.Close(fd)
	}
}

func (f fds) files() []uintptr {
	files := make([]uintptr, len(f))
	for i, fd := range f {
		files[i] = uintptr(fd)
	}
	return files
}

func lookup(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value
		}
	}
	return ""
}

// killSession ends every process of a session. Processes that start while it
// looks are found by the next round.
func killSession(sid int) {
	for range 10 {
		found := false
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, entry := range entries {
			if pid, ok := inSession(entry.Name(), sid); ok {
				found = true
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if !found {
			return
		}
	}
}

// inSession reads /proc/PID/stat (proc(5): "pid (comm) state ppid pgrp session").
func inSession(name string, sid int) (pid int, ok bool) {
	if name == "" || name[0] < '0' || name[0] > '9' {
		return 0, false
	}
	stat, err := os.ReadFile("/proc/" + name + "/stat")
	if err != nil {
		return 0, false
	}
	after := bytes.LastIndexByte(stat, ')')
	if after < 0 {
		return 0, false
	}
	var state string
	var parent, group, session int
	if _, err := fmt.Sscan(string(stat[after+1:]), &state, &parent, &group, &session); err != nil || session != sid || state == "Z" {
		return 0, false
	}
	if _, err := fmt.Sscan(name, &pid); err != nil {
		return 0, false
	}
	return pid, true
}
