package guard

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
)

// Network is a gateway whose policy is the guard's.
type Network struct {
	*gateway.Network
	guard *Guard
	owner func() *sandbox.Owner
	now   atomic.Pointer[standing]

	proxying sync.Mutex
	proxy    *sandbox.EgressProxy // that the gateway was given

	rechecking sync.Mutex
	again      atomic.Bool
	closed     chan struct{}
	once       sync.Once
}

// OpenNetwork makes the network of a sandbox, or adopts it.
func (g *Guard) OpenNetwork(ctx context.Context, c sandbox.NetworkConfig) (*Network, error) {
	n := &Network{guard: g, owner: c.Owner, closed: make(chan struct{})}
	config := gateway.Config{
		Dir: c.Dir, Log: g.config.Log, Policy: judge{n}, Interceptor: g.config.Interceptor, Resolvers: g.resolvers,
	}
	if g.config.Inside != nil {
		config.Inside = g.config.Inside(n)
	}
	open := gateway.New
	if c.Adopt {
		open = gateway.Adopt
	}
	network, err := open(ctx, config)
	if err != nil {
		return nil, err
	}
	n.Network = network
	g.mu.Lock()
	if len(g.networks) == 0 {
		var following context.Context
		following, g.unfollow = context.WithCancel(context.Background())
		g.public.Follow(following)
	}
	g.networks[n] = struct{}{}
	g.mu.Unlock()
	n.OwnerChanged()
	return n, nil
}

// Policy judges what the sandbox that owner names reaches, as its network would.
func (g *Guard) Policy(owner func() *sandbox.Owner) gateway.Policy {
	return judge{&Network{guard: g, owner: owner}}
}

// Close implements sandbox.Network.
func (n *Network) Close() error {
	n.forget()
	return n.Network.Close()
}

// Detach implements sandbox.Network.
func (n *Network) Detach() error {
	n.forget()
	return n.Network.Detach()
}

func (n *Network) forget() {
	n.once.Do(func() { close(n.closed) })
	n.guard.mu.Lock()
	defer n.guard.mu.Unlock()
	delete(n.guard.networks, n)
	if len(n.guard.networks) == 0 {
		n.guard.unfollow()
	}
}

// OwnerChanged implements sandbox.Network.
func (n *Network) OwnerChanged() {
	o := n.owner()
	if o == nil {
		return
	}
	n.apply(o.Network)
	n.tellWaiting(o.SandboxID)
	n.recheck()
}

// apply has the gateway keep to what the options say besides what may be reached.
func (n *Network) apply(o sandbox.NetworkOptions) {
	n.SetLimits(gateway.Limits{Connections: o.Connections, BandwidthOut: int(o.BandwidthOut), BandwidthIn: int(o.BandwidthIn)})
	p, refuses := o.Proxy, n.guard.refusesProxy(o.Proxy)
	if p == nil {
		p, refuses = n.guard.config.Proxy, func(netip.Addr) string { return "" }
	}
	if err := n.setProxy(p, refuses); err != nil {
		n.guard.config.Log.Error("a proxy cannot be used; connections out of the sandbox fail", "sandbox", n.owner().SandboxID, "error", err)
	}
}

// setProxy has connections made through p. One that cannot be used closes the way: nothing
// goes out directly that was to go through a proxy.
func (n *Network) setProxy(p *sandbox.EgressProxy, refuses func(netip.Addr) string) error {
	n.proxying.Lock()
	defer n.proxying.Unlock()
	if p == n.proxy || p != nil && n.proxy != nil && *p == *n.proxy {
		return nil
	}
	n.proxy = p
	if p == nil {
		return n.SetProxy(nil)
	}
	config := &gateway.Proxy{
		Kind: gateway.ProxyKind(p.Kind), Address: p.Address, Username: p.Username, Password: p.Password, Refuses: refuses,
	}
	var failed error
	if p.TLS {
		config.TLS, failed = tlsTo(p)
	}
	if failed == nil {
		failed = config.Check()
	}
	if failed != nil {
		why := "the proxy cannot be used: " + failed.Error()
		config = &gateway.Proxy{Kind: gateway.SOCKS5, Address: "192.0.2.1:1", Refuses: func(netip.Addr) string { return why }}
	}
	return errors.Join(failed, n.SetProxy(config))
}

// refusesProxy says which addresses a sandbox's own proxy may not have.
func (g *Guard) refusesProxy(p *sandbox.EgressProxy) func(netip.Addr) string {
	port := uint16(0)
	if p != nil {
		port = portOf(p.Address)
	}
	return func(addr netip.Addr) string { return g.floorOfProxy(addr, port) }
}

// portOf is that of host:port; 0 where there is none.
func portOf(address string) uint16 {
	_, text, err := net.SplitHostPort(address)
	port, parseErr := strconv.ParseUint(text, 10, 16)
	if err != nil || parseErr != nil {
		return 0
	}
	return uint16(port)
}

func tlsTo(p *sandbox.EgressProxy) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.ServerName}
	if p.CACert != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(p.CACert)) {
			return nil, errors.New("its CA certificate is not PEM")
		}
	}
	return config, nil
}

// recheck has open connections judged again, beside the caller. Changes that come
// while that goes on are seen by one more round.
func (n *Network) recheck() {
	n.again.Store(true)
	go func() {
		n.rechecking.Lock()
		defer n.rechecking.Unlock()
		if !n.again.Swap(false) {
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			select {
			case <-n.closed:
				cancel()
			case <-ctx.Done():
			}
		}()
		_ = n.Recheck(ctx)
	}()
}

// standing is what holds for the owner of a network, made ready to judge by. It is
// made anew when the owner or its options change.
type standing struct {
	owner   *sandbox.Owner
	own     policy.Set // of the sandbox: its rules and its network options
	narrow  *narrow
	session *secret.Session // nil: there are no secrets
	broken  string          // why nothing may pass
}

// standing returns what holds at this moment; nil while the network has no owner.
func (n *Network) standing() *standing {
	o := n.owner()
	if o == nil {
		return nil
	}
	if st := n.now.Load(); st != nil && st.owner == o {
		return st
	}
	st := n.guard.stand(o)
	n.now.Store(st)
	return st
}

// stand compiles what an owner has. What does not compile closes the network: it was
// checked when it was given, so it is from another version of the server.
func (g *Guard) stand(o *sandbox.Owner) *standing {
	st := &standing{owner: o, narrow: g.narrowOf(o.SandboxID)}
	scope := policy.Scope{Kind: policy.SandboxScope, ID: o.SandboxID}
	rules, err := policy.FromNetwork(o.Network.Policy())
	tables := []policy.Table{{Scope: scope, Rules: rules}, o.Rules}
	tables[1].Scope = scope
	for _, table := range tables {
		compiled, failed := policy.Compile(table)
		if err == nil {
			err = failed
		}
		st.own = append(st.own, compiled)
	}
	if err == nil {
		st.session, err = g.session(o)
	}
	if err != nil {
		st.broken = "the rules of this sandbox cannot be read: " + err.Error()
	}
	return st
}

func (n *Network) set(st *standing) policy.Set {
	return append(n.guard.book.For(st.owner.Subject), st.own...)
}

// setFor is set with what keeps a destination that is not public to what the server's
// rules open. What a held name leads to is judged when it is known.
func (n judge) setFor(st *standing, r gateway.Request) policy.Set {
	set := n.set(st)
	if !r.Held && n.guard.public.Refuses(r.Destination.Addr()) != "" {
		set = append(set, n.guard.opened.Load())
	}
	return set
}

// judge is the policy of a network.
type judge struct{ *Network }

// Decide implements gateway.Policy.
func (n judge) Decide(ctx context.Context, r gateway.Request) gateway.Decision {
	st := n.standing()
	switch {
	case st == nil:
		return gateway.Decision{Reason: "no sandbox has this network yet"}
	case st.broken != "":
		return gateway.Decision{Reason: st.broken}
	}
	switch r.Protocol {
	case gateway.DNS:
		return n.name(st, r)
	case gateway.DNSAnswer:
		return n.answer(st, r)
	case gateway.TCP:
		return n.connection(ctx, st, r)
	case gateway.UDP:
		return n.flow(ctx, st, r)
	case gateway.TLS:
		return n.named(ctx, st, r)
	case gateway.Opaque:
		return n.opaque(ctx, st, r)
	case gateway.HTTP:
		return n.request(ctx, st, r)
	}
	return gateway.Decision{Reason: fmt.Sprintf("nothing is known of the protocol %q", r.Protocol)}
}

// name judges a question for a name. What may be allowed is asked outside; what a
// person would be asked about gets an address that stands for it.
func (n judge) name(st *standing, r gateway.Request) gateway.Decision {
	a := policy.Action{Kind: policy.Egress, Host: r.Name}
	if r.Again { // nobody inside asked
		if slices.Contains(n.set(st).JudgeName(r.Name).Possible, policy.Allow) {
			return gateway.Decision{Verdict: gateway.Allow}
		}
		return gateway.Decision{Reason: "the name may not be asked for"}
	}
	if st.owner.Network.DenyInternet && len(st.owner.Network.AllowOut) == 0 {
		d := gateway.DenyAll{}.Decide(context.Background(), r)
		if !r.Silent {
			n.note(st, r, a, outcome{verdict: policy.Verdict{Decision: policy.Deny, Rule: policy.NetworkRule}, reason: d.Reason})
		}
		return d
	}
	v := n.set(st).JudgeName(r.Name)
	switch {
	case slices.Contains(v.Possible, policy.Allow):
		if !r.Silent {
			n.note(st, r, a, outcome{allowed: true, verdict: v})
		}
		return gateway.Decision{Verdict: gateway.Allow, Reason: "the name may be asked for"}
	case slices.Contains(v.Possible, policy.Ask):
		return gateway.Decision{Verdict: gateway.Later, Reason: v.Reason, Rule: v.Rule}
	case r.Silent:
		return gateway.Decision{Reason: cmp.Or(v.Reason, deniedByRule), Rule: v.Rule, Readable: true}
	}
	return n.refuse(st, r, a, outcome{verdict: v, reason: v.Reason, id: newID()})
}

// answer judges an address that a name leads to. With a port it is that of a connection
// to a name which was allowed already, and only now has an address.
func (n judge) answer(st *standing, r gateway.Request) gateway.Decision {
	a := egress(r, "tcp", r.Name)
	if r.Datagrams {
		a.Protocol = "udp"
	}
	a.Unknown = policy.RequestField
	anyPort := a
	anyPort.Unknown |= policy.PortField
	if why := n.guard.floor(anyPort); why != "" {
		return gateway.Decision{Reason: fmt.Sprintf("%s is %s; sandboxes reach public addresses only", r.Destination.Addr(), why)}
	}
	if r.Destination.Port() != 0 {
		if r.Datagrams {
			a.Unknown = 0
		}
		v := n.setFor(st, r).Judge(a)
		if opened := (policy.Set{n.guard.opened.Load()}).Judge(a); v.Decision != policy.Deny && opened.Decision == "" && n.guard.public.Refuses(r.Destination.Addr()) != "" {
			v = opened
			v.Decision, v.Reason = policy.Deny, fmt.Sprintf("%s is opened for some requests only, and this one was judged before the name had that address: open it for all requests to the host", r.Destination.Addr())
		}
		if v.Decision == policy.Deny {
			return n.refuse(st, r, a, outcome{verdict: v, reason: v.Reason, id: newID()})
		}
	}
	return gateway.Decision{Verdict: gateway.Allow, Reason: "public address"}
}

// below refuses what no rule can allow.
func (n judge) below(st *standing, r gateway.Request, a policy.Action) (gateway.Decision, bool) {
	if r.Held {
		return gateway.Decision{}, false
	}
	a.Address = r.Destination.Addr()
	why := n.guard.floor(a)
	if why == "" {
		return gateway.Decision{}, false
	}
	return n.refuse(st, r, a, outcome{
		verdict: policy.Verdict{Decision: policy.Deny, Rule: "public-addresses-only", Scope: policy.Scope{Kind: policy.ServerScope}},
		reason:  fmt.Sprintf("%s is %s; sandboxes reach public addresses only", a.Address, why), id: newID(),
	}), true
}

func egress(r gateway.Request, protocol string, host string) policy.Action {
	a := policy.Action{Kind: policy.Egress, Protocol: protocol, Host: host, Address: r.Destination.Addr(), Port: r.Destination.Port()}
	if r.Held { // it stands for the name, and which address that will have is not known
		var none netip.Addr
		a.Address, a.Unknown = none, policy.AddressField
	}
	return a
}

// connection judges a TCP connection whose client has sent nothing yet.
func (n judge) connection(ctx context.Context, st *standing, r gateway.Request) gateway.Decision {
	a := egress(r, "tcp", r.Name)
	partial := a
	partial.Unknown |= policy.RequestField
	if !r.Held {
		partial.Host = ""
		partial.Unknown |= policy.HostField
	}
	if d, refused := n.below(st, r, partial); refused {
		return d
	}
	v := n.setFor(st, r).Judge(partial)
	port := r.Destination.Port()
	inspect := gateway.Decision{Verdict: gateway.Inspect, Reason: "what the connection is for has to be seen"}
	switch {
	case v.Decision == policy.Deny:
		return n.refuse(st, r, a, outcome{verdict: v, reason: v.Reason, id: newID()})
	case v.Decision != policy.Allow || r.Held || st.sees(r.Names...) || st.watches(port):
		return inspect
	case st.hasHosts() && !slices.Contains(serversSpeakFirst, port):
		inspect.TLSOnly = true // the address may be a host's that was looked up elsewhere
		return inspect
	}
	return n.allow(st, r, a, outcome{allowed: true, verdict: v, reason: v.Reason})
}

// serversSpeakFirst are the ports of mail, file transfer and MySQL, on which the wait for
// what the client says would be for nothing.
var serversSpeakFirst = []uint16{21, 25, 110, 143, 587, 3306}

// named judges a connection that says its name in a TLS handshake.
func (n judge) named(ctx context.Context, st *standing, r gateway.Request) gateway.Decision {
	a := egress(r, "tcp", r.Name)
	a.Unknown |= policy.RequestField
	if r.Unproven && !st.sees(r.Name) {
		a.Host, a.Unknown = "", a.Unknown|policy.HostField // rules are not about what anybody may say
	}
	if d, refused := n.below(st, r, a); refused {
		return d
	}
	v := n.setFor(st, r).Judge(a)
	if a.Unknown&policy.HostField != 0 && v.Decision == "" { // rules changed since
		v.Decision, v.Reason = policy.Deny, "the name that the connection says was not checked against its address: connect again"
	}
	// Who says no name at the address of such a host is served as if it had said that one.
	seen := st.sees(r.Name) || r.Name == "" && st.sees(r.Names...)
	if v.Decision == "" || v.Decision != policy.Deny && seen {
		if n.guard.config.Interceptor == nil {
			return n.refuse(st, r, a, outcome{verdict: v, reason: errNoInterceptor.Error(), id: newID()})
		}
		return gateway.Decision{Verdict: gateway.Inspect, Reason: "the requests of this connection have to be seen"}
	}
	return n.finish(ctx, st, r, a, v)
}

// opaque judges a connection that says no name. On the ports of the web it could have
// said one. A name that its address was looked up by counts elsewhere; of one that was
// asked about before any address was, there is no doubt.
func (n judge) opaque(ctx context.Context, st *standing, r gateway.Request) gateway.Decision {
	names := append(slices.Clone(r.Names), "")
	switch {
	case r.Held:
		names = []string{r.Name}
	case r.Destination.Port() == 80 || r.Destination.Port() == 443:
		names = []string{""}
	}
	var best policy.Action
	var verdict policy.Verdict
	for i, name := range names {
		a := egress(r, "tcp", name)
		a.Unknown &^= policy.RequestField
		v := n.setFor(st, r).Judge(a)
		if i == 0 || milder(v.Decision, verdict.Decision) {
			best, verdict = a, v
		}
	}
	if d, refused := n.below(st, r, best); refused {
		return d
	}
	return n.finish(ctx, st, r, best, verdict)
}

// milder tells whether a is less strict than b; no decision is stricter than any.
func milder(a, b policy.Decision) bool {
	order := []policy.Decision{policy.Allow, policy.Ask, policy.Deny, ""}
	return slices.Index(order, a) < slices.Index(order, b)
}

// flow judges datagrams. HTTP/3 is refused where requests to any host have to be seen:
// clients fall back to TCP.
func (n judge) flow(ctx context.Context, st *standing, r gateway.Request) gateway.Decision {
	names := append(slices.Clone(r.Names), "")
	if r.Held {
		names = []string{r.Name}
	}
	var best policy.Action
	var verdict policy.Verdict
	for i, name := range names {
		a := egress(r, "udp", name)
		v := n.setFor(st, r).Judge(a)
		if i == 0 || milder(v.Decision, verdict.Decision) {
			best, verdict = a, v
		}
	}
	if d, refused := n.below(st, r, best); refused {
		return d
	}
	if r.Destination.Port() == 443 && st.hasHosts() { // which one it is for cannot be seen
		verdict.Decision, verdict.Reason = policy.Deny, "requests to some hosts have to be seen, and HTTP/3 hides them: use HTTP/2 or HTTP/1.1"
	}
	return n.finish(ctx, st, r, best, verdict)
}

// request judges one HTTP request.
func (n judge) request(ctx context.Context, st *standing, r gateway.Request) gateway.Decision {
	a := egress(r, "tcp", r.Name)
	a.Method, a.Path = r.Method, r.Path
	if d, refused := n.below(st, r, a); refused {
		return d
	}
	set := n.setFor(st, r)
	// Where the rules do not care what is requested, a person is asked about the host:
	// once for all its pages.
	host := a
	host.Method, host.Path, host.Unknown = "", "", host.Unknown|policy.RequestField
	if v := set.Judge(host); v.Decision == policy.Ask {
		return n.finish(ctx, st, r, host, v)
	}
	a, v := strictestPath(set, a, r.OtherPaths)
	return n.finish(ctx, st, r, a, v)
}

// strictestPath judges a request as each of the paths that its server may take it for,
// and returns it as the one that is judged most strictly.
func strictestPath(set policy.Set, a policy.Action, others []string) (policy.Action, policy.Verdict) {
	v := set.Judge(a)
	for _, p := range others {
		other := a
		other.Path = p
		if judged := set.Judge(other); milder(v.Decision, judged.Decision) {
			a, v = other, judged
		}
	}
	return a, v
}

// finish settles a verdict on something of which all is known that will be. Should the
// tables still want more, it is refused.
func (n judge) finish(ctx context.Context, st *standing, r gateway.Request, a policy.Action, v policy.Verdict) gateway.Decision {
	if v.Decision == "" {
		if v.Needs == policy.AddressField { // it is judged once the name has one, and asked about before
			v.Decision = policy.Allow
			if slices.Contains(v.Possible, policy.Ask) {
				v.Decision = policy.Ask
			}
		} else {
			v.Decision, v.Reason = policy.Deny, "a rule asks for more than this connection shows: "+v.Reason
		}
	}
	if v.Decision == policy.Ask && a.Path != "" {
		a.Query = n.guard.digest("query", r.Query)
	}
	o := n.guard.settle(ctx, st.owner.Subject, a, v, func() policy.Verdict {
		if now := n.standing(); now != nil && now.broken == "" {
			var others []string
			if a.Path != "" {
				others = append(slices.Clone(r.OtherPaths), r.Path)
			}
			_, v := strictestPath(n.setFor(now, r), a, others)
			return v
		}
		return v // whoever asks is about to be gone
	}, r.Again)
	if !o.allowed {
		return n.refuse(st, r, a, o)
	}
	return n.allow(st, r, a, o)
}

func (n judge) allow(st *standing, r gateway.Request, a policy.Action, o outcome) gateway.Decision {
	if !r.Again {
		n.note(st, r, a, o)
	}
	reason := o.reason
	if reason == "" {
		reason = "nothing forbids it"
	}
	return gateway.Decision{Verdict: gateway.Allow, Reason: reason, Rule: o.verdict.Rule, ID: o.id}
}

// deniedByRule is the reason of a refusal where the rule has none.
const deniedByRule = "a rule denies it"

// refuse tells everybody who should know.
func (n judge) refuse(st *standing, r gateway.Request, a policy.Action, o outcome) gateway.Decision {
	o.reason = cmp.Or(o.reason, deniedByRule)
	n.note(st, r, a, o)
	return n.tellRefusal(st, a, o)
}

// tellRefusal tells all but the audit log.
func (n judge) tellRefusal(st *standing, a policy.Action, o outcome) gateway.Decision {
	refusal := o.refusal(a)
	st.narrow.refusals.Add(refusal)
	st.owner.Log(true, fmt.Sprintf("refused %s: %s (%s)", refusal.What, o.reason, o.id))
	if n.guard.config.OnRefusal != nil {
		n.guard.config.OnRefusal(st.owner.Subject, refusal)
	}
	return gateway.Decision{Reason: o.reason, Rule: o.verdict.Rule, ID: o.id, Readable: true,
		Ask: "see http://" + gateway.InsideName + "/refusals/" + o.id + " for what can be done about it",
	}
}

// gatewayRule is what refused in place of a rule: the gateway found that a connection is
// not what it says, or cannot be read.
const gatewayRule = "gateway"

// Refused implements gateway.Refuser.
func (n judge) Refused(r gateway.Request, reason string) gateway.Decision {
	st := n.standing()
	if st == nil {
		return gateway.Decision{Reason: reason}
	}
	protocol := "tcp"
	if r.Protocol == gateway.UDP {
		protocol = "udp"
	}
	a := egress(r, protocol, r.Name)
	a.Method, a.Path = r.Method, r.Path
	verdict := policy.Verdict{Decision: policy.Deny, Rule: gatewayRule, Scope: policy.Scope{Kind: policy.ServerScope}}
	return n.refuse(st, r, a, outcome{verdict: verdict, reason: reason, id: newID()})
}

// note writes a decision into the audit log, which folds what is too much of one sandbox.
func (n judge) note(st *standing, r gateway.Request, a policy.Action, o outcome) {
	n.guard.record(st.owner.Subject, audit.Network, "sandbox:"+st.owner.SandboxID, whatOf(r.Protocol), a, o)
}

func whatOf(p gateway.Protocol) string {
	switch p {
	case gateway.DNS:
		return "look up"
	case gateway.HTTP:
		return "request"
	case gateway.UDP:
		return "send"
	}
	return "connect"
}
