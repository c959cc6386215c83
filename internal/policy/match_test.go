package policy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

func TestMatches(t *testing.T) {
	many := []string{}
	for i := range 100 {
		many = append(many, fmt.Sprintf("h%d.example", i), fmt.Sprintf("*.w%d.example", i))
	}
	ranges := []string{"2001:db8::/32", "203.0.113.0/24"}
	for i := range 100 {
		ranges = append(ranges, fmt.Sprintf("10.%d.0.0/16", i))
	}
	for _, tt := range []struct {
		match policy.Match
		words string
		want  policy.Fit
	}{
		{policy.Match{}, "egress ?", policy.Yes},
		{policy.Match{Host: []string{"A.Example."}}, "egress https://a.example/", policy.Yes},
		{policy.Match{Host: []string{"a.example"}}, "egress https://x.a.example/", policy.No},
		{policy.Match{Host: []string{"*.a.example"}}, "egress https://x.y.a.example/", policy.Yes},
		{policy.Match{Host: []string{"*.a.example"}}, "egress https://a.example/", policy.No},
		{policy.Match{Host: []string{"*.a.example"}}, "egress https://xa.example/", policy.No},
		{policy.Match{Host: []string{"*.bücher.example"}}, "egress https://x.BÜCHER.example/", policy.Yes},
		{policy.Match{Host: []string{"*"}}, "egress https://a.example/", policy.Yes},
		{policy.Match{Host: []string{"*"}}, "egress https://192.0.2.7/", policy.No},
		{policy.Match{Host: []string{"a.example"}}, "egress ?:443 at 192.0.2.7", policy.Maybe},
		{policy.Match{Host: many}, "egress https://h77.example/", policy.Yes},
		{policy.Match{Host: many}, "egress https://x.h77.example/", policy.No},
		{policy.Match{Host: many}, "egress https://x.y.w99.example/", policy.Yes},
		{policy.Match{Host: many}, "egress https://w99.example/", policy.No},
		{policy.Match{Host: many}, "egress https://192.0.2.7/", policy.No},
		{policy.Match{Address: []string{"192.0.2.0/24"}}, "egress 192.0.2.7:22", policy.Yes},
		{policy.Match{Address: []string{"::ffff:192.0.2.0/120"}}, "egress [::ffff:192.0.2.7]:22", policy.Yes},
		{policy.Match{Address: []string{"0.0.0.0/0"}}, "egress [2001:db8::1]:22", policy.No},
		{policy.Match{Address: []string{"192.0.2.0/24"}}, "egress https://a.example/", policy.Maybe},
		{policy.Match{Address: ranges}, "egress 10.99.1.2:22", policy.Yes},
		{policy.Match{Address: ranges}, "egress 10.100.1.2:22", policy.No},
		{policy.Match{Address: ranges}, "egress 203.0.113.9:22", policy.Yes},
		{policy.Match{Address: ranges}, "egress [2001:db8::9]:22", policy.Yes},
		{policy.Match{Address: ranges}, "egress [2001:db9::9]:22", policy.No},
		{policy.Match{Port: []string{"443", "8000-8099"}}, "egress a.example:8099", policy.Yes},
		{policy.Match{Port: []string{"443", "8000-8099"}}, "egress a.example:8100", policy.No},
		{policy.Match{Port: []string{"443"}}, "egress a.example", policy.Maybe},
		{policy.Match{Protocol: []string{"udp"}}, "egress udp a.example:443", policy.Yes},
		{policy.Match{Protocol: []string{"udp"}}, "egress a.example:443", policy.No},
		{policy.Match{Method: []string{"post"}}, "egress https://a.example/ POST", policy.Yes},
		{policy.Match{Method: []string{"GET"}}, "egress https://a.example/ POST", policy.No},
		{policy.Match{Method: []string{"GET"}}, "egress a.example:443", policy.Maybe},
		{policy.Match{Method: []string{"GET"}}, "egress tcp a.example:443", policy.No},
		{policy.Match{Host: []string{"b.example"}, Method: []string{"GET"}}, "egress a.example:443", policy.No},
		{policy.Match{Path: []string{"/v1"}}, "egress https://a.example/v1/", policy.Yes},
		{policy.Match{Path: []string{"/v1/"}}, "egress https://a.example/v1", policy.Yes},
		{policy.Match{Path: []string{"/v1"}}, "egress https://a.example/V1", policy.No},
		{policy.Match{Path: []string{"/v1"}}, "egress https://a.example/x/../v1", policy.Yes},
		{policy.Match{Path: []string{"/v1"}}, "egress https://a.example/%76%31", policy.Yes},
		{policy.Match{Path: []string{"/*"}}, "egress https://a.example/v1", policy.Yes},
		{policy.Match{Path: []string{"/*"}}, "egress https://a.example/", policy.No},
		{policy.Match{Path: []string{"/*"}}, "egress https://a.example/v1/x", policy.No},
		{policy.Match{Path: []string{"/**"}}, "egress https://a.example/", policy.Yes},
		{policy.Match{Path: []string{"/v1/**"}}, "egress https://a.example/v1", policy.Yes},
		{policy.Match{Path: []string{"/v1/**"}}, "egress https://a.example/v1/x/y", policy.Yes},
		{policy.Match{Path: []string{"/v1/**"}}, "egress https://a.example/v12", policy.No},
		{policy.Match{Path: []string{"/a/**/z"}}, "egress https://a.example/a/z", policy.Yes},
		{policy.Match{Path: []string{"/a/**/z"}}, "egress https://a.example/a/b/z/c/z", policy.Yes},
		{policy.Match{Path: []string{"/a/**/z"}}, "egress https://a.example/a/z/b", policy.No},
		{policy.Match{Path: []string{"/**/a/*/z/**"}}, "egress https://a.example/q/a/b/c/a/b/z", policy.Yes},
		{policy.Match{Path: []string{"/repos/*/x-*.git"}}, "egress https://a.example/repos/me/x-1.git", policy.Yes},
		{policy.Match{Path: []string{"/repos/*/x-*.git"}}, "egress https://a.example/repos/me/x-.git/info", policy.No},
		{policy.Match{Secret: []string{"git*"}}, "secret github https://a.example/ Authorization", policy.Yes},
		{policy.Match{Secret: []string{"git"}}, "secret github https://a.example/ Authorization", policy.No},
		{policy.Match{Header: []string{"authorization"}}, "secret github https://a.example/ Authorization", policy.Yes},
		{policy.Match{Header: []string{"?Token"}}, "secret github https://a.example/ ?Token", policy.Yes},
		{policy.Match{Header: []string{"Body"}}, "secret github https://a.example/ body", policy.No},
		{policy.Match{Command: []string{"rm *"}}, `exec "rm -rf /\nls"`, policy.Yes},
		{policy.Match{Command: []string{"rm *"}}, `exec " rm -rf /"`, policy.No}, // why such rules are advice
		{policy.Match{Command: []string{"*curl*|*sh*"}}, `exec "curl x | bash"`, policy.Yes},
		{policy.Match{Command: []string{"a*a"}}, `exec a`, policy.No},
		{policy.Match{Command: []string{"a*a"}}, `exec aa`, policy.Yes},
		{policy.Match{Command: []string{"*"}}, `exec ""`, policy.Yes},
		{policy.Match{Language: []string{"python"}, User: []string{"root"}}, "exec user=root language=python x", policy.Yes},
		{policy.Match{Language: []string{"python"}, User: []string{"root"}}, "exec user=root x", policy.No},
		{policy.Match{File: []string{"/home/*/.ssh/**"}}, "file-out /home/user/.ssh/id", policy.Yes},
		{policy.Match{File: []string{"/home/*/.ssh/**"}}, "file-out /home/user/x/.ssh/id", policy.No},
		{policy.Match{Port: []string{"8080"}}, "port 8080", policy.Yes},
		{policy.Match{Port: []string{"8080"}}, "port 8081", policy.No},
		{policy.Match{LongerThan: "2h"}, "lifetime 2h", policy.No},
		{policy.Match{LongerThan: "2h"}, "lifetime 2h1s", policy.Yes},
		{policy.Match{CPUsOver: 4}, "resources 4 1GiB", policy.No},
		{policy.Match{CPUsOver: 4}, "resources 5 1GiB", policy.Yes},
		{policy.Match{CPUsOver: 4, MemoryOver: "2GiB"}, "resources 5 1GiB", policy.No},
		{policy.Match{MemoryOver: "2GiB"}, "resources 1 2049MiB", policy.Yes},
		{policy.Match{Copy: []string{"fork"}}, "snapshot fork", policy.Yes},
		{policy.Match{Copy: []string{"fork"}}, "snapshot snapshot", policy.No},
	} {
		a := action(t, tt.words)
		require.NoError(t, tt.match.Check(a.Kind), "%+v", tt.match)
		require.Equal(t, tt.want, tt.match.Fits(a.Kind, a), "%+v: %s", tt.match, tt.words)
	}
	exec := action(t, "exec ls")
	require.Equal(t, policy.No, policy.Match{}.Fits(policy.Egress, exec), "an action of another kind")
	mapped := policy.Action{Kind: policy.Egress, Protocol: "tcp", Port: 1, Address: netip.MustParseAddr("::ffff:192.0.2.7")}
	require.Equal(t, policy.Yes, policy.Match{Address: []string{"192.0.2.7"}}.Fits(policy.Egress, mapped), "IPv4 in IPv6")
	require.Equal(t, policy.No, policy.Match{Host: []string{"*"}, Command: []string{"x"}}.Fits(policy.Egress, action(t, "egress a.example")), "what cannot be loaded fits nothing")
}

// TestMatchingIsLinear ends in no time only if no pattern makes a text cost more
// than its length.
func TestMatchingIsLinear(t *testing.T) {
	text := strings.Repeat("a", 1<<20)
	m := policy.Match{Command: []string{strings.Repeat("*a", 2000) + "*b"}}
	require.Equal(t, policy.No, m.Fits(policy.Exec, policy.Action{Kind: policy.Exec, Command: text}))
	m = policy.Match{Path: []string{strings.Repeat("/**/a*a", 100) + "/b"}}
	require.Equal(t, policy.No, m.Fits(policy.Egress, policy.Action{Kind: policy.Egress, Path: strings.Repeat("/aa", 1<<13)}))
}

func FuzzNormalHost(f *testing.F) {
	for _, seed := range []string{"Example.com.", "bücher.example", "xn--bcher-kva.example", "0x7f.1", "[::1]", "a\x00.example", "example。com", "℀", "_dmarc.x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		host, err := policy.NormalHost(raw)
		if err != nil {
			require.Empty(t, host)
			return
		}
		again, err := policy.NormalHost(host)
		require.NoError(t, err)
		require.Equal(t, host, again, "it is normal")
		require.LessOrEqual(t, len(host), 253)
		require.NotContains(t, host, "..")
		require.Empty(t, strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-_."))
		_, err = netip.ParseAddr(host)
		require.Error(t, err, "an address got through")
	})
}

func FuzzMatch(f *testing.F) {
	f.Add("*.a.example", "10.0.0.0/8", "80-90", "/a/**/b*", "rm *", "egress https://x.a.example/a/b")
	f.Add("*", "::/0", "1", "/**", "*", "exec ls")
	f.Fuzz(func(t *testing.T, host, address, port, path, command, words string) {
		a, err := policy.ParseAction(words)
		if err != nil {
			return
		}
		again, err := policy.ParseAction(a.String())
		require.NoError(t, err)
		require.Equal(t, a, again)
		for _, m := range []policy.Match{
			{Host: []string{host}}, {Address: []string{address}}, {Port: []string{port}}, {Path: []string{path}},
			{Command: []string{command}}, {File: []string{path}}, {Host: []string{host}, Address: []string{address}, Port: []string{port}, Path: []string{path}},
		} {
			if m.Check(a.Kind) != nil {
				require.Equal(t, policy.No, m.Fits(a.Kind, a))
				continue
			}
			if m.Fits(a.Kind, a) == policy.Maybe {
				require.NotZero(t, a.Unknown)
			}
		}
	})
}

func BenchmarkJudge(b *testing.B) {
	var table policy.Table
	table.Scope = policy.Scope{Kind: policy.ServerScope}
	table.Default = map[policy.Kind]policy.Decision{policy.Egress: policy.Deny}
	for i := range 100 {
		table.Rules = append(table.Rules, policy.Rule{
			Name: fmt.Sprintf("r%d", i), Kind: policy.Egress, Decision: policy.Allow,
			Match: []policy.Match{{Host: []string{fmt.Sprintf("api%d.example.com", i), fmt.Sprintf("*.svc%d.example.com", i)}, Port: []string{"443"}, Path: []string{"/v1/**"}}},
		})
	}
	compiled, err := policy.Compile(table)
	require.NoError(b, err)
	set := policy.Set{compiled}
	for _, words := range []string{"egress https://api99.example.com/v1/models POST", "egress ?:443 at 192.0.2.7", "egress nowhere.example"} {
		a, err := policy.ParseAction(words)
		require.NoError(b, err)
		b.Run(strings.ReplaceAll(words, " ", "_"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				set.Judge(a)
			}
		})
	}
}

// BenchmarkJudgeRules is one connection that the last of so many rules allows.
func BenchmarkJudgeRules(b *testing.B) {
	for _, count := range []int{1, 100} {
		table := policy.Table{Scope: policy.Scope{Kind: policy.ServerScope}, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Deny}}
		for i := range count {
			table.Rules = append(table.Rules, policy.Rule{
				Name: fmt.Sprintf("r%d", i), Kind: policy.Egress, Decision: policy.Allow,
				Match: []policy.Match{{Host: []string{fmt.Sprintf("*.svc%d.example.com", count-1-i)}, Port: []string{"443"}}},
			})
		}
		compiled, err := policy.Compile(table)
		require.NoError(b, err)
		a, err := policy.ParseAction("egress https://api.svc0.example.com/ GET")
		require.NoError(b, err)
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if (policy.Set{compiled}).Judge(a).Decision != policy.Allow {
					b.Fatal("denied")
				}
			}
		})
	}
}
