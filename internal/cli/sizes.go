package cli

import (
	"path/filepath"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
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
				bytes[path] = sandbox.DiskBytes(path)
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
