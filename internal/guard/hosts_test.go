package guard_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func newVault(t *testing.T) *secret.Vault {
	t.Helper()
	dir := t.TempDir()
	kept, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	t.Cleanup(func() { kept.Close() })
	vault, err := secret.Open(t.Context(), dir, kept, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return vault
}

// newSecretWorld is newWorld with secrets, and headers set on requests to api.example.com.
func newSecretWorld(t *testing.T, tables ...policy.Table) *world {
	t.Helper()
	return newWorldWith(t, newVault(t), tables...)
}

func newWorldWith(t *testing.T, vault *secret.Vault, tables ...policy.Table) *world {
	t.Helper()
	var err error
	w := &world{records: &records{}}
	w.Guard, err = guard.New(t.Context(), guard.Config{
		Store: noTemplates{}, Audit: w.records, Interceptor: interceptor{}, Vault: vault, Log: slog.New(slog.DiscardHandler),
		Tables: func(context.Context) ([]policy.Table, error) { return tables, nil },
	})
	require.NoError(t, err)
	w.own(sandbox.NetworkOptions{Headers: []sandbox.HostHeaders{{Host: "api.example.com", Headers: map[string]string{"X-Tenant": "ours"}}}})
	w.policy = w.Policy(func() *sandbox.Owner { return w.owner })
	return w
}

// Nobody is asked for a value, and no use is recorded, where the request cannot be sent.
func TestSecretIsNotAskedForWhereTheAnswerCouldNotBeRead(t *testing.T) {
	vault := newVault(t)
	made, err := vault.Create(t.Context(), "k1", secret.New{Name: "token", Value: secret.NewValue([]byte("very-secret")), Bindings: []secret.Binding{{Host: []string{"api.example.com"}}}})
	require.NoError(t, err)
	w := newWorldWith(t, vault)
	w.owner.Secrets = []string{"token"}
	r := gateway.Request{Protocol: gateway.HTTP, Destination: at("93.184.216.34:443"), Name: "api.example.com", Method: "GET", Path: "/", Encrypted: true}
	use := func() (*http.Request, error) {
		out := httptest.NewRequest("GET", "https://api.example.com/", nil)
		out.Header.Set("Authorization", made.Placeholder)
		_, err := w.policy.(gateway.Rewriter).Rewrite(t.Context(), r, out)
		return out, err
	}
	r.Unreadable = errors.New("encoded")
	_, err = use()
	require.ErrorIs(t, err, r.Unreadable)
	require.Empty(t, w.records.all)
	r.Unreadable = nil
	out, err := use()
	require.NoError(t, err)
	require.Equal(t, "very-secret", out.Header.Get("Authorization"))
	require.Equal(t, "use", w.records.last(t).What)
}

// Headers and secrets of a host are for every connection to it, however the program came
// by its address.
func TestHostsAreSeenWhateverWasLookedUp(t *testing.T) {
	w := newSecretWorld(t)
	const api = "api.example.com"
	to := func(p gateway.Protocol, port uint16, name string, looked ...string) gateway.Request {
		return gateway.Request{Protocol: p, Destination: netip.AddrPortFrom(netip.MustParseAddr("93.184.216.34"), port), Name: name, Names: looked}
	}
	unproven := func(r gateway.Request) gateway.Request { r.Unproven = true; return r }
	for _, row := range []struct {
		what, why string
		request   gateway.Request
		want      gateway.Verdict
		tlsOnly   bool
	}{
		{"a looked up host", "its requests get the headers", to(gateway.TCP, 443, api, api), gateway.Inspect, false},
		{"an address from elsewhere", "it may be the host's", to(gateway.TCP, 443, ""), gateway.Inspect, true},
		{"an address of another host", "they may share it", to(gateway.TCP, 443, "cdn.example", "cdn.example"), gateway.Inspect, true},
		{"another port", "the host may serve there", to(gateway.TCP, 8443, ""), gateway.Inspect, true},
		{"in the clear", "requests there get the headers too", to(gateway.TCP, 80, ""), gateway.Inspect, false},
		{"mail", "the server speaks first", to(gateway.TCP, 25, ""), gateway.Allow, false},
		{"a handshake for the host", "it is the host", to(gateway.TLS, 443, api), gateway.Inspect, false},
		{"one that says so of any address", "the gateway then finds out whether it leads there", unproven(to(gateway.TLS, 443, api)), gateway.Inspect, false},
		{"a handshake for another", "it passes", to(gateway.TLS, 443, "cdn.example", "cdn.example"), gateway.Allow, false},
		{"one that says so of any address, for another", "no rule is about it", unproven(to(gateway.TLS, 443, "cdn.example")), gateway.Allow, false},
		{"a handshake without a name, at the host's address", "it would be served as the host", to(gateway.TLS, 443, "", api), gateway.Inspect, false},
		{"HTTP/3", "it hides its host", to(gateway.UDP, 443, ""), gateway.Deny, false},
		{"HTTP/3 to an address of another host", "they may share it", to(gateway.UDP, 443, "cdn.example", "cdn.example"), gateway.Deny, false},
		{"other datagrams", "they are not HTTP/3", to(gateway.UDP, 53, ""), gateway.Allow, false},
	} {
		t.Run(row.what, func(t *testing.T) {
			d := w.policy.Decide(t.Context(), row.request)
			require.Equal(t, row.want, d.Verdict, "%s: %+v", row.why, d)
			require.Equal(t, row.tlsOnly, d.TLSOnly, row.why)
		})
	}
	w.own(sandbox.NetworkOptions{})
	require.Equal(t, gateway.Allow, w.policy.Decide(t.Context(), to(gateway.TCP, 443, "")).Verdict, "without headers and secrets nothing is looked at")
	require.Equal(t, gateway.Allow, w.policy.Decide(t.Context(), to(gateway.UDP, 443, "")).Verdict)
}

// What a connection only says of itself is not what rules go by once they are about names.
func TestUnprovenNamesMeetNoRuleOfNames(t *testing.T) {
	w := newSecretWorld(t, onlyExample())
	r := gateway.Request{Protocol: gateway.TLS, Destination: at("203.0.113.66:443"), Name: "example.com", Unproven: true, Again: true}
	require.Equal(t, gateway.Deny, w.policy.Decide(t.Context(), r).Verdict)
	r.Unproven = false
	require.Equal(t, gateway.Allow, w.policy.Decide(t.Context(), r).Verdict)
}

// A path that servers read in several ways is allowed only where each of them is.
func TestEachReadingOfAPathIsJudged(t *testing.T) {
	table := func(fallback, decision policy.Decision, paths ...string) policy.Table {
		return policy.Table{
			Scope: server, Default: map[policy.Kind]policy.Decision{policy.Egress: fallback},
			Rules: []policy.Rule{{Name: "paths", Kind: policy.Egress, Decision: decision, Match: []policy.Match{{Host: []string{"git.example"}, Path: paths}}}},
		}
	}
	for _, row := range []struct {
		what, why string
		table     policy.Table
		path      string
		others    []string
		want      gateway.Verdict
	}{
		{"an allowed path", "there is one reading", table(policy.Deny, policy.Allow, "/projects/*/badge"), "/projects/x/badge", nil, gateway.Allow},
		{"one that is allowed with the slash", "GitLab takes it for a letter of a project's name, and means the project", table(policy.Deny, policy.Allow, "/projects/*/badge"), "/projects/org/badge", []string{"/projects/org%2Fbadge"}, gateway.Deny},
		{"one that is allowed without", "other servers take it for a slash", table(policy.Deny, policy.Allow, "/projects/*"), "/projects/org/badge", []string{"/projects/org%2Fbadge"}, gateway.Deny},
		{"one that is allowed both ways", "npm asks so", table(policy.Deny, policy.Allow, "/@scope/*", "/@scope*"), "/@scope/name", []string{"/@scope%2Fname"}, gateway.Allow},
		{"one that is denied when decoded twice", "some servers do", table(policy.Allow, policy.Deny, "/admin"), "/%61dmin", []string{"/admin"}, gateway.Deny},
	} {
		t.Run(row.what, func(t *testing.T) {
			w := newWorld(t, nil, row.table)
			r := gateway.Request{Protocol: gateway.HTTP, Destination: at("93.184.216.34:443"), Name: "git.example", Method: "DELETE", Path: row.path, OtherPaths: row.others, Encrypted: true}
			require.Equal(t, row.want, w.policy.Decide(t.Context(), r).Verdict, row.why)
		})
	}
}
