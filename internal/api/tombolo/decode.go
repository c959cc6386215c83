package tombolo

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/api/options"
)

const (
	maxBody     = 1 << 20 // bytes
	bodyTimeout = 30 * time.Second
)

// decode reads the whole body into v. What is not a field of v is an error: a rule
// or an answer of which a part was not understood must not hold.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // a writer without deadlines is a test's
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return fail(http.StatusRequestEntityTooLarge, CodeTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return fail(http.StatusRequestTimeout, CodeInvalid, "the body did not arrive whole within %s", bodyTimeout)
	}
	_ = rc.SetReadDeadline(time.Time{})
	if err := options.Decode(body, v); err != nil {
		return invalid("the body is not what is wanted here: %s", err)
	}
	return nil
}

// Duration is one that is written as text, "90m".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// checkQuery refuses parameters that are not known and those that are given twice:
// a filter of which a part was not understood must not select more.
func checkQuery(q url.Values, known ...string) error {
	for name, values := range q {
		if !slices.Contains(known, name) {
			return invalid("there is no parameter %.40q here, only %s", name, strings.Join(known, ", "))
		}
		if len(values) > 1 {
			return invalid("the parameter %s is given twice", name)
		}
	}
	return nil
}

// queryInt reads a number from 1 to most; absent it is otherwise.
func queryInt(q url.Values, name string, otherwise, most int) (int, error) {
	text := q.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, invalid("%s must be a number from 1 to %d", name, most)
	}
	return n, nil
}

// queryTime reads a time; absent it is the zero time.
func queryTime(q url.Values, name string) (time.Time, error) {
	text := q.Get(name)
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, invalid("%s must be a time like 2026-01-02T03:04:05Z", name)
	}
	return at, nil
}
