package kernel

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// descriptors connect a kernel with the agent. The agent's ends do not block; the
// kernel's become its descriptors 0, 1, 2 and so on, in their order.
type descriptors struct {
	agent, kernel fds
	started       bool
}

// newDescriptors returns those that every kernel has: /dev/null to read from, and
// two pipes for what children and native code print. Close them in any case.
func newDescriptors() (*descriptors, error) {
	d := &descriptors{}
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/null: %w", err)
	}
	d.kernel = append(d.kernel, null)
	for range 2 {
		pipe := make([]int, 2)
		if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
			d.close()
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		if err := d.add(pipe[0], pipe[1]); err != nil {
			d.close()
			return nil, err
		}
		// Fewer rounds for commands that write much; the default serves too.
		_, _ = unix.FcntlInt(uintptr(pipe[0]), unix.F_SETPIPE_SZ, pipeSize)
	}
	return d, nil
}

const pipeSize = 256 << 10 // bytes

// socket adds one for both ways.
func (d *descriptors) socket() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket pair: %w", err)
	}
	return d.add(pair[0], pair[1])
}

// pipe adds one that the kernel reads.
func (d *descriptors) pipe() error {
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	return d.add(pipe[1], pipe[0])
}

func (d *descriptors) add(agent, kernel int) error {
	d.agent = append(d.agent, agent)
	d.kernel = append(d.kernel, kernel)
	if err := unix.SetNonblock(agent, true); err != nil {
		return fmt.Errorf("make descriptor %d non-blocking: %w", agent, err)
	}
	return nil
}

// start runs a program in a session of its own. After it the agent's ends belong
// to the caller.
func (d *descriptors) start(spawner *spawn.Spawner, path string, argv []string, dir string, env []string) (*spawn.Process, error) {
	files := make([]uintptr, len(d.kernel))
	for i, fd := range d.kernel {
		files[i] = uintptr(fd)
	}
	process, err := spawner.Start(path, argv, &syscall.ProcAttr{
		Dir:   dir,
		Env:   env,
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("run %s in %s: %w", path, dir, err)
	}
	d.started = true
	return process, nil
}

// close closes the kernel's ends, which it has copies of, and the agent's when
// nothing was started.
func (d *descriptors) close() {
	d.kernel.close()
	if !d.started {
		d.agent.close()
	}
}

// fds are descriptors that are closed together.
type fds []int

func (f fds) close() {
	for _, fd := range f {
		_ = unix.Close(fd)
	}
}

// findExecutable looks for a program by its names in env's PATH; empty when it is
// not there.
func findExecutable(env []string, names ...string) string {
	search := lookup(env, "PATH")
	if search == "" {
		search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	for _, name := range names {
		for _, dir := range filepath.SplitList(search) {
			path := filepath.Join(dir, name)
			if unix.Access(path, unix.X_OK) == nil {
				return path
			}
		}
	}
	return ""
}

// lookup returns the value that a variable has in env; the last of a name counts.
func lookup(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value
		}
	}
	return ""
}
