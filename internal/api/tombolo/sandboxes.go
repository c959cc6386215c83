package tombolo

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/tombolo-dev/tombolo/internal/api/options"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/guard/inside"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Networks tells what went out of sandboxes.
type Networks interface {
	// Destinations of the sandbox's run, the busiest first.
	Destinations(sandboxID string) []Destination
	// Refusals to the sandbox, the latest first.
	Refusals(sandboxID string) []inside.Refusal
}

// Destination is what a sandbox had to do with one place outside. All that came when many
// were known already is one without name and address.
type Destination struct {
	Name        string     `json:"name,omitempty"`
	Address     netip.Addr `json:"address,omitzero"` // where it was not looked up by a name
	Port        uint16     `json:"port,omitempty"`
	Protocol    string     `json:"protocol,omitempty"` // tcp or udp
	Connections uint64     `json:"connections"`
	Denied      uint64     `json:"denied"`
	BytesOut    uint64     `json:"bytesOut"`
	BytesIn     uint64     `json:"bytesIn"`
}

// Network is what goes out of a sandbox.
type Network struct {
	Options      sandbox.NetworkOptions `json:"options"` // without the proxy's password
	Destinations []Destination          `json:"destinations"`
	Refusals     []inside.Refusal       `json:"refusals"`
	Holds        []approval.Hold        `json:"holds"` // pending
}

func (a *API) sandboxRoutes() []route {
	own := []store.Role{store.RoleSandboxes}
	return []route{
		{"GET", "/sandboxes/{id}/rules", []store.Role{store.RoleSandboxes, store.RolePolicy}, a.Sandboxes, a.getRules},
		{"PUT", "/sandboxes/{id}/rules", own, a.Sandboxes, a.putRules},
		{"GET", "/sandboxes/{id}/network", own, a.Networks, a.getNetwork},
		{"PUT", "/sandboxes/{id}/network", own, a.Sandboxes, a.putNetwork},
	}
}

// sandbox is the one that the path names. One that is not the caller's is not there.
func (a *API) sandbox(c *call) (sandbox.Info, error) {
	id := c.r.PathValue("id")
	info, err := a.Sandboxes.Get(id)
	if err != nil || !c.auth.Owns(info.KeyID) {
		return sandbox.Info{}, notFound("there is no sandbox %.60q", id)
	}
	return info, nil
}

func (a *API) getRules(c *call) (any, error) {
	info, err := a.Sandboxes.Get(c.r.PathValue("id"))
	if err != nil || !c.auth.Owns(info.KeyID) && !c.auth.Has(store.RolePolicy) {
		return nil, notFound("there is no sandbox %.60q", c.r.PathValue("id"))
	}
	return options.OfTable(info.Rules), nil
}

func (a *API) putRules(c *call) (any, error) {
	info, err := a.sandbox(c)
	if err != nil {
		return nil, err
	}
	var body options.Rules
	if err := decode(c.w, c.r, &body); err != nil {
		return nil, err
	}
	table, err := body.Table()
	if err != nil {
		return nil, err
	}
	if info, err = a.Sandboxes.SetRules(c.context(), info.ID, table); err != nil {
		return nil, err
	}
	return options.OfTable(info.Rules), nil
}

func (a *API) getNetwork(c *call) (any, error) {
	info, err := a.sandbox(c)
	if err != nil {
		return nil, err
	}
	n := Network{
		Options:      withoutPassword(info.Network),
		Destinations: append([]Destination{}, a.Networks.Destinations(info.ID)...),
		Refusals:     append([]inside.Refusal{}, a.Networks.Refusals(info.ID)...),
		Holds:        []approval.Hold{},
	}
	if a.Desk == nil {
		return n, nil
	}
	n.Holds, err = a.Desk.List(c.context(), approval.Filter{SandboxID: info.ID, States: []approval.State{approval.Pending}})
	return n, err
}

// withoutPassword is what may be read back of options.
func withoutPassword(o sandbox.NetworkOptions) sandbox.NetworkOptions {
	if o.Proxy != nil {
		proxy := *o.Proxy
		proxy.Password = ""
		o.Proxy = &proxy
	}
	return o
}

func (a *API) putNetwork(c *call) (any, error) {
	info, err := a.sandbox(c)
	if err != nil {
		return nil, err
	}
	var body options.Network
	if err := decode(c.w, c.r, &body); err != nil {
		return nil, err
	}
	change, err := body.Change()
	if err != nil {
		return nil, err
	}
	if info, err = a.Sandboxes.SetNetwork(c.context(), info.ID, change); err != nil {
		return nil, err
	}
	return withoutPassword(info.Network), nil
}

// Network tells what goes out of a sandbox.
func (c *Client) Network(ctx context.Context, sandboxID string) (n Network, err error) {
	return n, c.do(ctx, http.MethodGet, "/sandboxes/"+url.PathEscape(sandboxID)+"/network", nil, &n)
}
