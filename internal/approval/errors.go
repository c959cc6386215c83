package approval

import (
	"errors"
	"fmt"
)

// Errors callers decide on.
var (
	// ErrNotFound: there is no hold, or no grant, with this id.
	ErrNotFound = errors.New("not found among the approvals")
	// ErrChanged: the answer was to another action than this one.
	ErrChanged = errors.New("the hash is not that of the action that waits: read it again before you answer")
	// ErrOtherProposal: the answer was to another proposal than the one there is.
	ErrOtherProposal = errors.New("that is not what is proposed, or not any more: read it again before you answer")
	// ErrDecided: somebody has answered already, and that stands.
	ErrDecided = errors.New("it was answered already")
	// ErrExpired: the deadline has passed, and the action was refused.
	ErrExpired = errors.New("it waited until its deadline and was refused; who tries it again asks again")
	// ErrWithdrawn: nobody wants the action any more.
	ErrWithdrawn = errors.New("it was withdrawn, or its sandbox ended")
	// ErrFull: as much waits for people, or is granted, as may.
	ErrFull = errors.New("too much waits for approval")
	// ErrClosed: the server is being stopped.
	ErrClosed = errors.New("the server is stopping; what waits can be answered when it runs again")
)

// InvalidError says what is wrong with an answer, a proposal or an action.
type InvalidError struct {
	Message string
}

func (e *InvalidError) Error() string { return e.Message }

func invalid(format string, args ...any) error {
	return &InvalidError{Message: fmt.Sprintf(format, args...)}
}

// ended is the error for what cannot be done to a hold that has ended.
func ended(h Hold) error {
	switch h.State {
	case Expired:
		return ErrExpired
	case Withdrawn:
		return ErrWithdrawn
	}
	if h.Answer == nil {
		return ErrDecided
	}
	return fmt.Errorf("%w: %s by %s", ErrDecided, h.State, h.Answer.Approver)
}
