package kernel

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

//go:embed python
var pythonFiles embed.FS

// pythonParts are the files of the program in the order in which it has them.
var pythonParts = []string{"start", "output", "results", "chart", "memory", "shell", "kernel"}

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

// python starts kernels of the template's own python3.
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

// spawn starts the process with the descriptors that python/start.py describes.
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
	fd, err := unix.MemfdCreate("kernel", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a memory file for the kernel program: %w", err)
	}
	for _, part := range pythonParts {
		text, err := pythonFiles.ReadFile("python/" + part + ".py")
		if err == nil {
			err = writeAll(fd, append(text, '\n'), time.Second)
		}
		if err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("write the kernel program: %w", err)
		}
	}
	return fd, nil
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
