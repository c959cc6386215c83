package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"
)

const (
	maxBody     = 1 << 20
	bodyTimeout = 30 * time.Second
)

// decode reads a JSON body into v. Unknown fields are ignored, as newer clients
// may send some. With optional set an empty body leaves v as it is.
func decode(w http.ResponseWriter, r *http.Request, v any, optional bool) error {
	// The server sets no limit on whole requests. A writer without deadlines is a
	// test's.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return failure(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return failure(http.StatusRequestTimeout, "the body did not arrive whole within %s", bodyTimeout)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if len(body) == 0 && optional {
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return invalid("%s", explainJSON(err, len(body)))
	}
	return nil
}

func explainJSON(err error, size int) string {
	if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
		field := mismatch.Field
		for _, embedded := range []string{"laterOptions.", "egressOptions.", "ingressOptions."} { // no part of the wire's name
			field = strings.TrimPrefix(field, embedded)
		}
		switch {
		case field == "":
			return fmt.Sprintf("the body must be a JSON object, not %s", mismatch.Value)
		case (field == "metadata" || field == "envVars") && mismatch.Type.Kind() == reflect.String:
			return fmt.Sprintf("%s: every value must be a string, not %s", field, mismatch.Value)
		}
		return fmt.Sprintf("%s must be %s, not %s", field, jsonType(mismatch.Type), mismatch.Value)
	}
	if size == 0 {
		return "the body is empty: send a JSON object"
	}
	return "the body is not JSON: " + err.Error()
}

func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int64, reflect.Int:
		return "a whole number"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}
