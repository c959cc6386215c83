package secret

import (
	"crypto/rand"
	"regexp"
	"strings"
)

// Limits. Those on metadata are E2B's.
const (
	MaxSecrets          = 256 // of one key
	MaxName             = 100
	maxPrefix           = 32
	maxMetadata         = 32
	maxMetadataKey      = 128
	maxMetadataValue    = 1024
	maxMetadataBytes    = 8192
	idPrefix            = "sec_"
	placeholderMark     = "tombolo_"
	maxPlaceholderBytes = maxPrefix + len(placeholderMark) + MaxName + 1 + 26
)

var (
	nameForm   = regexp.MustCompile(`^[a-z0-9_][a-z0-9._-]*$`)
	prefixForm = regexp.MustCompile(`^[A-Za-z0-9_-]*$`)
)

// NormalName is the form of a name that is kept: E2B's service has names in lower case.
func NormalName(name string) string { return strings.ToLower(name) }

func checkName(name string) error {
	switch {
	case len(name) > MaxName || !nameForm.MatchString(name):
		return invalid("name %.120q: use 1 to %d letters, digits, '_', '-' and '.', beginning with a letter, digit or '_'", name, MaxName)
	case strings.HasPrefix(name, idPrefix):
		return invalid("name %q: what begins with %s is an id", name, idPrefix)
	}
	return nil
}

func newID() string { return idPrefix + strings.ToLower(rand.Text()) }

// newPlaceholder makes what stands for a value. It looks like a key, so that clients
// take it, has only characters that no encoding of a header, a URL or JSON changes,
// and ends in 128 random bits or more.
func newPlaceholder(prefix, name string) string {
	return prefix + placeholderMark + strings.ReplaceAll(name, ".", "-") + "_" + rand.Text()
}

func checkPrefix(prefix string) error {
	if len(prefix) > maxPrefix || !prefixForm.MatchString(prefix) {
		return invalid("placeholder prefix %.40q: use %d letters, digits, '_' and '-' at most, such as ghp_", prefix, maxPrefix)
	}
	return nil
}

func checkMetadata(metadata map[string]string) error {
	if len(metadata) > maxMetadata {
		return invalid("metadata: %d entries are possible, not %d", maxMetadata, len(metadata))
	}
	total := 0
	for key, value := range metadata {
		switch {
		case key == "":
			return invalid("metadata: a key is empty")
		case len(key) > maxMetadataKey:
			return invalid("metadata: the key %.40q… is longer than %d bytes", key, maxMetadataKey)
		case len(value) > maxMetadataValue:
			return invalid("metadata: the value of %q is longer than %d bytes", key, maxMetadataValue)
		}
		total += len(key) + len(value)
	}
	if total > maxMetadataBytes {
		return invalid("metadata: all of it is %d bytes; %d are possible", total, maxMetadataBytes)
	}
	return nil
}
