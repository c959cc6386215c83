package storetest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

func policyIsReadBackAsWritten(t *testing.T, s store.Store) {
	ctx := t.Context()
	require.Empty(t, policies(t, s))
	p := policyOf("key", "k", "first")
	require.NoError(t, s.PutPolicy(ctx, p))
	p.Record = record("second")
	require.NoError(t, s.PutPolicy(ctx, p))
	all, err := s.Policies(ctx)
	require.NoError(t, err)
	p.UpdatedAt = kept
	requireEqual(t, []store.Policy{p}, all)

	require.NoError(t, s.DeletePolicy(ctx, "key", "k"))
	require.ErrorIs(t, s.DeletePolicy(ctx, "key", "k"), store.ErrNotFound)
	require.Empty(t, policies(t, s))
}

func policiesAreListedByScope(t *testing.T, s store.Store) {
	for _, p := range []store.Policy{
		policyOf("sandbox", "a", ""), policyOf("template", "a", ""), policyOf("key", "b", ""), policyOf("key", "a", ""), policyOf("server", "", ""),
	} {
		require.NoError(t, s.PutPolicy(t.Context(), p))
	}
	require.Equal(t, []string{"server/", "key/a", "key/b", "template/a", "sandbox/a"}, policies(t, s))
}

func policiesAreReplacedTogether(t *testing.T, s store.Store) {
	ctx := t.Context()
	for _, p := range []store.Policy{policyOf("server", "", "old"), policyOf("key", "k", "old"), policyOf("sandbox", "s", "old")} {
		require.NoError(t, s.PutPolicy(ctx, p))
	}
	require.NoError(t, s.ReplacePolicies(ctx, []store.Policy{policyOf("server", "", "new"), policyOf("template", "t", "new")}))
	require.Equal(t, []string{"server/", "template/t", "sandbox/s"}, policies(t, s))
	all, err := s.Policies(ctx)
	require.NoError(t, err)
	require.JSONEq(t, string(record("new")), string(all[0].Record))
	require.JSONEq(t, string(record("old")), string(all[2].Record))
	require.NoError(t, s.ReplacePolicies(ctx, nil))
	require.Equal(t, []string{"sandbox/s"}, policies(t, s))
}

// policiesGoWithWhatTheyHoldFor: the rules of what was deleted hold for the
// sandboxes it leaves behind, and go after the last of them.
func policiesGoWithWhatTheyHoldFor(t *testing.T, s store.Store) {
	ctx := t.Context()
	used, _ := newKey(t, "used")
	unused, _ := newKey(t, "unused")
	builder, _ := newKey(t, "builder")
	for _, k := range []store.Key{used, unused, builder} {
		require.NoError(t, s.AddKey(ctx, k))
	}
	under, err := s.AddBuild(ctx, store.Build{ID: "under way", TemplateID: "of builder", KeyID: builder.ID, Alias: "built", CreatedAt: now})
	require.NoError(t, err)
	box := store.Sandbox{ID: "box", KeyID: used.ID, TemplateID: idA, CreatedAt: now}
	require.NoError(t, s.PutSandbox(ctx, box))
	for i, id := range []string{idA, idB} {
		_, _, err := s.PutTemplate(ctx, store.Template{ID: id, Name: []string{"used", "unused"}[i], BuildID: "build of " + id, CreatedAt: now, BuiltAt: now})
		require.NoError(t, err)
	}
	for _, p := range []store.Policy{
		policyOf("server", "", ""), policyOf("key", used.ID, ""), policyOf("key", unused.ID, ""), policyOf("key", builder.ID, ""),
		policyOf("template", idA, ""), policyOf("template", idB, ""), policyOf("sandbox", "box", ""), policyOf("sandbox", "coming", ""),
	} {
		require.NoError(t, s.PutPolicy(ctx, p))
	}
	prune := func() {
		_, err := s.PruneSandboxes(ctx, now.Add(-time.Hour), 0)
		require.NoError(t, err)
	}
	prune()
	require.Len(t, policies(t, s), 8, "all of it is there")

	require.NoError(t, s.DeleteKey(ctx, "builder"))
	prune()
	require.Contains(t, policies(t, s), "key/"+builder.ID, "its build is under way")
	_, err = s.UpdateBuild(ctx, under.ID, func(b *store.Build) error { b.FinishedAt = now; return nil })
	require.NoError(t, err)
	for _, name := range []string{"used", "unused"} {
		require.NoError(t, s.DeleteKey(ctx, name))
		_, err := s.DeleteTemplate(ctx, name)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"server/", "key/" + used.ID, "template/" + idA, "sandbox/box", "sandbox/coming"}, policies(t, s))
	prune()
	require.Len(t, policies(t, s), 5, "the sandbox lives")

	box.EndedAt = now
	require.NoError(t, s.PutSandbox(ctx, box))
	prune()
	require.Equal(t, []string{"server/", "sandbox/coming"}, policies(t, s))
}

// policies lists what rules there are.
func policies(t *testing.T, s store.Store) (scopes []string) {
	t.Helper()
	all, err := s.Policies(t.Context())
	require.NoError(t, err)
	for _, p := range all {
		scopes = append(scopes, p.Scope+"/"+p.ScopeID)
	}
	return scopes
}

func policyOf(scope, id, text string) store.Policy {
	return store.Policy{Scope: scope, ScopeID: id, Record: record(text), UpdatedAt: now}
}

func record(text string) json.RawMessage {
	raw, _ := json.Marshal(map[string]string{"text": text})
	return raw
}
