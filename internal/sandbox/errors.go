package sandbox

import (
	"errors"
	"fmt"
)

// Errors a dialect decides on.
var (
	// ErrNotFound: no live sandbox has this id.
	ErrNotFound = errors.New("sandbox not found")
	// ErrPortClosed: the sandbox runs and nothing listens on the port.
	ErrPortClosed = errors.New("port is not open")
	// ErrTemplateNotFound: no template has this id or name.
	ErrTemplateNotFound = errors.New("template not found")
)

// GoneError says that a sandbox existed and why it ended. It is ErrNotFound to
// errors.Is.
type GoneError struct {
	ID     string
	Reason string
}

func (e *GoneError) Error() string { return fmt.Sprintf("sandbox %s ended: %s", e.ID, e.Reason) }

// Is makes a GoneError an ErrNotFound.
func (e *GoneError) Is(target error) bool { return target == ErrNotFound }

// LimitError says that a key is at one of its limits.
type LimitError struct {
	What  string // "sandboxes at once"
	Limit int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("the key is at its limit of %d %s; kill some, or use a key with a higher one (`tombolo key create --max-sandboxes`)", e.Limit, e.What)
}

// InvalidError says what is wrong with a request.
type InvalidError struct{ Message string }

func (e *InvalidError) Error() string { return e.Message }
