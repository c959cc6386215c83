package e2b_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTagsAreListedLatestFirst(t *testing.T) {
	w := newWorld(t)
	began := time.Now().Add(-time.Second)
	require.Equal(t, 201, w.do("alice", "POST", "/templates/tags", `{"target":"alices:v1","tags":["latest"]}`).Code)
	for _, ref := range []string{alicesID, "alices", "alice%2Falices", "alices%3Av1"} {
		answer := w.do("alice", "GET", "/templates/"+ref+"/tags", "")
		require.Equal(t, 200, answer.Code, answer.Body)
		var tags []struct {
			Tag, BuildID string
			CreatedAt    time.Time
		}
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &tags))
		require.Len(t, tags, 4)
		require.Equal(t, "latest", tags[0].Tag)
		require.Equal(t, buildID(3), tags[0].BuildID)
		require.WithinRange(t, tags[0].CreatedAt, began, time.Now())
		require.Equal(t, "default", tags[3].Tag)
		require.Equal(t, buildID(2), tags[3].BuildID)
	}
	require.Equal(t, 200, w.do("alice", "GET", "/templates/base/tags", "").Code, "the machine's")
	require.Equal(t, 200, w.do("alice", "GET", "/templates/shared/tags", "").Code, "a public one")
}

func TestATagOfAnotherBuildStartsThatBuild(t *testing.T) {
	w := newWorld(t)
	create := func() {
		require.Equal(t, 201, w.do("alice", "POST", "/v2/sandboxes", `{"templateID":"alices"}`).Code)
	}
	create()
	require.Equal(t, 201, w.do("alice", "POST", "/templates/tags", `{"target":"alices:v1","tags":["default"]}`).Code)
	create()
	require.Contains(t, w.core.calls[0], "Create "+buildID(2))
	require.Contains(t, w.core.calls[2], "Create "+buildID(3))
}

func TestAPublicTemplateIsForEveryKeyUntilItIsTakenBack(t *testing.T) {
	w := newWorld(t)
	for _, public := range []bool{true, false} {
		answer := w.do("alice", "PATCH", "/v2/templates/alices", fmt.Sprintf(`{"public":%t}`, public))
		require.JSONEq(t, `{"names":["alice/alices"]}`, answer.Body.String())
		want := map[bool]int{true: 201, false: 404}[public]
		for _, name := range []string{"alices:v1", "alice/alices:v1"} {
			require.Equal(t, want, w.do("bob", "POST", "/v2/sandboxes", `{"templateID":"`+name+`"}`).Code, name)
		}
		require.Equal(t, 404, w.do("bob", "POST", "/v2/sandboxes", `{"templateID":"carol/alices:v1"}`).Code, "no namespace of its owner's")
		var shown struct{ Public bool }
		require.NoError(t, json.Unmarshal(w.do("alice", "GET", "/templates/alices", "").Body.Bytes(), &shown))
		require.Equal(t, public, shown.Public)
	}
}

func TestDeletedTemplateIsGoneWithAllItsBuilds(t *testing.T) {
	w := newWorld(t)
	require.Equal(t, 204, w.do("alice", "DELETE", "/templates/alices", "").Code)
	for _, ref := range []string{"alices", "alices:v1", alicesID, buildID(3)} {
		require.Equal(t, 404, w.do("alice", "POST", "/v2/sandboxes", `{"templateID":"`+ref+`"}`).Code, ref)
	}
	require.Equal(t, 404, w.do("alice", "GET", "/templates/alices", "").Code, "not even as one whose build failed")
	require.Equal(t, 404, w.do("alice", "GET", "/templates/aliases/alices", "").Code)
	require.Equal(t, 404, w.do("alice", "DELETE", "/templates/alices", "").Code)
}

func TestTemplatePagesHoldEveryTemplateOnce(t *testing.T) {
	w := newWorld(t)
	var all []string
	for token, pages := "", 0; pages == 0 || token != ""; pages++ {
		answer := w.do("alice", "GET", "/v2/templates?limit=1&nextToken="+token, "")
		var page []struct{ TemplateID string }
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &page))
		for _, template := range page {
			all = append(all, template.TemplateID)
		}
		token = answer.Header().Get("X-Next-Token")
	}
	require.Equal(t, []string{freshID, brokenID, baseID, alicesID}, all)
}
