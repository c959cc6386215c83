package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// wireError is an error as clients see it.
type wireError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *wireError) Error() string { return fmt.Sprintf("%d: %s", e.Code, e.Message) }

func failure(code int, format string, args ...any) *wireError {
	return &wireError{Code: code, Message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *wireError {
	return failure(http.StatusBadRequest, format, args...)
}

// fail answers an error. It is the one place that maps the core's errors to the
// dialect's.
func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	var (
		wire  *wireError
		bad   *sandbox.InvalidError
		limit *sandbox.LimitError
	)
	switch {
	case errors.As(err, &wire):
		writeFailure(w, wire)
	case errors.As(err, &bad):
		writeFailure(w, invalid("%s", bad.Message))
	case errors.As(err, &limit):
		// Clients repeat a 429 by themselves unless told that it will not help.
		w.Header().Set("Should-Retry", "false")
		writeFailure(w, failure(http.StatusTooManyRequests, "%s", limit.Error()))
	case errors.Is(err, sandbox.ErrNotFound):
		writeFailure(w, failure(http.StatusNotFound, "sandbox not found"))
	case r.Context().Err() != nil:
		writeFailure(w, failure(http.StatusRequestTimeout, "the client left")) // for nobody
	default:
		a.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		writeFailure(w, failure(http.StatusInternalServerError, "%s", err))
	}
}

func writeFailure(w http.ResponseWriter, e *wireError) { writeJSON(w, e.Code, e) }

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store") // answers hold tokens
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // fails only when the client left
}
