package guard

import (
	"context"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/guard/inside"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Page is what code in the sandbox of this network sees at http://tombolo.internal/.
// ca is the certificate of who ends TLS, PEM; it may be empty.
func (n *Network) Page(ca []byte) http.Handler { return inside.New(&page{n, ca}) }

// page implements inside.Sandbox.
type page struct {
	network *Network
	ca      []byte
}

// maxHolds is how many holds are looked through for those that code inside may see.
const maxHolds = 200

func (p *page) ID() string {
	if o := p.network.owner(); o != nil {
		return o.SandboxID
	}
	return ""
}

func (p *page) Refusals() *inside.Refusals { return &p.network.guard.narrowOf(p.ID()).refusals }

func (p *page) Holds(ctx context.Context) ([]approval.Hold, error) {
	desk := p.network.guard.config.Desk
	if desk == nil {
		return nil, nil
	}
	return desk.List(ctx, approval.Filter{SandboxID: p.ID(), Most: maxHolds})
}

func (p *page) Propose(ctx context.Context, id string, proposal approval.Proposal) (approval.Hold, error) {
	desk := p.network.guard.config.Desk
	if desk == nil {
		return approval.Hold{}, approval.ErrNotFound
	}
	return desk.Propose(ctx, id, proposal)
}

func (p *page) Rules() (tables []policy.Table) {
	st := p.network.standing()
	if st == nil || st.broken != "" {
		return nil
	}
	for _, compiled := range p.network.set(st) {
		tables = append(tables, compiled.Table())
	}
	return tables
}

func (p *page) CA() []byte { return p.ca }

// Explain tells what all tables say of an action of a sandbox, which need not be there.
func (g *Guard) Explain(info sandbox.Info, a policy.Action) (policy.Verdict, []policy.TableSay) {
	set := g.book.For(info.Subject())
	if info.ID != "" {
		st := g.stand(&sandbox.Owner{Subject: info.Subject(), Network: info.Network, Rules: info.Rules})
		set = append(set, st.own...)
	}
	return set.Judge(a), set.Explain(a)
}

// Destinations is what the network of a sandbox had to do with each place outside, the
// busiest first; nothing of one that does not run in this process.
func (g *Guard) Destinations(sandboxID string) []gateway.Destination {
	if n := g.networkOf(sandboxID); n != nil {
		return n.Network.Destinations()
	}
	return nil
}

func (g *Guard) networkOf(sandboxID string) *Network {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n := range g.networks {
		if o := n.owner(); o != nil && o.SandboxID == sandboxID {
			return n
		}
	}
	return nil
}
