// Package guard is where every action of a sandbox, and of those who use it, is decided.
// It joins the rules (policy), the people who are asked (approval), the secrets and
// the audit log, and stands at the choke points: it is the policy of every sandbox's
// gateway, it wraps the manager for what dialects ask of it, and the edge asks it about
// requests into sandboxes. It owns no rule, no hold and no record itself.
package guard

import (
	"context"
	"log/slog"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Config is what a guard works with.
type Config struct {
	Log *slog.Logger
}

// Guard decides. Safe for concurrent use.
type Guard struct {
	config Config
	public *gateway.Public
}

// New returns a guard.
func New(c Config) *Guard { return &Guard{config: c, public: gateway.NewPublic()} }

// Network is a gateway whose policy is the guard's.
type Network struct {
	*gateway.Network
	guard *Guard
	owner func() *sandbox.Owner
}

// OpenNetwork makes the network of a sandbox, or adopts it.
func (g *Guard) OpenNetwork(ctx context.Context, c sandbox.NetworkConfig) (*Network, error) {
	n := &Network{guard: g, owner: c.Owner}
	open := gateway.New
	if c.Adopt {
		open = gateway.Adopt
	}
	var err error
	n.Network, err = open(ctx, gateway.Config{Dir: c.Dir, Log: g.config.Log, Policy: judge{n}, OnDecision: n.note})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// OwnerChanged implements sandbox.Network.
func (n *Network) OwnerChanged() { go n.Recheck(context.Background()) }

// note writes refusals into the sandbox's log.
func (n *Network) note(e gateway.Event) {
	o := n.owner()
	if e.Decision.Allowed() || o == nil {
		return
	}
	what := string(e.Request.Protocol) + " " + e.Request.Destination.String()
	if e.Request.Name != "" {
		what += " (" + e.Request.Name + ")"
	}
	o.Log(true, "refused "+what+": "+e.Decision.Reason)
}

// judge is the policy of a network.
type judge struct{ *Network }

// Decide implements gateway.Policy.
func (n judge) Decide(ctx context.Context, r gateway.Request) gateway.Decision {
	o := n.owner()
	switch {
	case o == nil:
		return gateway.Decision{Reason: "no sandbox has this network yet"}
	case o.Network.DenyInternet:
		return gateway.DenyAll{}.Decide(ctx, r)
	}
	return n.guard.public.Decide(ctx, r)
}
