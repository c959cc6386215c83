package secret

import (
	"errors"
	"fmt"
)

// Errors callers decide on.
var (
	// ErrNotFound: the key has no secret of this id or name.
	ErrNotFound = errors.New("no such secret")
	// ErrExists: the key has a secret of this name already.
	ErrExists = errors.New("there is a secret of this name already")
	// ErrFull: the key has [MaxSecrets] already.
	ErrFull = fmt.Errorf("a key may have %d secrets", MaxSecrets)
)

// InvalidError says what is wrong with what was asked for, for whoever asked. It
// never holds a value.
type InvalidError struct{ Message string }

func (e *InvalidError) Error() string { return e.Message }

func invalid(format string, args ...any) error {
	return &InvalidError{Message: fmt.Sprintf(format, args...)}
}
