package filesystem

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// metadataPrefix is the name space of the metadata of files, E2B's.
const metadataPrefix = "user.e2b."

// Limits of what is read back, bytes: the attributes of a file are limited to
// 64 KiB on Linux.
const attributeLimit = 64 << 10

// Metadata reads the extended attributes user.e2b.* of a file, without the
// prefix. None, or a file system without attributes, is nil.
func Metadata(path string) map[string]string {
	size, err := unix.Llistxattr(path, nil)
	if err != nil || size <= 0 || size > attributeLimit {
		return nil
	}
	names := make([]byte, size)
	if size, err = unix.Llistxattr(path, names); err != nil {
		return nil
	}
	var found map[string]string
	for name := range strings.SplitSeq(string(names[:size]), "\x00") {
		key, ok := strings.CutPrefix(name, metadataPrefix)
		if !ok || key == "" {
			continue
		}
		value, err := attribute(path, name)
		if err != nil {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = strings.ToValidUTF8(value, "\uFFFD")
	}
	return found
}

func attribute(path, name string) (string, error) {
	size, err := unix.Lgetxattr(path, name, nil)
	if err != nil || size <= 0 {
		return "", err
	}
	value := make([]byte, min(size, attributeLimit))
	size, err = unix.Lgetxattr(path, name, value)
	if err != nil {
		return "", err
	}
	return string(value[:size]), nil
}

// ErrNoMetadata says that the file system keeps no extended attributes.
var ErrNoMetadata = errors.New("the file system here keeps no metadata")

// SetMetadata makes the metadata of the open file fd, which lies at path, just
// these. The error wraps ErrNoMetadata where there is no place for them.
func SetMetadata(fd int, path string, metadata map[string]string) error {
	for key := range Metadata(path) {
		if _, keep := metadata[key]; keep {
			continue
		}
		if err := unix.Fremovexattr(fd, metadataPrefix+key); err != nil && !errors.Is(err, unix.ENODATA) {
			return fmt.Errorf("remove the metadata %q of %s: %w", key, path, err)
		}
	}
	for key, value := range metadata {
		err := unix.Fsetxattr(fd, metadataPrefix+key, []byte(value), 0)
		if errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("set the metadata %q of %s: %w", key, path, ErrNoMetadata)
		}
		if err != nil {
			return fmt.Errorf("set the metadata %q of %s: %w", key, path, err)
		}
	}
	return nil
}
