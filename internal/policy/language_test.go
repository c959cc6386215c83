package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// The language of a context is not known outside, so a rule on a language may be about
// it; only a rule that names the context is.
func TestALanguageThatIsNotKnownMayBeAny(t *testing.T) {
	of := func(language string) policy.Action {
		return policy.Action{Kind: policy.Exec, Command: "1", Language: "context " + language, Unknown: policy.LanguageField}
	}
	compiled, err := policy.Compile(policy.Table{Scope: policy.Scope{Kind: policy.ServerScope}, Rules: []policy.Rule{
		{Name: "python", Kind: policy.Exec, Decision: policy.Deny, Match: []policy.Match{{Language: []string{"python"}}}},
		{Name: "one", Kind: policy.Exec, Decision: policy.Ask, Match: []policy.Match{{Language: []string{"context c1"}}}},
	}})
	require.NoError(t, err)
	set := policy.Set{compiled}
	v := set.Judge(of("c2"))
	require.Empty(t, v.Decision)
	require.Equal(t, []policy.Decision{policy.Allow, policy.Deny}, v.Possible)
	require.Equal(t, "the language", v.Needs.String())
	require.Equal(t, []policy.Decision{policy.Ask, policy.Deny}, set.Judge(of("c1")).Possible)
	require.NotEqual(t, of("c1").Hash(), of("c2").Hash(), "an approval of one context is not of another")

	known := of("c1")
	known.Unknown, known.Language = 0, "bash"
	require.Equal(t, policy.Allow, set.Judge(known).Decision)
	require.Equal(t, policy.Yes, policy.Match{Language: []string{"context c1"}}.Fits(policy.Exec, of("c1")))
}
