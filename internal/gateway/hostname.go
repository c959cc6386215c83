package gateway

import (
	"errors"
	"fmt"
	"strings"
)

const (
	maxHostName = 253 // bytes, without the last dot (RFC 1035, 2.3.4)
	maxLabel    = 63  // bytes
)

// HostName returns name in the one form that names have here: lower case, without
// the last dot. The error says why it is not a host's name. Taken are letters,
// digits, "-" and "_" in labels (names beyond ASCII come in their "xn--" form). So
// no escape, no NUL, no space and no other sign that one program reads as the end
// of a name and another one as a part of it can come through. A name that ends in
// a number is none: programs take it for an IPv4 address (0x7f.1, 2130706433; see
// the URL standard, "ends in a number").
func HostName(name string) (string, error) {
	plain := strings.TrimSuffix(name, ".")
	if plain == "" {
		return "", errors.New("the name is empty")
	}
	if len(plain) > maxHostName {
		return "", fmt.Errorf("the name has %d characters, %d are the most", len(plain), maxHostName)
	}
	labels := strings.Split(plain, ".")
	for _, label := range labels {
		if err := checkLabel(label); err != nil {
			return "", err
		}
	}
	plain = lowerASCII(plain)
	if last := lowerASCII(labels[len(labels)-1]); isNumber(last) {
		return "", fmt.Errorf("%q is a form of an address, not a name", plain)
	}
	return plain, nil
}

func checkLabel(label string) error {
	if label == "" {
		return errors.New("the name has two dots in a row")
	}
	if len(label) > maxLabel {
		return fmt.Errorf("a part of the name has %d characters, %d are the most", len(label), maxLabel)
	}
	for i := range len(label) {
		c := label[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return fmt.Errorf("%q cannot be in a name", c)
		}
	}
	return nil
}

// lowerASCII is strings.ToLower for text that checkLabel took, where nothing
// but ASCII may change.
func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// isNumber tells whether programs read a label, in lower case, as a number of an
// address: digits, or hexadecimal ones after "0x", which may be missing.
func isNumber(label string) bool {
	if strings.Trim(label, "0123456789") == "" {
		return true
	}
	hex, ok := strings.CutPrefix(label, "0x")
	return ok && strings.Trim(hex, "0123456789abcdef") == ""
}
