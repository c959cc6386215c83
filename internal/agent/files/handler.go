// Package files serves the content of files over plain HTTP: download, upload
// and concatenation. It acts as root, as E2B's does; what it makes belongs to
// the account of the request.
package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	"github.com/tombolo-dev/tombolo/internal/agent/filesystem"
	"github.com/tombolo-dev/tombolo/internal/agent/identity"
)

// Handler serves /files and /files/compose. It judges signed URLs itself; the
// token on /files/compose is judged before it.
type Handler struct {
	identity *identity.State
	log      *slog.Logger
}

// New returns a handler.
func New(who *identity.State, log *slog.Logger) *Handler { return &Handler{who, log} }

// Register adds the routes.
func (h *Handler) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /files", h.serve(h.download))
	mux.HandleFunc("POST /files", h.serve(h.upload))
	mux.HandleFunc("POST /files/compose", h.serve(h.compose))
}

// statusError is an error with the HTTP status it has for the caller.
type statusError struct {
	status  int
	message string
}

func (e *statusError) Error() string { return e.message }

func refuse(status int, format string, args ...any) error {
	return &statusError{status, fmt.Sprintf(format, args...)}
}

// drainLimit is how much of a refused body is still read, bytes, so that the
// caller sees the answer and not a broken connection.
const drainLimit = 256 << 20

func (h *Handler) serve(do func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := do(w, r)
		if err == nil {
			return
		}
		status := statusOf(err)
		if status == http.StatusInternalServerError {
			h.log.Error("files", "method", r.Method, "error", err)
		}
		_, _ = io.CopyN(io.Discard, r.Body, drainLimit)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"code": status, "message": err.Error()})
	}
}

func statusOf(err error) int {
	var own *statusError
	var path *account.PathError
	var user *identity.UnknownUserError
	switch {
	case errors.As(err, &own):
		return own.status
	case errors.As(err, &path):
		return http.StatusBadRequest
	case errors.As(err, &user):
		return http.StatusUnauthorized
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return http.StatusInsufficientStorage
	case errors.Is(err, fs.ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.ETXTBSY):
		return http.StatusForbidden
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EINVAL), errors.Is(err, filesystem.ErrNoMetadata):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// admit checks who asks and finds the account. operation is what a signature
// must be for.
func (h *Handler) admit(r *http.Request, op operation) (account.Account, error) {
	q := r.URL.Query()
	token := h.identity.Token()
	if given := r.Header.Get("X-Access-Token"); given != "" || token == "" {
		if !h.identity.Authorized(given) {
			return account.Account{}, refuse(http.StatusUnauthorized, "the access token in the header is wrong")
		}
	} else if err := verify(q, op, token, time.Now()); err != nil {
		return account.Account{}, err
	}
	if name := q.Get("username"); name != "" {
		return h.identity.Account(name)
	}
	return h.identity.RequestAccount(r.Header)
}

// bufferSize is what moves at once between a connection and a file, bytes.
const bufferSize = 256 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// pour copies with one large buffer. It hides the shortcuts of both sides, which
// use small ones.
func pour(to io.Writer, from io.Reader) (int64, error) {
	buffer := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buffer)
	var total int64
	for {
		n, err := fill(from, buffer[:])
		if n > 0 {
			if _, writeErr := to.Write(buffer[:n]); writeErr != nil {
				return total, writeErr
			}
			total += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, refuse(http.StatusBadRequest, "read the body: %s", err)
		}
	}
}

// fill reads until the buffer is full or there is no more, so that small reads
// do not become small writes.
func fill(from io.Reader, buffer []byte) (int, error) {
	total := 0
	for total < len(buffer) {
		n, err := from.Read(buffer[total:])
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func writeJSON(w http.ResponseWriter, v any) error {
	var body bytes.Buffer
	if err := json.NewEncoder(&body).Encode(v); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body.Bytes())
	return nil
}
