package cli

import (
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// size is what a template takes on the disk, bytes: what goes with it, and what it
// has in common with others.
type size struct {
	Own    int64 `json:"ownBytes"`
	Shared int64 `json:"sharedBytes"`
}

// templateSizes looks at images and snapshots, each once.
func templateSizes(data string, templates []store.Template) []size {
	users, bytes := map[string]int{}, map[string]int64{}
	files := func(t store.Template) []string {
		of := []string{filepath.Join(data, "images", t.Image)}
		if t.Upper != "" {
			of = append(of, filepath.Join(data, "images", t.Upper))
		}
		if t.Snapshot != "" {
			of = append(of, filepath.Join(data, "snapshots", t.Snapshot))
		}
		return of
	}
	for _, t := range templates {
		for _, path := range files(t) {
			if users[path]++; users[path] == 1 {
				bytes[path] = onDisk(path)
			}
		}
	}
	sizes := make([]size, len(templates))
	for i, t := range templates {
		for _, path := range files(t) {
			if users[path] > 1 {
				sizes[i].Shared += bytes[path]
			} else {
				sizes[i].Own += bytes[path]
			}
		}
	}
	return sizes
}

// onDisk is what a file or folder takes on the disk, bytes.
func onDisk(path string) int64 {
	var total int64
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it is gone
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
