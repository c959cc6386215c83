// Package guard is where every action of a sandbox, and of those who use it, is decided.
// It joins the rules (policy), the people who are asked (approval), the secrets and
// the audit log, and stands at the choke points: it is the policy of every sandbox's
// gateway, it wraps the manager for what dialects ask of it, and the edge asks it about
// requests into sandboxes. It owns no rule, no hold and no secret itself.
package guard

import (
	"context"
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
	Log   *slog.Logger
}

// Guard decides. Safe for concurrent use.
type Guard struct {
	config Config
	public *gateway.Public
	book   policy.Book
	// opened are addresses that are not public and that rules of the server allow by name.
	opened atomic.Pointer[[]netip.Prefix]

	mu       sync.Mutex
	networks map[*Network]struct{}
	narrow   map[string]*narrow // of sandboxes, by id
}

// New returns a guard with the tables that the store has.
func New(ctx context.Context, c Config) (*Guard, error) {
	g := &Guard{config: c, public: gateway.NewPublic(), networks: map[*Network]struct{}{}, narrow: map[string]*narrow{}}
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
	opened := g.openedBy(tables)
	g.opened.Store(&opened)
	g.Recheck()
	return nil
}

// Book has the tables of all scopes but those of sandboxes.
func (g *Guard) Book() *policy.Book { return &g.book }

// Recheck has all open connections judged again, as after a grant was taken back.
func (g *Guard) Recheck() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n := range g.networks {
		n.recheck()
	}
}

// openedBy finds the addresses that rules of the server allow although they are not
// public. Only a rule that names them does: one for all addresses opens none of these.
// What is never opened is loopback and link-local, where clouds keep metadata.
func (g *Guard) openedBy(tables []policy.Table) []netip.Prefix {
	var opened []netip.Prefix
	for _, table := range tables {
		if table.Scope.Kind != policy.ServerScope {
			continue
		}
		for _, rule := range table.Rules {
			if rule.Kind != policy.Egress || rule.Decision != policy.Allow {
				continue
			}
			for _, match := range rule.Match {
				for _, text := range match.Address {
					prefix, err := policy.ParsePrefix(text)
					if err == nil && g.public.Refuses(prefix.Addr()) != "" && canOpen(prefix) {
						opened = append(opened, prefix.Masked())
					}
				}
			}
		}
	}
	return opened
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

// floor says why no rule can allow an address, or "": it is not public, and no rule
// of the server names it.
func (g *Guard) floor(addr netip.Addr) string {
	why := g.public.Refuses(addr)
	if why == "" {
		return ""
	}
	for _, prefix := range *g.opened.Load() {
		if prefix.Contains(addr) {
			return ""
		}
	}
	return why
}
