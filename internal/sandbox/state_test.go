package sandbox

import (
	"fmt"
	"regexp"
	"strings"
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

func TestLogbookKeepsTheLastLines(t *testing.T) {
	var book logbook
	for n := range logLines + 10 {
		book.add("lifecycle", fmt.Sprint(n))
	}
	lines := book.all()
	require.Len(t, lines, logLines)
	require.Equal(t, "10", lines[0].Text)
	require.Equal(t, fmt.Sprint(logLines+9), lines[logLines-1].Text)
}

func TestLogbookJoinsAndBoundsLines(t *testing.T) {
	var book logbook
	for _, piece := range []string{"one", " line\nnext", "\n\n", strings.Repeat("x", 3*logLineBytes), "more\nunfinished"} {
		n, err := book.Write([]byte(piece))
		require.NoError(t, err)
		require.Equal(t, len(piece), n)
	}
	book.add("network", strings.Repeat("y", logLineBytes+1))
	var texts []string
	for _, line := range book.all() {
		texts = append(texts, line.Source+": "+line.Text)
	}
	require.Equal(t, []string{
		"agent: one line", "agent: next", "agent: ",
		"agent: " + strings.Repeat("x", logLineBytes),
		"network: " + strings.Repeat("y", logLineBytes),
	}, texts)
	require.LessOrEqual(t, cap(book.part), 2*logLineBytes, "an endless line takes memory")
}

func TestLogbookTailIsTheAgentsLastLines(t *testing.T) {
	var book logbook
	for n := range 5 {
		book.add("agent", fmt.Sprint("agent ", n))
		book.add("lifecycle", "between")
	}
	require.Equal(t, "agent 3\nagent 4", book.tail(2))
	require.Equal(t, "", (&logbook{}).tail(2))
}

func TestErrorsTellWhatToDo(t *testing.T) {
	gone := &GoneError{ID: "i1", Reason: "killed"}
	require.ErrorIs(t, fmt.Errorf("get: %w", gone), ErrNotFound)
	require.EqualError(t, gone, "sandbox i1 ended: killed")
	require.ErrorContains(t, &LimitError{What: "sandboxes at once", Limit: "2"}, "limit of 2 sandboxes at once")
}
