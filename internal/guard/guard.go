// Package guard is where every action of a sandbox, and of those who use it, is decided.
// It joins the rules (policy), the people who are asked (approval), the secrets and
// the audit log, and stands at the choke points: it is the policy of every sandbox's
// gateway, it wraps the manager for what dialects ask of it, and the edge asks it about
// requests into sandboxes. It owns no rule, no hold and no secret itself.
package guard

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Desk is where people are asked; *approval.Desk is one.
type Desk interface {
	// Granted finds a grant that turns ask into allow for an action, and uses it up
	// where it is for once.
	Granted(s policy.Subject, a policy.Action, hash string) (approval.Grant, bool)
	// CouldGrant tells whether Granted finds one, and uses nothing up.
	CouldGrant(s policy.Subject, a policy.Action) bool
	// Ask waits until the action is approved, denied, or nobody answered in time.
	Ask(ctx context.Context, s policy.Subject, a policy.Action, v policy.Verdict, patience time.Duration) (approval.Hold, error)
	// Withdraw ends a question that rules decided meanwhile.
	Withdraw(ctx context.Context, id string) (approval.Hold, error)
	// Forget drops what belongs to a sandbox that has ended.
	Forget(sandboxID string)
	// List and Propose are for code inside, see [Network.Page].
	List(ctx context.Context, f approval.Filter) ([]approval.Hold, error)
	Propose(ctx context.Context, id string, p approval.Proposal) (approval.Hold, error)
}

// Config is what a guard works with.
type Config struct {
	Store store.Templates
	// Tables reads the tables of all scopes but those of sandboxes; nil has none.
	Tables func(context.Context) ([]policy.Table, error)
	Audit  audit.Appender
	// Desk asks people. Nil is where nobody can be asked: what rules say to ask about
	// is denied.
	Desk Desk
	// Vault has the secrets that are put into requests; nil has none.
	Vault *secret.Vault
	// Interceptor ends TLS where requests must be seen. Nil refuses what needs it.
	Interceptor gateway.Interceptor
	// Inside serves what code in a sandbox may ask about itself; nil is nothing.
	Inside func(*Network) http.Handler
	// OnRefusal is told of everything that was refused to a sandbox. It must not block.
	OnRefusal func(policy.Subject, Refusal)
	// OnStray is told of placeholders sent where their secrets are not bound. It must not
	// block.
	OnStray func(policy.Subject, Stray)
	// Actor tells who makes the request of a context, "key:<id>" or "owner"; empty when
	// it is not known. Nil never knows.
	Actor func(context.Context) string
	// Proxy is what connections out of all sandboxes go through that have none of their
	// own; nil is none.
	Proxy *sandbox.EgressProxy
	// DigestKey makes digests of what people may not read, so that nobody finds it by
	// guessing. With another key what was approved by such a digest is asked about again. Nil is a random one.
	DigestKey []byte
	Log       *slog.Logger
}

// Guard decides. Safe for concurrent use.
type Guard struct {
	config    Config
	public    *gateway.Public
	resolvers *gateway.Resolvers // of all networks
	book      policy.Book
	// opened says what of addresses that are not public may be reached: it denies all but what
	// rules of the server allow that name such addresses.
	opened atomic.Pointer[policy.Compiled]

	mu       sync.Mutex
	networks map[*Network]struct{}
	unfollow func()             // while there are networks, the host's addresses are followed
	narrow   map[string]*narrow // of sandboxes, by id
	ended    hashes             // the latest sandboxes that have
	changed  chan struct{}      // closed when rules change, and replaced
}

// New returns a guard with the tables that the store has.
func New(ctx context.Context, c Config) (*Guard, error) {
	if c.DigestKey == nil {
		c.DigestKey = make([]byte, sha256.Size)
		rand.Read(c.DigestKey) // never fails
	}
	g := &Guard{config: c, public: gateway.NewPublic(), resolvers: gateway.NewResolvers(), networks: map[*Network]struct{}{}, unfollow: func() {}, narrow: map[string]*narrow{}, changed: make(chan struct{})}
	return g, g.Reload(ctx)
}

// Reload reads the tables anew. They hold at once, for open connections too. A table
// that is not valid any more, as after an upgrade, is an error and leaves all as it was.
func (g *Guard) Reload(ctx context.Context) error {
	var tables []policy.Table
	if g.config.Tables != nil {
		var err error
		if tables, err = g.config.Tables(ctx); err != nil {
			return err
		}
	}
	if err := g.book.Replace(tables); err != nil {
		return err
	}
	opened, err := policy.Compile(g.openedBy(tables))
	if err != nil {
		return err
	}
	g.opened.Store(opened)
	g.tellWaiting()
	g.Recheck()
	return nil
}

// tellWaiting has what waits for a person be judged by the rules there are now.
func (g *Guard) tellWaiting() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.changed)
	g.changed = make(chan struct{})
}

// rulesChange are closed when rules for many change, and those of one sandbox.
func (g *Guard) rulesChange(sandboxID string) (rules, own <-chan struct{}) {
	kept := g.narrowOf(sandboxID)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed, kept.changed
}

// Recheck has all open connections judged again, as after a grant was taken back.
func (g *Guard) Recheck() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n := range g.networks {
		n.recheck()
	}
}

// openedBy is the table of what rules of the server allow at addresses that are not
// public. Only a rule that names them does, for the ports and hosts that it is about: one for
// all addresses opens none of these. What is never opened is loopback and link-local, and
// where clouds keep metadata (see floor).
func (g *Guard) openedBy(tables []policy.Table) policy.Table {
	opened := policy.Table{
		Scope:   policy.Scope{Kind: policy.ServerScope},
		Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Deny},
	}
	for _, table := range tables {
		if table.Scope.Kind != policy.ServerScope {
			continue
		}
		for _, rule := range table.Rules {
			if rule.Kind != policy.Egress || rule.Decision != policy.Allow {
				continue
			}
			rule.Matches, rule.MatchesNot = nil, nil // they are of the whole rule
			if rule.Match = g.opening(rule.Match); len(rule.Match) > 0 {
				opened.Rules = append(opened.Rules, rule)
			}
		}
	}
	return opened
}

// opening is what of some matches is about addresses that may be opened.
func (g *Guard) opening(matches []policy.Match) (opening []policy.Match) {
	for _, match := range matches {
		var addresses []string
		for _, text := range match.Address {
			prefix, err := policy.ParsePrefix(text)
			if err == nil && g.public.Refuses(prefix.Addr()) != "" && canOpen(prefix) {
				addresses = append(addresses, text)
			}
		}
		if match.Address = addresses; len(addresses) > 0 {
			opening = append(opening, match)
		}
	}
	return opening
}

// canOpen tells whether a range may be opened: it must be within what is private, so
// that nobody opens more than the rule seems to say.
func canOpen(prefix netip.Prefix) bool {
	for _, private := range openable {
		if private.Contains(prefix.Addr()) && prefix.Bits() >= private.Bits() {
			return true
		}
	}
	return prefix.IsSingleIP() && !prefix.Addr().IsLoopback() && !prefix.Addr().IsLinkLocalUnicast() && !prefix.Addr().IsUnspecified() && !prefix.Addr().IsMulticast()
}

var openable = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("198.18.0.0/15"),
}

// floor says why no rule can allow an action, or "": its address is not public, and no rule
// of the server that names it may be about it.
func (g *Guard) floor(a policy.Action) string {
	if why := gateway.Metadata(a.Address); why != "" {
		return why
	}
	why := g.public.Refuses(a.Address)
	if why == "" || (policy.Set{g.opened.Load()}).Judge(a).Decision != policy.Deny {
		return ""
	}
	return why
}

// floorOfProxy is floor for a connection to a proxy; port 0 is any.
func (g *Guard) floorOfProxy(addr netip.Addr, port uint16) string {
	a := policy.Action{Kind: policy.Egress, Protocol: "tcp", Address: addr, Port: port, Unknown: policy.HostField | policy.RequestField}
	if port == 0 {
		a.Unknown |= policy.PortField
	}
	return g.floor(a)
}
