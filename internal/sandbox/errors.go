package sandbox

import (
	"errors"
	"fmt"
	"time"
)

// Errors a dialect decides on.
var (
	// ErrPaused: the sandbox is paused, and what was asked needs it running, or was
	// to pause it.
	ErrPaused = errors.New("sandbox is paused")
	// ErrBusy: the sandbox is being paused or resumed just now; ask again.
	ErrBusy = errors.New("sandbox is in transition")
	// ErrStopping: the server is being stopped; the next one can be asked.
	ErrStopping = errors.New("the server is stopping")
	// ErrRunsOn: the machine failed to pause the sandbox, which lost nothing by it.
	ErrRunsOn = errors.New("it runs on")
	// ErrStillPaused: the machine failed to resume the sandbox.
	ErrStillPaused = errors.New("it is still paused")
	// ErrAsleep: the sandbox is paused and traffic does not resume it.
	ErrAsleep = errors.New("sandbox is paused and not resumed by traffic")
	// ErrNotFound: no sandbox has this id.
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
	Limit string // with its unit
	Flag  string // of `tombolo key create` and `tombolo key update` that sets it
	// RetryAfter is when it is worth asking again; 0 when nobody can tell.
	RetryAfter time.Duration
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("the key is at its limit of %s %s; free some or wait, or give the key a higher one (`tombolo key update --%s`)", e.Limit, e.What, e.Flag)
}

// DeniedError says that a rule forbids what was asked for, or that nobody approved it
// in time.
type DeniedError struct {
	What   string // was asked for, in words
	Reason string
	Rule   string
	ID     string // of the decision, for people who ask about it
}

func (e *DeniedError) Error() string {
	text := fmt.Sprintf("%s is not allowed", e.What)
	if e.Rule != "" {
		text += fmt.Sprintf(" by the rule %q", e.Rule)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if e.ID != "" {
		text += " (request " + e.ID + ")"
	}
	return text
}

// StaleFileError says that a sandbox cannot be saved while it has a file of a volume
// open that others removed or replaced.
type StaleFileError struct{ Path string }

func (e *StaleFileError) Error() string {
	return fmt.Sprintf("it has %s of a volume open, which was removed or replaced from outside: close it first, or end the process that has it", e.Path)
}

// InvalidError says what is wrong with a request.
type InvalidError struct{ Message string }

func (e *InvalidError) Error() string { return e.Message }
