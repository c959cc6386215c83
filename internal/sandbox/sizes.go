package sandbox

import (
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// What the names of images begin with that no recipe made.
const (
	BuiltPrefix    = "template-" // by builds
	ImportedPrefix = "oci-"      // out of images of others
)

// UploadsDir is the folder of the files that a key has uploaded for its builds.
func UploadsDir(data, keyID string) string { return filepath.Join(data, "builds", "uploads", keyID) }

// TemplateSize is what a template takes on the disk, bytes: what goes with it, and what
// it has in common with others.
type TemplateSize struct {
	Own    int64 `json:"ownBytes"`
	Shared int64 `json:"sharedBytes"`
}

// TemplateSizes looks at images and snapshots in a data folder, each once.
func TemplateSizes(data string, templates []store.Template) []TemplateSize {
	users, bytes := map[string]int{}, map[string]int64{}
	for _, t := range templates {
		for _, path := range templateFiles(data, t) {
			if users[path]++; users[path] == 1 {
				bytes[path] = DiskBytes(path)
			}
		}
	}
	sizes := make([]TemplateSize, len(templates))
	for i, t := range templates {
		for _, path := range templateFiles(data, t) {
			if users[path] > 1 {
				sizes[i].Shared += bytes[path]
			} else {
				sizes[i].Own += bytes[path]
			}
		}
	}
	return sizes
}

// templateFiles are the image of a template and what else it has.
func templateFiles(data string, t store.Template) []string {
	files := []string{filepath.Join(data, "images", t.Image)}
	if t.Upper != "" {
		files = append(files, filepath.Join(data, "images", t.Upper))
	}
	if t.Snapshot != "" {
		files = append(files, filepath.Join(data, "snapshots", t.Snapshot))
	}
	return files
}

// KeptBytes is what the templates, snapshots and uploads of a key take on the disk, each
// file once. Images of recipes are everybody's and do not count; what two keys have
// counts for both.
func KeptBytes(data, keyID string, templates []store.Template) int64 {
	bytes := DiskBytes(UploadsDir(data, keyID))
	counted := map[string]bool{}
	for _, t := range templates {
		if t.KeyID != keyID {
			continue
		}
		files := templateFiles(data, t)
		if !strings.HasPrefix(t.Image, BuiltPrefix) && !strings.HasPrefix(t.Image, ImportedPrefix) {
			files = files[1:]
		}
		for _, path := range files {
			if !counted[path] {
				counted[path] = true
				bytes += DiskBytes(path)
			}
		}
	}
	return bytes
}

// KeptRoom is how much more the key of a template may have on the disk (KeptBytes)
// beside that template, which may not be among those that there are: less than 0 when
// that is too much already. What the template takes the place of does not count.
func KeptRoom(data string, q Quota, templates []store.Template, t store.Template) int64 {
	if q.DiskBytes <= 0 {
		return math.MaxInt64
	}
	templates = slices.DeleteFunc(slices.Clone(templates), func(x store.Template) bool { return replaces(t, x) })
	return q.DiskBytes - KeptBytes(data, t.KeyID, append(templates, t))
}

// replaces tells whether nothing names a build any more once t has its tags.
func replaces(t, build store.Template) bool {
	return t.Name != "" && build.Name == t.Name && build.KeyID == t.KeyID && build.BuildID != t.BuildID &&
		!slices.ContainsFunc(build.Tags, func(tag string) bool { return !slices.Contains(t.Tags, tag) })
}

// KeptLimit is the error when KeptRoom has no room.
func (q Quota) KeptLimit() *LimitError {
	return &LimitError{What: "of disk in templates, snapshots and uploads", Limit: mebibytes(q.DiskBytes), Flag: "max-disk"}
}
