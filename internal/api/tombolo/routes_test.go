package tombolo_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/options"
	"github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// TestRolesOfRoutes: role by route, may it? What is allowed may still find nothing (404)
// or want more (400); what is not is always 403.
func TestRolesOfRoutes(t *testing.T) {
	w := newWorld(t)
	routes := map[string]string{
		"GET /approvals":                 "sandboxes approve",
		"GET /approvals/apr_1":           "sandboxes approve",
		"HEAD /approvals/stream":         "sandboxes approve",
		"POST /approvals/apr_1/answer":   "approve",
		"POST /approvals/apr_1/proposal": "sandboxes",
		"GET /grants":                    "sandboxes approve",
		"DELETE /grants/grant_1":         "sandboxes approve",
		"GET /policy":                    "policy",
		"PUT /policy":                    "policy",
		"POST /policy/explain":           "policy sandboxes",
		"GET /sandboxes/i-alice/rules":   "policy sandboxes",
		"PUT /sandboxes/i-alice/rules":   "sandboxes",
		"GET /sandboxes/i-alice/network": "sandboxes",
		"PUT /sandboxes/i-alice/network": "sandboxes",
		"GET /secrets":                   "sandboxes",
		"POST /secrets":                  "sandboxes",
		"GET /secrets/a":                 "sandboxes",
		"PUT /secrets/a":                 "sandboxes",
		"DELETE /secrets/a":              "sandboxes",
		"GET /audit":                     "audit",
		"GET /audit/head":                "audit",
	}
	for _, known := range tombolo.Routes() {
		found := slices.ContainsFunc(sortedKeys(routes), func(route string) bool { return matches(known, route) })
		require.True(t, found, "no row says who may use %s", known)
	}
	keys := map[string]string{"sandboxes": "alice", "approve": "ann", "audit": "eve", "policy": "pol"}
	for route, allowed := range routes {
		method, path, _ := strings.Cut(route, " ")
		for role, key := range keys {
			got := w.do(key, method, path, "")
			if slices.Contains(strings.Fields(allowed), role) {
				require.NotContains(t, []int{401, 403, 500, 501}, got.code, "%s with %s: %s", route, role, got.body)
				continue
			}
			require.Equal(t, 403, got.code, "%s with %s: %s", route, role, got.body)
			if method != "HEAD" {
				require.Equal(t, tombolo.CodeRole, got.errorCode(), "%s with %s: %s", route, role, got.body)
			}
		}
		require.Equal(t, 401, w.do("", method, path, "").code, route)
		require.NotContains(t, []int{401, 403, 500, 501}, w.do("owner", method, path, "").code, route)
	}
}

func sortedKeys(m map[string]string) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// matches tells whether a request is one of a route's pattern.
func matches(pattern, request string) bool {
	mux := http.NewServeMux()
	mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
	method, path, _ := strings.Cut(request, " ")
	_, found := mux.Handler(&http.Request{Method: method, URL: &url.URL{Path: path}, Host: "x"})
	return found != ""
}

func TestWhatIsNoRoute(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		method, path string
		code         int
	}{
		{"GET", "", 404},
		{"GET", "/", 404},
		{"GET", "/nothing", 404},
		{"GET", "/approvals/", 404},
		{"GET", "//approvals", 404},
		{"GET", "/../v1/approvals", 404},
		{"GET", "/approvals/x/answer", 405},
		{"PUT", "/approvals", 405},
		{"DELETE", "/approvals/x", 405},
		{"OPTIONS", "/approvals", 405},
		{"POST", "/policy", 405},
	} {
		got := w.do("owner", tt.method, tt.path, "")
		require.Equal(t, tt.code, got.code, "%s %s: %s", tt.method, tt.path, got.body)
		require.NotEmpty(t, got.errorCode(), "%s %s", tt.method, tt.path)
		require.Equal(t, tt.code == 405, got.head.Get("Allow") != "", "%s %s", tt.method, tt.path)
		require.Contains(t, []int{401, 404}, w.do("", tt.method, tt.path, "").code)
	}
}

func TestRoutesOfWhatIsNotThereSaySo(t *testing.T) {
	w := newWorld(t)
	api := tombolo.New(tombolo.Options{Store: w.store, Sandboxes: w.core})
	t.Cleanup(api.Close)
	w.owner.Config.Handler = api.ForOwner()
	for _, path := range []string{"/approvals", "/policy", "/secrets", "/audit", "/sandboxes/i-alice/network"} {
		got := w.do("owner", "GET", path, "")
		require.Equal(t, http.StatusNotImplemented, got.code, path)
		require.Equal(t, tombolo.CodeUnavailable, got.errorCode(), path)
	}
}

func TestPolicyIsReplacedAsAWhole(t *testing.T) {
	w := newWorld(t)
	c := w.client("pol")
	before, err := c.Policy(t.Context())
	require.NoError(t, err)
	require.Empty(t, before.Tables)
	tables := []policy.Table{
		{Scope: policy.Scope{Kind: policy.KeyScope, ID: "key-alice"}, Rules: []policy.Rule{{Name: "no-exec", Kind: policy.Exec, Decision: policy.Deny, Reason: "not here"}}},
		{Scope: policy.Scope{Kind: policy.ServerScope}, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Ask}},
	}
	dry, err := c.PutPolicy(t.Context(), tombolo.Policy{Tables: tables}, true)
	require.NoError(t, err)
	require.Equal(t, before, dry)
	require.Empty(t, must(c.Policy(t.Context())).Tables, "a dry run changes nothing")

	now, err := c.PutPolicy(t.Context(), tombolo.Policy{Tables: tables, Revision: before.Revision}, false)
	require.NoError(t, err)
	require.Equal(t, []policy.Table{tables[1], tables[0]}, now.Tables)
	require.NotEqual(t, before.Revision, now.Revision)
	require.Equal(t, now, must(w.client("owner").Policy(t.Context())))

	_, err = c.PutPolicy(t.Context(), tombolo.Policy{Revision: before.Revision}, false)
	require.True(t, tombolo.HasCode(err, tombolo.CodeConflict), "%v", err)
	for name, body := range map[string]string{
		"nothing":               ``,
		"no tables":             `{}`,
		"null":                  `{"tables":null}`,
		"an unknown field":      `{"tables":[{"scope":{"kind":"server"},"defaults":{"egress":"deny"}}]}`,
		"an unknown kind":       `{"tables":[{"scope":{"kind":"server"},"rules":[{"name":"a","kind":"ingress","decision":"deny"}]}]}`,
		"an unknown word":       `{"tables":[{"scope":{"kind":"server"},"rules":[{"name":"a","kind":"egress","decision":"block"}]}]}`,
		"a scope twice":         `{"tables":[{"scope":{"kind":"server"}},{"scope":{"kind":"server"}}]}`,
		"a sandbox":             `{"tables":[{"scope":{"kind":"sandbox","id":"i-alice"}}]}`,
		"an example that fails": `{"tables":[{"scope":{"kind":"server"},"rules":[{"name":"a","kind":"exec","decision":"deny","match":[{"command":["rm *"]}],"matches":["exec ls"]}]}]}`,
	} {
		got := w.do("pol", "PUT", "/policy", body)
		require.Equal(t, 400, got.code, "%s: %s", name, got.body)
		require.Equal(t, now, must(c.Policy(t.Context())), name)
	}
	require.Equal(t, 400, w.do("pol", "PUT", "/policy?dryrun=true", `{"tables":[]}`).code, "a mistyped dry run changes nothing")
	require.Equal(t, now, must(c.Policy(t.Context())))
	require.Equal(t, 200, w.do("pol", "PUT", "/policy", `{"tables":[]}`).code)
	require.Empty(t, must(c.Policy(t.Context())).Tables)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestExplain(t *testing.T) {
	w := newWorld(t)
	_, err := w.client("pol").PutPolicy(t.Context(), tombolo.Policy{Tables: []policy.Table{
		{Scope: policy.Scope{Kind: policy.KeyScope, ID: "key-alice"}, Rules: []policy.Rule{{Name: "no-rm", Kind: policy.Exec, Decision: policy.Deny, Match: []policy.Match{{Command: []string{"rm *"}}}}}},
	}}, false)
	require.NoError(t, err)
	ask := tombolo.ExplainRequest{SandboxID: "i-alice", Action: []string{"exec", "rm -rf /"}}
	for _, who := range []string{"pol", "alice", "owner"} {
		e, err := w.client(who).Explain(t.Context(), ask)
		require.NoError(t, err, who)
		require.Equal(t, policy.Deny, e.Verdict.Decision, who)
		require.Equal(t, "no-rm", e.Verdict.Rule, who)
		require.Equal(t, "key-alice", e.Subject.KeyID, who)
		require.Len(t, e.Tables, 1)
	}
	_, err = w.client("bob").Explain(t.Context(), ask)
	require.True(t, tombolo.HasCode(err, tombolo.CodeNotFound), "another's sandbox: %v", err)
	_, err = w.client("bob").Explain(t.Context(), tombolo.ExplainRequest{KeyID: "key-alice", Action: ask.Action})
	require.True(t, tombolo.HasCode(err, tombolo.CodeForbidden), "%v", err)
	e, err := w.client("bob").Explain(t.Context(), tombolo.ExplainRequest{Action: ask.Action})
	require.NoError(t, err)
	require.Equal(t, "key-bob", e.Subject.KeyID)
	require.Equal(t, policy.Allow, e.Verdict.Decision)
	for _, body := range []string{``, `{}`, `{"action":[]}`, `{"action":["fly"]}`, `{"action":"exec ls"}`, `{"sandboxID":"i-none","action":["exec","ls"]}`} {
		require.Contains(t, []int{400, 404}, w.do("pol", "POST", "/policy/explain", body).code, body)
	}
}

func TestRulesOfASandbox(t *testing.T) {
	w := newWorld(t)
	const path = "/sandboxes/i-alice/rules"
	rules := options.Rules{Rules: []policy.Rule{{Name: "no-mail", Kind: policy.Egress, Decision: policy.Deny, Match: []policy.Match{{Port: []string{"25"}}}}}}
	got := w.do("alice", "PUT", path, encode(t, rules))
	require.Equal(t, 200, got.code, got.body)
	require.Equal(t, rules, w.core.rules("i-alice"))
	for who, code := range map[string]int{"alice": 200, "owner": 200, "pol": 200, "bob": 404, "ann": 403} {
		require.Equal(t, code, w.do(who, "GET", path, "").code, who)
	}
	for who, code := range map[string]int{"bob": 404, "pol": 403, "ann": 403, "lone": 404} {
		require.Equal(t, code, w.do(who, "PUT", path, `{"rules":[]}`).code, who)
	}
	for _, body := range []string{"", "[]", `{"rule":[]}`, `{"rules":[{"name":"a b","kind":"egress","decision":"deny"}]}`, `{"rules":[{"name":"a","kind":"egress","decision":"permit"}]}`, `{"default":{"egress":"maybe"}}`, `{"scope":{"kind":"server"},"rules":[]}`} {
		require.Equal(t, 400, w.do("alice", "PUT", path, body).code, body)
	}
	require.Equal(t, rules, w.core.rules("i-alice"))
}

func TestNetworkOfASandbox(t *testing.T) {
	w := newWorld(t)
	const path = "/sandboxes/i-alice/network"
	body := `{"bandwidthOut":1048576,"connections":10,"proxy":{"address":"proxy.example:1080","kind":"socks5","username":"u","password":"very secret"}}`
	got := w.do("alice", "PUT", path, body)
	require.Equal(t, 200, got.code, got.body)
	require.NotContains(t, got.body, "very secret")
	options := w.core.network("i-alice")
	require.Equal(t, int64(1<<20), options.BandwidthOut)
	require.Equal(t, "very secret", options.Proxy.Password)
	require.Equal(t, []string{"kept.example"}, options.AllowOut, "what is set elsewhere stays")

	w.ask("alice", "waits.example")
	var n tombolo.Network
	got = w.do("alice", "GET", path, "")
	require.Equal(t, 200, got.code, got.body)
	require.NotContains(t, got.body, "very secret")
	got.into(t, &n)
	require.Equal(t, "of i-alice", n.Destinations[0].Name)
	require.Equal(t, "of i-alice", n.Refusals[0].What)
	require.Len(t, n.Holds, 1)
	require.Equal(t, 404, w.do("bob", "GET", path, "").code)
	require.Equal(t, 404, w.do("bob", "PUT", path, `{}`).code)
	for _, body := range []string{
		"", `{"bandwidthOut":-1}`, `{"bandwidthIn":1}`, `{"connections":-1}`, `{"connections":1000000}`, `{"denyInternet":false}`, `{"allowOut":["*"]}`,
		`{"proxy":{"address":"proxy.example","kind":"socks5"}}`, `{"proxy":{"address":"proxy.example:1","kind":"ftp"}}`, `{"proxy":{"address":":1","kind":"http"}}`, `{"connections":2561}`, `{"ownProxy":false}`,
		`{"proxy":[]}`, `{"proxy":{"address":"a:1","kind":"http","port":1}}`, `{"proxy":{"address":"a:1","kind":"http","password":"p"}}`,
		`{"proxy":{"address":"a:1","kind":"http","username":"` + strings.Repeat("a", 256) + `"}}`,
	} {
		require.Equal(t, 400, w.do("alice", "PUT", path, body).code, body)
	}
	require.Equal(t, options, w.core.network("i-alice"))
	for _, change := range []struct {
		body string
		do   func(*sandbox.NetworkOptions)
	}{
		{`{}`, func(*sandbox.NetworkOptions) {}},
		{`{"connections":0,"bandwidthIn":4096}`, func(o *sandbox.NetworkOptions) { o.Connections, o.BandwidthIn = 0, 4096 }},
		{`{"bandwidthOut":null}`, func(*sandbox.NetworkOptions) {}},
		{`{"proxy":null}`, func(o *sandbox.NetworkOptions) { o.Proxy, o.OwnProxy = nil, false }},
		{`{"bandwidthOut":0,"bandwidthIn":0}`, func(o *sandbox.NetworkOptions) { o.BandwidthOut, o.BandwidthIn = 0, 0 }},
	} {
		require.Equal(t, 200, w.do("alice", "PUT", path, change.body).code, change.body)
		change.do(&options)
		require.Equal(t, options, w.core.network("i-alice"), "%s: what is left out stays", change.body)
	}
}

func TestAuditIsReadAsItWasWritten(t *testing.T) {
	w := newWorld(t)
	require.Equal(t, 404, w.do("bob", "PUT", "/sandboxes/i-alice/rules", `{"rules":[]}`).code)
	require.Equal(t, 403, w.do("alice", "GET", "/audit", "").code)
	require.Equal(t, 401, w.do("", "GET", "/audit", "").code)
	require.Equal(t, 200, w.do("alice", "PUT", "/sandboxes/i-alice/rules", `{"rules":[]}`).code)
	var lines []audit.Record
	require.Eventually(t, func() bool { lines = w.recorded(); return len(lines) >= 5 }, 10*time.Second, 5*time.Millisecond)
	what := func(r audit.Record) string {
		return strings.Join([]string{r.Actor, r.Decision, r.What, r.SandboxID}, "|")
	}
	var said []string
	for _, r := range lines {
		said = append(said, what(r))
	}
	require.Contains(t, said, "key:key-bob||PUT /tombolo/v1/sandboxes/{id}/rules|i-alice")
	require.Contains(t, said, "key:key-alice|deny|GET /tombolo/v1/audit|")
	require.Contains(t, said, "nobody|deny|GET (no such endpoint)|")
	require.Contains(t, said, "key:key-alice||PUT /tombolo/v1/sandboxes/{id}/rules|i-alice")

	head, err := w.client("eve").AuditHead(t.Context())
	require.NoError(t, err)
	last := lines[len(lines)-1]
	require.Equal(t, tombolo.Head{Seq: last.Seq, Time: last.Time, Hash: last.Hash}, head)
	got := w.do("eve", "GET", "/audit?decision=deny&actor=key:key-alice", "")
	require.Equal(t, "application/x-ndjson", got.head.Get("Content-Type"))
	require.Equal(t, 1, strings.Count(got.body, "\n"), got.body)
	require.Equal(t, 1, strings.Count(w.do("eve", "GET", "/audit?last=1", "").body, "\n"))
	require.Empty(t, w.do("eve", "GET", "/audit?sandbox=none", "").body)
	for _, query := range []string{"kind=all", "since=today", "last=-1", "follow=yes", "user=eve", "actor=a&actor=b"} {
		require.Equal(t, 400, w.do("eve", "GET", "/audit?"+query, "").code, query)
	}
}

func TestAuditIsFollowed(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	seen := make(chan audit.Record, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- w.client("eve").Audit(ctx, url.Values{"follow": {"true"}, "actor": {"key:key-alice"}}, func(line json.RawMessage) error {
			var r audit.Record
			err := json.Unmarshal(line, &r)
			seen <- r
			return err
		})
	}()
	// It may not follow yet when the first are written.
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			w.do("alice", "PUT", "/sandboxes/i-alice/rules", `{"rules":[]}`)
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	require.Equal(t, "key:key-alice", (<-seen).Actor)
	close(stop)
	wg.Wait()
	w.api.Close()
	<-ended
}

func TestAFollowedAuditLogEndsWithItsKey(t *testing.T) {
	for name, change := range map[string]func(w *world) error{
		"deleted": func(w *world) error { return w.store.DeleteKey(context.Background(), "eve") },
		"without the role": func(w *world) error {
			_, err := w.store.UpdateKey(context.Background(), "eve", func(k *store.Key) error { k.Roles = []store.Role{policies}; return nil })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.api.SetHeartbeat(10 * time.Millisecond)
			request, err := http.NewRequestWithContext(t.Context(), "GET", w.server.URL+tombolo.Prefix+"/audit?follow=true&sandbox=none", nil)
			require.NoError(t, err)
			request.Header.Set("X-API-KEY", w.secrets["eve"])
			answer, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			defer answer.Body.Close()
			beat := make([]byte, 1)
			_, err = io.ReadFull(answer.Body, beat)
			require.NoError(t, err)
			require.Equal(t, "\n", string(beat), "what has nothing to tell says that it lives")
			require.Equal(t, []string{"GET " + tombolo.Prefix + "/audit"}, w.looks("key:key-eve", 1), "who follows it is in it")
			require.NoError(t, change(w))
			rest, err := io.ReadAll(answer.Body)
			require.NoError(t, err, "the stream ends, and is not broken off")
			require.Empty(t, strings.TrimSpace(string(rest)))
		})
	}
}

func TestWhoReadsWhatFewMayIsRecorded(t *testing.T) {
	w := newWorld(t)
	h, _ := w.ask("alice", "waits.example")
	for _, path := range []string{"/approvals", "/approvals/" + h.ID, "/grants", "/policy", "/sandboxes/i-alice/rules"} {
		for range 2 {
			require.Equal(t, 200, w.do("pat", "GET", path, "").code, path)
		}
	}
	p := "GET " + tombolo.Prefix
	require.ElementsMatch(t, []string{p + "/approvals", p + "/approvals/{id}", p + "/grants"}, w.looks("key:key-pat", 3))
}

func TestWhatFailedInsideIsNotForCallers(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.RemoveAll(w.auditDir))
	require.NoError(t, os.WriteFile(w.auditDir, nil, 0o600)) // no folder
	got := w.do("eve", "GET", "/audit", "")
	require.Equal(t, 500, got.code)
	require.Contains(t, got.body, "its log says why")
	require.NotContains(t, got.body, "not a directory")
	require.Contains(t, w.do("owner", "GET", "/audit", "").body, "not a directory", "root may read the log anyway")
}

// looks are the requests of an actor that only read, and are recorded: so many at least.
func (w *world) looks(actor string, atLeast int) []string {
	var all []string
	require.Eventually(w.t, func() bool {
		all = nil
		for _, r := range w.recorded() {
			if r.Actor == actor && strings.HasPrefix(r.What, "GET ") {
				all = append(all, r.What)
			}
		}
		return len(all) >= atLeast
	}, 10*time.Second, time.Millisecond)
	return all
}

// recorded is the audit log.
func (w *world) recorded() (all []audit.Record) {
	_ = audit.Read(context.Background(), w.auditDir, audit.Filter{}, func(r audit.Record, _ []byte) error {
		all = append(all, r)
		return nil
	})
	return all
}
