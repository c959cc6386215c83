package approval_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
)

func TestAnswersThatAreRefused(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id, _ := w.ask(t.Context(), alice, to("a.example"))
	other := w.get(w.leave(alice, to("b.example")))
	hash := w.get(id).Hash
	host := func(names ...string) *policy.Match { return &policy.Match{Host: names} }
	for name, a := range map[string]approval.Answer{
		"to another action":            {Approve: true, Hash: other.Hash},
		"to nothing":                   {Approve: true},
		"by nobody":                    {Approve: true, Hash: hash, Approver: "-"},
		"of no known reach":            {Approve: true, Hash: hash, Reach: "always"},
		"once, and more":               {Approve: true, Hash: hash, Match: host("a.example")},
		"once, for a time":             {Approve: true, Hash: hash, Duration: time.Hour},
		"once, in a scope":             {Approve: true, Hash: hash, Scope: policy.Scope{Kind: policy.ServerScope}},
		"for a time without one":       {Approve: true, Hash: hash, Reach: approval.ForTime},
		"for a time of less than none": {Approve: true, Hash: hash, Reach: approval.ForTime, Duration: -time.Hour},
		"for ages":                     {Approve: true, Hash: hash, Reach: approval.ForTime, Duration: 10_000 * time.Hour},
		"by a rule about nothing":      {Approve: true, Hash: hash, Reach: approval.ByRule, Scope: policy.Scope{Kind: policy.ServerScope}},
		"by a rule for nobody":         {Approve: true, Hash: hash, Reach: approval.ByRule, Match: host("a.example")},
		"by a rule for another key":    {Approve: true, Hash: hash, Reach: approval.ByRule, Match: host("a.example"), Scope: policy.Scope{Kind: policy.KeyScope, ID: "bob"}},
		"by a rule for another's box":  {Approve: true, Hash: hash, Reach: approval.ByRule, Match: host("a.example"), Scope: policy.Scope{Kind: policy.SandboxScope, ID: "i2"}},
		"that is of all":               {Approve: true, Hash: hash, Reach: approval.ForSandbox, Match: &policy.Match{}},
		"that does not fit":            {Approve: true, Hash: hash, Reach: approval.ForSandbox, Match: host("b.example")},
		"that fits no such action":     {Approve: true, Hash: hash, Reach: approval.ForSandbox, Match: &policy.Match{Command: []string{"ls"}}},
		"of what is not known yet":     {Approve: true, Hash: hash, Reach: approval.ForSandbox, Match: &policy.Match{Host: []string{"a.example"}, Method: []string{"GET"}}},
		"a denial with a reach":        {Hash: hash, Reach: approval.ForSandbox},
		"a reason to steer a terminal": {Approve: true, Hash: hash, Reason: "\x1b[2J"},
		"a reason that turns around":   {Approve: true, Hash: hash, Reason: "\u202egnp.exe"},
		"a reason without end":         {Approve: true, Hash: hash, Reason: strings.Repeat("a", 1001)},
	} {
		if a.Approver != "-" {
			a.Approver = "carol"
		} else {
			a.Approver = ""
		}
		h, err := w.Answer(t.Context(), id, a)
		require.Error(t, err, name)
		require.Equal(t, approval.Pending, h.State, name)
		require.Equal(t, approval.Pending, w.get(id).State, name)
	}
	require.Empty(t, w.Grants())
	_, err := w.Answer(t.Context(), id, approval.Answer{Approve: true, Hash: other.Hash, Approver: "carol"})
	require.ErrorIs(t, err, approval.ErrChanged)
	_, err = w.Answer(t.Context(), "apr_none", approval.Answer{Approve: true, Hash: hash, Approver: "carol"})
	require.ErrorIs(t, err, approval.ErrNotFound)
}

func TestAnswerIsGivenOnce(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id := w.leave(alice, to("a.example"))
	h := w.once(id)
	again, err := w.Answer(t.Context(), id, *h.Answer)
	require.ErrorIs(t, err, approval.ErrDecided)
	require.ErrorContains(t, err, "carol")
	require.Equal(t, h, again)
	require.Len(t, w.Grants(), 1, "a replay of the answer grants nothing more")
	_, err = w.Propose(t.Context(), id, approval.Proposal{Match: policy.Match{Host: []string{"a.example"}}, Reason: "late"})
	require.ErrorIs(t, err, approval.ErrDecided)
	_, err = w.Withdraw(t.Context(), id)
	require.ErrorIs(t, err, approval.ErrDecided)
}

func TestRuleHoldsInItsScope(t *testing.T) {
	other := policy.Subject{SandboxID: "i9", KeyID: "dave", TemplateID: "t9"}
	sister := policy.Subject{SandboxID: "i3", KeyID: alice.KeyID, TemplateID: "t9"}
	for kind, want := range map[policy.ScopeKind][4]bool{ // alice, her other sandbox, bob (same template), dave
		policy.SandboxScope: {true, false, false, false}, policy.KeyScope: {true, true, false, false},
		policy.TemplateScope: {true, false, true, false}, policy.ServerScope: {true, true, true, true},
	} {
		w := newWorld(t, approval.Limits{})
		id := w.leave(alice, to("a.example"))
		_, err := w.Answer(t.Context(), id, approval.Answer{
			Approve: true, Reach: approval.ByRule, Match: &policy.Match{Host: []string{"*.example"}}, Hash: w.get(id).Hash,
			Scope: policy.Scope{Kind: kind}, Approver: "carol",
		})
		require.NoError(t, err)
		for range 2 {
			for i, s := range []policy.Subject{alice, sister, bob, other} {
				_, granted := w.Granted(s, to("b.example"), "")
				require.Equal(t, want[i], granted, "%s: %d", kind, i)
				_, granted = w.Granted(s, to("example"), "")
				require.False(t, granted)
			}
			w.restart()
		}
		_, err = w.Revoke(t.Context(), w.Grants()[0].ID)
		require.NoError(t, err)
		_, granted := w.Granted(alice, to("b.example"), "")
		require.False(t, granted)
		_, err = w.Revoke(t.Context(), "grant_none")
		require.ErrorIs(t, err, approval.ErrNotFound)
	}
}

func TestGrantOfWhatIsNotKnownYet(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	action := to("a.example")
	action.Method, action.Path = "GET", "/simple/x"
	id := w.leave(alice, action)
	_, err := w.Answer(t.Context(), id, approval.Answer{
		Approve: true, Reach: approval.ForSandbox, Match: &policy.Match{Host: []string{"a.example"}, Path: []string{"/simple/**"}},
		Hash: w.get(id).Hash, Approver: "carol",
	})
	require.NoError(t, err)
	unknown := to("a.example")
	unknown.Unknown = policy.RequestField
	_, granted := w.Granted(alice, unknown, "")
	require.False(t, granted)
	require.True(t, w.CouldGrant(alice, unknown))
	require.False(t, w.CouldGrant(bob, unknown))
	require.False(t, w.CouldGrant(alice, to("b.example")))
}

func TestProposals(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	address := policy.Action{Kind: policy.Egress, Protocol: "tcp", Address: addr("192.0.2.7"), Port: 443}
	exec := policy.Action{Kind: policy.Exec, Command: "git push origin main"}
	file := policy.Action{Kind: policy.FileOut, File: "/home/user/out/a.txt"}
	secret := policy.Action{Kind: policy.Secret, Secret: "token", Header: "Authorization", Host: "a.example", Port: 443, Protocol: "tcp", Method: "GET", Path: "/"}
	for _, test := range []struct {
		name  string
		of    policy.Action
		match policy.Match
		taken bool
	}{
		{"its host", to("a.example"), policy.Match{Host: []string{"a.example"}}, true},
		{"its host and port", to("a.example"), policy.Match{Host: []string{"a.example"}, Port: []string{"443"}}, true},
		{"all names below", to("a.example"), policy.Match{Host: []string{"*.example"}}, false},
		{"any name", to("a.example"), policy.Match{Host: []string{"*"}}, false},
		{"another host beside", to("a.example"), policy.Match{Host: []string{"a.example", "evil.example"}}, false},
		{"another host", to("a.example"), policy.Match{Host: []string{"evil.example"}}, false},
		{"a port on any host", to("a.example"), policy.Match{Port: []string{"443"}}, false},
		{"everything", to("a.example"), policy.Match{}, false},
		{"its address", address, policy.Match{Address: []string{"192.0.2.7"}}, true},
		{"a net", address, policy.Match{Address: []string{"192.0.2.0/24"}}, false},
		{"its program", exec, policy.Match{Command: []string{"git push *"}}, true},
		{"its command", exec, policy.Match{Command: []string{"git push origin main"}}, true},
		{"any program that begins so", exec, policy.Match{Command: []string{"git*"}}, false},
		{"any command", exec, policy.Match{Command: []string{"*"}}, false},
		{"a user's commands", policy.Action{Kind: policy.Exec, Command: "ls", User: "root"}, policy.Match{User: []string{"root"}}, false},
		{"its folder", file, policy.Match{File: []string{"/home/user/out/**"}}, true},
		{"another folder too", file, policy.Match{File: []string{"/home/user/out*/*"}}, false},
		{"a folder above", file, policy.Match{File: []string{"/home/**"}}, false},
		{"its secret", secret, policy.Match{Secret: []string{"token"}, Host: []string{"a.example"}}, true},
		{"any secret", secret, policy.Match{Host: []string{"a.example"}}, false},
		{"its secret anywhere", secret, policy.Match{Secret: []string{"token"}}, false},
		{"its port", policy.Action{Kind: policy.Port, Port: 8080}, policy.Match{Port: []string{"8080"}}, true},
		{"more ports", policy.Action{Kind: policy.Port, Port: 8080}, policy.Match{Port: []string{"1-65535"}}, false},
		{"any lifetime", policy.Action{Kind: policy.Lifetime, Timeout: time.Hour}, policy.Match{LongerThan: "1m"}, false},
	} {
		id := w.leave(alice, test.of)
		h, err := w.Propose(t.Context(), id, approval.Proposal{Match: test.match, Reason: "it needs it"})
		if test.taken {
			require.NoError(t, err, test.name)
			require.Equal(t, test.match, w.get(id).Proposed.Match, test.name)
		} else {
			require.Error(t, err, test.name)
			require.Nil(t, h.Proposed, test.name)
		}
		_, granted := w.Granted(alice, test.of, "")
		require.False(t, granted, "a proposal grants nothing")
		_, err = w.Withdraw(t.Context(), id)
		require.NoError(t, err)
	}
}

func TestProposalsAreBounded(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id := w.leave(alice, to("a.example"))
	match := policy.Match{Host: []string{"a.example"}}
	for _, reason := range []string{"", "two\nlines", "\x07", strings.Repeat("a", 1001)} {
		_, err := w.Propose(t.Context(), id, approval.Proposal{Match: match, Reason: reason})
		require.Error(t, err, "%.10q", reason)
	}
	for range 10 {
		_, err := w.Propose(t.Context(), id, approval.Proposal{Match: match, Reason: "please"})
		require.NoError(t, err)
	}
	_, err := w.Propose(t.Context(), id, approval.Proposal{Match: match, Reason: "please"})
	require.Error(t, err)
}

// What is granted is the proposal that was read, and no other that came in its place.
func TestAnAnswerNamesTheProposalThatWasRead(t *testing.T) {
	w := newWorld(t, approval.Limits{})
	id := w.leave(alice, to("a.example"))
	propose := func(m policy.Match) string {
		h, err := w.Propose(t.Context(), id, approval.Proposal{Match: m, Reason: "it needs it"})
		require.NoError(t, err)
		return h.Proposed.ID
	}
	narrow := policy.Match{Host: []string{"a.example"}, Port: []string{"443"}}
	yes := approval.Answer{Approve: true, Reach: approval.ForSandbox, Hash: w.get(id).Hash, Approver: "carol"}
	answer := func(change func(*approval.Answer)) (approval.Hold, error) {
		a := yes
		change(&a)
		return w.Answer(t.Context(), id, a)
	}
	_, err := answer(func(a *approval.Answer) { a.Proposal = "prp_none" })
	require.ErrorIs(t, err, approval.ErrOtherProposal, "there is none")
	read := propose(narrow)
	_, err = w.Propose(t.Context(), id, approval.Proposal{ID: read, Match: policy.Match{Host: []string{"a.example"}}, Reason: "as the other"})
	require.Error(t, err, "nobody proposes under the id of what was read")
	propose(policy.Match{Host: []string{"a.example"}})
	require.NotEqual(t, read, propose(narrow), "each has an id of its own")
	for about, change := range map[string]func(*approval.Answer){
		"the one that was replaced": func(a *approval.Answer) { a.Proposal = read },
		"a match beside it":         func(a *approval.Answer) { a.Proposal, a.Match = w.get(id).Proposed.ID, &narrow },
		"once":                      func(a *approval.Answer) { a.Proposal, a.Reach = w.get(id).Proposed.ID, approval.Once },
		"a denial": func(a *approval.Answer) {
			*a = approval.Answer{Hash: a.Hash, Approver: a.Approver, Proposal: w.get(id).Proposed.ID}
		},
	} {
		_, err := answer(change)
		require.Error(t, err, about)
		require.Equal(t, approval.Pending, w.get(id).State, about)
		require.Empty(t, w.Grants(), about)
	}
	now := w.get(id).Proposed.ID
	w.restart()
	h, err := answer(func(a *approval.Answer) { a.Proposal = now })
	require.NoError(t, err)
	require.Equal(t, &narrow, h.Answer.Match)
	require.Equal(t, &narrow, w.Grants()[0].Match)
	require.Equal(t, now, h.Notice().Proposed.ID)
}

func TestNarrowFitsItsAction(t *testing.T) {
	for _, a := range []policy.Action{
		to("a.example"),
		{Kind: policy.Egress, Protocol: "udp", Address: addr("192.0.2.7"), Port: 53},
		{Kind: policy.Egress, Protocol: "tcp", Host: "a.example", Port: 443, Method: "GET", Path: "/a*b"},
		{Kind: policy.Secret, Secret: "token", Header: "Authorization", Host: "a.example", Protocol: "tcp", Port: 443, Method: "GET", Path: "/"},
		{Kind: policy.Exec, Command: "ls -l *", User: "user", Cwd: "/"},
		{Kind: policy.FileOut, File: "/a/b"},
		{Kind: policy.Port, Port: 80},
		{Kind: policy.Snapshot, Copy: "fork"},
	} {
		m, has := approval.Narrow(a)
		require.True(t, has)
		require.Equal(t, policy.Yes, m.Fits(a.Kind, a), "%s", a)
	}
	_, has := approval.Narrow(policy.Action{Kind: policy.Lifetime, Timeout: time.Hour})
	require.False(t, has)
}
