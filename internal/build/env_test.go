package build

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVariablesOfStepsTakeTheirValues(t *testing.T) {
	known := map[string]string{"PATH": "/bin", "A": "one", "EMPTY": ""}
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
		got, err := expand(tt.text, false, known)
		require.NoError(t, err)
		require.Equal(t, tt.plain, got, tt.text)
		got, err = expand(tt.text, true, known)
		if tt.broken {
			require.Error(t, err, tt.text)
			continue
		}
		require.NoError(t, err, tt.text)
		require.Equal(t, tt.words, got, tt.text)
	}
}

func TestVariablesDoNotGrowWithoutBound(t *testing.T) {
	long, many := strings.Repeat("x", 40<<10), func(text string, n int) string { return strings.Repeat(text, n) }
	for _, tt := range []struct {
		why   string
		words bool
		steps []Step
		says  string
	}{
		{"a value that names itself, in one step", false, []Step{env("A", long, "A", many("$A", 15_000), "A", many("$A", 15_000))}, "longer than 127 KiB"},
		{"and in one after the other", false, []Step{env("A", long), env("A", "$A$A"), env("A", "$A$A")}, "longer than 127 KiB"},
		{"as words of a Dockerfile", true, []Step{env("A", long), env("A", "$A$A$A$A")}, "longer than 127 KiB"},
		{"in a path", true, []Step{env("A", long), {Kind: Workdir, Path: "/$A$A$A$A"}}, "longer than 127 KiB"},
		{"in USER", true, []Step{env("A", long), {Kind: User, User: "$A$A$A$A"}}, "longer than 127 KiB"},
		{"in a file", true, []Step{env("A", long), {Kind: Copy, Path: "/x", Contents: []Content{{"f", many("$A", 8)}}}}, "longer than 256 KiB"},
		{"in many files", true, manyFiles(long), "larger than 64 MiB"},
		{"a path longer than Linux has", true, []Step{env("A", long), {Kind: Workdir, Path: "/$A"}}, "longer than 4095"},
		{"one value times another", true, []Step{env("A", many("x", 4000), "B", many("y", 4090)), env("C", "${A//x/$B}")}, "longer than"},
		{"with patterns, values that are too long", true, []Step{env("A", long), env("C", "${A%x}")}, "longer than 8 KiB"},
		{"replacements in one another", true, []Step{env("A", many("x", 1000)), env("C", "${A//x/${A//x/${A//x/y}}}")}, "set a variable for each"},
		{"and behind a quote", true, []Step{env("A", many("x", 1000)), env("C", "${A//x/'}'${A//x/y}}")}, "set a variable for each"},
		{"and behind an escape", true, []Step{env("A", many("x", 1000)), env("C", "${A//x/\\}${A//x/y}}")}, "set a variable for each"},
		{"too deep", true, []Step{env("A", many("${A:-", 5000)+many("}", 5000))}, "more than 4096"},
		{"many values of one step", false, []Step{env("A", long), env(pairs(100, "$A")...)}, "too many variables"},
		{"many values of many steps", true, []Step{env("A", long), env("B", "$A"), env(pairs(12, "$A")...)}, "too many variables"},
		{"many names", true, []Step{env(pairs(envNames+1, "")...)}, "too many variables"},
		{"what all steps see", false, manySee(1000), "larger than 64 MiB"},
		{"large, but not too large", true, []Step{env("A", long), env("B", "$A$A", "C", "${A}"), {Kind: Run, Argv: []string{"true"}}}, ""},
		{"replacements beside one another", true, []Step{env("A", "1.2"), env("C", "${A//./_}-${A/./,}")}, ""},
	} {
		s := &stage{build: &build{b: &Builds{}}, plan: Stage{Words: tt.words}, env: map[string]string{"PATH": defaultPath}}
		var err error
		args := map[string]string{}
		for _, step := range tt.steps {
			if err = s.settleOne(t.Context(), &task{Step: step}, args); err != nil {
				break
			}
		}
		if tt.says == "" {
			require.NoError(t, err, tt.why)
			continue
		}
		require.ErrorContains(t, err, tt.says, tt.why)
	}
}

// env is an ENV of names and values.
func env(pairs ...string) Step {
	step := Step{Kind: Env}
	for i := 0; i < len(pairs); i += 2 {
		step.Vars = append(step.Vars, Var{pairs[i], pairs[i+1]})
	}
	return step
}

func pairs(n int, value string) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("N%d", i), value)
	}
	return list
}

// manyFiles are copies of files with a large value.
func manyFiles(value string) []Step {
	copied := Step{Kind: Copy, Path: "/x", Contents: []Content{{"f", "$A"}, {"g", "$A"}, {"h", "$A"}}}
	return append([]Step{env("A", value)}, slices.Repeat([]Step{copied}, 900)...)
}

// manySee are steps of which every second has a command that sees a new large value.
func manySee(n int) (steps []Step) {
	for i := range n {
		steps = append(steps, env("A", strings.Repeat(fmt.Sprint(i%10), 120<<10)), env("B", "$A"), Step{Kind: Run, Argv: []string{"true"}})
	}
	return steps
}
