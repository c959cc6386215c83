package build

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVariablesOfStepsTakeTheirValues(t *testing.T) {
	env := map[string]string{"PATH": "/bin", "A": "one", "EMPTY": ""}
	for _, tt := range []struct {
		text   string
		plain  string // as E2B's clients mean it
		words  string // as a Dockerfile means it
		broken bool   // as a word
	}{
		{text: "/x:$PATH", plain: "/x:/bin", words: "/x:/bin"},
		{text: "${A}two", plain: "onetwo", words: "onetwo"},
		{text: "$Atwo", plain: "$Atwo", words: ""},
		{text: "[$EMPTY]", plain: "[]", words: "[]"},
		{text: `{"a": "$A"}`, plain: `{"a": "one"}`, words: "{a: one}"},
		{text: "$2b$10$x", plain: "$2b$10$x", words: "b"},
		{text: "costs 5$", plain: "costs 5$", words: "costs 5$"},
		{text: "${NONE:-default}", plain: "${NONE:-default}", words: "default"},
		{text: `\$A`, plain: `\one`, words: "$A"},
		{text: "${A", plain: "${A", broken: true},
	} {
		got, err := expand(tt.text, false, env)
		require.NoError(t, err)
		require.Equal(t, tt.plain, got, tt.text)
		got, err = expand(tt.text, true, env)
		if tt.broken {
			require.Error(t, err, tt.text)
			continue
		}
		require.NoError(t, err, tt.text)
		require.Equal(t, tt.words, got, tt.text)
	}
}
