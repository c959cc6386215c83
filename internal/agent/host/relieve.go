package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// reliever ends the largest process, or the process group that is largest by
// far in many small ones. It works when no memory is left, so its scan allocates
// nothing: the buffers are there from the start.
type reliever struct {
	spawner *spawn.Spawner
	self    int
	page    int64

	mu      sync.Mutex
	entries [32 << 10]byte
	stat    [1024]byte
	path    [32]byte
	groups  [256]group
	count   int // of groups
	pids    [4096]int32
}

// group is a process group and the memory of its members.
type group struct {
	id  int
	rss int64
}

// manySmall is how many times the largest process a group must be to be ended as
// a whole.
const manySmall = 4

func newReliever(spawner *spawn.Spawner) *reliever {
	return &reliever{spawner: spawner, self: os.Getpid(), page: int64(os.Getpagesize())}
}

// candidate is a process as /proc/PID/stat tells it.
type candidate struct {
	pid, parent int
	group       int
	rss         int64 // bytes
	name        [16]byte
	nameLength  int
}

// relieve ends the process with the largest resident set, or the largest group,
// and tells the processes it came from why. With none but the agent it ends
// nothing.
func (r *reliever) relieve(limit int64) (hostapi.Relieved, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if crowd := r.crowd(); crowd.rss > limit/2 {
		return r.relieveGroup(crowd, limit)
	}
	worst, err := r.largest()
	if err != nil || worst.pid == 0 {
		return hostapi.Relieved{}, err
	}
	if crowd := r.largestGroup(); crowd.rss > manySmall*worst.rss {
		return r.relieveGroup(crowd, limit)
	}
	// Whoever started it waits for its end, so the reason has to be there first.
	ended := hostapi.Relieved{PID: worst.pid, Name: string(worst.name[:worst.nameLength]), RSSBytes: worst.rss}
	r.explain(worst, fmt.Sprintf("out of memory: the sandbox reached its limit of %d MiB; %s (pid %d, %d MiB) was ended",
		limit>>20, ended.Name, ended.PID, ended.RSSBytes>>20))
	if err := unix.Kill(worst.pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return hostapi.Relieved{}, fmt.Errorf("end process %d (%s): %w", ended.PID, ended.Name, err)
	}
	r.awaitEnd(worst.pid)
	return ended, nil
}

// endPatience is how long a process that was ended may take to let go of its memory.
const endPatience = 2 * time.Second

// awaitEnd returns when a process has no memory any more, so that whoever asks again
// does not have the next one ended for what this one still held. On a machine that is
// busy it takes its time.
func (r *reliever) awaitEnd(pid int) {
	var c candidate
	for began := time.Now(); time.Since(began) < endPatience; time.Sleep(5 * time.Millisecond) {
		if !r.read(pid, &c) || c.rss == 0 {
			return
		}
	}
}

func (r *reliever) relieveGroup(g group, limit int64) (hostapi.Relieved, error) {
	if p, ok := r.spawner.Find(g.id); ok {
		p.SetReason(fmt.Sprintf("out of memory: the sandbox reached its limit of %d MiB; process group %d (%d MiB together) was ended",
			limit>>20, g.id, g.rss>>20))
	}
	if err := unix.Kill(-g.id, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return hostapi.Relieved{}, fmt.Errorf("end process group %d: %w", g.id, err)
	}
	return hostapi.Relieved{PID: g.id, Name: "process group", RSSBytes: g.rss}, nil
}

// A fork bomb that meets the memory limit before the limit of processes keeps the
// processors so busy that each system call takes tens of milliseconds. To look at
// each of its hundreds of processes would take longer than there is time, so of
// many a few are looked at.
const (
	crowdLeast  = 64 // processes
	crowdSample = 12
)

// crowd estimates the memory of the process group that most of the processes
// belong to; zero when there are few processes or no such group.
func (r *reliever) crowd() group {
	n := r.listPIDs()
	if n < crowdLeast {
		return group{}
	}
	var seen [crowdSample]candidate
	count := 0
	for i := range crowdSample {
		if r.read(int(r.pids[i*n/crowdSample]), &seen[count]) {
			count++
		}
	}
	for i := range count {
		members, rss := 0, int64(0)
		for j := range count {
			if seen[j].group == seen[i].group {
				members, rss = members+1, rss+seen[j].rss
			}
		}
		if 2*members > count && seen[i].group > 1 {
			return group{seen[i].group, rss * int64(n) / int64(count)}
		}
	}
	return group{}
}

// listPIDs fills pids with the processes there are, the agent left out.
func (r *reliever) listPIDs() int {
	dir, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(dir)
	count := 0
	for {
		n, err := unix.Getdents(dir, r.entries[:])
		if err != nil || n <= 0 {
			return count
		}
		for left := r.entries[:n]; len(left) > 0; {
			var pid int
			pid, left = nextPID(left)
			if pid > 1 && pid != r.self && count < len(r.pids) {
				r.pids[count] = int32(pid)
				count++
			}
		}
	}
}

func (r *reliever) largestGroup() group {
	var largest group
	for _, g := range r.groups[:r.count] {
		if g.rss > largest.rss {
			largest = g
		}
	}
	return largest
}

// addToGroup counts a process. Of more groups than the table holds the rest is
// not counted.
func (r *reliever) addToGroup(c *candidate) {
	if c.group <= 1 {
		return
	}
	for i := range r.groups[:r.count] {
		if r.groups[i].id == c.group {
			r.groups[i].rss += c.rss
			return
		}
	}
	if r.count < len(r.groups) {
		r.groups[r.count] = group{c.group, c.rss}
		r.count++
	}
}

// generations bounds the walk up a family that changes meanwhile.
const generations = 64

// explain records the reason on the process and its ancestors.
func (r *reliever) explain(c candidate, reason string) {
	for range generations {
		if p, ok := r.spawner.Find(c.pid); ok {
			p.SetReason(reason)
		}
		if c.parent <= 1 || c.parent == r.self || !r.read(c.parent, &c) {
			return
		}
	}
}

func (r *reliever) largest() (candidate, error) {
	dir, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return candidate{}, fmt.Errorf("list the processes: %w", err)
	}
	defer unix.Close(dir)
	var worst, c candidate
	r.count = 0
	for {
		n, err := unix.Getdents(dir, r.entries[:])
		if err != nil {
			return candidate{}, fmt.Errorf("list the processes: %w", err)
		}
		if n <= 0 {
			return worst, nil
		}
		for left := r.entries[:n]; len(left) > 0; {
			var pid int
			pid, left = nextPID(left)
			if pid <= 1 || pid == r.self || !r.read(pid, &c) {
				continue
			}
			r.addToGroup(&c)
			if c.rss > worst.rss {
				worst = c
			}
		}
	}
}

// nextPID takes one entry off the answer of getdents64: inode 8 bytes, offset 8,
// length 2, type 1, name with a final NUL. The pid is 0 for other names.
func nextPID(entries []byte) (pid int, rest []byte) {
	const header = 19
	if len(entries) < header {
		return 0, nil
	}
	length := int(entries[16]) | int(entries[17])<<8
	if length <= header || length > len(entries) {
		return 0, nil
	}
	for _, b := range entries[header:length] {
		if b == 0 {
			break
		}
		if b < '0' || b > '9' {
			return 0, entries[length:]
		}
		pid = pid*10 + int(b-'0')
	}
	return pid, entries[length:]
}

// read fills c from /proc/PID/stat; false when the process has gone.
func (r *reliever) read(pid int, c *candidate) bool {
	fd, err := unix.Open(string(appendStatPath(r.path[:0], pid)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	n, err := unix.Read(fd, r.stat[:])
	_ = unix.Close(fd)
	if err != nil {
		return false
	}
	return parseStat(r.stat[:n], pid, r.page, c)
}

func appendStatPath(path []byte, pid int) []byte {
	path = append(path, "/proc/"...)
	path = appendInt(path, pid)
	return append(path, "/stat"...)
}

func appendInt(to []byte, n int) []byte {
	if n >= 10 {
		to = appendInt(to, n/10)
	}
	return append(to, byte('0'+n%10))
}

// parseStat reads "pid (name) state ppid pgrp ... rss ...", proc(5): the parent is
// field 4, the group field 5 and the resident pages field 24. The name may hold anything, so the
// last parenthesis ends it.
func parseStat(line []byte, pid int, page int64, c *candidate) bool {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return false
	}
	c.pid = pid
	c.nameLength = copy(c.name[:], line[open+1:end])
	rest := line[end+1:]
	for field := 3; field <= 24; field++ {
		rest = bytes.TrimLeft(rest, " ")
		stop := bytes.IndexByte(rest, ' ')
		if stop < 0 {
			return false
		}
		switch field {
		case 4:
			c.parent = int(parseInt(rest[:stop]))
		case 5:
			c.group = int(parseInt(rest[:stop]))
		case 24:
			c.rss = parseInt(rest[:stop]) * page
		}
		rest = rest[stop:]
	}
	return true
}

func parseInt(digits []byte) int64 {
	var n int64
	for _, b := range digits {
		if b < '0' || b > '9' {
			return 0
		}
		n = n*10 + int64(b-'0')
	}
	return n
}
