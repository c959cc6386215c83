package e2b_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

func (w *world) do(key, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("X-API-KEY", w.secrets[key])
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, r)
	return answer
}

func TestARepeatWithOtherRulesIsAnotherRequest(t *testing.T) {
	w := newWorld(t)
	create := func(rules string) int {
		return w.do("alice", "POST", "/v2/sandboxes", `{"templateID":"base"}`, "Idempotency-Key", "a", "Tombolo-Rules", rules).Code
	}
	require.Equal(t, 201, create(`{"rules":[]}`))
	require.Equal(t, 201, create(`{"rules":[]}`))
	require.Equal(t, 409, create(`{"rules":[],"default":{"exec":"deny"}}`))
	require.Len(t, w.core.calls, 1)
}

func TestErrorsOfTheCoreBecomeTheirCodes(t *testing.T) {
	tests := []struct {
		err     error
		code    int
		message string
	}{
		{&sandbox.LimitError{What: "sandboxes at once", Limit: "2"}, 429, "limit of 2 sandboxes at once"},
		{sandbox.ErrBusy, 409, "ask again in a moment"},
		{fmt.Errorf("pause: %w", sandbox.ErrStopping), 503, "the server is stopping"},
		{&sandbox.InvalidError{Message: "too much"}, 400, "too much"},
		{&sandbox.DeniedError{What: "lifetime 3h", Rule: "short", Reason: "it costs", ID: "req_1"}, 403, `lifetime 3h is not allowed by the rule "short": it costs (request req_1)`},
		{sandbox.ErrTemplateNotFound, 404, "template 'base' not found"},
		{errors.New("no memory left at /srv/hidden"), 500, "the server could not do this; its log says why"},
		{fmt.Errorf("%w: /srv/hidden", sandbox.ErrRunsOn), 500, "could not be paused and runs on; the server's log says why"},
		{fmt.Errorf("%w: /srv/hidden: %w", sandbox.ErrRunsOn, syscall.ENOSPC), 507, "runs on: the disk of the server is full"},
		{fmt.Errorf("/srv/hidden: %w", syscall.ENOSPC), 507, "the disk of the server is full"},
		{fmt.Errorf("%w: /srv/hidden", sandbox.ErrStillPaused), 500, "could not be resumed and is still paused; the server's log says why"},
		{fmt.Errorf("%w: %w", sandbox.ErrStillPaused, sandbox.ErrStopping), 503, "the server is stopping"},
	}
	for _, tt := range tests {
		w := newWorld(t)
		w.core.fail = fmt.Errorf("wrapped: %w", tt.err)
		answer := w.do("alice", "POST", "/v2/sandboxes", `{"templateID":"base"}`)
		require.Equal(t, tt.code, answer.Code)
		var got struct {
			Code    int
			Message string
		}
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &got))
		require.Equal(t, tt.code, got.Code)
		require.Contains(t, got.Message, tt.message)
		require.NotContains(t, answer.Body.String(), "hidden")
		require.Equal(t, tt.code == 429, answer.Header().Get("Should-Retry") == "false")
	}
}

// Clients repeat a 429 by themselves: one that waiting lifts, soon, and no other.
func TestLimitsSayWhenToAskAgain(t *testing.T) {
	tests := []struct {
		retryAfter        time.Duration
		header, repeating string
	}{
		{0, "", "false"}, // nobody can tell
		{time.Nanosecond, "1", ""},
		{1500 * time.Millisecond, "2", ""},
		{10 * time.Second, "10", ""},
		{10*time.Second + 1, "11", "false"}, // clients would stand still
		{5 * time.Minute, "300", "false"},
	}
	for _, tt := range tests {
		w := newWorld(t)
		w.core.fail = &sandbox.LimitError{What: "creates a second", Limit: "1", RetryAfter: tt.retryAfter}
		for path, body := range map[string]string{
			"/v2/sandboxes":               `{"templateID":"base"}`,
			"/v2/sandboxes/i0005/connect": `{}`,
			"/sandboxes/i0001/fork":       `{}`,
			"/sandboxes/i0001/snapshots":  `{}`,
		} {
			answer := w.do("alice", "POST", path, body)
			require.Equal(t, 429, answer.Code, path)
			require.Equal(t, tt.header, answer.Header().Get("Retry-After"), "%s %s", path, tt.retryAfter)
			require.Equal(t, tt.repeating, answer.Header().Get("Should-Retry"), "%s %s", path, tt.retryAfter)
		}
	}
}

func TestOverlongInputsAreRefused(t *testing.T) {
	w := newWorld(t)
	many := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("k", i)] = "v"
		}
		return m
	}
	tests := []struct {
		name string
		body map[string]any
		code int
	}{
		{"template", map[string]any{"templateID": strings.Repeat("a", 257)}, 400},
		{"metadata entries", map[string]any{"templateID": "base", "metadata": many(257)}, 400},
		{"metadata bytes", map[string]any{"templateID": "base", "metadata": map[string]string{"a": strings.Repeat("b", 64<<10)}}, 400},
		{"variables", map[string]any{"templateID": "base", "envVars": many(1025)}, 400},
		{"one variable", map[string]any{"templateID": "base", "envVars": map[string]string{"A": strings.Repeat("b", 96<<10)}}, 400},
		{"body", map[string]any{"templateID": "base", "unknown": strings.Repeat("b", 1<<20)}, 413},
	}
	for _, tt := range tests {
		body, err := json.Marshal(tt.body)
		require.NoError(t, err)
		require.Equal(t, tt.code, w.do("alice", "POST", "/v2/sandboxes", string(body)).Code, tt.name)
	}
	require.Empty(t, w.core.calls)
}

func TestDeletedKeyIsRefusedAtOnce(t *testing.T) {
	w := newWorld(t)
	require.Equal(t, http.StatusOK, w.do("alice", "GET", "/sandboxes", "").Code)
	require.NoError(t, w.store.DeleteKey(t.Context(), "alice"))
	require.Equal(t, http.StatusUnauthorized, w.do("alice", "GET", "/sandboxes", "").Code)
}

func TestKeysWithoutTheRoleAreRefused(t *testing.T) {
	w := newWorld(t)
	_, err := w.store.UpdateKey(t.Context(), "alice", func(k *store.Key) error {
		k.Roles = []store.Role{store.RoleApprove, store.RoleAudit, store.RolePolicy}
		return nil
	})
	require.NoError(t, err)
	for method, path := range map[string]string{"GET": "/sandboxes", "POST": "/v2/sandboxes", "DELETE": "/sandboxes/i0001", "PUT": "/none"} {
		answer := w.do("alice", method, path, `{"templateID":"base"}`)
		require.Equal(t, http.StatusForbidden, answer.Code, path)
		require.Contains(t, answer.Body.String(), "sandboxes", path)
	}
	require.Empty(t, w.core.calls)
	r := httptest.NewRequest("GET", "/sandboxes", nil)
	r.Header.Set("Authorization", "Bearer "+w.secrets["bob"])
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, r)
	require.Equal(t, http.StatusUnauthorized, answer.Code, "the dialect takes no key there")
}

func TestUseOfAKeyIsNoted(t *testing.T) {
	w := newWorld(t)
	require.Equal(t, http.StatusOK, w.do("alice", "GET", "/sandboxes", "").Code)
	hash, err := store.HashSecret(w.secrets["alice"])
	require.NoError(t, err)
	k, err := w.store.KeyByHash(t.Context(), hash)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), k.LastUsed, time.Minute)
}

func TestRepeatedCreateStartsOneSandbox(t *testing.T) {
	w := newWorld(t)
	const body = `{"templateID":"base"}`
	create := func(key, body string) *httptest.ResponseRecorder {
		return w.do(key, "POST", "/v2/sandboxes", body, "Idempotency-Key", "once")
	}

	w.core.hold = make(chan struct{})
	answers := make([]string, 5)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = create("alice", body).Body.String() })
	}
	close(w.core.hold)
	wg.Wait()
	for _, answer := range append(answers, create("alice", body).Body.String()) {
		require.Equal(t, answers[0], answer)
		require.Contains(t, answer, "inew1")
	}
	require.Len(t, w.core.calls, 1)

	require.Equal(t, http.StatusConflict, create("alice", `{"templateID":"alices"}`).Code, "one key for two requests")
	require.Contains(t, create("bob", body).Body.String(), "inew2", "another caller's key is another key")
	require.Contains(t, w.do("alice", "POST", "/v2/sandboxes", body).Body.String(), "inew3", "without a key every request counts")
}

func TestRepeatedForkAndSnapshotAreMadeOnce(t *testing.T) {
	for _, path := range []string{"/sandboxes/i0001/fork", "/sandboxes/i0001/snapshots"} {
		w := newWorld(t)
		ask := func(path, body string) *httptest.ResponseRecorder {
			return w.do("alice", "POST", path, body, "Idempotency-Key", "once")
		}
		first := ask(path, `{}`)
		require.Equal(t, 201, first.Code)
		require.Equal(t, first.Body.String(), ask(path, `{}`).Body.String())
		require.Len(t, w.core.calls, 1)
		require.Equal(t, 409, ask(strings.Replace(path, "i0001", "i0002", 1), `{}`).Code, "another sandbox is another request")
		require.Equal(t, 409, ask("/v2/sandboxes", `{"templateID":"base"}`).Code, "and so is another endpoint")
		require.Contains(t, ask("/v2/sandboxes", `{"templateID":"base"}`).Body.String(), `"error_code":"idempotency_request_mismatch"`)
	}
}

func TestFailedCreateMayBeRepeated(t *testing.T) {
	w := newWorld(t)
	w.core.fail = errors.New("no memory left")
	require.Equal(t, 500, w.do("alice", "POST", "/v2/sandboxes", `{"templateID":"base"}`, "Idempotency-Key", "a").Code)
	w.core.fail = nil
	require.Equal(t, 201, w.do("alice", "POST", "/v2/sandboxes", `{"templateID":"base"}`, "Idempotency-Key", "a").Code)
}

func TestPagesHoldEverySandboxOnce(t *testing.T) {
	for _, order := range []string{"asc", "desc"} {
		w := newWorld(t)
		for i := range 25 { // some start at one time
			w.core.add(sandbox.Info{ID: fmt.Sprintf("x%02d", i), KeyID: "key-of-alice", StartedAt: start.Add(time.Duration(i/4) * time.Second)})
		}
		seen := map[string]int{}
		token, pages := "", 0
		for {
			answer := w.do("alice", "GET", "/v2/sandboxes?limit=4&order="+order+"&nextToken="+token, "")
			require.Equal(t, http.StatusOK, answer.Code)
			var page []struct{ SandboxID string }
			require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &page))
			for _, s := range page {
				seen[s.SandboxID]++
			}
			pages++
			if token = answer.Header().Get("X-Next-Token"); token == "" {
				break
			}
			delete(w.core.live, page[len(page)-1].SandboxID) // the cursor's sandbox ends
		}
		require.Len(t, seen, 29)
		require.Equal(t, 8, pages)
		for id, n := range seen {
			require.Equal(t, 1, n, id)
		}
	}
}

func FuzzListQuery(f *testing.F) {
	for _, q := range []string{"metadata=a%3Db", "metadata=%2525", "nextToken=MjAyNi0wMy0wNFQwNTowODowNy44OTAxMjNaX19pMDAwMw", "state=running,paused&limit=1", "startedAfter=2026-01-02T03:04:05%2B01:00"} {
		f.Add(q)
	}
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest("GET", "/v2/sandboxes", nil)
		r.URL.RawQuery = query
		r.Header.Set("X-API-KEY", w.secrets["alice"])
		answer := httptest.NewRecorder()
		w.ServeHTTP(answer, r)
		require.Contains(t, []int{200, 400}, answer.Code)
		require.True(t, json.Valid(answer.Body.Bytes()))
	})
}

func FuzzSnapshotQuery(f *testing.F) {
	for _, q := range []string{"name=alice%2Fsnap%3Av2", "sandboxID=i0001-x&limit=1", "nextToken=MjAyNi0wMy0wNFQwNToxMDowNy44OTAxMjNaX19zbmFwdjJzbmFwdjJzbmFwdjJzbg", "name=%00:/"} {
		f.Add(q)
	}
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest("GET", "/snapshots", nil)
		r.URL.RawQuery = query
		r.Header.Set("X-API-KEY", w.secrets["alice"])
		answer := httptest.NewRecorder()
		w.ServeHTTP(answer, r)
		require.Contains(t, []int{200, 400}, answer.Code)
		require.True(t, json.Valid(answer.Body.Bytes()))
		require.NotContains(t, answer.Body.String(), "theirs", "a snapshot of another key")
	})
}

// What is asked to be closed is never open, and what a snapshot is called is a
// name that is found again.
func FuzzCreateAndSnapshot(f *testing.F) {
	for _, body := range []string{
		`{"templateID":"base","network":{"allowPublicTraffic":false,"denyOut":["0.0.0.0/0"],"maskRequestHost":"a:${PORT}"}}`,
		`{"templateID":"alice/snap:v2","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":false}}`,
		`{"name":"alice/mine:v1","memory":true}`, `{"name":"Base"}`, `{"name":"\u0000:a/b"}`, `[]`, `{"network":{"rules":{}}}`,
	} {
		f.Add(body)
	}
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, body string) {
		w.core.calls = nil
		created := w.do("alice", "POST", "/v2/sandboxes", body)
		require.Contains(t, []int{201, 400, 404, 413}, created.Code)
		if created.Code == 201 {
			var asked struct {
				Internet *bool `json:"allow_internet_access"`
				Network  struct{ AllowPublicTraffic *bool }
			}
			require.NoError(t, json.Unmarshal([]byte(body), &asked))
			call := w.core.calls[0]
			require.Equal(t, asked.Network.AllowPublicTraffic != nil && !*asked.Network.AllowPublicTraffic, strings.Contains(call, "network {denyInternet:true,privateTraffic:true") || strings.Contains(call, "network {privateTraffic:true"))
			require.True(t, asked.Internet == nil || *asked.Internet || strings.Contains(call, "network {denyInternet:true"))
		}
		snapshot := w.do("alice", "POST", "/sandboxes/i0001/snapshots", body)
		require.Contains(t, []int{201, 400, 403, 409, 413}, snapshot.Code)
		if snapshot.Code == 201 {
			var got struct{ Names []string }
			require.NoError(t, json.Unmarshal(snapshot.Body.Bytes(), &got))
			for _, name := range got.Names {
				require.Regexp(t, `^alice/[a-z0-9_-]+:[a-z0-9_.-]+$`, name)
			}
		}
	})
}
