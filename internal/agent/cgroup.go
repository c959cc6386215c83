package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
)

// processGroups are the cgroups in which processes are started: one for
// everything, and a small one for what the caller starts when that is full.
type processGroups struct {
	tasks []string // files
	max   string   // file with the limit of the first
}

// reserveProcesses is how many processes may be started when the sandbox is at
// its limit, so that a caller can look and end what is too much.
const reserveProcesses = 32

// makeProcessGroups makes the groups under the hierarchy that counts processes.
// Without one it says so and returns none.
func makeProcessGroups(root string, log *slog.Logger) processGroups {
	if root == "" {
		return processGroups{}
	}
	// Either a folder for each controller, or one hierarchy of all.
	for _, hierarchy := range []string{filepath.Join(root, "pids"), root} {
		if _, err := os.Stat(filepath.Join(hierarchy, "tasks")); err != nil {
			continue
		}
		all, reserve := filepath.Join(hierarchy, "tombolo"), filepath.Join(hierarchy, "tombolo-reserve")
		if err := errors.Join(makeGroup(all), makeGroup(reserve)); err != nil {
			log.Warn("there will be no process limit", "error", err)
			return processGroups{}
		}
		if err := os.WriteFile(filepath.Join(reserve, "pids.max"), []byte(strconv.Itoa(reserveProcesses)), 0); err == nil {
			return processGroups{
				tasks: []string{filepath.Join(all, "tasks"), filepath.Join(reserve, "tasks")},
				max:   filepath.Join(all, "pids.max"),
			}
		}
		_ = os.Remove(all)
		_ = os.Remove(reserve)
	}
	log.Warn("there will be no process limit: no cgroup hierarchy that counts processes", "root", root)
	return processGroups{}
}

func makeGroup(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
