package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/engine"
)

// instance is a sandbox that runs. Its sentry is not our child (runsc has
// detached it), so its end is seen through a pidfd.
type instance struct {
	engine *Engine
	spec   engine.Spec
	group  group
	pidfd  *os.File
	output *os.File // the read end
	// adopted: the process that had it may have left a runsc behind that saves it.
	adopted bool
	// endTelling ends what was begun to watch the processes of one that was adopted.
	endTelling func()

	stopping sync.Mutex
	stopped  bool // guarded by stopping

	mu     sync.Mutex
	reason string // why it is about to end, the first one given

	cancel context.CancelFunc // ends the memory watch
	watch  sync.WaitGroup
	done   chan struct{}
	exit   engine.Exit
}

// watch takes charge of output, also when it fails.
func (e *Engine) watch(spec engine.Spec, g group, pid int, output *os.File) (*instance, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		output.Close()
		return nil, fmt.Errorf("sandbox %s ended while starting: %w", spec.ID, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	i := &instance{
		engine: e,
		spec:   spec,
		group:  g,
		pidfd:  os.NewFile(uintptr(fd), "pidfd"),
		output: output,
		cancel: cancel,
		done:   make(chan struct{}),

		endTelling: func() {},
	}
	memory, err := g.watchMemory(spec.Limits.MemoryBytes)
	if err != nil {
		cancel()
		i.pidfd.Close()
		output.Close()
		return nil, fmt.Errorf("watch memory of %s: %w", spec.ID, err)
	}
	e.tapOf(spec.ID).tell(spec.OnProcess)
	i.watch.Go(func() { i.relieve(ctx, memory) })
	i.watch.Go(func() { i.awaitEnd() })
	i.watch.Go(func() { copyOutput(spec, output) })
	return i, nil
}

// awaitEnd waits until the sentry has ended. A pidfd becomes readable then; the
// runtime's poller waits for it, so no thread is held.
func (i *instance) awaitEnd() {
	raw, err := i.pidfd.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			n, pollErr := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0 || (pollErr != nil && !errors.Is(pollErr, unix.EINTR))
		})
	}
	i.cancel()
	if errors.Is(err, os.ErrDeadlineExceeded) { // detached
		return
	}
	reason := i.endReason()
	if err != nil && reason == "" {
		reason = fmt.Sprintf("the engine process is lost: %v", err)
	}
	i.exit = engine.Exit{Reason: reason, At: time.Now().UTC()}
	close(i.done)
}

func (i *instance) setReason(reason string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.reason == "" {
		i.reason = reason
	}
}

func (i *instance) endReason() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.reason != "" {
		return i.reason
	}
	if i.group.oomKilled() {
		return outOfMemory(i.spec.Limits.MemoryBytes)
	}
	if words := lastWords(filepath.Join(i.spec.Dir, panicLog)); words != "" {
		return "the engine crashed: " + words
	}
	return "its first process ended, or the engine process was killed"
}

// lastWords finds the line of a panic log that says what happened.
func lastWords(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	raw, _ := io.ReadAll(io.LimitReader(f, 64<<10))
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") || strings.HasPrefix(line, "runtime:") {
			return line
		}
	}
	return ""
}

func outOfMemory(limit int64) string {
	return fmt.Sprintf("out of memory: the sandbox stayed above its limit of %d MiB", limit>>20)
}

func (i *instance) Done() <-chan struct{} { return i.done }

func (i *instance) Exit() engine.Exit {
	<-i.done
	return i.exit
}

func (i *instance) Checkpoint(ctx context.Context, to string) error {
	return i.save(ctx, to, checkpointCommand, "--compression=none", "--exclude-committed-zero-pages")
}

func (i *instance) CheckpointDisk(ctx context.Context, to string) error {
	return i.save(ctx, to, diskCommand)
}

// save runs one saving command. gVisor does not stand two at once: it panics.
func (i *instance) save(ctx context.Context, to, command string, args ...string) error {
	if i.adopted {
		if err := i.awaitSave(ctx); err != nil {
			return fmt.Errorf("%s %s: %w", command, i.spec.ID, err)
		}
	}
	args = append(args, "--leave-running", "--image-path="+to, i.spec.ID)
	// Saving takes memory too. Nothing inside runs meanwhile that could take the
	// room, and nothing inside could be ended to make some.
	i.group.setRoom(i.spec.Limits.MemoryBytes, reserveMemory)
	defer i.group.setRoom(i.spec.Limits.MemoryBytes, 0)
	if err := i.engine.runsc(ctx, i.spec, nil, command, args...); err != nil {
		os.RemoveAll(to)
		return fmt.Errorf("checkpoint %s: %w", i.spec.ID, err)
	}
	return nil
}

// awaitSave waits until no runsc saves the instance that a process which is gone
// has started.
func (i *instance) awaitSave(ctx context.Context) error {
	for pause := 5 * time.Millisecond; savesNow(i.spec.ID); pause = min(2*pause, 200*time.Millisecond) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("it is still being saved for a server that is gone: %w", ctx.Err())
		case <-time.After(pause):
		}
	}
	return nil
}

// savesNow tells whether there is a process "runsc … checkpoint … ID".
func savesNow(id string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		raw, _ := os.ReadFile(file)
		args := strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
		saves := slices.Contains(args, checkpointCommand) || slices.Contains(args, diskCommand)
		if args[0] == "runsc" && saves && args[len(args)-1] == id {
			return true
		}
	}
	return false
}

// The commands of runsc that save.
const (
	checkpointCommand = "checkpoint"
	diskCommand       = "fscheckpoint"
)

func (i *instance) Stop(ctx context.Context) error {
	i.stopping.Lock()
	defer i.stopping.Unlock()
	if i.stopped {
		return nil
	}
	i.setReason("stopped")
	i.endTelling()
	if err := i.engine.clear(ctx, i.spec.ID, i.spec.Dir); err != nil {
		return fmt.Errorf("stop %s: %w", i.spec.ID, err)
	}
	i.output.SetReadDeadline(time.Unix(1, 0)) // should a writer be left
	i.watch.Wait()
	i.pidfd.Close()
	i.output.Close()
	i.stopped = true
	return nil
}

// Detach ends the watching. Without it a full control group of v1 stands still
// until somebody adopts the instance.
func (i *instance) Detach() {
	i.stopping.Lock()
	defer i.stopping.Unlock()
	if i.stopped {
		return
	}
	i.stopped = true
	i.endTelling()
	i.engine.closeTap(i.spec.ID)
	i.pidfd.SetReadDeadline(time.Unix(1, 0))
	i.output.SetReadDeadline(time.Unix(1, 0))
	i.watch.Wait()
	i.pidfd.Close()
	i.output.Close()
}

func (i *instance) Stats(ctx context.Context) (engine.Stats, error) {
	stats, err := i.group.stats()
	if err != nil {
		return engine.Stats{}, fmt.Errorf("stats of %s: %w", i.spec.ID, err)
	}
	stats.DiskBytes = diskUsage(filepath.Join(i.spec.Dir, rootDir))
	return stats, nil
}

// diskUsage sums the blocks of the files in dir. gVisor keeps one sparse file
// there, so this is one stat.
func diskUsage(dir string) int64 {
	var total int64
	filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				total += stat.Blocks * 512
			}
		}
		return nil
	})
	return total
}
