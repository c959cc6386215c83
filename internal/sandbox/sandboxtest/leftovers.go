package sandboxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
)

// Leftovers names what sandboxes of the data folder have on the machine:
// processes, control groups, mounts and folders.
func (w *World) Leftovers() []string { return Leftovers(w.Dir) }

// Leftovers is World.Leftovers for a folder no world is open on.
func Leftovers(dir string) []string {
	found := processesNaming(filepath.Join(dir, "sandboxes"))
	for _, pattern := range []string{
		"/sys/fs/cgroup/*/tombolo-" + gvisor.Scope(dir) + "/*/cgroup.procs",
		"/sys/fs/cgroup/tombolo-" + gvisor.Scope(dir) + "/*/cgroup.procs",
		filepath.Join(dir, "sandboxes", "*"),
	} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			if filepath.Base(file) != ".lock" {
				found = append(found, file)
			}
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir+"/") {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	return found
}

// EngineRuns tells whether any process of the engine works for a data folder.
func EngineRuns(dir string) bool { return len(processesNaming(filepath.Join(dir, "sandboxes"))) > 0 }

// processesNaming lists processes whose command line holds text.
func processesNaming(text string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		raw, _ := os.ReadFile(file)
		if line := strings.ReplaceAll(string(raw), "\x00", " "); strings.Contains(line, text) {
			found = append(found, file+": "+line)
		}
	}
	return found
}

// NetworkNamespace is the network namespace that a sandbox has, as
// /proc/PID/ns/net names it.
func (w *World) NetworkNamespace(id string) (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	path := filepath.Join(w.Dir, "sandboxes", id, "netns")
	for line := range strings.Lines(string(mounts)) {
		// "36 35 0:4 net:[4026532] /path rw … - nsfs nsfs rw"
		if fields := strings.Fields(line); len(fields) > 4 && fields[4] == path {
			return fields[3], nil
		}
	}
	return "", fmt.Errorf("no namespace is mounted at %s", path)
}

// HoldsNamespace tells whether a thread or an open file of this process keeps a
// network namespace, and with it its TAP device, alive. (The kernel gives the
// name of one that is gone to the next, of whatever process, so looking at
// others proves nothing; what other processes a sandbox has is in Leftovers.)
func HoldsNamespace(namespace string) bool {
	for _, pattern := range []string{"/proc/self/task/*/ns/net", "/proc/self/fd/*"} {
		links, _ := filepath.Glob(pattern)
		for _, link := range links {
			if target, _ := os.Readlink(link); target == namespace {
				return true
			}
		}
	}
	return false
}

// OpenTAPs counts the ends of TAP devices that this process has open.
func OpenTAPs() int {
	count := 0
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if target, _ := os.Readlink(link); target == "/dev/net/tun" {
			count++
		}
	}
	return count
}

// SentryPID is the process of the engine that runs a sandbox.
func (w *World) SentryPID(id string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(w.Dir, "sandboxes", id, "engine", "pid"))
	if err != nil {
		return 0, err
	}
	var pid int
	_, err = fmt.Sscan(string(raw), &pid)
	return pid, err
}
