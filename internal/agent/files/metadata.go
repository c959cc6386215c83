package files

import (
	"net/http"
	"strings"
)

// E2B's limits of metadata, bytes: a key has the prefix "user.e2b." on disk,
// where 255 is the limit.
const (
	metadataKeyLimit   = 246
	metadataTotalLimit = 4096
)

// metadataOf reads the headers X-Metadata-<key>. Header names have no case, so
// keys are lower case. No such header is nil.
func metadataOf(h http.Header) (map[string]string, error) {
	var found map[string]string
	total := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(strings.ToLower(name), "x-metadata-")
		if !ok {
			continue
		}
		if key == "" || len(key) > metadataKeyLimit {
			return nil, refuse(http.StatusBadRequest, "the metadata key %.64q has %d bytes; 1 to %d are allowed", key, len(key), metadataKeyLimit)
		}
		if len(values) != 1 {
			return nil, refuse(http.StatusBadRequest, "the metadata key %q is given %d times", key, len(values))
		}
		if !printable(key) || !printable(values[0]) {
			return nil, refuse(http.StatusBadRequest, "the metadata %q has a character that is not printable ASCII", key)
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = values[0]
		total += len(key) + len(values[0])
	}
	if total > metadataTotalLimit {
		return nil, refuse(http.StatusBadRequest, "the metadata has %d bytes; %d are allowed", total, metadataTotalLimit)
	}
	return found, nil
}

func printable(s string) bool {
	for _, b := range []byte(s) {
		if b < ' ' || b > '~' {
			return false
		}
	}
	return true
}
