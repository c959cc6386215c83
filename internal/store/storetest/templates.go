package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// Ids of templates.
const (
	idA = "aaaaaaaaaaaaaaaaaaaa"
	idB = "bbbbbbbbbbbbbbbbbbbb"
	idC = "cccccccccccccccccccc"
)

func templateIsFound(t *testing.T, s store.Store) {
	ctx := t.Context()
	tpl := template(idA, "app", "v1", "default")
	tpl.Public = true
	stored, replaced, err := s.PutTemplate(ctx, tpl)
	require.NoError(t, err)
	require.Empty(t, replaced)
	tpl.CreatedAt, tpl.BuiltAt, tpl.Tags = kept, kept, []string{"default", "v1"}
	requireEqual(t, tpl, stored)

	for _, ref := range []string{idA, "app", "app:v1", "app:default", idA + ":v1", tpl.BuildID} {
		got, err := s.Template(ctx, ref)
		require.NoError(t, err, ref)
		requireEqual(t, tpl, got)
	}
	for _, ref := range []string{"", ":", ":v1", ":default", "other", "app:v2", "app:v1:v1", "App", idB, tpl.BuildID + ":v1"} {
		_, err = s.Template(ctx, ref)
		require.ErrorIs(t, err, store.ErrNotFound, "%q", ref)
	}
	all, err := s.Templates(ctx)
	require.NoError(t, err)
	requireEqual(t, []store.Template{tpl}, all)
}

func namelessTemplatesAreApart(t *testing.T, s store.Store) {
	ctx := t.Context()
	for _, id := range []string{idA, idB} {
		put(t, s, template(id, ""))
	}
	got, err := s.Template(ctx, idA)
	require.NoError(t, err)
	require.Equal(t, []string{store.DefaultTag}, got.Tags)
	for _, ref := range []string{"", ":default"} {
		_, err := s.Template(ctx, ref)
		require.ErrorIs(t, err, store.ErrNotFound)
	}
	require.Len(t, refs(t, s), 2)
}

func newBuildReplacesOldOne(t *testing.T, s store.Store) {
	ctx := t.Context()
	first := put(t, s, template(idA, "app"))
	second := template(idB, "app")
	second.CreatedAt, second.Image, second.EnvVars = now.Add(time.Hour), "image2", nil
	stored, replaced, err := s.PutTemplate(ctx, second)
	require.NoError(t, err)
	first.Tags = nil
	requireEqual(t, []store.Template{first}, replaced)
	require.Equal(t, first.ID, stored.ID, "the id stays")
	require.Equal(t, first.CreatedAt, stored.CreatedAt, "the time of creation stays")
	require.Equal(t, "image2", stored.Image)
	require.Empty(t, stored.EnvVars)

	got, err := s.Template(ctx, "app")
	require.NoError(t, err)
	requireEqual(t, stored, got)
	_, err = s.Template(ctx, first.BuildID)
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = s.Template(ctx, idB)
	require.ErrorIs(t, err, store.ErrNotFound)
}

func buildsShareTheirTemplate(t *testing.T, s store.Store) {
	ctx := t.Context()
	first := template(idA, "app")
	first.KeyID, first.Public = "k", true
	put(t, s, first)
	second := template(idB, "app", "v2")
	second.KeyID, second.BuiltAt = "k", now.Add(time.Minute)
	stored := put(t, s, second)
	require.Equal(t, idA, stored.ID)
	require.True(t, stored.Public, "a new build does not hide a template")
	byID := template(idA, "")
	byID.KeyID, byID.Tags, byID.BuiltAt = "k", []string{"v3"}, now.Add(time.Hour)
	require.Equal(t, "app", put(t, s, byID).Name, "by its id alone")

	builds, err := s.TemplateBuilds(ctx, "app")
	require.NoError(t, err)
	require.Len(t, builds, 3)
	require.Equal(t, []string{byID.BuildID, second.BuildID, first.BuildID}, buildIDs(builds), "newest first")
	require.Equal(t, []string{"app:v3", "app:v2", "app"}, refs(t, s))
	_, err = s.TemplateBuilds(ctx, "other")
	require.ErrorIs(t, err, store.ErrNotFound)
}

func sameBuildIsReplaced(t *testing.T, s store.Store) {
	ctx := t.Context()
	tpl := put(t, s, template(idA, "app"))
	tpl.AgentHash, tpl.Tags = "another", []string{"v1"}
	stored, replaced, err := s.PutTemplate(ctx, tpl)
	require.NoError(t, err)
	require.Empty(t, replaced)
	require.Equal(t, "another", stored.AgentHash)
	require.Equal(t, []string{"default", "v1"}, stored.Tags)
	require.Len(t, refs(t, s), 1)

	other := template(idB, "other")
	other.BuildID = tpl.BuildID
	_, _, err = s.PutTemplate(ctx, other)
	require.ErrorIs(t, err, store.ErrExists, "a build is of one template")
	require.Len(t, refs(t, s), 1, "a refused template leaves nothing")
}

func aliasBelongsToOneKey(t *testing.T, s store.Store) {
	ctx := t.Context()
	mine := template(idA, "app")
	mine.KeyID = "k"
	put(t, s, mine)
	for what, change := range map[string]func(*store.Template){
		"another key":                     func(t *store.Template) { t.KeyID = "other" },
		"another key and another tag":     func(t *store.Template) { t.KeyID, t.Tags = "other", []string{"v2"} },
		"the machine":                     func(t *store.Template) { t.KeyID = "" },
		"the id under another alias":      func(t *store.Template) { t.Name = "another" },
		"the id, nameless, by no owner":   func(t *store.Template) { t.Name, t.KeyID = "", "other" },
		"another key with the id as well": func(t *store.Template) { t.ID, t.KeyID = idB, "other" },
	} {
		tpl := template(idA, "app")
		tpl.KeyID = "k"
		change(&tpl)
		_, _, err := s.PutTemplate(ctx, tpl)
		require.ErrorIs(t, err, store.ErrExists, what)
	}
	require.Equal(t, []string{"app"}, refs(t, s))
}

func tagsMove(t *testing.T, s store.Store) {
	ctx := t.Context()
	first := put(t, s, template(idA, "app", "default", "v1"))
	second := put(t, s, template(idA, "app", "v2"))

	tagged, replaced, err := s.TagTemplate(ctx, "app:v2", []string{"default", "latest"})
	require.NoError(t, err)
	require.Empty(t, replaced, "v1 still points at it")
	require.Equal(t, second.BuildID, tagged.BuildID)
	require.Equal(t, []string{"default", "latest", "v2"}, tagged.Tags)
	got, err := s.Template(ctx, "app")
	require.NoError(t, err)
	require.Equal(t, second.BuildID, got.BuildID)

	for _, ref := range []string{first.BuildID, "app:v1", idA + ":v1"} {
		tagged, _, err = s.TagTemplate(ctx, ref, []string{"old"})
		require.NoError(t, err)
		require.Equal(t, []string{"old", "v1"}, tagged.Tags)
	}
	_, replaced, err = s.TagTemplate(ctx, "app", []string{"v1", "old"})
	require.NoError(t, err)
	require.Equal(t, []string{first.BuildID}, buildIDs(replaced), "once, though it lost two tags")

	tags, err := s.TemplateTags(ctx, "app")
	require.NoError(t, err)
	require.Len(t, tags, 5)
	for i, tag := range tags {
		require.Equal(t, second.BuildID, tag.BuildID)
		require.WithinDuration(t, time.Now(), tag.AssignedAt, time.Hour)
		require.True(t, i == 0 || !tag.AssignedAt.After(tags[i-1].AssignedAt), "the latest first")
	}
	byID, err := s.TemplateTags(ctx, idA)
	require.NoError(t, err)
	requireEqual(t, tags, byID)
	_, err = s.TemplateTags(ctx, "other")
	require.ErrorIs(t, err, store.ErrNotFound)
	for _, ref := range []string{"app:v9", "other", ""} {
		_, _, err = s.TagTemplate(ctx, ref, []string{"x"})
		require.ErrorIs(t, err, store.ErrNotFound, ref)
	}
}

func tagsAreTakenOff(t *testing.T, s store.Store) {
	ctx := t.Context()
	put(t, s, template(idA, "app", "default", "v1"))
	second := put(t, s, template(idA, "app", "v2", "v3"))

	removed, err := s.UntagTemplate(ctx, "app", []string{"v1", "v2", "unknown"})
	require.NoError(t, err)
	require.Empty(t, removed)
	removed, err = s.UntagTemplate(ctx, idA, []string{"v3"})
	require.NoError(t, err)
	require.Equal(t, []string{second.BuildID}, buildIDs(removed))
	_, err = s.UntagTemplate(ctx, "app", []string{"v1", "default"})
	require.ErrorIs(t, err, store.ErrDefaultTag)
	_, err = s.UntagTemplate(ctx, "other", []string{"v1"})
	require.ErrorIs(t, err, store.ErrNotFound)
	require.Equal(t, []string{"app"}, refs(t, s))

	put(t, s, template(idB, "gone", "v1"))
	removed, err = s.UntagTemplate(ctx, "gone", []string{"v1"})
	require.NoError(t, err)
	require.Len(t, removed, 1)
	_, err = s.TemplateTags(ctx, "gone")
	require.ErrorIs(t, err, store.ErrNotFound, "a template without builds is gone")
}

func tagsAreLimited(t *testing.T, s store.Store) {
	ctx := t.Context()
	put(t, s, template(idA, "app"))
	var tags []string
	for i := range store.MaxTags {
		tags = append(tags, fmt.Sprint("v", i))
	}
	_, _, err := s.TagTemplate(ctx, "app", tags)
	require.ErrorIs(t, err, store.ErrFull)
	_, _, err = s.TagTemplate(ctx, "app", tags[1:])
	require.NoError(t, err)
	_, _, err = s.PutTemplate(ctx, template(idA, "app", "more"))
	require.ErrorIs(t, err, store.ErrFull)
	require.Len(t, refs(t, s), 1)
}

func publicIsOfTheTemplate(t *testing.T, s store.Store) {
	ctx := t.Context()
	put(t, s, template(idA, "app"))
	put(t, s, template(idA, "app", "v2"))
	put(t, s, template(idB, "other"))
	public := func() (names []string) {
		all, err := s.Templates(ctx)
		require.NoError(t, err)
		for _, tpl := range all {
			if tpl.Public {
				names = append(names, tpl.Ref())
			}
		}
		slices.Sort(names)
		return names
	}
	require.NoError(t, s.SetPublic(ctx, idA, true))
	require.Equal(t, []string{"app", "app:v2"}, public())
	require.NoError(t, s.SetPublic(ctx, "other", true))
	require.NoError(t, s.SetPublic(ctx, "app", false))
	require.Equal(t, []string{"other"}, public())
	require.ErrorIs(t, s.SetPublic(ctx, "none", true), store.ErrNotFound)
}

func deleteTakesWhatIsMeant(t *testing.T, s store.Store) {
	ctx := t.Context()
	one := put(t, s, template(idA, "app", "default", "v1"))
	two := put(t, s, template(idA, "app", "v2"))
	three := put(t, s, template(idA, "app", "v3", "v4"))
	deleted := func(ref string) []string {
		removed, err := s.DeleteTemplate(ctx, ref)
		require.NoError(t, err, ref)
		return buildIDs(removed)
	}
	for _, ref := range []string{"app:v9", "other", "", ":", ":default", "other:default"} {
		_, err := s.DeleteTemplate(ctx, ref)
		require.ErrorIs(t, err, store.ErrNotFound, ref)
	}
	require.Empty(t, deleted("app:default"), "v1 still points at it")
	require.Equal(t, []string{one.BuildID}, deleted(idA+":v1"))
	require.Equal(t, []string{three.BuildID}, deleted(three.BuildID))
	require.Equal(t, []string{"app:v2"}, refs(t, s))
	require.Equal(t, []string{two.BuildID}, deleted("app"), "whole, though there is no tag default")
	require.Empty(t, refs(t, s))
	_, err := s.DeleteTemplate(ctx, "app")
	require.ErrorIs(t, err, store.ErrNotFound)

	put(t, s, template(idB, "app", "v1"))
	deleted("app:v1")
	put(t, s, template(idC, "another"))
	other := template(idC, "app")
	_, _, err = s.PutTemplate(ctx, other)
	require.ErrorIs(t, err, store.ErrExists)
	other.ID = idA
	require.Equal(t, idA, put(t, s, other).ID, "with its last tag a template frees its alias")
}

func deletedTemplateTakesBuilds(t *testing.T, s store.Store) {
	ctx := t.Context()
	putTagged := func(tag string) {
		tpl := template(idA, "app", tag)
		tpl.KeyID = "k"
		put(t, s, tpl)
	}
	putTagged("default")
	putTagged("v1")
	add := func(alias, templateID string, state store.BuildState) store.Build {
		b := build(alias, templateID)
		b.State = state
		if state == store.BuildError || state == store.BuildReady {
			b.FinishedAt = now
		}
		b, err := s.AddBuild(ctx, b)
		require.NoError(t, err)
		return b
	}
	ended, running := add("app", idB, store.BuildReady), add("app", idB, store.Building)

	_, err := s.DeleteTemplate(ctx, "app:v1")
	require.NoError(t, err)
	_, err = s.Build(ctx, ended.ID)
	require.NoError(t, err, "a tag is not the template")
	_, err = s.DeleteTemplate(ctx, "app")
	require.NoError(t, err)
	for _, id := range []string{ended.ID, running.ID} {
		_, err = s.Build(ctx, id)
		require.ErrorIs(t, err, store.ErrNotFound)
	}
	_, err = s.UpdateBuild(ctx, running.ID, func(*store.Build) error { return nil })
	require.ErrorIs(t, err, store.ErrNotFound, "who builds learns of it")

	putTagged("v1")
	running = add("app", idB, store.Building)
	_, err = s.DeleteTemplate(ctx, "app:v1")
	require.NoError(t, err)
	_, err = s.Build(ctx, running.ID)
	require.NoError(t, err, "its last tag is gone, but a build is under way")

	add("first", idB, store.Building)
	for _, ref := range []string{"first", idA} {
		removed, err := s.DeleteTemplate(ctx, ref)
		require.NoError(t, err, "a template that was never built")
		require.Empty(t, removed)
		_, err = s.DeleteTemplate(ctx, ref)
		require.ErrorIs(t, err, store.ErrNotFound)
	}
	left, err := s.Builds(ctx, store.BuildFilter{})
	require.NoError(t, err)
	require.Empty(t, left)
}

// taggersDoNotLoseABuild has several change tags at once: each build that is not
// reported as gone has to be there, and no other.
func taggersDoNotLoseABuild(t *testing.T, s store.Store) {
	ctx := t.Context()
	const writers, each = 4, 10
	var mu sync.Mutex
	added, gone := map[string]bool{}, map[string]int{}
	note := func(list []store.Template) {
		mu.Lock()
		defer mu.Unlock()
		for _, tpl := range list {
			gone[tpl.BuildID]++
		}
	}
	put(t, s, template(idA, "app", "keep"))
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				tpl := template(idA, "app", "default", fmt.Sprint("w", w))
				_, replaced, err := s.PutTemplate(ctx, tpl)
				if err != nil {
					t.Errorf("put: %v", err)
					return
				}
				mu.Lock()
				added[tpl.BuildID] = true
				mu.Unlock()
				note(replaced)
				if i%3 == 0 {
					removed, err := s.UntagTemplate(ctx, "app", []string{fmt.Sprint("w", (w+1)%writers)})
					if err != nil {
						t.Errorf("untag: %v", err)
					}
					note(removed)
				}
				_, replaced, err = s.TagTemplate(ctx, "app", []string{"latest"})
				if err != nil {
					t.Errorf("tag: %v", err)
				}
				note(replaced)
			}
		})
	}
	wg.Wait()
	all, err := s.Templates(ctx)
	require.NoError(t, err)
	for _, tpl := range all {
		require.NotEmpty(t, tpl.Tags, "what no tag points at is gone")
		require.Zero(t, gone[tpl.BuildID], "what is there was not reported as gone")
	}
	for id := range added {
		there := slices.ContainsFunc(all, func(tpl store.Template) bool { return tpl.BuildID == id })
		require.Equal(t, !there, gone[id] == 1, "build %s is there: %v, was reported as gone %d times", id, there, gone[id])
	}
}

func put(t *testing.T, s store.Store, tpl store.Template) store.Template {
	t.Helper()
	stored, _, err := s.PutTemplate(t.Context(), tpl)
	require.NoError(t, err)
	return stored
}

// template is a new build of a template.
func template(id, name string, tags ...string) store.Template {
	return store.Template{
		ID: id, Name: name, Tags: tags, CreatedAt: now, BuildID: uuid.NewString(), BuiltAt: now, CPUs: 2, MemoryBytes: 1 << 30,
		DiskBytes: 1 << 33, SizeBytes: 12345, Image: "image1", Snapshot: "snap1", StartCmd: "start", ReadyCmd: "ready",
		EnvVars: map[string]string{"A": "b"}, User: "user", Workdir: "/home/user", Kernels: []string{"python"},
		AgentHash: "a", EngineHash: "e", RecipeHash: "r",
	}
}

// refs are those of all builds, as they are listed.
func refs(t *testing.T, s store.Store) []string {
	t.Helper()
	all, err := s.Templates(t.Context())
	require.NoError(t, err)
	list := make([]string, len(all))
	for i, tpl := range all {
		list[i] = tpl.Ref()
	}
	return list
}

func buildIDs(list []store.Template) []string {
	ids := make([]string, len(list))
	for i, tpl := range list {
		ids[i] = tpl.BuildID
	}
	return ids
}
