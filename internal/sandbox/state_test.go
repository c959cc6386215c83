package sandbox

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTransitions(t *testing.T) {
	states := []State{Starting, Running, Pausing, Paused, Resuming, Ending, Ended, Failed}
	allowed := map[string]bool{
		"starting running": true,
		"starting failed":  true,
		"running pausing":  true,
		"running ending":   true,
		"pausing running":  true, // the pause failed
		"pausing paused":   true,
		"pausing ending":   true,
		"paused resuming":  true,
		"paused ending":    true,
		"resuming running": true,
		"resuming paused":  true, // the resume failed
		"resuming ending":  true,
		"ending ended":     true,
	}
	for _, from := range states {
		for _, to := range states {
			pair := fmt.Sprintf("%s %s", from, to)
			err := checkTransition(from, to)
			if allowed[pair] {
				require.NoError(t, err, pair)
				continue
			}
			require.EqualError(t, err, fmt.Sprintf("a sandbox that is %s cannot become %s", from, to))
		}
	}
	require.Error(t, checkTransition("", Starting))
}

func TestIDsAreUniqueLabelsOfOneLength(t *testing.T) {
	label := regexp.MustCompile(`^i[a-z0-9]{20}$`) // a DNS label, and never a prefix of another id
	seen := map[string]bool{}
	for range 10_000 {
		id := newID()
		require.Regexp(t, label, id)
		require.False(t, seen[id], "%s came twice", id)
		seen[id] = true
	}
}

func TestTokens(t *testing.T) {
	require.Regexp(t, `^[0-9a-f]{64}$`, newToken())
	require.NotEqual(t, newToken(), newToken())
}

func TestErrorsTellWhatToDo(t *testing.T) {
	gone := &GoneError{ID: "i1", Reason: "killed"}
	require.ErrorIs(t, fmt.Errorf("get: %w", gone), ErrNotFound)
	require.EqualError(t, gone, "sandbox i1 ended: killed")
	require.ErrorContains(t, &LimitError{What: "sandboxes at once", Limit: "2"}, "limit of 2 sandboxes at once")
}
