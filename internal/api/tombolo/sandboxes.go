package tombolo

import (
	"net"
	"net/netip"
	"slices"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/guard/inside"
	"github.com/tombolo-dev/tombolo/internal/policy"
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

// SandboxRules are the rules of a sandbox's own scope.
type SandboxRules struct {
	Default map[policy.Kind]policy.Decision `json:"default,omitempty"`
	Rules   []policy.Rule                   `json:"rules"`
}

// NetworkLimits are the options on what goes out that only this API has. The others
// (what is allowed, denied, and put into headers) stay as they are.
type NetworkLimits struct {
	BandwidthOut int64                `json:"bandwidthOut,omitempty"` // bytes a second; 0 is no limit
	BandwidthIn  int64                `json:"bandwidthIn,omitempty"`
	Connections  int                  `json:"connections,omitempty"` // open at once; 0 is the server's
	Proxy        *sandbox.EgressProxy `json:"proxy,omitempty"`
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
	return encodeRules(info), nil
}

func encodeRules(info sandbox.Info) SandboxRules {
	return SandboxRules{Default: info.Rules.Default, Rules: append([]policy.Rule{}, info.Rules.Rules...)}
}

func (a *API) putRules(c *call) (any, error) {
	info, err := a.sandbox(c)
	if err != nil {
		return nil, err
	}
	var body SandboxRules
	if err := decode(c.w, c.r, &body); err != nil {
		return nil, err
	}
	table := policy.Table{Scope: policy.Scope{Kind: policy.SandboxScope, ID: info.ID}, Default: body.Default, Rules: body.Rules}
	if _, err := policy.Compile(table); err != nil {
		return nil, invalid("%s", err)
	}
	table.Scope = policy.Scope{}
	if info, err = a.Sandboxes.SetRules(c.context(), info.ID, table); err != nil {
		return nil, err
	}
	return encodeRules(info), nil
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
	var body NetworkLimits
	if err := decode(c.w, c.r, &body); err != nil {
		return nil, err
	}
	if err := body.check(); err != nil {
		return nil, err
	}
	options := info.Network
	options.BandwidthOut, options.BandwidthIn, options.Connections, options.Proxy = body.BandwidthOut, body.BandwidthIn, body.Connections, body.Proxy
	if info, err = a.Sandboxes.SetNetwork(c.context(), info.ID, options); err != nil {
		return nil, err
	}
	return withoutPassword(info.Network), nil
}

// Limits of options.
const (
	minBandwidth   = 1 << 10 // bytes a second; less than a packet now and then is no connection
	maxConnections = 1 << 16
	maxProxyText   = 255 // bytes of a user name or password (RFC 1929)
	maxProxyCA     = 64 << 10
)

func (l NetworkLimits) check() error {
	for name, bandwidth := range map[string]int64{"bandwidthOut": l.BandwidthOut, "bandwidthIn": l.BandwidthIn} {
		if bandwidth != 0 && bandwidth < minBandwidth {
			return invalid("%s must be 0, for no limit, or %d bytes a second at least", name, minBandwidth)
		}
	}
	if l.Connections < 0 || l.Connections > maxConnections {
		return invalid("connections must be from 0, for the server's limit, to %d", maxConnections)
	}
	if l.Proxy == nil {
		return nil
	}
	host, port, err := net.SplitHostPort(l.Proxy.Address)
	switch {
	case err != nil || host == "" || port == "":
		return invalid("proxy.address must be host:port")
	case !slices.Contains([]string{"socks5", "http"}, l.Proxy.Kind):
		return invalid("proxy.kind must be socks5 or http")
	case len(l.Proxy.Username) > maxProxyText || len(l.Proxy.Password) > maxProxyText:
		return invalid("username and password of the proxy may have %d bytes each", maxProxyText)
	case len(l.Proxy.CACert) > maxProxyCA:
		return invalid("proxy.caCert may have %d bytes", maxProxyCA)
	}
	return nil
}
