package tombolo_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
)

var everybody = []string{"", "alice", "bob", "ann", "ben", "pat", "pam", "eve", "pol", "lone", "twin", "owner"}

// TestWhoSeesWhat goes through every caller and every sandbox.
func TestWhoSeesWhat(t *testing.T) {
	w := newWorld(t)
	holds := map[string]approval.Hold{}
	for _, name := range []string{"alice", "bob", "lone", "twin", "owner"} {
		holds[name], _ = w.ask(name, name+".example")
	}
	all := "alice bob lone twin owner"
	for who, sees := range map[string]string{
		"alice": "alice", "bob": "bob", "ann": all, "ben": "alice", "pat": all, "pam": "alice", "lone": all, "twin": all, "owner": all,
	} {
		var list []approval.Hold
		got := w.do(who, "GET", "/approvals", "")
		require.Equal(t, 200, got.code, got.body)
		got.into(t, &list)
		var listed []string
		for _, h := range list {
			listed = append(listed, strings.TrimPrefix(h.Subject.SandboxID, "i-"))
		}
		require.ElementsMatch(t, strings.Fields(sees), listed, who)
		for name, h := range holds {
			got := w.do(who, "GET", "/approvals/"+h.ID, "")
			if strings.Contains(sees, name) {
				require.Equal(t, 200, got.code, "%s %s", who, name)
				continue
			}
			require.Equal(t, 404, got.code, "%s sees the hold of %s", who, name)
			require.Equal(t, strings.ReplaceAll(got.body, h.ID, "nothing"), w.do(who, "GET", "/approvals/nothing", "").body, "it is not told from one that is not there")
		}
	}
}

// TestWhoMayAnswer: whose sandbox asks must not decide, nor who answers for others only.
func TestWhoMayAnswer(t *testing.T) {
	w := newWorld(t)
	may := map[string]string{
		"ann": "alice bob lone twin owner", "ben": "alice", "pat": "alice bob lone twin owner", "pam": "alice",
		"lone": "alice bob lone twin owner", "twin": "alice bob lone owner", "owner": "alice bob lone twin owner",
	}
	for i, who := range everybody {
		for _, name := range []string{"alice", "bob", "lone", "twin", "owner"} {
			h, done := w.ask(name, fmt.Sprintf("h%d.%s.example", i, name))
			got := w.do(who, "POST", "/approvals/"+h.ID+"/answer", encode(t, tombolo.AnswerRequest{Approve: true, Hash: h.Hash}))
			if strings.Contains(may[who], name) {
				require.Equal(t, 200, got.code, "%s for %s: %s", who, name, got.body)
				after := <-done
				require.Equal(t, approval.Approved, after.State)
				want := "key:key-" + who
				if who == "owner" {
					want = "owner"
				}
				require.Equal(t, want, after.Answer.Approver, "given by the server")
				continue
			}
			require.Contains(t, []int{401, 403, 404}, got.code, "%s for %s: %s", who, name, got.body)
			require.NotEmpty(t, got.errorCode(), got.body)
			now, err := w.desk.Get(t.Context(), h.ID)
			require.NoError(t, err)
			require.Equal(t, approval.Pending, now.State, "%s answered for %s", who, name)
			_, err = w.desk.Withdraw(t.Context(), h.ID)
			require.NoError(t, err)
		}
	}
}

func TestAnswersThatAreRefusedChangeNothing(t *testing.T) {
	w := newWorld(t)
	h, _ := w.ask("alice", "api.example")
	for _, tt := range []struct {
		name, body string
		code       int
	}{
		{"nothing", ``, 400},
		{"no JSON", `approve`, 400},
		{"a list", `[]`, 400},
		{"without the hash", `{"approve":true}`, 400},
		{"another hash", `{"approve":true,"hash":"0123"}`, 409},
		{"a field that is not known", `{"approve":true,"hash":"$","until":"forever"}`, 400},
		{"who approves", `{"approve":true,"hash":"$","approver":"owner"}`, 400},
		{"more than one object", `{"approve":true,"hash":"$"}{}`, 400},
		{"a number for a word", `{"approve":1,"hash":"$"}`, 400},
		{"an unknown reach", `{"approve":true,"hash":"$","reach":"always"}`, 400},
		{"time without one", `{"approve":true,"hash":"$","reach":"time"}`, 400},
		{"a time before now", `{"approve":true,"hash":"$","reach":"time","duration":"-1h"}`, 400},
		{"a time that is none", `{"approve":true,"hash":"$","reach":"time","duration":"soon"}`, 400},
		{"nanoseconds", `{"approve":true,"hash":"$","reach":"time","duration":3600000000000}`, 400},
		{"a time without the reach", `{"approve":true,"hash":"$","duration":"1h"}`, 400},
		{"a match that does not fit", `{"approve":true,"hash":"$","reach":"sandbox","match":{"host":["other.example"]}}`, 400},
		{"a match with an unknown field", `{"approve":true,"hash":"$","reach":"sandbox","match":{"hosts":["api.example"]}}`, 400},
		{"a rule without a scope", `{"approve":true,"hash":"$","reach":"rule","match":{"host":["api.example"]}}`, 400},
		{"a rule for another sandbox", `{"approve":true,"hash":"$","reach":"rule","match":{"host":["api.example"]},"scope":{"kind":"sandbox","id":"i-bob"}}`, 400},
		{"a rule for another key", `{"approve":true,"hash":"$","reach":"rule","match":{"host":["api.example"]},"scope":{"kind":"key","id":"key-bob"}}`, 400},
		{"a rule for everybody", `{"approve":true,"hash":"$","reach":"rule","match":{"host":["api.example"]},"scope":{"kind":"server"}}`, 403},
		{"a rule for a template", `{"approve":true,"hash":"$","reach":"rule","match":{"host":["api.example"]},"scope":{"kind":"template"}}`, 403},
		{"a scope that is none", `{"approve":true,"hash":"$","reach":"rule","match":{"host":["api.example"]},"scope":{"kind":"world"}}`, 400},
		{"a refusal with a reach", `{"approve":false,"hash":"$","reach":"sandbox"}`, 400},
		{"a long reason", `{"approve":true,"hash":"$","reason":"` + strings.Repeat("a", 5000) + `"}`, 400},
		{"a reason that steers the terminal", `{"approve":true,"hash":"$","reason":"\u001b[2J"}`, 400},
		{"more than may be", `{"approve":true,"hash":"$","reason":"` + strings.Repeat("a", 2<<20) + `"}`, 413},
	} {
		got := w.do("ann", "POST", "/approvals/"+h.ID+"/answer", strings.ReplaceAll(tt.body, "$", h.Hash))
		require.Equal(t, tt.code, got.code, "%s: %s", tt.name, got.body)
		require.NotEmpty(t, got.errorCode(), tt.name)
		now, err := w.desk.Get(t.Context(), h.ID)
		require.NoError(t, err)
		require.Equal(t, approval.Pending, now.State, tt.name)
		require.Empty(t, w.desk.Grants(), tt.name)
	}
}

// TestRulesBeyondTheKeyTakeTheRolePolicy for all keys.
func TestRulesBeyondTheKeyTakeTheRolePolicy(t *testing.T) {
	w := newWorld(t)
	for _, tt := range []struct {
		who   string
		scope policy.ScopeKind
		code  int
	}{
		{"ann", policy.SandboxScope, 200}, {"ann", policy.KeyScope, 200}, {"ann", policy.TemplateScope, 403}, {"ann", policy.ServerScope, 403},
		{"ben", policy.KeyScope, 200}, {"ben", policy.ServerScope, 403},
		{"pam", policy.KeyScope, 200}, {"pam", policy.TemplateScope, 403}, {"pam", policy.ServerScope, 403},
		{"pat", policy.TemplateScope, 200}, {"pat", policy.ServerScope, 200},
		{"owner", policy.TemplateScope, 200}, {"owner", policy.ServerScope, 200},
	} {
		host := strings.ToLower(fmt.Sprintf("%s.%s.example", tt.who, tt.scope))
		h, _ := w.ask("alice", host)
		got := w.do(tt.who, "POST", "/approvals/"+h.ID+"/answer", encode(t, tombolo.AnswerRequest{
			Approve: true, Hash: h.Hash, Reach: approval.ByRule, Match: &policy.Match{Host: []string{host}}, Scope: policy.Scope{Kind: tt.scope},
		}))
		require.Equal(t, tt.code, got.code, "%s %s: %s", tt.who, tt.scope, got.body)
		if tt.code != 200 {
			_, err := w.desk.Withdraw(t.Context(), h.ID)
			require.NoError(t, err)
		}
	}
}

func TestAnAnswerCountsOnce(t *testing.T) {
	w := newWorld(t)
	h, done := w.ask("alice", "api.example")
	_, err := w.client("ann").Answer(t.Context(), h.ID, tombolo.AnswerRequest{Hash: h.Hash, Reason: "not today"})
	require.NoError(t, err)
	require.Equal(t, approval.Denied, (<-done).State)
	_, err = w.client("ben").Answer(t.Context(), h.ID, tombolo.AnswerRequest{Approve: true, Hash: h.Hash})
	require.True(t, tombolo.HasCode(err, tombolo.CodeConflict), "%v", err)
	now, err := w.client("alice").Approval(t.Context(), h.ID)
	require.NoError(t, err)
	require.Equal(t, approval.Denied, now.State)
	require.Equal(t, "not today", now.Answer.Reason, "who asked may read it")
}

func TestProposals(t *testing.T) {
	w := newWorld(t)
	h, _ := w.ask("alice", "api.example")
	proposal := approval.Proposal{Match: policy.Match{Host: []string{"api.example"}}, Reason: "the tests need it"}
	for who, code := range map[string]int{
		"": 401, "bob": 404, "ann": 403, "ben": 403, "eve": 403, "pol": 403, "lone": 403, "alice": 200, "owner": 200,
	} {
		got := w.do(who, "POST", "/approvals/"+h.ID+"/proposal", encode(t, proposal))
		require.Equal(t, code, got.code, "%s: %s", who, got.body)
	}
	now, err := w.client("ann").Approval(t.Context(), h.ID)
	require.NoError(t, err)
	require.NotEmpty(t, now.Proposed.ID)
	proposal.ID = now.Proposed.ID
	require.Equal(t, &proposal, now.Proposed)
	require.Equal(t, approval.Pending, now.State, "a proposal allows nothing")
	for _, body := range []string{"", "{}", `{"match":{"host":["*"]},"reason":"all of it"}`, `{"match":{"host":["api.example"]},"reason":"x","approve":true}`, `{"id":"prp_1","match":{"host":["api.example"]},"reason":"x"}`} {
		require.Equal(t, 400, w.do("alice", "POST", "/approvals/"+h.ID+"/proposal", body).code, body)
	}
	yes := tombolo.AnswerRequest{Approve: true, Hash: h.Hash, Reach: approval.ForSandbox, Proposal: "prp_another"}
	require.Equal(t, 409, w.do("ann", "POST", "/approvals/"+h.ID+"/answer", encode(t, yes)).code)
	yes.Proposal = proposal.ID
	now, err = w.client("ann").Answer(t.Context(), h.ID, yes)
	require.NoError(t, err)
	require.Equal(t, &proposal.Match, now.Answer.Match)
}

func TestGrantsAreSeenAndRevokedByThoseTheyConcern(t *testing.T) {
	w := newWorld(t)
	grant := func(name string, scope policy.ScopeKind) string {
		before := w.desk.Grants()
		host := fmt.Sprintf("%s.%s.g%d.example", name, scope, len(before))
		h, _ := w.ask(name, host)
		_, err := w.client("owner").Answer(t.Context(), h.ID, tombolo.AnswerRequest{
			Approve: true, Hash: h.Hash, Reach: approval.ByRule, Match: &policy.Match{Host: []string{host}}, Scope: policy.Scope{Kind: scope},
		})
		require.NoError(t, err)
		for _, g := range w.desk.Grants() {
			if g.HoldID == h.ID {
				return g.ID
			}
		}
		t.Fatal("no grant")
		return ""
	}
	// The caller, whose grant, of which scope: may it be seen and revoked?
	for _, tt := range []struct {
		who, name string
		scope     policy.ScopeKind
		may       bool
	}{
		{"alice", "alice", policy.SandboxScope, true},
		{"alice", "alice", policy.KeyScope, true},
		{"alice", "alice", policy.ServerScope, false},
		{"alice", "bob", policy.SandboxScope, false},
		{"ben", "alice", policy.SandboxScope, true},
		{"ben", "bob", policy.SandboxScope, false},
		{"ben", "bob", policy.KeyScope, false},
		{"ben", "alice", policy.ServerScope, false},
		{"ann", "bob", policy.KeyScope, true},
		{"ann", "owner", policy.SandboxScope, true},
		{"ann", "bob", policy.TemplateScope, true},
		{"owner", "bob", policy.ServerScope, true},
		{"owner", "gone", policy.SandboxScope, true}, // nobody knows the sandbox, as that of a build
		{"ann", "gone", policy.SandboxScope, false},
	} {
		id := grant(tt.name, tt.scope)
		grants, err := w.client(tt.who).Grants(t.Context())
		require.NoError(t, err)
		var ids []string
		for _, g := range grants {
			ids = append(ids, g.ID)
		}
		err = w.client(tt.who).Revoke(t.Context(), id)
		if tt.may {
			require.Contains(t, ids, id, "%+v", tt)
			require.NoError(t, err, "%+v", tt)
			err = w.client("owner").Revoke(t.Context(), id)
		} else {
			require.NotContains(t, ids, id, "%+v", tt)
		}
		require.True(t, tombolo.HasCode(err, tombolo.CodeNotFound), "%+v: %v", tt, err)
	}
}

func TestListIsFilteredAndPaged(t *testing.T) {
	w := newWorld(t)
	var ids []string
	for i := range 5 {
		h, _ := w.ask("alice", fmt.Sprintf("h%d.example", i))
		ids = append([]string{h.ID}, ids...)
		w.ask("bob", fmt.Sprintf("h%d.example", i))
	}
	_, err := w.client("ann").Answer(t.Context(), ids[4], tombolo.AnswerRequest{Approve: true, Hash: mustGet(w, ids[4]).Hash})
	require.NoError(t, err)
	list := func(f approval.Filter) (got []string) {
		holds, err := w.client("ben").Approvals(t.Context(), f)
		require.NoError(t, err)
		for _, h := range holds {
			got = append(got, h.ID)
		}
		return got
	}
	require.Equal(t, ids, list(approval.Filter{}))
	require.Equal(t, ids[:2], list(approval.Filter{Most: 2}))
	require.Equal(t, ids[2:4], list(approval.Filter{Most: 2, Before: ids[1]}))
	require.Equal(t, ids[4:], list(approval.Filter{States: []approval.State{approval.Approved}}))
	require.Empty(t, list(approval.Filter{SandboxID: "i-bob"}))
	for _, query := range []string{"state=open", "limit=0", "limit=1001", "limit=all", "sandbox=a&sandbox=b", "key=key-bob"} {
		got := w.do("ben", "GET", "/approvals?"+query, "")
		require.Equal(t, 400, got.code, query)
	}
}

func mustGet(w *world, id string) approval.Hold {
	h, err := w.desk.Get(w.t.Context(), id)
	require.NoError(w.t, err)
	return h
}

func TestKeysComeInEitherHeader(t *testing.T) {
	w := newWorld(t)
	ask := func(name, value string) int {
		r, err := http.NewRequestWithContext(t.Context(), "GET", w.server.URL+tombolo.Prefix+"/approvals", nil)
		require.NoError(t, err)
		r.Header.Set(name, value)
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		response.Body.Close()
		return response.StatusCode
	}
	secret := w.secrets["ann"]
	for _, tt := range []struct {
		name, value string
		code        int
	}{
		{"X-API-KEY", secret, 200},
		{"Authorization", "Bearer " + secret, 200},
		{"Authorization", "bearer  " + secret, 200},
		{"Authorization", secret, 401},
		{"Authorization", "Basic " + secret, 401},
		{"X-API-KEY", "e2b_" + strings.Repeat("0", 40), 401},
		{"X-API-KEY", strings.Repeat("a", 10_000), 401},
		{"Cookie", "X-API-KEY=" + secret, 401},
	} {
		require.Equal(t, tt.code, ask(tt.name, tt.value), "%s: %.20s", tt.name, tt.value)
	}
	k, err := w.store.UpdateKey(t.Context(), "ann", func(*store.Key) error { return nil })
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), k.LastUsed, time.Minute, "use is noted")
	require.NoError(t, w.store.DeleteKey(t.Context(), "ann"))
	require.Equal(t, 401, ask("X-API-KEY", secret), "a deleted key is refused at once")
}
