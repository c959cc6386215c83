package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/engine"
)

// The kernel's answer to a full control group is to kill the sentry, which is
// the whole sandbox. So the group gets room above the sandbox's limit, and the
// engine acts when the limit is reached, before the kernel would:
//
//   - v1: a threshold on the usage tells us by an eventfd. The group's own limit is
//     a reserve above it, and the OOM killer is off: what gets there nevertheless
//     stands still, and the same eventfd tells us. Nothing should get there, for
//     not all can stand still: what the kernel does for a thread is refused memory,
//     and the sentry has died of a fault in its own.
//   - v2: memory.high slows the allocating threads down and memory.events tells
//     us; memory.max, where the kernel kills, stays a reserve above it.
//
// While relief is asked for both lines are a reserve higher, for the agent's threads
// would be held up with the others.
const (
	// engineMemory is what the sentry and the gofer need themselves. Measured:
	// 35-60 MiB with some hundred processes inside.
	engineMemory = 96 << 20
	// reserveMemory lets the agent act while memory is exhausted.
	reserveMemory = 128 << 20
	// reliefEffect is how long nothing may come back after relief, before it is asked
	// for again: a process that was ended gives its memory up page by page, and the
	// next one would be ended for nothing.
	reliefEffect = 500 * time.Millisecond
	// reliefStep is what counts as coming back.
	reliefStep = 1 << 20
	// reliefPatience is how long the sandbox may stay at its limit before it is
	// ended as a whole.
	reliefPatience = 10 * time.Second
)

// memoryWatch tells when a group has reached its limit.
type memoryWatch struct {
	wait  func(ctx context.Context) error // returns nil at each alarm
	close func()
}

// watchMemory sets the group's limits around the sandbox's and watches them. The
// file it waits on uses the runtime's poller, so no thread is held.
func (g group) watchMemory(limit int64) (*memoryWatch, error) {
	if g.unified {
		return g.watchMemoryV2(limit)
	}
	return g.watchMemoryV1(limit)
}

func (g group) watchMemoryV1(limit int64) (*memoryWatch, error) {
	// A restored sandbox may be above the line already; then it keeps the reserve
	// until the first alarm.
	if err := g.setRoom(limit, 0); err != nil && !errors.Is(err, unix.EBUSY) {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	event := os.NewFile(uintptr(fd), "eventfd")
	err = errors.Join(
		writeControl(g.file("memory", "memory.oom_control"), "1"),
		g.tellBy(fd, "memory.oom_control", ""),
		g.tellBy(fd, "memory.usage_in_bytes", strconv.FormatInt(limit+engineMemory, 10)),
	)
	if err != nil {
		event.Close()
		return nil, err
	}
	wait := func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { event.SetReadDeadline(time.Unix(1, 0)) })()
		for {
			if pressed, err := g.awaitPressure(ctx, limit); pressed || err != nil {
				return errors.Join(ctx.Err(), err)
			}
			var count [8]byte
			if _, err := event.Read(count[:]); err != nil || ctx.Err() != nil {
				return errors.Join(ctx.Err(), err)
			}
		}
	}
	return &memoryWatch{wait: wait, close: func() { event.Close() }}, nil
}

// tellBy has the kernel write to an eventfd when a file of a v1 group has news.
func (g group) tellBy(eventfd int, name, argument string) error {
	file, err := os.Open(g.file("memory", name))
	if err != nil {
		return err
	}
	defer file.Close() // the registration is the eventfd's
	return writeControl(g.file("memory", "cgroup.event_control"), fmt.Sprintf("%d %d %s", eventfd, file.Fd(), argument))
}

// awaitPressure returns true once memory is short, and false when the usage is below
// the threshold, whose crossing will be told. Between, what fills the group is page
// cache, which what is written inside may push out without a word: so it looks again
// before the rest can have been taken.
func (g group) awaitPressure(ctx context.Context, limit int64) (bool, error) {
	const fastest = 1 << 30 // bytes a second that are taken at most
	for {
		m, err := g.memory()
		if err != nil {
			return false, err
		}
		if m.presses(limit) || g.standsStill() {
			return true, nil
		}
		if m.total < limit+engineMemory {
			return false, nil
		}
		left := time.Duration(float64(limit+engineMemory-m.inUse()) / fastest * float64(time.Second))
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(min(max(left, 10*time.Millisecond), time.Second)):
		}
	}
}

// standsStill tells whether threads wait for memory, at the limit of a v1 group.
func (g group) standsStill() bool {
	stat, err := readFlat(g.file("memory", "memory.oom_control"))
	return err == nil && stat["under_oom"] > 0
}

func (g group) watchMemoryV2(limit int64) (*memoryWatch, error) {
	if err := g.setRoom(limit, 0); err != nil {
		return nil, err
	}
	// A sandbox is one thing: without its sentry the rest is of no use.
	if err := writeControl(g.file("memory", "memory.oom.group"), "1"); err != nil {
		return nil, err
	}
	// Memory moved to swap is outside the limit. The file is missing where the
	// kernel has no swap.
	if err := writeControl(g.file("memory", "memory.swap.max"), "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// The kernel makes the file ready with POLLPRI when a number in it changes. An
	// inotify watch would do too, but a user may have only 128 of those.
	fd, err := unix.Open(g.file("memory", "memory.events"), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	events := os.NewFile(uintptr(fd), "memory.events")
	raw, err := events.SyscallConn()
	if err != nil {
		events.Close()
		return nil, err
	}
	wait := func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { events.SetReadDeadline(time.Unix(1, 0)) })()
		err := raw.Read(func(fd uintptr) bool {
			if !changed(int(fd)) {
				return false
			}
			used, err := g.memory()
			return err == nil && used.presses(limit)
		})
		return errors.Join(ctx.Err(), err)
	}
	return &memoryWatch{wait: wait, close: func() { events.Close() }}, nil
}

// presses tells whether memory is short: the group is full, or nearly, and what the
// processes inside hold is why. Page cache is none of it, since the kernel takes that
// back, which memory.high counts as well. Nor is a group that is nearly full because
// the engine has grown, as it does while it saves and restores and for a while
// after, for it collects no garbage then: ending a process inside would not help.
func (m memory) presses(limit int64) bool {
	used := m.inUse()
	return used >= limit+engineMemory || used >= limit+engineMemory*3/4 && m.inside >= limit
}

// changed tells whether a file of a group has changed since it was last asked:
// reading takes the news back.
func changed(fd int) bool {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}
	if n, err := unix.Poll(poll, 0); err != nil || n == 0 {
		return false
	}
	var content [512]byte
	unix.Pread(fd, content[:], 0)
	return true
}

// setRoom puts the line at which we act extra bytes above the limit, as far as the
// kernel knows of it (v2), and the one at which the kernel acts a reserve above that.
func (g group) setRoom(limit, extra int64) error {
	line := limit + engineMemory + extra
	if !g.unified {
		return writeInt(g.file("memory", "memory.limit_in_bytes"), line+reserveMemory)
	}
	most := writeInt(g.file("memory", "memory.max"), line+reserveMemory)
	return errors.Join(most, writeInt(g.file("memory", "memory.high"), line))
}

// makeRoomForStart waits for the sentry to appear in the group and then gives it
// room. Until then the group's limit is the sandbox's own, for runsc reads there
// what it tells the sandbox it has; but a restore of a sandbox that was nearly full
// needs more than that, and at a limit whose OOM killer is off it fails.
func (g group) makeRoomForStart(limit int64) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() {
		for !g.hasSentry() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Millisecond):
			}
		}
		g.setRoom(limit, reserveMemory) // where it cannot, the start tells
	})
	return func() {
		cancel()
		wait.Wait()
	}
}

// relieve answers every alarm until ctx ends with the instance.
func (i *instance) relieve(ctx context.Context, watch *memoryWatch) {
	defer watch.close()
	for {
		if err := watch.wait(ctx); err != nil {
			return
		}
		if !i.relieveOnce(ctx) {
			return
		}
	}
}

// relieveOnce has memory freed inside until the sandbox is below its limit. It
// ends the sandbox and returns false when that does not help.
func (i *instance) relieveOnce(ctx context.Context) bool {
	limit := i.spec.Limits.MemoryBytes
	room := int64(reserveMemory)
	ask := newAsker(ctx, i.spec)
	defer ask.work.Wait() // who has ended something has yet to say what
	ctx, cancel := context.WithTimeout(ctx, reliefPatience)
	defer cancel()
	for round := 0; ; round++ {
		i.group.setRoom(limit, room)
		memory, err := i.group.memory()
		if err != nil {
			return ctx.Err() != nil // the group is gone: the instance has ended
		}
		// Narrowing fails on v1 while usage is above, page cache included that is still
		// to be written.
		pressed := memory.presses(limit)
		if !pressed && i.group.setRoom(limit, 0) == nil && round > 0 {
			return true
		}
		used := memory.inUse()
		ask.look(used, pressed)
		if used > limit+engineMemory+room*3/4 {
			room = min(room+reserveMemory/2, 4*reserveMemory) // the agent itself may be standing still
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				i.setReason(outOfMemory(limit))
				i.group.kill(i.group.dirs(i.group.path))
			}
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// asker asks for relief, once at a time, beside who looks at the memory: the agent
// may need the room that is made meanwhile to answer at all.
type asker struct {
	ctx      context.Context
	spec     engine.Spec
	work     sync.WaitGroup
	answered chan struct{}

	asking bool
	lowest int64     // use since the last answer, bytes
	shows  time.Time // until when the last answer may show in the use
}

func newAsker(ctx context.Context, spec engine.Spec) *asker {
	return &asker{ctx: ctx, spec: spec, answered: make(chan struct{}, 1)}
}

// look is told of the memory in use every few milliseconds, and asks when it is time.
func (a *asker) look(used int64, pressed bool) {
	select {
	case <-a.answered:
		a.asking = false
		a.lowest, a.shows = used, time.Now().Add(reliefEffect)
	default:
	}
	if a.asking {
		return
	}
	if used < a.lowest-reliefStep {
		a.lowest, a.shows = used, time.Now().Add(reliefEffect)
	}
	grows := used > a.lowest+reserveMemory/2
	if a.spec.OnPressure == nil || !pressed || !grows && time.Now().Before(a.shows) {
		return
	}
	a.asking = true
	a.work.Go(func() {
		a.spec.OnPressure(a.ctx, engine.Pressure{UsedBytes: used, LimitBytes: a.spec.Limits.MemoryBytes})
		a.answered <- struct{}{}
	})
}
