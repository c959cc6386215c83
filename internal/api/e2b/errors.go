package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// wireError is an error as clients see it.
type wireError struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	ErrorCode string `json:"error_code,omitempty"` // for programs; clients know some
	// retryAfter is when it is worth asking again; 0 when nobody can tell.
	retryAfter time.Duration
	// noRetry asks clients not to repeat the request by themselves.
	noRetry bool
}

func (e *wireError) Error() string { return fmt.Sprintf("%d: %s", e.Code, e.Message) }

func failure(code int, format string, args ...any) *wireError {
	return &wireError{Code: code, Message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *wireError {
	return failure(http.StatusBadRequest, format, args...)
}

// retryPatience is the longest wait that is left to clients: those that repeat a
// request answered 429 by themselves (all from 2.51 and 2.63) say nothing
// meanwhile.
const retryPatience = 10 * time.Second

// encodeError is the one place that maps the core's errors to the dialect's. Nobody
// could foresee one that becomes 500: it names paths and programs that are not for
// callers.
func encodeError(err error) *wireError {
	var (
		wire  *wireError
		bad   *sandbox.InvalidError
		limit *sandbox.LimitError
		used  *sandbox.VolumeInUseError
		stale *sandbox.StaleFileError
		deny  *sandbox.DeniedError
	)
	switch {
	case errors.As(err, &wire):
		return wire
	case errors.As(err, &bad):
		return invalid("%s", bad.Message)
	case errors.As(err, &deny): // by a rule, or by who was asked
		return failure(http.StatusForbidden, "%s", deny)
	case errors.As(err, &limit):
		e := failure(http.StatusTooManyRequests, "%s", limit.Error())
		e.retryAfter = limit.RetryAfter
		e.noRetry = limit.RetryAfter <= 0 || limit.RetryAfter > retryPatience
		return e
	case errors.As(err, &used):
		return failure(http.StatusConflict, "%s", used.Error())
	case errors.As(err, &stale):
		// 409 would tell clients of a pause that it is paused.
		return failure(http.StatusUnprocessableEntity, "the sandbox cannot be saved and runs on: %s", stale.Error())
	case errors.Is(err, sandbox.ErrVolumeNotFound): // of a create
		return invalid("%s: `tombolo volume list` shows the volumes of each key", err)
	case errors.Is(err, sandbox.ErrNotFound):
		return failure(http.StatusNotFound, "sandbox not found")
	case errors.Is(err, sandbox.ErrStopping):
		e := failure(http.StatusServiceUnavailable, "%s", err)
		e.retryAfter = time.Second
		return e
	case errors.Is(err, sandbox.ErrPaused):
		return failure(http.StatusConflict, "the sandbox is paused: connect to it, which resumes it, and ask again")
	case errors.Is(err, sandbox.ErrBusy):
		e := failure(http.StatusConflict, "the sandbox is being paused, resumed or saved just now: ask again in a moment")
		e.retryAfter = time.Second
		return e
	case errors.Is(err, syscall.ENOSPC) && errors.Is(err, sandbox.ErrRunsOn):
		return failure(http.StatusInsufficientStorage, "the sandbox could not be paused and runs on: the disk of the server is full")
	case errors.Is(err, syscall.ENOSPC):
		return failure(http.StatusInsufficientStorage, "the disk of the server is full")
	case errors.Is(err, sandbox.ErrRunsOn):
		return failure(http.StatusInternalServerError, "the sandbox could not be paused and runs on; the server's log says why")
	case errors.Is(err, sandbox.ErrStillPaused):
		return failure(http.StatusInternalServerError, "the sandbox could not be resumed and is still paused; the server's log says why")
	}
	return failure(http.StatusInternalServerError, "the server could not do this; its log says why")
}

// fail answers an error.
func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := encodeError(err)
	if e.Code == http.StatusInternalServerError || e.Code == http.StatusInsufficientStorage {
		if r.Context().Err() != nil {
			e = failure(http.StatusRequestTimeout, "the client left") // for nobody
		} else {
			a.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		}
	}
	writeFailure(w, e)
}

// writeFailure answers with the headers that make clients repeat or not: the
// JavaScript ones repeat 429 when there is a Retry-After, the Python ones 429,
// 502, 503 and 504 unless Should-Retry is false.
func writeFailure(w http.ResponseWriter, e *wireError) {
	if e.retryAfter > 0 {
		seconds := (e.retryAfter + time.Second - 1) / time.Second
		w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	if e.noRetry {
		w.Header().Set("Should-Retry", "false")
	}
	writeJSON(w, e.Code, e)
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store") // answers hold tokens
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // fails only when the client left
}
