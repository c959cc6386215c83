package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/engine"
)

// hierarchy is the machine's control groups. runsc makes the groups and puts
// the processes in; this file watches, empties and removes them.
type hierarchy struct {
	root    string // the mount point, /sys/fs/cgroup
	unified bool   // v2
}

// findHierarchy tells v2 (one tree) from v1 (a tree a controller). A v2 tree
// mounted beside v1 ones ("hybrid") has no controllers and does not count.
func findHierarchy() (hierarchy, error) {
	const root = "/sys/fs/cgroup"
	var stat unix.Statfs_t
	if err := unix.Statfs(root, &stat); err != nil {
		return hierarchy{}, fmt.Errorf("no control groups at %s (mount them): %w", root, err)
	}
	if stat.Type == unix.CGROUP2_SUPER_MAGIC {
		return hierarchy{root: root, unified: true}, nil
	}
	for _, controller := range []string{"memory", "cpu", "pids"} {
		if _, err := os.Stat(filepath.Join(root, controller)); err != nil {
			return hierarchy{}, fmt.Errorf("control group controller %q is missing (enable it on the kernel command line): %w", controller, err)
		}
	}
	return hierarchy{root: root}, nil
}

// String names the version for people.
func (h hierarchy) String() string {
	if h.unified {
		return "v2"
	}
	return "v1"
}

// dirs are the folders of one group: one in v2, one a controller in v1.
func (h hierarchy) dirs(path string) []string {
	if h.unified {
		return existing(filepath.Join(h.root, path))
	}
	trees, _ := os.ReadDir(h.root)
	var candidates []string
	for _, tree := range trees {
		// "cpu,cpuacct" and the like are mounts; cpu and cpuacct then are links to it.
		if tree.IsDir() {
			candidates = append(candidates, filepath.Join(h.root, tree.Name(), path))
		}
	}
	return existing(candidates...)
}

func existing(dirs ...string) []string {
	var found []string
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			found = append(found, dir)
		}
	}
	return found
}

// list names the groups directly below path.
func (h hierarchy) list(path string) ([]string, error) {
	seen := map[string]bool{}
	var names []string
	for _, dir := range h.dirs(path) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, entry := range entries {
			if entry.IsDir() && !seen[entry.Name()] {
				seen[entry.Name()] = true
				names = append(names, entry.Name())
			}
		}
	}
	return names, nil
}

func (h hierarchy) removeEmpty(path string) {
	for _, dir := range h.dirs(path) {
		os.Remove(dir)
	}
}

// group is the control group of one sandbox.
type group struct {
	hierarchy
	path string
}

// file is the path of a controller's file.
func (g group) file(controller, name string) string {
	if g.unified {
		return filepath.Join(g.root, g.path, name)
	}
	return filepath.Join(g.root, controller, g.path, name)
}

// memoryFile picks the v1 or v2 name of a file of the memory controller.
func (g group) memoryFile(v1, v2 string) string {
	if g.unified {
		return g.file("memory", v2)
	}
	return g.file("memory", v1)
}

func (g group) memoryUsage() (int64, error) {
	return readInt(g.memoryFile("memory.usage_in_bytes", "memory.current"))
}

// memory is what a group's memory is used for, bytes.
type memory struct {
	total int64
	// inside is what the processes inside use: the file in memory in which gVisor
	// keeps it, which is all the shared memory of the group.
	inside int64
	cache  int64 // page cache of files on disk
}

// inUse is the memory that no reclaim can free: the usage less the page cache of
// files. Shared memory counts, since gVisor keeps its guests' there.
func (m memory) inUse() int64 { return max(0, m.total-m.cache) }

func (g group) memory() (memory, error) {
	usage, err := g.memoryUsage()
	if err != nil {
		return memory{}, err
	}
	stat, err := readFlat(g.file("memory", "memory.stat"))
	if err != nil {
		return memory{}, err
	}
	prefix := "total_" // with what is in groups below
	if g.unified {
		prefix = ""
	}
	return memory{
		total:  usage,
		inside: stat[prefix+"shmem"],
		cache:  stat[prefix+"active_file"] + stat[prefix+"inactive_file"],
	}, nil
}

// oomKilled tells whether the kernel ended a process of the group for memory.
func (g group) oomKilled() bool {
	name := g.memoryFile("memory.oom_control", "memory.events")
	stat, err := readFlat(name)
	return err == nil && stat["oom_kill"] > 0
}

// holds tells whether a process that lives is in the group.
func (g group) holds(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		// "4:memory:/path" in v1, "0::/path" in v2
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 && parts[2] == g.path {
			return true
		}
	}
	return false
}

func (g group) stats() (engine.Stats, error) {
	var stats engine.Stats
	used, err := g.memory()
	if err != nil {
		return stats, err
	}
	stats.MemoryBytes, stats.CacheBytes = used.inside, used.cache
	stats.EngineBytes = max(0, used.total-used.inside-used.cache)
	if g.unified {
		cpu, err := readFlat(g.file("cpu", "cpu.stat"))
		if err != nil {
			return stats, err
		}
		stats.CPUTime = time.Duration(cpu["usage_usec"]) * time.Microsecond
	} else {
		nanoseconds, err := readInt(g.file("cpuacct", "cpuacct.usage"))
		if err != nil {
			return stats, err
		}
		stats.CPUTime = time.Duration(nanoseconds)
	}
	stats.Processes, err = readInt(g.file("pids", "pids.current"))
	return stats, err
}

// hasSentry tells whether the group's sentry has been started.
func (g group) hasSentry() bool {
	raw, _ := os.ReadFile(g.file("memory", "cgroup.procs"))
	for _, pid := range strings.Fields(string(raw)) {
		command, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		if strings.HasPrefix(string(command), sentryName+"\x00") {
			return true
		}
	}
	return false
}

// remove ends every process in the group and removes it. It returns when the
// processes are gone, or with an error after ten seconds or at ctx's end.
func (g group) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		dirs := g.dirs(g.path)
		if len(dirs) == 0 {
			return nil
		}
		g.kill(dirs)
		var last error
		for _, dir := range dirs {
			if err := removeTree(dir); err != nil {
				last = err
			}
		}
		if last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove control group %s: %w (%w)", g.path, last, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// kill sends SIGKILL to every process in the group.
func (g group) kill(dirs []string) {
	for _, dir := range dirs {
		if g.unified {
			if writeControl(filepath.Join(dir, "cgroup.kill"), "1") == nil {
				continue
			}
		}
		raw, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, field := range strings.Fields(string(raw)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

// removeTree removes a group and what groups are below it. Control files are
// not removed; they go with their folder.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

func readInt(file string) (int64, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

func writeInt(file string, value int64) error {
	return writeControl(file, strconv.FormatInt(value, 10))
}

// writeControl writes a control file, which must be there.
func writeControl(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// readFlat reads a file of "name value" lines.
func readFlat(file string) (map[string]int64, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	values := map[string]int64{}
	for line := range strings.Lines(string(raw)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			values[name] = n
		}
	}
	return values, nil
}
