package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// pidsCgroup are the files of the cgroup in which processes are started.
type pidsCgroup struct{ tasks, max string }

// processLimit makes a cgroup v1 group for everything but the agent, under the
// hierarchy that counts processes. Without one it says so and returns none.
func processLimit(root string, log *slog.Logger) pidsCgroup {
	if root == "" {
		return pidsCgroup{}
	}
	// Either a folder for each controller, or one hierarchy of all.
	for _, hierarchy := range []string{filepath.Join(root, "pids"), root} {
		if _, err := os.Stat(filepath.Join(hierarchy, "tasks")); err != nil {
			continue
		}
		group := filepath.Join(hierarchy, "tombolo")
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			log.Warn("there will be no process limit", "error", err)
			return pidsCgroup{}
		}
		limit := pidsCgroup{tasks: filepath.Join(group, "tasks"), max: filepath.Join(group, "pids.max")}
		if _, err := os.Stat(limit.max); err == nil {
			return limit
		}
		_ = os.Remove(group)
	}
	log.Warn("there will be no process limit: no cgroup hierarchy that counts processes", "root", root)
	return pidsCgroup{}
}
