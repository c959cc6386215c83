package tombolo

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/api/auth"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
)

// Codes of errors, for programs.
const (
	CodeInvalid     = "invalid"      // 400: the request is wrong, and changed nothing
	CodeNoKey       = "unknown-key"  // 401
	CodeRole        = "role"         // 403: the key has not the role
	CodeForbidden   = "forbidden"    // 403: the key has the role, and still may not
	CodeNotFound    = "not-found"    // 404
	CodeMethod      = "method"       // 405
	CodeConflict    = "conflict"     // 409: it is not any more as the caller thinks
	CodeTooLarge    = "too-large"    // 413
	CodeTooMany     = "too-many"     // 429
	CodeInternal    = "internal"     // 500
	CodeStopping    = "stopping"     // 503
	CodeUnavailable = "not-provided" // 501: this server runs without it
)

// Error is an error as it goes over the wire and as the client returns it.
type Error struct {
	Status  int    `json:"-"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

func fail(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *Error {
	return fail(http.StatusBadRequest, CodeInvalid, format, args...)
}

func notFound(format string, args ...any) *Error {
	return fail(http.StatusNotFound, CodeNotFound, format, args...)
}

func forbidden(format string, args ...any) *Error {
	return fail(http.StatusForbidden, CodeForbidden, format, args...)
}

// encodeError is the one place that maps errors of the packages behind to the wire. What
// nobody could foresee names paths and records that are not for callers.
func encodeError(err error) *Error {
	var (
		wire *Error
		role *auth.ErrRole
		bad  *sandbox.InvalidError
		odd  *approval.InvalidError
		none *secret.InvalidError
		deny *sandbox.DeniedError
	)
	switch {
	case errors.As(err, &wire):
		return wire
	case errors.As(err, &role):
		return fail(http.StatusForbidden, CodeRole, "%s", err)
	case errors.Is(err, auth.ErrNoKey), errors.Is(err, auth.ErrUnknownKey):
		return fail(http.StatusUnauthorized, CodeNoKey, "%s", err)
	case errors.As(err, &bad):
		return invalid("%s", bad.Message)
	case errors.As(err, &odd):
		return invalid("%s", odd.Message)
	case errors.As(err, &none):
		return invalid("%s", none.Message)
	case errors.Is(err, secret.ErrExists):
		return fail(http.StatusConflict, CodeConflict, "%s", err)
	case errors.As(err, &deny):
		return forbidden("%s", deny)
	case errors.Is(err, sandbox.ErrNotFound), errors.Is(err, approval.ErrNotFound), errors.Is(err, secret.ErrNotFound):
		return notFound("%s", err)
	case errors.Is(err, approval.ErrChanged), errors.Is(err, approval.ErrOtherProposal), errors.Is(err, approval.ErrDecided), errors.Is(err, approval.ErrExpired), errors.Is(err, approval.ErrWithdrawn):
		return fail(http.StatusConflict, CodeConflict, "%s", err)
	case errors.Is(err, approval.ErrFull), errors.Is(err, secret.ErrFull):
		return fail(http.StatusTooManyRequests, CodeTooMany, "%s", err)
	case errors.Is(err, approval.ErrClosed), errors.Is(err, sandbox.ErrStopping):
		return fail(http.StatusServiceUnavailable, CodeStopping, "%s", err)
	}
	return fail(http.StatusInternalServerError, CodeInternal, "the server could not do this; its log says why")
}

func writeError(w http.ResponseWriter, e *Error) {
	writeJSON(w, e.Status, struct {
		Error *Error `json:"error"`
	}{e})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only when the client left
}
