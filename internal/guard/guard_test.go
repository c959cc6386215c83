package guard_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// records keeps what was recorded.
type records struct {
	mu  sync.Mutex
	all []audit.Record
}

func (r *records) Append(a audit.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, a.WithDetail())
}

func (r *records) last(t *testing.T) audit.Record {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.NotEmpty(t, r.all)
	return r.all[len(r.all)-1]
}

// interceptor stands for one that is there; nothing here connects.
type interceptor struct{ gateway.Interceptor }

// noTemplates is a store without templates.
type templates = store.Templates

type noTemplates struct{ templates }

func (noTemplates) Template(context.Context, string) (store.Template, error) {
	return store.Template{}, store.ErrNotFound
}

type world struct {
	*guard.Guard
	records *records
	owner   *sandbox.Owner
	policy  gateway.Policy
	logged  []string
}

func newWorld(t *testing.T, desk guard.Desk, tables ...policy.Table) *world {
	t.Helper()
	w := &world{records: &records{}}
	var err error
	w.Guard, err = guard.New(t.Context(), guard.Config{
		Store: noTemplates{}, Audit: w.records, Desk: desk, Interceptor: interceptor{}, Log: slog.New(slog.DiscardHandler),
		Tables: func(context.Context) ([]policy.Table, error) { return tables, nil },
	})
	require.NoError(t, err)
	w.own(sandbox.NetworkOptions{})
	w.policy = w.Policy(func() *sandbox.Owner { return w.owner })
	return w
}

func (w *world) own(o sandbox.NetworkOptions, rules ...policy.Rule) {
	w.owner = &sandbox.Owner{
		Subject: policy.Subject{SandboxID: "i1", KeyID: "k1"}, Network: o, Rules: policy.Table{Rules: rules},
		Log: func(_ bool, text string) { w.logged = append(w.logged, text) },
	}
}

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

var server = policy.Scope{Kind: policy.ServerScope}

func onlyExample() policy.Table {
	return policy.Table{
		Scope: server, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Deny},
		Rules: []policy.Rule{{Name: "example", Kind: policy.Egress, Decision: policy.Allow, Match: []policy.Match{{Host: []string{"example.com", "*.example.org"}}}}},
	}
}

// A question that no name server is asked is judged as any other, and nobody is told of it.
func TestQuestionsThatGoNowhereAreNoEvents(t *testing.T) {
	for _, row := range []struct {
		why     string
		tables  []policy.Table
		options sandbox.NetworkOptions
		name    string
	}{
		{"allowed", nil, sandbox.NetworkOptions{}, "example.com"},
		{"denied by a rule", []policy.Table{onlyExample()}, sandbox.NetworkOptions{}, "data.evil.com"},
		{"without a network", nil, sandbox.NetworkOptions{DenyInternet: true}, "example.com"},
	} {
		w := newWorld(t, nil, row.tables...)
		w.own(row.options)
		r := gateway.Request{Protocol: gateway.DNS, Name: row.name, Silent: true}
		got := w.policy.Decide(t.Context(), r)
		require.Empty(t, w.records.all, row.why)
		require.Empty(t, w.logged, row.why)
		r.Silent = false
		want := w.policy.Decide(t.Context(), r)
		require.Len(t, w.records.all, 1, row.why)
		require.Equal(t, []any{want.Verdict, want.Readable, want.Reason}, []any{got.Verdict, got.Readable, got.Reason}, row.why)
	}
}

func TestDecisions(t *testing.T) {
	denyAll := sandbox.NetworkOptions{DenyInternet: true}
	name := sandbox.NetworkOptions{AllowOut: []string{"example.com"}, DenyOut: []string{"0.0.0.0/0"}}
	asking := policy.Table{Scope: server, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Ask}}
	gets := policy.Table{
		Scope: server, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Deny},
		Rules: []policy.Rule{{Name: "gets", Kind: policy.Egress, Decision: policy.Allow, Match: []policy.Match{{Host: []string{"example.com"}, Method: []string{"GET"}}}}},
	}
	private := policy.Table{
		Scope: server,
		Rules: []policy.Rule{{Name: "database", Kind: policy.Egress, Decision: policy.Allow, Match: []policy.Match{{Address: []string{"10.9.0.0/16"}}}}},
	}
	database := policy.Table{
		Scope: server,
		Rules: []policy.Rule{{Name: "database", Kind: policy.Egress, Decision: policy.Allow,
			Match:   []policy.Match{{Host: []string{"db.example"}, Address: []string{"10.9.0.5", "0.0.0.0/0"}, Port: []string{"5432"}}, {Address: []string{"10.9.0.6"}, Port: []string{"53"}, Protocol: []string{"udp"}}},
			Matches: []string{"egress db.example:5432 at 93.184.216.34"}}},
	}
	metadata := policy.Table{
		Scope: server,
		Rules: []policy.Rule{{Name: "all", Kind: policy.Egress, Decision: policy.Allow, Match: []policy.Match{{Address: []string{"169.254.169.254", "168.63.129.16", "100.64.0.0/10", "192.0.0.192", "0.0.0.0/0", "127.0.0.1"}}}}},
	}
	tcp := func(to string, names ...string) gateway.Request {
		r := gateway.Request{Protocol: gateway.TCP, Destination: at(to), Names: names}
		if len(names) > 0 {
			r.Name = names[0]
		}
		return r
	}
	named := func(p gateway.Protocol, to, name string) gateway.Request {
		return gateway.Request{Protocol: p, Destination: at(to), Name: name, Names: []string{name}}
	}
	for _, row := range []struct {
		about   string
		tables  []policy.Table
		options sandbox.NetworkOptions
		request gateway.Request
		want    gateway.Verdict
	}{
		{"the internet is open by default", nil, sandbox.NetworkOptions{}, tcp("93.184.216.34:443"), gateway.Allow},
		{"private addresses are not", nil, sandbox.NetworkOptions{}, tcp("10.1.2.3:443"), gateway.Deny},
		{"nor is metadata", nil, sandbox.NetworkOptions{}, tcp("169.254.169.254:80"), gateway.Deny},
		{"nor for a rule that allows it: nothing opens link-local", []policy.Table{metadata}, sandbox.NetworkOptions{}, tcp("169.254.169.254:80"), gateway.Deny},
		{"nor Azure's, which is a public address", nil, sandbox.NetworkOptions{}, tcp("168.63.129.16:80"), gateway.Deny},
		{"nor for a rule that names it", []policy.Table{metadata}, sandbox.NetworkOptions{}, tcp("168.63.129.16:32526"), gateway.Deny},
		{"nor one that opens the range it is in", []policy.Table{metadata}, sandbox.NetworkOptions{}, tcp("100.100.100.200:80"), gateway.Deny},
		{"which opens the rest of that range", []policy.Table{metadata}, sandbox.NetworkOptions{}, tcp("100.100.100.201:80"), gateway.Allow},
		{"nor one that names the address of Oracle's", []policy.Table{metadata}, sandbox.NetworkOptions{}, tcp("192.0.0.192:80"), gateway.Deny},
		{"nor by datagrams", []policy.Table{metadata}, sandbox.NetworkOptions{}, gateway.Request{Protocol: gateway.UDP, Destination: at("168.63.129.16:53")}, gateway.Deny},
		{"nor a rule for all addresses", []policy.Table{metadata}, sandbox.NetworkOptions{}, tcp("10.1.2.3:80"), gateway.Deny},
		{"a rule of the server opens a private range that it names", []policy.Table{private}, sandbox.NetworkOptions{}, tcp("10.9.1.1:5432"), gateway.Allow},
		{"and nothing beside it", []policy.Table{private}, sandbox.NetworkOptions{}, tcp("10.8.1.1:5432"), gateway.Deny},
		{"nor for another port than the rule's", []policy.Table{database}, sandbox.NetworkOptions{}, tcp("10.9.0.5:22", "db.example"), gateway.Deny},
		{"the rule's port has to say its name", []policy.Table{database}, sandbox.NetworkOptions{}, tcp("10.9.0.5:5432", "db.example"), gateway.Inspect},
		{"which leads there", []policy.Table{database}, sandbox.NetworkOptions{}, named(gateway.Opaque, "10.9.0.5:5432", "db.example"), gateway.Allow},
		{"while another does not", []policy.Table{database}, sandbox.NetworkOptions{}, named(gateway.Opaque, "10.9.0.5:5432", "evil.com"), gateway.Deny},
		{"nor in TLS", []policy.Table{database}, sandbox.NetworkOptions{}, named(gateway.TLS, "10.9.0.5:5432", "evil.com"), gateway.Deny},
		{"nor in a request", []policy.Table{database}, sandbox.NetworkOptions{}, named(gateway.HTTP, "10.9.0.5:5432", "evil.com"), gateway.Deny},
		{"nor by datagrams", []policy.Table{database}, sandbox.NetworkOptions{}, named(gateway.UDP, "10.9.0.5:5432", "db.example"), gateway.Deny},
		{"unless they are what is opened", []policy.Table{database}, sandbox.NetworkOptions{}, named(gateway.UDP, "10.9.0.6:53", ""), gateway.Allow},
		{"and those alone", []policy.Table{database}, sandbox.NetworkOptions{}, tcp("10.9.0.6:53"), gateway.Deny},
		{"offline is offline", nil, denyAll, tcp("93.184.216.34:443"), gateway.Deny},
		{"and knows no names", nil, denyAll, gateway.Request{Protocol: gateway.DNS, Name: "example.com"}, gateway.Deny},
		{"an allowed name may be asked for", nil, name, gateway.Request{Protocol: gateway.DNS, Name: "example.com"}, gateway.Allow},
		{"another may not, so that questions carry nothing out", nil, name, gateway.Request{Protocol: gateway.DNS, Name: "data.evil.com"}, gateway.Deny},
		{"under names an address has to say what it is for", nil, name, tcp("93.184.216.34:443"), gateway.Inspect},
		{"and only where names are allowed", nil, name, tcp("93.184.216.34:22", "example.com"), gateway.Deny},
		{"it says an allowed name", nil, name, named(gateway.TLS, "93.184.216.34:443", "example.com"), gateway.Allow},
		{"it says another", nil, name, named(gateway.TLS, "93.184.216.34:443", "evil.com"), gateway.Deny},
		{"it says none", nil, name, named(gateway.TLS, "93.184.216.34:443", ""), gateway.Deny},
		{"it is neither TLS nor HTTP", nil, name, named(gateway.Opaque, "93.184.216.34:443", "example.com"), gateway.Deny},
		{"it is a request", nil, name, named(gateway.HTTP, "93.184.216.34:80", "example.com"), gateway.Allow},
		{"datagrams say no name", nil, name, named(gateway.UDP, "93.184.216.34:443", "example.com"), gateway.Deny},
		{"a name of a table, any port", []policy.Table{onlyExample()}, sandbox.NetworkOptions{}, named(gateway.Opaque, "93.184.216.34:22", "example.com"), gateway.Allow},
		{"a name below", []policy.Table{onlyExample()}, sandbox.NetworkOptions{}, named(gateway.TLS, "93.184.216.34:443", "a.b.example.org"), gateway.Allow},
		{"not the name itself", []policy.Table{onlyExample()}, sandbox.NetworkOptions{}, named(gateway.TLS, "93.184.216.34:443", "example.org"), gateway.Deny},
		{"UDP of a name is closed unless a rule says UDP", []policy.Table{onlyExample()}, sandbox.NetworkOptions{}, named(gateway.UDP, "93.184.216.34:443", "example.com"), gateway.Deny},
		{"a method has to be seen", []policy.Table{gets}, sandbox.NetworkOptions{}, named(gateway.TLS, "93.184.216.34:443", "example.com"), gateway.Inspect},
		{"an empty allow list allows nothing", []policy.Table{{Scope: server, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Deny}}}, sandbox.NetworkOptions{}, tcp("93.184.216.34:443"), gateway.Deny},
		{"what would be asked about gets no address", []policy.Table{asking}, sandbox.NetworkOptions{}, gateway.Request{Protocol: gateway.DNS, Name: "example.com"}, gateway.Later},
		{"a key cannot allow what the server denies", []policy.Table{onlyExample(), {Scope: policy.Scope{Kind: policy.KeyScope, ID: "k1"}, Rules: []policy.Rule{{Name: "all", Kind: policy.Egress, Decision: policy.Allow}}}}, sandbox.NetworkOptions{}, named(gateway.TLS, "93.184.216.34:443", "evil.com"), gateway.Deny},
	} {
		t.Run(row.about, func(t *testing.T) {
			w := newWorld(t, nil, row.tables...)
			w.own(row.options)
			d := w.policy.Decide(t.Context(), row.request)
			require.Equal(t, row.want, d.Verdict, "%+v", d)
			if d.Verdict == gateway.Deny {
				require.NotEmpty(t, d.Reason)
			}
			if d.Verdict == gateway.Deny || d.Verdict == gateway.Allow {
				last := w.records.last(t)
				require.Equal(t, map[gateway.Verdict]string{gateway.Deny: "deny", gateway.Allow: "allow"}[d.Verdict], last.Decision)
				require.Equal(t, "i1", last.SandboxID)
			}
		})
	}
}

// The address of a name is given to programs only where something may be reached there.
func TestNamesLeadToWhatIsOpened(t *testing.T) {
	w := newWorld(t, nil, policy.Table{Scope: server, Rules: []policy.Rule{{Name: "db", Kind: policy.Egress, Decision: policy.Allow,
		Match: []policy.Match{{Host: []string{"db.example"}, Address: []string{"10.9.0.5"}, Port: []string{"5432"}},
			{Host: []string{"web.example"}, Address: []string{"10.9.0.7"}, Port: []string{"80"}, Path: []string{"/status"}}}}}})
	for _, row := range []struct {
		name, to string
		want     gateway.Verdict
	}{
		{"db.example", "10.9.0.5:0", gateway.Allow},
		{"db.example", "10.9.0.5:5432", gateway.Allow},
		{"db.example", "10.9.0.5:22", gateway.Deny}, // of a name that was held
		{"db.example", "10.9.0.6:0", gateway.Deny},
		{"db.example", "168.63.129.16:0", gateway.Deny}, // metadata
		{"evil.com", "10.9.0.5:0", gateway.Deny},        // rebinding
		{"web.example", "10.9.0.7:0", gateway.Allow},    // requests will be judged with it
		{"web.example", "10.9.0.7:80", gateway.Deny},    // those of a name that was held were judged without
	} {
		d := w.policy.Decide(t.Context(), gateway.Request{Protocol: gateway.DNSAnswer, Name: row.name, Destination: at(row.to)})
		require.Equal(t, row.want, d.Verdict, "%v %+v", row, d)
	}
}

// What was held is judged by its address as what it is, datagrams too.
func TestDatagramsToAHeldNameAreJudgedByItsAddress(t *testing.T) {
	w := newWorld(t, nil, policy.Table{Scope: server, Rules: []policy.Rule{{Name: "no-udp", Kind: policy.Egress, Decision: policy.Deny,
		Match: []policy.Match{{Address: []string{"93.184.216.0/24"}, Protocol: []string{"udp"}}}}}})
	r := gateway.Request{Protocol: gateway.DNSAnswer, Name: "example.com", Destination: at("93.184.216.34:53")}
	require.Equal(t, gateway.Allow, w.policy.Decide(t.Context(), r).Verdict)
	r.Datagrams = true
	require.Equal(t, gateway.Deny, w.policy.Decide(t.Context(), r).Verdict)
}

// desk answers each question in one way.
type desk struct {
	guard.Desk // what code inside asks for is not asked here

	state approval.State
	asked []policy.Action
}

func (d *desk) Granted(policy.Subject, policy.Action, string) (approval.Grant, bool) {
	return approval.Grant{}, false
}
func (d *desk) Forget(string)                                 {}
func (d *desk) CouldGrant(policy.Subject, policy.Action) bool { return false }
func (d *desk) Ask(_ context.Context, s policy.Subject, a policy.Action, v policy.Verdict, _ time.Duration) (approval.Hold, error) {
	d.asked = append(d.asked, a)
	return approval.Hold{ID: "h1", Subject: s, Action: a, State: d.state, Answer: &approval.Answer{Approver: "key:a", Reason: "why"}}, nil
}

func TestAPersonIsAskedByTheName(t *testing.T) {
	asking := policy.Table{Scope: server, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Ask}}
	for state, want := range map[approval.State]gateway.Verdict{
		approval.Approved: gateway.Allow, approval.Denied: gateway.Deny, approval.Expired: gateway.Deny,
	} {
		d := &desk{state: state}
		w := newWorld(t, d, asking)
		r := gateway.Request{Protocol: gateway.TLS, Destination: at("198.18.0.7:443"), Name: "example.com", Held: true}
		require.Equal(t, gateway.Inspect, w.policy.Decide(t.Context(), gateway.Request{Protocol: gateway.TCP, Destination: r.Destination, Name: r.Name, Held: true}).Verdict)
		require.Empty(t, d.asked, "not before the connection says what it is for")
		require.Equal(t, want, w.policy.Decide(t.Context(), r).Verdict)
		require.Equal(t, []policy.Action{{Kind: policy.Egress, Protocol: "tcp", Host: "example.com", Port: 443, Unknown: policy.RequestField}}, d.asked,
			"the address that stands for the name is not part of it")
		again := r
		again.Again = true
		require.Equal(t, want, w.policy.Decide(t.Context(), again).Verdict, "what was approved stays open, what was not never opened")
		require.Len(t, d.asked, 1)
		again.Name = "other.example.com"
		require.Equal(t, gateway.Deny, w.policy.Decide(t.Context(), again).Verdict, "what is open does not wait")
		require.Len(t, d.asked, 1)
	}
}

func TestNobodyToAskIsANo(t *testing.T) {
	w := newWorld(t, nil, policy.Table{Scope: server, Default: map[policy.Kind]policy.Decision{policy.Exec: policy.Ask}})
	err := w.Admit(t.Context(), sandbox.Info{ID: "i1", KeyID: "k1"}, policy.Action{Kind: policy.Exec, Command: "ls", User: "user"})
	var denied *sandbox.DeniedError
	require.ErrorAs(t, err, &denied)
	require.Contains(t, denied.Reason, "nobody can be asked")
	require.Equal(t, "deny", w.records.last(t).Decision)
}

func TestRefusalsAreKeptForWhoAsks(t *testing.T) {
	w := newWorld(t, nil)
	d := w.policy.Decide(t.Context(), gateway.Request{Protocol: gateway.TCP, Destination: at("10.1.2.3:80")})
	require.True(t, d.Readable)
	kept := w.Refusals("i1")
	require.Len(t, kept, 1)
	require.Equal(t, d.ID, kept[0].ID)
	require.Contains(t, w.logged[0], d.ID)
	w.OnEvent(sandbox.Event{Kind: sandbox.EventEnded, Info: sandbox.Info{ID: "i1"}})
	require.Empty(t, w.Refusals("i1"))
}

func TestAPersonIsAskedAboutTheHostAndNotEachPage(t *testing.T) {
	posts := policy.Table{
		Scope: server, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Ask},
		Rules: []policy.Rule{{Name: "reads", Kind: policy.Egress, Decision: policy.Allow, Match: []policy.Match{{Host: []string{"docs.example.com"}, Method: []string{"GET"}}}}},
	}
	d := &desk{state: approval.Approved}
	w := newWorld(t, d, posts)
	request := func(host, method, path string) {
		r := gateway.Request{Protocol: gateway.HTTP, Destination: at("93.184.216.34:80"), Name: host, Names: []string{host}, Method: method, Path: path}
		require.Equal(t, gateway.Allow, w.policy.Decide(t.Context(), r).Verdict)
	}
	request("example.com", "GET", "/a")
	request("example.com", "POST", "/b")
	require.Len(t, d.asked, 2)
	require.Equal(t, d.asked[0], d.asked[1])
	request("docs.example.com", "GET", "/a")
	require.Len(t, d.asked, 2, "a rule allows it")
	request("docs.example.com", "POST", "/a")
	require.Equal(t, "POST", d.asked[2].Method, "what is requested makes the difference here")
}

func TestAProxyWhereSandboxesMayNotGoIsRefused(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Sandboxes(nil).Create(t.Context(), sandbox.CreateRequest{Network: sandbox.NetworkOptions{Proxy: &sandbox.EgressProxy{Kind: "socks5", Address: "10.0.0.7:1080"}}})
	var invalid *sandbox.InvalidError
	require.ErrorAs(t, err, &invalid)
}

func TestFilesOfVolumesAreJudgedAndRecorded(t *testing.T) {
	ofKey := policy.Scope{Kind: policy.KeyScope, ID: "k1"}
	w := newWorld(t, nil, policy.Table{Scope: ofKey, Rules: []policy.Rule{{Name: "no-keys", Kind: policy.FileOut, Decision: policy.Deny, Match: []policy.Match{{File: []string{"/keys/**"}}}}}})
	require.NoError(t, w.AdmitVolume(t.Context(), "v", "k1", "/data/a"))
	r := w.records.last(t)
	require.Equal(t, []string{"file", "volume:v", "read", "allow", "k1"}, []string{string(r.Kind), r.Actor, r.What, r.Decision, r.KeyID})
	var denied *sandbox.DeniedError
	require.ErrorAs(t, w.AdmitVolume(t.Context(), "v", "k1", "/keys/a"), &denied)
	require.Equal(t, "no-keys", denied.Rule)
	require.Equal(t, "deny", w.records.last(t).Decision)
	require.NoError(t, w.AdmitVolume(t.Context(), "v2", "k2", "/keys/a"), "another key has other rules")
}

func TestAFileOfAVolumeIsApprovedForThatVolume(t *testing.T) {
	d := realDesk(t)
	w := newWorld(t, d, says(policy.FileOut, policy.Ask))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	read := func(volume string) chan error {
		done := make(chan error, 1)
		go func() { done <- w.AdmitVolume(ctx, volume, "k1", "/report.csv") }()
		return done
	}
	first := read("v1")
	h := holds(t, d, approval.Pending)
	require.Equal(t, "file-out volume=v1 /report.csv", h.Action.String(), "who answers is told which")
	_, err := d.Answer(t.Context(), h.ID, approval.Answer{Hash: h.Hash, Approver: "owner", Approve: true, Reach: approval.ForTime, Duration: time.Hour})
	require.NoError(t, err)
	require.NoError(t, <-first)
	require.NoError(t, <-read("v1"))
	other := read("v2")
	require.Eventually(t, func() bool {
		waiting, err := d.List(t.Context(), approval.Filter{States: []approval.State{approval.Pending}})
		require.NoError(t, err)
		return len(waiting) == 1 && waiting[0].Action.Name == "v2"
	}, 20*time.Second, time.Millisecond, "another volume's file is another")
	leave()
	require.Error(t, <-other)
}

func TestCallersMeetTheRulesOfTheMoment(t *testing.T) {
	w := newWorld(t, nil)
	deny := []policy.Rule{{Name: "no", Kind: policy.Exec, Decision: policy.Deny}}
	allow := []policy.Rule{{Name: "no", Kind: policy.Exec, Decision: policy.Allow}}
	broken := []policy.Rule{{Name: "no", Kind: "nothing", Decision: policy.Allow}}
	starts := func(id string, own policy.Table) bool {
		return w.Admit(t.Context(), sandbox.Info{ID: id, KeyID: "k1", Rules: own}, policy.Action{Kind: policy.Exec, Command: "ls", User: "user"}) == nil
	}
	denies := map[policy.Kind]policy.Decision{policy.Exec: policy.Deny}
	for range 2 {
		require.False(t, starts("i1", policy.Table{Rules: deny}))
		require.True(t, starts("i1", policy.Table{Rules: allow}))
		require.False(t, starts("i1", policy.Table{Rules: broken}), "what cannot be read closes")
		require.True(t, starts("i1", policy.Table{Rules: allow}), "and closes no longer than it is there")
		require.True(t, starts("i2", policy.Table{Rules: allow}))
		require.True(t, starts("i1", policy.Table{}))
		require.False(t, starts("i1", policy.Table{Default: denies}), "a default alone is a rule")
	}
}

// lasting is a manager with one sandbox that ends now.
type lasting struct {
	sandbox.Sandboxes
	set int
}

func (l *lasting) Get(id string) (sandbox.Info, error) {
	return sandbox.Info{ID: id, KeyID: "k1", EndAt: time.Now()}, nil
}

func (l *lasting) SetTimeout(context.Context, string, time.Duration, bool) (sandbox.Info, error) {
	l.set++
	return sandbox.Info{}, nil
}

func TestALengtheningIsTheCallersAndEndsWithHim(t *testing.T) {
	type caller struct{}
	records, inner, d := &records{}, &lasting{}, realDesk(t)
	g, err := guard.New(t.Context(), guard.Config{
		Store: noTemplates{}, Audit: records, Desk: d, Log: slog.New(slog.DiscardHandler),
		Tables: func(context.Context) ([]policy.Table, error) {
			return []policy.Table{says(policy.Lifetime, policy.Ask)}, nil
		},
		Actor: func(ctx context.Context) string { actor, _ := ctx.Value(caller{}).(string); return actor },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), caller{}, "key:k1"))
	failed := make(chan error, 1)
	go func() {
		_, err := g.Sandboxes(inner).SetTimeout(ctx, "i1", time.Hour, false)
		failed <- err
	}()
	holds(t, d, approval.Pending)
	cancel()
	require.ErrorContains(t, <-failed, "went away")
	require.Zero(t, holds(t, d, approval.Pending).Waiting)
	require.Zero(t, inner.set)
	require.Equal(t, "key:k1", records.last(t).Actor)
}

// Whatever is cut, a record says the rest, and the hash of all of it.
func TestWhatIsLongHidesNothingInARecord(t *testing.T) {
	info := sandbox.Info{ID: "i1", KeyID: "k1"}
	long := strings.Repeat("\x01", 20<<10)
	for about, a := range map[string]policy.Action{
		"a command":       {Kind: policy.Exec, Command: "rm -rf / #" + long, User: "user", Cwd: "/srv"},
		"variables":       {Kind: policy.Exec, Command: "rm -rf /", User: "user", Env: long},
		"a folder":        {Kind: policy.Exec, Command: "rm -rf /", User: "user", Cwd: long},
		"a user":          {Kind: policy.Exec, Command: "rm -rf /", User: long},
		"a context":       {Kind: policy.Exec, Command: "rm -rf /", Language: "context " + long, Unknown: policy.LanguageField},
		"all of these":    {Kind: policy.Exec, Command: "rm -rf / #" + long, User: long, Cwd: long, Env: long, Language: long},
		"a file":          {Kind: policy.FileOut, File: "/secret/" + long, User: "user"},
		"what is no text": {Kind: policy.Exec, Command: "rm -rf / " + strings.Repeat("\xff", 20<<10), User: "user"},
	} {
		w := newWorld(t, nil)
		w.own(sandbox.NetworkOptions{})
		_ = w.Admit(t.Context(), info, a)
		raw := w.records.last(t).Detail
		require.Less(t, len(raw), 8<<10, about)
		var detail struct {
			Action struct {
				Command, File, Hash string
			}
		}
		require.NoError(t, json.Unmarshal(raw, &detail), about)
		require.Equal(t, a.Hash(), detail.Action.Hash, about)
		require.Contains(t, detail.Action.Command+detail.Action.File, map[policy.Kind]string{policy.Exec: "rm -rf /", policy.FileOut: "/secret/"}[a.Kind], about)
	}
	w := newWorld(t, nil)
	require.NoError(t, w.Admit(t.Context(), info, policy.Action{Kind: policy.Exec, Command: strings.Repeat("a", 2<<10), User: "user"}))
	require.NotContains(t, string(w.records.last(t).Detail), "hash", "what is whole has none")
}

func TestACopySaysHowManyAndUnderWhichName(t *testing.T) {
	d := &desk{state: approval.Denied}
	w := newWorld(t, d, says(policy.Snapshot, policy.Ask))
	copies := w.Sandboxes(&lasting{})
	_, err := copies.Fork(t.Context(), "i1", sandbox.ForkRequest{Count: 100})
	require.ErrorContains(t, err, "snapshot fork 100")
	_, err = copies.Fork(t.Context(), "i1", sandbox.ForkRequest{Count: 1})
	require.Error(t, err)
	_, err = copies.Snapshot(t.Context(), "i1", sandbox.SnapshotRequest{Name: "release"})
	require.ErrorContains(t, err, "snapshot snapshot release")
	require.Len(t, d.asked, 3)
}

func TestABuildIsJudgedByWhatItRuns(t *testing.T) {
	s := policy.Subject{KeyID: "k1", TemplateID: "t1", TemplateName: "mine"}
	commands := []policy.Action{
		{Kind: policy.Resources, CPUs: 8, MemoryBytes: 1 << 30},
		{Kind: policy.Exec, Command: "make", User: "user"}, {Kind: policy.Exec, Command: "apt-get install -y jq", User: "root"},
	}
	w := newWorld(t, nil)
	require.NoError(t, w.AdmitBuild(t.Context(), s, commands))
	require.Len(t, w.records.all, 2, "its commands are recorded")
	require.Equal(t, "key:k1", w.records.all[0].Actor)
	require.Equal(t, "build", w.records.all[0].What)
	large := policy.Table{Scope: server, Rules: []policy.Rule{{Name: "large", Kind: policy.Resources, Decision: policy.Deny, Match: []policy.Match{{CPUsOver: 4}}}}}
	root := policy.Table{Scope: policy.Scope{Kind: policy.KeyScope, ID: "k1"}, Rules: []policy.Rule{{Name: "root", Kind: policy.Exec, Decision: policy.Deny, Match: []policy.Match{{User: []string{"root"}}}}}}
	for rule, table := range map[string]policy.Table{"large": large, "root": root} {
		w := newWorld(t, nil, table)
		err := w.AdmitBuild(t.Context(), s, commands)
		var denied *sandbox.DeniedError
		require.ErrorAs(t, err, &denied)
		require.Equal(t, rule, denied.Rule)
		require.Equal(t, rule, w.records.last(t).Rule)
	}
}

// Requests that differ in what no rule speaks of are asked about apart, and it is not told.
func TestWhatPeopleMayNotReadIsPartOfWhatTheyApprove(t *testing.T) {
	d := &desk{state: approval.Approved}
	posts := policy.Table{Scope: server, Rules: []policy.Rule{{Name: "posts", Kind: policy.Egress, Decision: policy.Ask, Match: []policy.Match{{Host: []string{"example.com"}, Method: []string{"POST"}}}}}}
	posts.Rules = append(posts.Rules, says(policy.Exec, policy.Ask).Rules...)
	w := newWorld(t, d, posts)
	transfer := func(method, query string) {
		r := gateway.Request{Protocol: gateway.HTTP, Destination: at("93.184.216.34:80"), Name: "example.com", Names: []string{"example.com"}, Method: method, Path: "/transfer", Query: query}
		require.Equal(t, gateway.Allow, w.policy.Decide(t.Context(), r).Verdict)
		r.Again = true
		require.Equal(t, gateway.Allow, w.policy.Decide(t.Context(), r).Verdict, "what was approved goes on")
		r.Query += "&more"
		require.Equal(t, method == "GET", w.policy.Decide(t.Context(), r).Verdict == gateway.Allow)
	}
	transfer("GET", "to=a")
	require.Empty(t, d.asked)
	transfer("POST", "to=a")
	transfer("POST", "to=b")
	transfer("POST", "to=a")
	require.Len(t, d.asked, 3)
	require.Equal(t, d.asked[0].Hash(), d.asked[2].Hash())
	require.NotEqual(t, d.asked[0].Hash(), d.asked[1].Hash())
	require.NotContains(t, d.asked[0].Query, "to=a")

	command := policy.Action{Kind: policy.Exec, Command: "ls", User: "user", Env: "PIN #0123456789abcdef0123456789abcdef"}
	for range 2 {
		require.NoError(t, w.Admit(t.Context(), sandbox.Info{ID: "i1", KeyID: "k1"}, command))
	}
	require.Equal(t, d.asked[3].Env, d.asked[4].Env)
	require.Regexp(t, "^PIN #[0-9a-f]{32}$", d.asked[3].Env)
	require.NotEqual(t, command.Env, d.asked[3].Env, "who does not have the key cannot guess at it")
	other := newWorld(t, d, says(policy.Exec, policy.Ask))
	require.NoError(t, other.Admit(t.Context(), sandbox.Info{ID: "i1", KeyID: "k1"}, command))
	require.NotEqual(t, d.asked[3].Env, d.asked[5].Env)
}
