package policy_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// TestUnknownFieldsLeaveEveryDecisionPossible holds Judge against what it stands
// for: the decisions of all actions that the unknown fields may turn out to be.
func TestUnknownFieldsLeaveEveryDecisionPossible(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	decided, open := 0, 0
	for range 150 {
		set := randomSet(t, random)
		a := policy.Action{Kind: policy.Egress}
		randomConnection(random, &a)
		v := set.Judge(a)
		require.Equal(t, len(v.Possible) == 1, v.Decision != "", "a decision is set when one is possible")
		require.Equal(t, v.Decision == "", v.Needs != 0, "what is needed is told when there is no decision")
		require.Zero(t, v.Needs&^a.Unknown, "nothing is needed that is known")
		for _, whole := range completions(a) {
			w := set.Judge(whole)
			require.NotEmpty(t, w.Decision, "all is known")
			require.Contains(t, v.Possible, w.Decision, "%s turned out to be %s", a, whole)
			if v.Decision != "" {
				require.Equal(t, v.Decision, w.Decision)
			}
		}
		if v.Decision != "" {
			decided++
		} else {
			open++
		}
	}
	require.Greater(t, decided, 15)
	require.Greater(t, open, 15)
}

// TestWhatIsNeededDecides: once what a verdict needs is known, it is a decision.
func TestWhatIsNeededDecides(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 150 {
		set := randomSet(t, random)
		a := policy.Action{Kind: policy.Egress}
		randomConnection(random, &a)
		v := set.Judge(a)
		for _, whole := range completions(a) {
			known := whole
			known.Unknown = a.Unknown &^ v.Needs
			require.NotEmpty(t, set.Judge(known).Decision, "%s: %s was all that was needed", a, v.Needs)
		}
	}
}

// TestQuestionForANameIsOneOfWhatIsPossible: it leaves nothing open that the rules
// rule out, and nothing that only an address would allow.
func TestQuestionForANameIsOneOfWhatIsPossible(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	narrower := 0
	for range 4000 {
		set := randomSet(t, random)
		host := pick(random, someHosts)
		all := set.Judge(policy.Action{Kind: policy.Egress, Host: host, Unknown: policy.AddressField | policy.PortField | policy.RequestField})
		asked := set.JudgeName(host)
		require.Subset(t, all.Possible, asked.Possible)
		if len(asked.Possible) < len(all.Possible) {
			narrower++
		}
	}
	require.Greater(t, narrower, 100)

	table := policy.Table{Scope: policy.Scope{Kind: policy.ServerScope}, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Deny}, Rules: []policy.Rule{
		{Name: "address", Kind: policy.Egress, Decision: policy.Allow, Match: []policy.Match{{Address: []string{"192.0.2.0/24"}}}},
		{Name: "both", Kind: policy.Egress, Decision: policy.Allow, Match: []policy.Match{{Host: []string{"a.example"}, Address: []string{"192.0.2.0/24"}}}},
	}}
	set := policy.Set{compile(t, table)}
	require.Equal(t, policy.Deny, set.JudgeName("data.evil.example").Decision, "it might have an allowed address, but the question carries data")
	require.Equal(t, []policy.Decision{policy.Allow, policy.Deny}, set.JudgeName("a.example").Possible)
}

// completions are actions that a may turn out to be.
func completions(a policy.Action) []policy.Action {
	all := []policy.Action{a}
	expand := func(field policy.Fields, with func(a policy.Action) []policy.Action) {
		if a.Unknown&field == 0 {
			return
		}
		var next []policy.Action
		for _, one := range all {
			one.Unknown &^= field
			next = append(next, with(one)...)
		}
		all = next
	}
	expand(policy.HostField, func(a policy.Action) (out []policy.Action) {
		for _, host := range append([]string{""}, someHosts...) {
			a.Host = host
			out = append(out, a)
		}
		return out
	})
	expand(policy.AddressField, func(a policy.Action) (out []policy.Action) {
		for _, addr := range append([]netip.Addr{{}}, someAddresses...) {
			a.Address = addr
			out = append(out, a)
		}
		return out
	})
	expand(policy.PortField, func(a policy.Action) (out []policy.Action) {
		for _, port := range somePorts {
			for _, protocol := range []string{"tcp", "udp"} {
				a.Port, a.Protocol = port, protocol
				out = append(out, a)
			}
		}
		return out
	})
	expand(policy.RequestField, func(a policy.Action) (out []policy.Action) {
		out = append(out, a)
		for _, method := range someMethods {
			for _, p := range somePaths {
				a.Method, a.Path = method, p
				out = append(out, a)
			}
		}
		return out
	})
	return all
}

func randomSet(t *testing.T, random *rand.Rand) (set policy.Set) {
	scopes := []policy.Scope{{Kind: policy.ServerScope}, {Kind: policy.KeyScope, ID: "k"}, {Kind: policy.TemplateScope, ID: "t"}, {Kind: policy.SandboxScope, ID: "s"}}
	for _, scope := range scopes {
		if random.IntN(2) == 0 {
			continue
		}
		table := policy.Table{Scope: scope}
		if random.IntN(2) == 0 {
			table.Default = map[policy.Kind]policy.Decision{policy.Egress: pick(random, policy.Decisions)}
		}
		for i := range random.IntN(4) {
			table.Rules = append(table.Rules, randomRule(random, fmt.Sprintf("r%d", i)))
		}
		compiled, err := policy.Compile(table)
		require.NoError(t, err)
		set = append(set, compiled)
	}
	return set
}

func randomRule(random *rand.Rand, name string) policy.Rule {
	r := policy.Rule{Name: name, Kind: policy.Egress, Decision: pick(random, policy.Decisions)}
	for range random.IntN(3) {
		r.Match = append(r.Match, randomMatch(random))
	}
	if random.IntN(3) == 0 {
		r.Except = append(r.Except, randomMatch(random))
	}
	return r
}

func randomMatch(random *rand.Rand) (m policy.Match) {
	for range 1 + random.IntN(2) {
		switch random.IntN(6) {
		case 0:
			m.Host = []string{pick(random, []string{"*", "a.example", "*.a.example", "*.example"}), pick(random, someHosts)}
		case 1:
			m.Address = []string{pick(random, []string{"192.0.2.0/25", "192.0.2.200", "0.0.0.0/0", "2001:db8::/32"})}
		case 2:
			m.Port = []string{pick(random, []string{"443", "1-100", "22"})}
		case 3:
			m.Protocol = []string{pick(random, []string{"tcp", "udp"})}
		case 4:
			m.Method = []string{pick(random, someMethods)}
		case 5:
			m.Path = []string{pick(random, []string{"/v1", "/v1/**", "/**", "/*"})}
		}
	}
	return m
}

// fitsOne tells whether an action fits one of some matches. Those that open something
// for a name or a request do so over TCP, unless they say UDP.
func fitsOne(matches []policy.Match, a policy.Action, open bool) bool {
	return slices.ContainsFunc(matches, func(m policy.Match) bool {
		named := m.Host != nil || m.Method != nil || m.Path != nil
		return m.Fits(policy.Egress, a) == policy.Yes && (!open || !named || m.Protocol != nil || a.Protocol == "tcp")
	})
}

// TestStrictestDecides holds Judge against the rule in its plainest form.
func TestStrictestDecides(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for range 4000 {
		set := randomSet(t, random)
		a := policy.Action{Kind: policy.Egress}
		randomConnection(random, &a)
		a = pick(random, completions(a))
		want := policy.Allow
		for _, table := range set {
			var said []policy.Decision
			for _, r := range table.Table().Rules {
				allows := r.Decision == policy.Allow
				if (r.Match == nil || fitsOne(r.Match, a, allows)) && !fitsOne(r.Except, a, !allows) {
					said = append(said, r.Decision)
				}
			}
			if d, ok := table.Table().Default[policy.Egress]; ok && said == nil {
				said = []policy.Decision{d}
			}
			for _, d := range said {
				if slices.Index(policy.Decisions, d) > slices.Index(policy.Decisions, want) {
					want = d
				}
			}
		}
		require.Equal(t, want, set.Judge(a).Decision)
	}
}
