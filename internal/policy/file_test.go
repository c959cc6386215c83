package policy_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

const goodFile = `# what everybody may do
server:
  default: {egress: deny}
  rules:
    - name: packages
      kind: egress
      decision: allow
      reason: packages are public — “all” of them
      match:
        - host: [pypi.org, "*.pythonhosted.org"]
          port: [443, "8000-8099"]
          method: [GET]
      matches:
        - egress https://pypi.org/simple/
      matches-not:
        - egress https://pypi.org/simple/ POST
        - egress https://pypi.org.evil.example/
keys:
  ci:
    rules:
      - {name: no-root, kind: exec, decision: deny, match: [{user: [root]}], matches: [exec user=root id]}
templates:
  base:
    default:
      snapshot: ask
`

func TestFile(t *testing.T) {
	f, err := policy.ParseFile([]byte(goodFile))
	require.NoError(t, err)
	require.Equal(t, map[policy.Kind]policy.Decision{policy.Egress: policy.Deny}, f.Server.Default)
	require.Equal(t, []string{"443", "8000-8099"}, f.Server.Rules[0].Match[0].Port)
	require.Equal(t, policy.Deny, f.Keys["ci"].Rules[0].Decision)

	tables, err := f.Resolve(func(kind policy.ScopeKind, name string) (string, error) { return "id-of-" + name, nil })
	require.NoError(t, err)
	require.Equal(t, []policy.Scope{{Kind: policy.ServerScope}, {Kind: policy.KeyScope, ID: "id-of-ci"}, {Kind: policy.TemplateScope, ID: "id-of-base"}},
		[]policy.Scope{tables[0].Scope, tables[1].Scope, tables[2].Scope})

	again, err := policy.FormatFile(tables, func(s policy.Scope) string { return strings.TrimPrefix(s.ID, "id-of-") })
	require.NoError(t, err)
	read, err := policy.ParseFile(again)
	require.NoError(t, err, string(again))
	require.Equal(t, f, read)

	_, err = f.Resolve(func(policy.ScopeKind, string) (string, error) { return "", errors.New("no such key") })
	require.ErrorContains(t, err, "no such key")
	twice, err := policy.ParseFile([]byte("keys: {a: {default: {exec: ask}}, b: {default: {exec: deny}}}"))
	require.NoError(t, err)
	_, err = twice.Resolve(func(policy.ScopeKind, string) (string, error) { return "same", nil })
	require.ErrorContains(t, err, "a and b are the same key")

	none, err := policy.FormatFile(nil, nil)
	require.NoError(t, err)
	_, err = policy.ParseFile(none)
	require.NoError(t, err, string(none))
}

// TestFilesThatAreRefused: one trick a row, and what must be said of it.
func TestFilesThatAreRefused(t *testing.T) {
	rule := func(more string) string {
		return "server:\n  rules:\n    - name: r\n      kind: egress\n      decision: allow\n" + more
	}
	for _, tt := range []struct{ name, text, want string }{
		{"empty, which would remove all rules", "", "server: {}"},
		{"a comment alone", "# server:\n", "server: {}"},
		{"nothing said", "{}", "server: {}"},
		{"null", "null", "missing"},
		{"not a mapping", "- a", "line 1"},
		{"a scope without a table", "server:", "line 1: a value is missing"},
		{"a list without entries means no limit", rule("      match:\n        - host: []\n"), `line 3: server: rule "r": match 1: host: the list is empty`},
		{"a list with nothing", rule("      match:\n        - host:\n          port: [443]\n"), "line 7: a value is missing"},
		{"an entry with nothing", rule("      match:\n        -\n        - port: [443]\n"), "a value is missing"},
		{"a match that says nothing", rule("      match: [{}]\n"), "says nothing"},
		{"a match list with nothing", rule("      match: []\n"), "the list is empty"},
		{"an unknown key at the top", "servers: {}", `line 1: unknown field "servers"`},
		{"an unknown key in a rule", rule("      matchs: []\n"), `line 6: unknown field "matchs"`},
		{"an unknown key in a match", rule("      match:\n        - hosts: [a.example]\n"), `line 7: unknown field "hosts"`},
		{"upper case", "Server: {}", "unknown field"},
		{"the JSON name of a key", rule("      matchesNot: [egress a.example]\n"), "unknown field"},
		{"a scope twice", "server: {}\nserver: {}\n", "line 2: "},
		{"a scope twice, spelled otherwise", "server: {}\n\"server\": {}\n", "line 2: "},
		{"a scope twice, with an escape", "server: {}\n\"\\x73erver\": {}\n", "line 2: "},
		{"a key twice in a rule", rule("      decision: deny\n"), "line 6: "},
		{"a field twice in a match", rule("      match:\n        - host: [a.example]\n          host: [b.example]\n"), "line 8: "},
		{"a key twice in keys", "keys:\n  a: {}\n  a: {}\n", "line 3: "},
		{"two rules of one name", rule("    - name: r\n      kind: exec\n      decision: deny\n"), "line 6: server: rule \"r\": another rule"},
		{"two documents", "server: {}\n---\nserver: {}\n", "one document"},
		{"an anchor", "server: &a {}\nkeys: {x: *a}\n", "line 1: anchors"},
		{"an alias of nothing", "server: *a\n", "line 1: "},
		{"a merge", "server:\n  <<: {default: {egress: allow}}\n", "line 2: "},
		{"a tag", "server: !!map {}\n", "line 1: tags"},
		{"aliases of aliases", "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nserver: *c\n", "line 1: "},
		{"a complex key", "? [a]\n: b\n", "invalid key"},
		{"a number as a key", "1: {}\n", "line 1: a key is a plain word"},
		{"tabs", "server:\n\tdefault: {egress: deny}\n", "line 2: indent with spaces"},
		{"a tab after spaces", "server:\n  \tdefault: {egress: deny}\n", "line 2: indent with spaces"},
		{"NUL", "server: {}\x00", "line 1: it has U+0000"},
		{"NUL by an escape", rule("      match: [{host: [\"a\\0.example\"]}]\n"), "NUL"},
		{"a mark of the byte order", "\ufeffserver: {}", "U+FEFF"},
		{"text that runs backwards", rule("      reason: \"\u202eyna\"\n"), "line 6: it has U+202E"},
		{"text that runs backwards, by an escape", rule("      reason: \"\\u202eyna\"\n"), "U+202E"},
		{"a line break in a reason", rule("      reason: \"a\\nb\"\n"), "U+000A"},
		{"a terminal's escape in a reason", rule("      reason: \"\\e[2J\"\n"), "U+001B"},
		{"not UTF-8", "server: {} # \xff", "UTF-8"},
		{"too large", "#" + strings.Repeat("\n", policy.MaxFile), "larger than"},
		{"a long line", "# " + strings.Repeat("x", 20<<10), "line 1: it is longer"},
		{"many brackets", "server: " + strings.Repeat("[", 10_000), "brackets"},
		{"many brackets over lines", "server:\n" + strings.Repeat("  [\n", 10_000), "brackets"},
		{"many dashes", "server:\n  " + strings.Repeat("- ", 8_000) + "x", "nested too deep"},
		{"many dashes on many lines", strings.Repeat("  - - - - - - - - - - - - - - - - - - - - - - - -\n", 1000), "line 1"},
		{"many question marks", strings.Repeat("? ", 8_000) + "x", "line 1: it is nested too deep"},
		{"deep mappings", deepMappings(40), "nested too deep"},
		{"an unknown decision", rule("") + "keys: {a: {rules: [{name: x, kind: exec, decision: allowed}]}}\n", `decision "allowed": use allow, ask or deny`},
		{"a decision in upper case", "server: {default: {egress: DENY}}", `decision "DENY"`},
		{"an unknown decision by default", "server:\n  default: {egress: maybe}\n", `line 2: server: default: egress: decision "maybe"`},
		{"an unknown kind by default", "server:\n  default: {network: deny}\n", `kind "network"`},
		{"an unknown kind", "server: {rules: [{name: x, kind: Egress, decision: deny}]}", `kind "Egress"`},
		{"no kind", "server: {rules: [{name: x, decision: deny}]}", `kind ""`},
		{"no decision", "server: {rules: [{name: x, kind: exec}]}", `decision ""`},
		{"no name", "server: {rules: [{kind: exec, decision: deny}]}", "rule 1: a name has"},
		{"a name in letters that look alike", "server: {rules: [{name: pаckages, kind: exec, decision: deny}]}", "a name has"}, // a Cyrillic а
		{"the name of the default", "server: {rules: [{name: default, kind: exec, decision: deny}]}", "stands for the default"},
		{"a key in letters that look alike", "keys: {сi: {}}", "no such names of keys"}, // a Cyrillic с
		{"a key with a space", "keys: {\"ci \": {}}", "no such names of keys"},
		{"a path for a key", "keys: {../ci: {}}", "no such names of keys"},
		{"a field of another kind", rule("      match: [{command: [ls]}]\n"), "command: rules of kind egress have no such matcher"},
		{"an address for a host", rule("      match: [{host: [0x7f.1]}]\n"), "write it under address"},
		{"an address for a host, in letters", rule("      match: [{host: [\"１２７.0.0.1\"]}]\n"), "write it under address"},
		{"a number for a host", rule("      match: [{host: [2130706433]}]\n"), "write it under address"},
		{"a URL for a host", rule("      match: [{host: [\"https://a.example/\"]}]\n"), "colon"},
		{"a star in a host", rule("      match: [{host: [\"a*.example\"]}]\n"), "'*' stands at the beginning"},
		{"a star in the middle of a host", rule("      match: [{host: [\"*.*.example\"]}]\n"), "'*' stands at the beginning"},
		{"a name for an address", rule("      match: [{address: [a.example]}]\n"), "not an IP address"},
		{"an address with leading zeros", rule("      match: [{address: [127.0.0.01]}]\n"), "not an IP address"},
		{"a range that begins elsewhere", rule("      match: [{address: [10.1.2.3/8]}]\n"), "write 10.0.0.0/8"},
		{"all of IPv4 in IPv6", rule("      match: [{address: [\"::ffff:0.0.0.0/80\"]}]\n"), "write them as IPv4"},
		{"a port out of range", rule("      match: [{port: [65536]}]\n"), "1 to 65535"},
		{"port 0", rule("      match: [{port: [0]}]\n"), "1 to 65535"},
		{"a range of ports backwards", rule("      match: [{port: [90-80]}]\n"), "1 to 65535"},
		{"an octal port", rule("      match: [{port: [0443]}]\n"), "digits 0 to 9 alone"},
		{"a hexadecimal port", rule("      match: [{port: [0x1bb]}]\n"), "digits 0 to 9 alone"},
		{"a port with underscores", rule("      match: [{port: [4_43]}]\n"), "line 6"},
		{"a negative port", rule("      match: [{port: [-1]}]\n"), "digits 0 to 9 alone"},
		{"a protocol that is none", rule("      match: [{protocol: [icmp]}]\n"), "tcp or udp"},
		{"a path with a query", rule("      match: [{path: [\"/a?b\"]}]\n"), "without the query"},
		{"an encoded path", rule("      match: [{path: [\"/a%2fb\"]}]\n"), "write it decoded"},
		{"a path that climbs", rule("      match: [{path: [/a/../b]}]\n"), `write it as "/b"`},
		{"a path with two slashes", rule("      match: [{path: [//a]}]\n"), `write it as "/a"`},
		{"a relative path", rule("      match: [{path: [a]}]\n"), "begins with /"},
		{"stars within an element", rule("      match: [{path: [\"/a**\"]}]\n"), "an element by itself"},
		{"a truth", rule("      match: [{method: [true]}]\n"), "in quotes"},
		{"a fraction", rule("      match: [{host: [1.5]}]\n"), "in quotes"},
		{"a word where a list is", rule("      match: [{host: a.example}]\n"), "line 6"},
		{"a list where a word is", rule("      reason: [a]\n"), "line 6"},
		{"an example that fails", rule("      match: [{host: [a.example]}]\n      matches: [\"egress https://b.example/\"]\n"), `rule "r": matches "egress https://b.example/": the rule does not fit: no match does`},
		{"a counter-example that fits", rule("      match: [{host: [a.example]}]\n      matches-not: [\"egress https://a.example/\"]\n"), "the rule fits: match 1 does"},
		{"an exception that makes an example fail", rule("      except: [{host: [a.example]}]\n      matches: [\"egress https://a.example/\"]\n"), "the rule does not fit: except 1 does"},
		{"an example that says too little", rule("      match: [{host: [a.example], method: [GET]}]\n      matches: [\"egress a.example:443\"]\n"), "depends on the request"},
		{"an example of another kind", rule("      matches: [\"exec ls\"]\n"), "is an action of kind exec"},
		{"an example that is none", rule("      matches: [\"go away\"]\n"), "there is no kind"},
		{"a limit that is none", "server: {rules: [{name: x, kind: lifetime, decision: deny, match: [{longer-than: forever}]}]}", "longer-than"},
		{"a negative limit", "server: {rules: [{name: x, kind: resources, decision: deny, match: [{cpus-over: -1}]}]}", "digits 0 to 9 alone"},
		{"a limit of 0, which is none", "server: {rules: [{name: x, kind: resources, decision: deny, match: [{cpus-over: 0}]}]}", "says nothing"},
		{"memory without a unit", "server: {rules: [{name: x, kind: resources, decision: deny, match: [{memory-over: 1000}]}]}", "512MiB"},
		{"too many rules", manyRules(policy.MaxRules + 1), "it may have 1000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := policy.ParseFile([]byte(tt.text))
			require.ErrorContains(t, err, tt.want)
			require.NotContains(t, err.Error(), "\n", "one line")
		})
	}
}

func deepMappings(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%sa:\n", strings.Repeat(" ", i))
	}
	return b.String()
}

func manyRules(n int) string {
	var b strings.Builder
	b.WriteString("server:\n  rules:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {name: r%d, kind: exec, decision: deny}\n", i)
	}
	return b.String()
}

func TestLargestFileIsRead(t *testing.T) {
	_, err := policy.ParseFile([]byte(manyRules(policy.MaxRules)))
	require.NoError(t, err)
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte(goodFile))
	f.Add([]byte("server: &a {}\nkeys: {x: *a}\n"))
	f.Add([]byte("? [a]\n: b\n"))
	f.Add([]byte("server:\n  rules:\n    - {name: r, kind: egress, decision: allow, match: [{host: [\"*\"], path: [/**]}]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := policy.ParseFile(data)
		if err != nil {
			return
		}
		tables, err := file.Resolve(func(_ policy.ScopeKind, name string) (string, error) { return name, nil })
		require.NoError(t, err)
		again, err := policy.FormatFile(tables, func(s policy.Scope) string { return s.ID })
		require.NoError(t, err)
		read, err := policy.ParseFile(again)
		require.NoError(t, err, string(again))
		resolved, err := read.Resolve(func(_ policy.ScopeKind, name string) (string, error) { return name, nil })
		require.NoError(t, err)
		if len(tables) == len(resolved) { // one with nothing in it may be written out for none
			for i := range tables {
				require.Equal(t, len(tables[i].Rules), len(resolved[i].Rules))
				for j := range tables[i].Rules {
					require.Equal(t, tables[i].Rules[j], resolved[i].Rules[j])
				}
			}
		}
	})
}
