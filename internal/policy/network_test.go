package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

func TestNetworkOptions(t *testing.T) {
	const all = "0.0.0.0/0"
	type verdicts map[string]string // an action to what is possible
	for name, tt := range map[string]struct {
		network policy.Network
		want    verdicts
	}{
		"nothing said is nothing denied": {policy.Network{}, verdicts{
			"egress example.com:25": "allow", "egress udp 192.0.2.7:53": "allow", "egress ?": "allow",
		}},
		"no internet": {policy.Network{DenyInternet: true}, verdicts{
			"egress example.com:443": "deny", "egress udp 192.0.2.7:53": "deny", "egress example.com": "deny", "egress [2001:db8::1]:443": "deny",
		}},
		"an allowed address wins over no internet": {policy.Network{AllowOut: []string{"192.0.2.7"}, DenyInternet: true}, verdicts{
			"egress tcp 192.0.2.7:25": "allow", "egress udp 192.0.2.7:53": "allow", "egress 192.0.2.8:25": "deny",
		}},
		"an allowed range wins over a denied one": {policy.Network{AllowOut: []string{"192.0.2.9/25"}, DenyOut: []string{"192.0.2.0/24", "198.51.100.1"}}, verdicts{
			"egress 192.0.2.7:80": "allow", "egress 192.0.2.200:80": "deny", "egress 198.51.100.1:80": "deny", "egress 203.0.113.1:80": "allow",
			"egress ?:443 at 192.0.2.200": "deny", "egress example.com:443": "allow deny", "egress example.com:443 at 192.0.2.200": "deny",
		}},
		"the range may hold all of what is denied": {policy.Network{AllowOut: []string{"192.0.2.0/24"}, DenyOut: []string{"192.0.2.7"}}, verdicts{
			"egress 192.0.2.7:80": "allow",
		}},
		"names, on the ports of the web": {policy.Network{AllowOut: []string{"API.Example.com.", "*.example.org"}, DenyOut: []string{all}}, verdicts{
			"egress https://api.example.com/x POST":       "allow",
			"egress http://api.example.com/x":             "allow",
			"egress tcp api.example.com:443":              "allow",
			"egress api.example.com:8443":                 "deny",
			"egress udp api.example.com:443":              "deny", // QUIC
			"egress x.api.example.com:443":                "deny",
			"egress example.com:443":                      "deny",
			"egress a.b.example.org:443":                  "allow",
			"egress example.org:443":                      "deny",
			"egress badexample.org:443":                   "deny",
			"egress 192.0.2.7:443":                        "deny",
			"egress ?:443 at 192.0.2.7":                   "allow deny", // the connection will say its name
			"egress ?:22 at 192.0.2.7":                    "deny",
			"egress api.example.com":                      "allow deny",
			"egress evil.example":                         "deny",
			"egress api.example.com.evil.example":         "deny",
			"egress https://api.example.com/ at 10.0.0.1": "allow", // refused by what refuses private addresses
		}},
		"names and addresses": {policy.Network{AllowOut: []string{"api.example.com", "192.0.2.0/24"}, DenyOut: []string{all, "10.0.0.0/8"}}, verdicts{
			"egress udp 192.0.2.7:53": "allow", "egress other.example:22 at 192.0.2.7": "allow", "egress other.example:443 at 203.0.113.1": "deny",
			"egress api.example.com:443 at 203.0.113.1": "allow",
		}},
		"any name": {policy.Network{AllowOut: []string{"*"}, DenyOut: []string{all}}, verdicts{
			"egress example.com:443": "allow", "egress example.com:22": "deny", "egress 192.0.2.7:443": "deny",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rules, err := policy.FromNetwork(tt.network)
			require.NoError(t, err)
			set := policy.Set{compile(t, policy.Table{Scope: policy.Scope{Kind: policy.SandboxScope, ID: "s"}, Rules: rules})}
			for words, want := range tt.want {
				require.Equal(t, want, possible(set.Judge(action(t, words))), words)
			}
		})
	}
}

func TestNetworkOptionsDecideOnQuestionsForNames(t *testing.T) {
	for name, tt := range map[string]struct {
		network         policy.Network
		allowed, denied []string
	}{
		"open":                        {policy.Network{}, []string{"any.example"}, nil},
		"closed":                      {policy.Network{DenyInternet: true}, nil, []string{"any.example"}},
		"closed but for a name":       {policy.Network{AllowOut: []string{"a.example"}, DenyOut: []string{"0.0.0.0/0"}}, []string{"a.example"}, []string{"b.example", "x.a.example"}},
		"closed but for an address":   {policy.Network{AllowOut: []string{"192.0.2.7"}, DenyOut: []string{"0.0.0.0/0"}}, nil, []string{"data.evil.example"}},
		"closed but for both":         {policy.Network{AllowOut: []string{"192.0.2.7", "a.example"}, DenyOut: []string{"0.0.0.0/0"}}, []string{"a.example"}, []string{"data.evil.example"}},
		"open but for some addresses": {policy.Network{DenyOut: []string{"192.0.2.0/24"}}, []string{"any.example"}, nil},
	} {
		rules, err := policy.FromNetwork(tt.network)
		require.NoError(t, err, name)
		set := policy.Set{compile(t, policy.Table{Scope: policy.Scope{Kind: policy.SandboxScope, ID: "s"}, Rules: rules})}
		for _, host := range tt.allowed {
			require.Contains(t, set.JudgeName(host).Possible, policy.Allow, "%s: %s", name, host)
		}
		for _, host := range tt.denied {
			require.Equal(t, policy.Deny, set.JudgeName(host).Decision, "%s: %s", name, host)
		}
	}
}

func TestNetworkOptionsAreRefusedAsE2BDoes(t *testing.T) {
	const needAll = "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all other traffic."
	for _, tt := range []struct {
		allow, deny []string
		internet    bool
		want        string
	}{
		{allow: []string{"*.example.com"}, internet: true, want: needAll},
		{allow: []string{"example.com", "8.8.8.8"}, deny: []string{"10.0.0.0/8"}, internet: true, want: needAll},
		{allow: []string{"example.com"}, internet: false, want: needAll},
		{deny: []string{"example.com"}, internet: true, want: "invalid denied CIDR example.com"},
		{deny: []string{"not-a-cidr"}, internet: true, want: "invalid denied CIDR not-a-cidr"},
		{deny: []string{"10.0.0.0/8:22"}, internet: true, want: `invalid deny out entry "10.0.0.0/8:22": port-specific rules are not supported for egress`},
		{deny: []string{"10.0.0.0/8:abc"}, internet: true, want: `invalid deny out entry "10.0.0.0/8:abc": port-specific rules are not supported for egress`},
		{allow: []string{"8.8.8.8:80"}, internet: true, want: `invalid allow out entry "8.8.8.8:80": port-specific rules are not supported for egress`},
		{allow: []string{"0x7f.1"}, deny: []string{"0.0.0.0/0"}, internet: true, want: "is an address"},
		{allow: []string{"a.*.example.com"}, deny: []string{"0.0.0.0/0"}, internet: true, want: "'*' stands at the beginning"},
		{allow: []string{"attacker\x00.example.com"}, deny: []string{"0.0.0.0/0"}, internet: true, want: "invalid allow out entry"},
		{allow: []string{""}, internet: true, want: "is empty"},
		{deny: make([]string, 1001), internet: true, want: "1000 entries"},
	} {
		_, err := policy.FromNetwork(policy.Network{AllowOut: tt.allow, DenyOut: tt.deny, DenyInternet: !tt.internet})
		require.ErrorContains(t, err, tt.want)
	}
}

func action(t *testing.T, words string) policy.Action {
	t.Helper()
	a, err := policy.ParseAction(words)
	require.NoError(t, err)
	return a
}

func compile(t *testing.T, table policy.Table) *policy.Compiled {
	t.Helper()
	compiled, err := policy.Compile(table)
	require.NoError(t, err)
	return compiled
}

// possible joins what a verdict leaves possible.
func possible(v policy.Verdict) (words string) {
	for _, d := range v.Possible {
		words += " " + string(d)
	}
	return words[1:]
}
