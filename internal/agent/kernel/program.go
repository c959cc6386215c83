package kernel

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

const pipeSize = 256 << 10 // bytes

// startTimeout bounds the start of a kernel: Python, IPython and its imports
// take about 3 s in a cold sandbox on a slow machine.
const startTimeout = 60 * time.Second

// programPath is the program as its interpreter finds it.
const programPath = "/proc/self/fd/5"

// A program makes kernels of one language: it is an interpreter of the
// template's, and a text for it that serves the requests of a [programKernel].
// It has these descriptors, and the agent the other ends:
//
//	0  /dev/null
//	1  a pipe: output of child processes and native code; likewise 2
//	3  a stream socket: one JSON object a line, requests in (unless encode
//	   says how), frames out
//	4  a pipe: one byte for each "sync" frame the agent has dealt with
//	5  the text
//	6  a pipe, if it asks for it: one byte for each interrupt, the low one of
//	   the number of the run; then 4 and 6 do not block
type program struct {
	spawner    *spawn.Spawner
	language   string // for messages
	path       string // of the interpreter
	args       []string
	text       []byte
	defaults   map[string]string // variables the kernel has unless the sandbox sets them
	interrupts bool              // give it descriptor 6, in place of a SIGINT
	// encode writes a request for a program that cannot read JSON, without the
	// last line end.
	encode func(request) ([]byte, error)
	group  bool // an interrupt is for the children too: it waits for them
}

// start returns an idle kernel.
func (p program) start(ctx context.Context, dir string, env []string) (driver, error) {
	k, err := p.spawn(dir, env)
	if err != nil {
		return nil, fmt.Errorf("start the %s kernel: %w", p.language, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := k.waitReady(ctx); err != nil {
		k.kill("it did not start")
		<-k.done()
		return nil, fmt.Errorf("start the %s kernel: %w", p.language, err)
	}
	return k, nil
}

// spawn starts the process with the descriptors above.
func (p program) spawn(dir string, env []string) (*programKernel, error) {
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
	file, err := programFile(p.text)
	if err != nil {
		return nil, err
	}
	theirs.add(file)
	interrupts := -1
	if p.interrupts {
		pipe := make([]int, 2)
		if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		interrupts = pipe[1]
		mine.add(interrupts)
		theirs.add(pipe[0])
		for _, fd := range []int{acks[0], pipe[0]} {
			if err := unix.SetNonblock(fd, true); err != nil {
				return nil, fmt.Errorf("make descriptor %d non-blocking: %w", fd, err)
			}
		}
	}
	for _, fd := range mine {
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("make descriptor %d non-blocking: %w", fd, err)
		}
	}

	env = slices.Clone(env)
	for name, value := range p.defaults {
		if lookup(env, name) == "" {
			env = append(env, name+"="+value)
		}
	}
	process, err := p.spawner.Start(p.path, append([]string{p.path}, p.args...), &syscall.ProcAttr{
		Dir:   dir,
		Env:   env,
		Files: theirs.files(),
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("run %s in %s: %w", p.path, dir, err)
	}
	keep = true
	if p.encode == nil {
		p.encode = func(r request) ([]byte, error) { return json.Marshal(r) }
	}
	k := &programKernel{
		process:    process,
		defaults:   p.defaults,
		encode:     p.encode,
		group:      p.group,
		out:        &outputPipe{fd: mine[0], kind: eventStdout},
		err:        &outputPipe{fd: mine[1], kind: eventStderr},
		socket:     mine[2],
		acks:       mine[3],
		interrupts: interrupts,
		ready:      make(chan error, 1),
		warmed:     make(chan error, 1),
		runs:       make(chan chan<- event, 1),
		held:       map[string][]byte{},
		swept:      make(chan struct{}),
		ended:      make(chan struct{}),
	}
	go k.watch()
	go k.loop()
	return k, nil
}

// programFile puts the program in a memory file, so that the template needs no
// copy of it and cannot have a wrong one.
func programFile(text []byte) (int, error) {
	fd, err := unix.MemfdCreate("kernel", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a memory file for the kernel program: %w", err)
	}
	if err := writeAll(fd, text, time.Second); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("write the kernel program: %w", err)
	}
	return fd, nil
}

// programText joins the files of a program.
func programText(files embed.FS, dir, suffix string, parts []string) ([]byte, error) {
	var text []byte
	for _, part := range parts {
		data, err := files.ReadFile(dir + "/" + part + suffix)
		if err != nil {
			return nil, fmt.Errorf("read the kernel program: %w", err)
		}
		text = append(append(text, data...), '\n')
	}
	return text, nil
}

// findExecutable looks a program up in env's PATH; empty when it is not there.
func findExecutable(name string, env []string) string {
	search := lookup(env, "PATH")
	if search == "" {
		search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	for _, dir := range filepath.SplitList(search) {
		path := filepath.Join(dir, name)
		if unix.Access(path, unix.X_OK) == nil {
			return path
		}
	}
	return ""
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
