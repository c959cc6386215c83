package policy_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

func TestActionsAreReadInWords(t *testing.T) {
	addr := netip.MustParseAddr
	const host, address, port, request = policy.HostField, policy.AddressField, policy.PortField, policy.RequestField
	for _, tt := range []struct {
		words string
		want  policy.Action
	}{
		{"egress https://API.example.com/v1//x/?q=1 post", policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: "api.example.com", Port: 443, Method: "POST", Path: "/v1/x", Unknown: address}},
		{"egress https://api.example.com", policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: "api.example.com", Port: 443, Method: "GET", Path: "/", Unknown: address}},
		{"egress http://api.example.com/a%20b at 192.0.2.7", policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: "api.example.com", Address: addr("192.0.2.7"), Port: 80, Method: "GET", Path: "/a b"}},
		{"egress https://192.0.2.7:8443/ PUT", policy.Action{Kind: policy.Egress, Protocol: "tcp", Address: addr("192.0.2.7"), Port: 8443, Method: "PUT", Path: "/"}},
		{"egress https://[2001:db8::1]/", policy.Action{Kind: policy.Egress, Protocol: "tcp", Address: addr("2001:db8::1"), Port: 443, Method: "GET", Path: "/"}},
		{"egress api.example.com:8443 POST /v1/x", policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: "api.example.com", Port: 8443, Method: "POST", Path: "/v1/x", Unknown: address}},
		{"egress github.com:22", policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: "github.com", Port: 22, Unknown: address | request}},
		{"egress tcp github.com:22", policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: "github.com", Port: 22, Unknown: address}},
		{"egress udp 1.1.1.1:53", policy.Action{Kind: policy.Egress, Protocol: "udp", Address: addr("1.1.1.1"), Port: 53}},
		{"egress tcp [::ffff:1.1.1.1]:53", policy.Action{Kind: policy.Egress, Protocol: "tcp", Address: addr("1.1.1.1"), Port: 53}},
		{"egress api.example.com", policy.Action{Kind: policy.Egress, Host: "api.example.com", Unknown: address | port | request}},
		{"egress api.example.com at 192.0.2.7", policy.Action{Kind: policy.Egress, Host: "api.example.com", Address: addr("192.0.2.7"), Unknown: port | request}},
		{"egress 2001:db8::1", policy.Action{Kind: policy.Egress, Address: addr("2001:db8::1"), Unknown: port | request}},
		{"egress ?:443 at 192.0.2.7", policy.Action{Kind: policy.Egress, Protocol: "tcp", Address: addr("192.0.2.7"), Port: 443, Unknown: host | request}},
		{"egress ?", policy.Action{Kind: policy.Egress, Unknown: host | address | port | request}},
		{"secret github https://api.github.com/user authorization", policy.Action{Kind: policy.Secret, Secret: "github", Header: "Authorization", Protocol: "tcp", Host: "api.github.com", Port: 443, Method: "GET", Path: "/user", Unknown: address}},
		{"secret github https://api.github.com/user POST ?token at 192.0.2.7", policy.Action{Kind: policy.Secret, Secret: "github", Header: "?token", Protocol: "tcp", Host: "api.github.com", Address: addr("192.0.2.7"), Port: 443, Method: "POST", Path: "/user"}},
		{`exec "rm -rf /"`, policy.Action{Kind: policy.Exec, Command: "rm -rf /"}},
		{`exec 'echo "$HOME"'`, policy.Action{Kind: policy.Exec, Command: `echo "$HOME"`}},
		{"exec rm   -rf /", policy.Action{Kind: policy.Exec, Command: "rm -rf /"}},
		{`exec user=root cwd=/srv language=python "print(1)\n"`, policy.Action{Kind: policy.Exec, Command: "print(1)\n", User: "root", Cwd: "/srv", Language: "python"}},
		{"exec user=root", policy.Action{Kind: policy.Exec, Command: "user=root"}},
		{"file-out /home/user/../user/x", policy.Action{Kind: policy.FileOut, File: "/home/user/x"}},
		{"file-out volume=v1 /x", policy.Action{Kind: policy.FileOut, File: "/x", Name: "v1"}},
		{"port 8080", policy.Action{Kind: policy.Port, Port: 8080}},
		{"lifetime 2h", policy.Action{Kind: policy.Lifetime, Timeout: 2 * time.Hour}},
		{"resources 4 8GiB", policy.Action{Kind: policy.Resources, CPUs: 4, MemoryBytes: 8 << 30}},
		{"snapshot fork", policy.Action{Kind: policy.Snapshot, Copy: "fork"}},
		{"snapshot fork 100", policy.Action{Kind: policy.Snapshot, Copy: "fork", Count: 100}},
		{"snapshot snapshot my-name", policy.Action{Kind: policy.Snapshot, Copy: "snapshot", Name: "my-name"}},
		{`exec input=pty "bash"`, policy.Action{Kind: policy.Exec, Command: "bash", Input: "pty"}},
	} {
		got, err := policy.ParseAction(tt.words)
		require.NoError(t, err, tt.words)
		require.Equal(t, tt.want, got, tt.words)
		requireRoundTrip(t, got)
	}
	several, err := policy.ParseAction("exec", `say "hi"  there`)
	require.NoError(t, err)
	require.Equal(t, `say "hi"  there`, several.Command, "several arguments are taken as they are")
}

func TestWordsThatSayNoActionAreRefused(t *testing.T) {
	for words, why := range map[string]string{
		"":                                     "egress",
		"fly away":                             "no kind",
		"egress":                               "where to",
		"egress https://":                      "empty",
		"egress ftp://example.com/":            "URL",
		"egress https://u:p@example.com":       "URL",
		"egress https://exa%00mple.com/":       "URL",
		"egress https://0x7f.1/":               "is an address",
		"egress https://2130706433/":           "is an address",
		"egress example.com:":                  "port is missing",
		"egress example.com:0":                 "1 to 65535",
		"egress example.com:65536":             "1 to 65535",
		"egress example.com:+80":               "1 to 65535",
		"egress example.com:080":               "1 to 65535",
		"egress tcp example.com":               "say the port",
		"egress udp example.com:53 GET /":      "too many",
		"egress example.com POST":              "say the port",
		"egress example.com:80 extra":          "too many",
		"egress https://example.com/ GET more": "too many",
		"egress https://example.com/ GE(T":     "name of a method",
		"egress example.com at here":           "not an IP address",
		"egress 192.0.2.1 at 192.0.2.2":        "two addresses",
		"egress fe80::1%eth0":                  "zone",
		"secret github":                        "name of the secret",
		"secret github https://a.example/ (x)": "name of a header",
		"exec":                                 "command",
		"exec user=a user=b id":                "twice",
		`exec "rm`:                             "not closed",
		`exec 'rm`:                             "not closed",
		"file-out x":                           "absolute",
		"file-out volume= /x":                  "nothing after it",
		"file-out volume=v":                    "absolute",
		"file-out":                             "say the file",
		"port http":                            "1 to 65535",
		"port 80 81":                           "nothing after it",
		"lifetime 2":                           "2h",
		"lifetime -2h":                         "2h",
		"resources 4":                          "memory",
		"resources 0 8GiB":                     "whole number",
		"resources 4 8":                        "not a size",
		"snapshot pause":                       "snapshot or fork",
		"snapshot fork 0":                      "whole number",
		"snapshot fork 1 2":                    "at most",
	} {
		_, err := policy.ParseAction(words)
		require.ErrorContains(t, err, why, words)
	}
}

func TestActionsSurviveTheirWords(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		requireRoundTrip(t, randomAction(random))
	}
}

// requireRoundTrip checks that an action's words mean the action.
func requireRoundTrip(t *testing.T, a policy.Action) {
	t.Helper()
	got, err := policy.ParseAction(a.String())
	require.NoError(t, err, "%#v", a)
	require.Equal(t, a, got, a.String())
	require.Equal(t, a.Hash(), got.Hash())
}

var (
	someHosts     = []string{"a.example", "b.a.example", "c.b.a.example", "other.test", "xn--bcher-kva.example", "_x.a.example"}
	someAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}
	somePorts     = []uint16{22, 53, 80, 443, 8080}
	someMethods   = []string{"GET", "POST", "DELETE"}
	somePaths     = []string{"/", "/v1", "/v1/x", "/v1/x/y", "/a b?#%/é", "/v1/*"}
	someTexts     = []string{"ls", "rm -rf /", "", "a\x00\xff\n\"'", "user=root", "user=root x", "—"}
)

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

// randomAction makes an action as the gateway and the guard make them.
func randomAction(random *rand.Rand) policy.Action {
	a := policy.Action{Kind: pick(random, policy.Kinds)}
	switch a.Kind {
	case policy.Egress, policy.Secret:
		randomConnection(random, &a)
		if a.Kind == policy.Secret {
			a.Secret, a.Header = pick(random, []string{"github", "a b"}), pick(random, []string{"Authorization", "?t k", "body", ""})
		}
	case policy.Exec:
		a.Command, a.User, a.Language = pick(random, someTexts), pick(random, []string{"", "root", "a b"}), pick(random, []string{"", "python"})
		a.Cwd = pick(random, []string{"", "/", "/a b"})
	case policy.FileOut:
		a.File = pick(random, []string{"/", "/x y", "/home/user/\xff", "/a'b\"c"})
	case policy.Port:
		a.Port = pick(random, somePorts)
	case policy.Lifetime:
		a.Timeout = time.Duration(1 + random.Int64N(1e15))
	case policy.Resources:
		a.CPUs, a.MemoryBytes = 1+random.IntN(64), pick(random, []int64{1, 512 << 20, 3 << 30, 1 << 40})
	case policy.Snapshot:
		a.Copy = pick(random, []string{"snapshot", "fork"})
	}
	return a
}

func randomConnection(random *rand.Rand, a *policy.Action) {
	switch random.IntN(3) {
	case 0: // by address
		a.Address = pick(random, someAddresses)
	case 1:
		a.Host = pick(random, someHosts)
	default:
		a.Unknown |= policy.HostField
	}
	if !a.Address.IsValid() {
		if random.IntN(2) == 0 {
			a.Address = pick(random, someAddresses)
		} else {
			a.Unknown |= policy.AddressField
		}
	}
	if random.IntN(4) == 0 {
		a.Unknown |= policy.PortField | policy.RequestField
		return
	}
	a.Port, a.Protocol = pick(random, somePorts), pick(random, []string{"tcp", "tcp", "udp"})
	if a.Protocol == "udp" {
		return
	}
	switch random.IntN(3) {
	case 0:
		a.Unknown |= policy.RequestField
	case 1:
		a.Method, a.Path = pick(random, someMethods), pick(random, somePaths)
	}
}
