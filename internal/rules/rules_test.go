package rules_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/rules"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func openStore(t *testing.T) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "tombolo.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func table(scope policy.Scope, decision policy.Decision) policy.Table {
	return policy.Table{Scope: scope, Default: map[policy.Kind]policy.Decision{policy.Exec: decision}, Rules: []policy.Rule{{
		Name: "r", Kind: policy.Egress, Decision: decision,
		Match: []policy.Match{{Host: []string{"*.a.example"}, Port: []string{"443"}}}, Matches: []string{"egress https://x.a.example/"},
	}}}
}

var (
	server = policy.Scope{Kind: policy.ServerScope}
	ofKey  = policy.Scope{Kind: policy.KeyScope, ID: "k"}
)

func TestTablesAreReadBackAsWritten(t *testing.T) {
	s := openStore(t)
	require.NoError(t, s.PutPolicy(t.Context(), store.Policy{Scope: "sandbox", ScopeID: "s", Record: []byte("{}"), UpdatedAt: time.Now()}))
	tables := []policy.Table{table(server, policy.Deny), table(ofKey, policy.Ask)}
	require.NoError(t, rules.Write(t.Context(), s, tables))
	got, err := rules.Read(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, tables, got, "those of sandboxes are apart")

	bad := table(ofKey, policy.Ask)
	bad.Rules[0].Matches = []string{"egress https://b.example/"}
	require.ErrorContains(t, rules.Write(t.Context(), s, []policy.Table{bad}), `key k: rule "r"`)
	got, err = rules.Read(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, tables, got, "what is refused changes nothing")
}

func TestWhatCannotHoldIsTakenBack(t *testing.T) {
	s := openStore(t)
	var held []policy.Table
	fail := false
	keeper := &rules.Keeper{Store: s, Reload: func(ctx context.Context) (err error) {
		if held, err = rules.Read(ctx, s); fail {
			fail = false
			return errors.New("not now")
		}
		return err
	}}
	first := []policy.Table{table(server, policy.Deny)}
	require.NoError(t, keeper.Replace(t.Context(), first))
	require.Equal(t, first, held, "it holds at once")
	fail = true
	require.ErrorContains(t, keeper.Replace(t.Context(), []policy.Table{table(server, policy.Allow)}), "not now")
	require.Equal(t, first, held)
	got, err := keeper.Tables(t.Context())
	require.NoError(t, err)
	require.Equal(t, first, got)
}

func TestNames(t *testing.T) {
	s := openStore(t)
	key, _, err := store.NewKey("ci", time.Now())
	require.NoError(t, err)
	require.NoError(t, s.AddKey(t.Context(), key))
	imposter, _, err := store.NewKey(key.ID, time.Now())
	require.NoError(t, err)
	require.NoError(t, s.AddKey(t.Context(), imposter))
	_, _, err = s.PutTemplate(t.Context(), store.Template{ID: "t1", Name: "base", Tags: []string{"v2"}, BuildID: "b", CreatedAt: time.Now(), BuiltAt: time.Now()})
	require.NoError(t, err)

	names, err := rules.LoadNames(t.Context(), s)
	require.NoError(t, err)
	for name, want := range map[string]string{"ci": key.ID, key.ID: key.ID} {
		got, err := names.ID(policy.KeyScope, name)
		require.NoError(t, err)
		require.Equal(t, want, got, "ids come before names")
	}
	for _, name := range []string{"base", "t1", "base:v2"} {
		got, err := names.ID(policy.TemplateScope, name)
		require.NoError(t, err, name)
		require.Equal(t, "t1", got)
	}
	_, err = names.ID(policy.KeyScope, "base")
	require.ErrorContains(t, err, "tombolo key list")
	_, err = names.ID(policy.TemplateScope, "ci")
	require.ErrorContains(t, err, "tombolo template list")

	require.Equal(t, "key ci", names.Scope(policy.Scope{Kind: policy.KeyScope, ID: key.ID}))
	require.Equal(t, "template base", names.Scope(policy.Scope{Kind: policy.TemplateScope, ID: "t1"}))
	require.Equal(t, "key gone", names.Scope(policy.Scope{Kind: policy.KeyScope, ID: "gone"}))
	require.Equal(t, "server", names.Scope(server))
	require.Equal(t, imposter.ID, names.Name(policy.Scope{Kind: policy.KeyScope, ID: imposter.ID}), "its name would be read as another key's id")
}

func TestChanges(t *testing.T) {
	before := []policy.Table{table(server, policy.Deny), table(ofKey, policy.Ask)}
	require.Empty(t, rules.Changes(before, before))
	swapped := table(server, policy.Deny)
	swapped.Rules = append(swapped.Rules, policy.Rule{Name: "q", Kind: policy.Exec, Decision: policy.Ask})
	other := table(server, policy.Deny)
	other.Rules = []policy.Rule{swapped.Rules[1], swapped.Rules[0]}
	require.Empty(t, rules.Changes([]policy.Table{swapped}, []policy.Table{other}), "order means nothing")

	reason := table(ofKey, policy.Ask)
	reason.Rules[0].Reason = "because"
	require.Equal(t, []rules.Change{
		{What: "removed", Scope: server, Default: policy.Exec, Before: policy.Deny},
		{What: "removed", Scope: server, Rule: "r", Before: policy.Deny},
		{What: "changed", Scope: ofKey, Rule: "r", Before: policy.Ask, After: policy.Ask},
	}, rules.Changes(before, []policy.Table{reason}))
}
