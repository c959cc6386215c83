package policy_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// TestDocsAreTrue loads the files that the documentation shows, with the examples in
// them, and reads the actions it names.
func TestDocsAreTrue(t *testing.T) {
	text, err := os.ReadFile("../../docs/140_policy.md")
	require.NoError(t, err)
	files := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	require.NotEmpty(t, files)
	for _, file := range files {
		f, err := policy.ParseFile(file[1])
		require.NoError(t, err)
		for _, kind := range policy.Kinds {
			require.Contains(t, string(file[1]), string(kind), "the example shows every kind")
		}
		require.NotEmpty(t, f.Server.Rules)
	}
	actions := regexp.MustCompile("(?m)`((?:"+"egress|secret|exec|file-out|port|lifetime|resources|snapshot"+") [^`]+)`").FindAllSubmatch(text, -1)
	require.Greater(t, len(actions), 12)
	for _, words := range actions {
		_, err := policy.ParseAction(string(words[1]))
		require.NoError(t, err, string(words[1]))
	}
}
