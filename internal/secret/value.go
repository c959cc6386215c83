package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Limits on values, in bytes. A shorter one would be found by chance in answers, which
// it is taken out of, and could be guessed.
const (
	MinValue = 8
	MaxValue = 64 << 10
)

const hidden = "[secret]"

// Value is the value of a secret. Printed, logged or encoded it says "[secret]"; only
// this package sees what it is. The zero Value is none.
type Value struct{ bytes []byte }

// NewValue keeps a copy of text.
func NewValue(text []byte) Value { return Value{bytes.Clone(text)} }

// IsZero tells whether there is none.
func (v Value) IsZero() bool { return v.bytes == nil }

// String is "[secret]".
func (v Value) String() string { return hidden }

// GoString is "[secret]".
func (v Value) GoString() string { return hidden }

// Format prints "[secret]" whatever the verb.
func (v Value) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// MarshalJSON is "[secret]".
func (v Value) MarshalJSON() ([]byte, error) { return json.Marshal(hidden) }

// MarshalText is "[secret]".
func (v Value) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue is "[secret]".
func (v Value) LogValue() slog.Value { return slog.StringValue(hidden) }

// UnmarshalJSON takes a string. Its error does not hold what it was given.
func (v *Value) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) != nil {
		return &json.UnmarshalTypeError{Value: "something else", Type: reflect.TypeFor[string]()}
	}
	v.bytes = []byte(text)
	return nil
}

// Wipe overwrites the value. Copies of it that are strings are left to the garbage
// collector.
func (v Value) Wipe() { clear(v.bytes) }

func (v Value) check() error {
	switch {
	case len(v.bytes) == 0:
		return invalid("value: it is empty")
	case len(v.bytes) < MinValue:
		return invalid("value: it has %d bytes; use %d at least, for a shorter one would be found by chance in answers, which it is taken out of", len(v.bytes), MinValue)
	case len(v.bytes) > MaxValue:
		return invalid("value: it has %d bytes; %d are possible", len(v.bytes), MaxValue)
	case !utf8.Valid(v.bytes):
		return invalid("value: it is not UTF-8; encode it, for example in base64")
	case bytes.IndexByte(v.bytes, 0) >= 0:
		return invalid("value: it has a NUL in it")
	case strings.TrimSpace(string(v.bytes)) == "":
		return invalid("value: it is nothing but white space")
	}
	return nil
}

// fitsHeader tells whether the value can be in a header (RFC 9110, 5.5).
func fitsHeader(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
