package storetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

func buildIsReadBackAsWritten(t *testing.T, s store.Store) {
	ctx := t.Context()
	b := build("app", idA)
	b.Tags, b.CPUs, b.MemoryBytes, b.DiskBytes, b.UpdatedAt = []string{"v1"}, 2, 1<<30, 1<<33, now
	stored, err := s.AddBuild(ctx, b)
	require.NoError(t, err)
	want := b
	want.CreatedAt, want.UpdatedAt = kept, kept
	requireEqual(t, want, stored)
	got, err := s.Build(ctx, b.ID)
	require.NoError(t, err)
	requireEqual(t, want, got)
	_, err = s.AddBuild(ctx, b)
	require.ErrorIs(t, err, store.ErrExists)

	changed, err := s.UpdateBuild(ctx, b.ID, func(b *store.Build) error {
		b.State, b.Reason, b.Step, b.FinishedAt = store.BuildError, "exit status 1", "RUN false", now
		b.ID, b.TemplateID, b.KeyID, b.Alias, b.CreatedAt = "x", "x", "x", "x", time.Time{} // stay as they are
		return nil
	})
	require.NoError(t, err)
	want.State, want.Reason, want.Step, want.FinishedAt = store.BuildError, "exit status 1", "RUN false", kept
	requireEqual(t, want, changed)
	got, err = s.Build(ctx, b.ID)
	require.NoError(t, err)
	requireEqual(t, want, got)

	refused := errors.New("refused")
	_, err = s.UpdateBuild(ctx, b.ID, func(b *store.Build) error { b.Reason = "other"; return refused })
	require.ErrorIs(t, err, refused)
	got, err = s.Build(ctx, b.ID)
	require.NoError(t, err)
	requireEqual(t, want, got)
	_, err = s.UpdateBuild(ctx, "none", func(*store.Build) error { return nil })
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = s.Build(ctx, "none")
	require.ErrorIs(t, err, store.ErrNotFound)
}

func buildsShareATemplateID(t *testing.T, s store.Store) {
	ctx := t.Context()
	templateID := func(b store.Build) string {
		stored, err := s.AddBuild(ctx, b)
		require.NoError(t, err)
		return stored.TemplateID
	}
	require.Equal(t, idA, templateID(build("app", idA)), "a new alias keeps the proposed id")
	failed := build("app", idB)
	failed.State, failed.FinishedAt = store.BuildError, now
	require.Equal(t, idA, templateID(failed), "a build of it is under way")
	require.Equal(t, idB, templateID(build("other", idB)))

	all, err := s.Builds(ctx, store.BuildFilter{TemplateID: idA})
	require.NoError(t, err)
	for _, b := range all {
		_, err = s.UpdateBuild(ctx, b.ID, func(b *store.Build) error { b.State, b.FinishedAt = store.BuildError, now; return nil })
		require.NoError(t, err)
	}
	require.Equal(t, idA, templateID(build("app", idC)), "one that failed before is tried again")

	tpl := template(idC, "app")
	tpl.KeyID = "k"
	require.Equal(t, idA, put(t, s, tpl).ID, "what is built has the id that builders were told")
	require.Equal(t, idA, templateID(build("app", idC)))
	require.Equal(t, idA, templateID(build("", idA)), "a new build by the id alone")
	require.Equal(t, idC, templateID(build("", idC)))
	require.Equal(t, "dddddddddddddddddddd", templateID(build("", "dddddddddddddddddddd")), "no alias is no alias in common")
}

func aliasIsReserved(t *testing.T, s store.Store) {
	ctx := t.Context()
	first, err := s.AddBuild(ctx, build("app", idA))
	require.NoError(t, err)
	others := func(what string, want error) {
		b := build("app", idB)
		b.KeyID = "other"
		stored, err := s.AddBuild(ctx, b)
		require.ErrorIs(t, err, want, what)
		if want == nil {
			require.Equal(t, idB, stored.TemplateID)
		}
	}
	others("it is being built", store.ErrExists)
	tpl := template(idB, "app")
	tpl.KeyID = "other"
	_, _, err = s.PutTemplate(ctx, tpl)
	require.ErrorIs(t, err, store.ErrExists, "not by another way either")

	tpl.KeyID = "k"
	put(t, s, tpl)
	_, err = s.UpdateBuild(ctx, first.ID, func(b *store.Build) error { b.FinishedAt = now; return nil })
	require.NoError(t, err)
	others("there is a template", store.ErrExists)
	b := build("", idA)
	b.KeyID = "other"
	_, err = s.AddBuild(ctx, b)
	require.ErrorIs(t, err, store.ErrExists, "nor by its id")
	_, err = s.AddBuild(ctx, build("another", idA))
	require.ErrorIs(t, err, store.ErrExists, "one id has one alias")

	_, err = s.DeleteTemplate(ctx, "app")
	require.NoError(t, err)
	others("nothing has it any more", nil)
}

func racingBuildsShareATemplateID(t *testing.T, s store.Store) {
	const builders = 8
	ids := make([]string, builders)
	var wg sync.WaitGroup
	for i := range builders {
		wg.Go(func() {
			b, err := s.AddBuild(t.Context(), build("app", fmt.Sprintf("%020d", i)))
			if err != nil {
				t.Errorf("add a build: %v", err)
			}
			ids[i] = b.TemplateID
		})
	}
	wg.Wait()
	for _, id := range ids {
		require.Equal(t, ids[0], id)
	}
}

func buildsAreListed(t *testing.T, s store.Store) {
	ctx := t.Context()
	names := map[string]string{}
	for i, b := range []struct {
		key, templateID string
		state           store.BuildState
	}{
		{"k", idA, store.BuildReady}, {"k", idA, store.Building}, {"k", idB, store.BuildWaiting}, {"other", idC, store.Building},
	} {
		build := build("", b.templateID)
		build.KeyID, build.State, build.CreatedAt = b.key, b.state, now.Add(time.Duration(i)*time.Second)
		_, err := s.AddBuild(ctx, build)
		require.NoError(t, err)
		names[build.ID] = fmt.Sprint(i)
	}
	for _, test := range []struct {
		filter store.BuildFilter
		want   string
	}{
		{store.BuildFilter{}, "0123"},
		{store.BuildFilter{NewestFirst: true}, "3210"},
		{store.BuildFilter{KeyID: "k"}, "012"},
		{store.BuildFilter{KeyID: "k", TemplateID: idA, NewestFirst: true}, "10"},
		{store.BuildFilter{States: []store.BuildState{store.Building, store.BuildWaiting}}, "123"},
		{store.BuildFilter{States: []store.BuildState{store.Building}, KeyID: "k"}, "1"},
		{store.BuildFilter{Skip: 1, Most: 2}, "12"},
		{store.BuildFilter{Skip: 1, Most: 2, NewestFirst: true}, "21"},
		{store.BuildFilter{Skip: 3}, "3"},
		{store.BuildFilter{TemplateID: "none"}, ""},
	} {
		builds, err := s.Builds(ctx, test.filter)
		require.NoError(t, err)
		got := ""
		for _, b := range builds {
			got += names[b.ID]
		}
		require.Equal(t, test.want, got, "%+v", test.filter)
	}
}

func pruneSparesBuildsUnderWay(t *testing.T, s store.Store) {
	ctx := t.Context()
	add := func(templateID string, finished time.Time) string {
		b := build("", templateID)
		b.FinishedAt = finished
		_, err := s.AddBuild(ctx, b)
		require.NoError(t, err)
		return b.ID
	}
	running := add(idA, time.Time{})
	old := add(idA, now.Add(-time.Hour))
	second, third, fourth := add(idA, now.Add(2*time.Second)), add(idA, now.Add(3*time.Second)), add(idA, now.Add(4*time.Second))
	other := add(idB, now.Add(time.Second))

	ids, err := s.PruneBuilds(ctx, now, 100)
	require.NoError(t, err)
	require.Equal(t, []string{old}, ids)
	ids, err = s.PruneBuilds(ctx, now, 2)
	require.NoError(t, err)
	require.Equal(t, []string{second}, ids)
	ids, err = s.PruneBuilds(ctx, now, 2)
	require.NoError(t, err)
	require.Empty(t, ids)
	left, err := s.Builds(ctx, store.BuildFilter{})
	require.NoError(t, err)
	var leftIDs []string
	for _, b := range left {
		leftIDs = append(leftIDs, b.ID)
	}
	require.ElementsMatch(t, []string{running, third, fourth, other}, leftIDs)
}

func buildWithoutRecordMakesNoTemplate(t *testing.T, s store.Store) {
	ctx := t.Context()
	b, err := s.AddBuild(ctx, build("app", idA))
	require.NoError(t, err)
	made := store.Template{ID: b.TemplateID, Name: "app", KeyID: "k", BuildID: b.ID, Tags: []string{"v1"}}
	stored, _, err := s.PutBuiltTemplate(ctx, made)
	require.NoError(t, err)
	require.Equal(t, []string{"v1"}, stored.Tags)
	_, err = s.DeleteTemplate(ctx, "app") // with the record of the build, which goes on
	require.NoError(t, err)
	_, _, err = s.PutBuiltTemplate(ctx, made)
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = s.Template(ctx, "app:v1")
	require.ErrorIs(t, err, store.ErrNotFound)
}

func refreshMovesNoTag(t *testing.T, s store.Store) {
	ctx := t.Context()
	put := func(buildID string, tags ...string) store.Template {
		stored, _, err := s.PutTemplate(ctx, store.Template{ID: idA, Name: "app", KeyID: "k", BuildID: buildID, Tags: tags, Snapshot: "old"})
		require.NoError(t, err)
		return stored
	}
	first := put("one", "default", "v1")
	second := put("two", "default") // somebody builds it meanwhile
	first.Snapshot = "new"
	stored, err := s.RefreshTemplate(ctx, first)
	require.NoError(t, err)
	require.Equal(t, []string{"v1"}, stored.Tags)
	require.Equal(t, "new", stored.Snapshot)
	meant, err := s.Template(ctx, "app")
	require.NoError(t, err)
	require.Equal(t, second, meant)
	put("three", "v1") // and the first is gone
	_, err = s.RefreshTemplate(ctx, first)
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = s.Template(ctx, "one")
	require.ErrorIs(t, err, store.ErrNotFound)
}

// build is a new build of the key k.
func build(alias, templateID string) store.Build {
	return store.Build{
		ID: uuid.NewString(), TemplateID: templateID, KeyID: "k", Alias: alias, State: store.BuildWaiting, CreatedAt: now,
	}
}
