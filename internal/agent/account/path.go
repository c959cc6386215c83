package account

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Limits of Linux, bytes: longer paths and names can name nothing.
const (
	pathLimit = 4096
	nameLimit = 255
)

// PathError says what is wrong with a path that a request names.
type PathError struct{ Message string }

func (e *PathError) Error() string { return e.Message }

// Resolve makes a path absolute and clean. A relative path lies in home, with or
// without "~/" before it, as in E2B; the empty path is workdir. The error is a
// *PathError.
func Resolve(path, home, workdir string) (string, error) {
	if strings.ContainsRune(path, 0) {
		return "", &PathError{"the path contains a NUL byte"}
	}
	if len(path) > pathLimit {
		return "", &PathError{fmt.Sprintf("the path is %d bytes long; at most %d can be used", len(path), pathLimit)}
	}
	switch {
	case path == "":
		path = filepath.Join("/", workdir)
	case path == "~" || strings.HasPrefix(path, "~/"):
		path = filepath.Join("/", home, path[1:])
	case strings.HasPrefix(path, "~"):
		return "", &PathError{fmt.Sprintf("the path %q names another user's home; only ~ and ~/... are understood", path)}
	case !filepath.IsAbs(path):
		path = filepath.Join("/", home, path)
	}
	path = filepath.Clean(path)
	if len(path) >= pathLimit {
		return "", &PathError{fmt.Sprintf("the path is %d bytes long; at most %d can be used", len(path), pathLimit-1)}
	}
	for name := range strings.SplitSeq(path, "/") {
		if len(name) > nameLimit {
			return "", &PathError{fmt.Sprintf("the path has a name of %d bytes; at most %d can be used", len(name), nameLimit)}
		}
	}
	return path, nil
}
