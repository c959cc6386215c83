package e2b

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// allTraffic is what clients call ALL_TRAFFIC.
const allTraffic = "0.0.0.0/0"

// Limits of the network options.
const (
	maxNetworkEntries = 1000 // of allowOut and of denyOut
	maxDNSServers     = 10
	maxHTTPSPorts     = 64
)

// networkOptions are those of create, by name. An option is not there, null or
// given; one that is not known is refused, since most of them restrict something.
type networkOptions map[string]json.RawMessage

// egressOptions are those that say what goes out: of create and of an update.
type egressOptions struct {
	AllowOut    []string                 `json:"allowOut"`
	DenyOut     []string                 `json:"denyOut"`
	DNSServers  []string                 `json:"dnsServers"`
	Rules       map[string][]networkRule `json:"rules"`
	EgressProxy *egressProxy             `json:"egressProxy"`
}

type networkRule struct {
	Transform *secret.Transform `json:"transform,omitempty"`
}

// egressProxy as it is sent; answers leave out what is secret.
type egressProxy struct {
	Address  string          `json:"address"`
	Username *string         `json:"username,omitempty"`
	Password *string         `json:"password,omitempty"`
	TLS      *egressProxyTLS `json:"tls,omitempty"`
}

type egressProxyTLS struct {
	ServerName string `json:"serverName,omitempty"`
	CACert     string `json:"caCert,omitempty"`
}

// ingressOptions are those that say what comes in: of create only.
type ingressOptions struct {
	AllowPublicTraffic *bool    `json:"allowPublicTraffic"`
	MaskRequestHost    *string  `json:"maskRequestHost"`
	HTTPSPorts         []uint16 `json:"httpsPorts"`
}

// createOptions are all options of create.
type createOptions struct {
	egressOptions
	ingressOptions
}

// parse reads the options of a create; denyInternet is allow_internet_access: false.
func (options networkOptions) parse(denyInternet bool) (sandbox.NetworkOptions, error) {
	given := networkOptions{}
	for name, value := range options {
		if name == "allow_internet_access" || name == "allowInternetAccess" {
			if v := string(value); v != "true" && v != "null" {
				return sandbox.NetworkOptions{}, invalid("network.%s is no option of create: give allow_internet_access beside network", name)
			}
			continue
		}
		given[name] = value
	}
	var body createOptions
	if err := given.decode(&body); err != nil {
		return sandbox.NetworkOptions{}, err
	}
	parsed, err := body.egressOptions.parse(denyInternet)
	if err != nil {
		return sandbox.NetworkOptions{}, err
	}
	return parsed, body.ingressOptions.parse(&parsed)
}

// decode is strict: what is not known and not empty is refused.
func (options networkOptions) decode(into any) error {
	known := networkOptions{}
	for name, value := range options {
		if given(value) || strings.TrimSpace(string(value)) == "[]" {
			known[name] = value
		}
	}
	raw, err := json.Marshal(known)
	if err != nil {
		return invalid("network: %s", err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
			return invalid("network option %s is not supported by this server: leave it out", name)
		}
		return invalid("network.%s", explainJSON(err, len(raw)))
	}
	return nil
}

func (o ingressOptions) parse(into *sandbox.NetworkOptions) error {
	if o.AllowPublicTraffic != nil {
		into.PrivateTraffic = !*o.AllowPublicTraffic
	}
	if o.MaskRequestHost != nil {
		into.MaskRequestHost = *o.MaskRequestHost
	}
	if len(o.HTTPSPorts) > maxHTTPSPorts {
		return invalid("network.httpsPorts has %d entries, at most %d are possible", len(o.HTTPSPorts), maxHTTPSPorts)
	}
	for _, port := range o.HTTPSPorts {
		if port == 0 || port == hostapi.AgentPort || port == hostapi.HostPort {
			return invalid("network.httpsPorts cannot hold %d", port)
		}
	}
	into.HTTPSPorts = o.HTTPSPorts
	return sandbox.CheckMaskHost(into.MaskRequestHost)
}

// parse checks what goes out. denyInternet is allow_internet_access: false.
func (o egressOptions) parse(denyInternet bool) (sandbox.NetworkOptions, error) {
	parsed := sandbox.NetworkOptions{DenyInternet: denyInternet, AllowOut: o.AllowOut, DenyOut: o.DenyOut, DNSServers: o.DNSServers}
	for name, list := range map[string][]string{"allowOut": o.AllowOut, "denyOut": o.DenyOut} {
		if len(list) > maxNetworkEntries {
			return parsed, invalid("network.%s has %d entries, at most %d are possible", name, len(list), maxNetworkEntries)
		}
	}
	if len(o.DNSServers) > maxDNSServers {
		return parsed, invalid("network.dnsServers has %d entries, at most %d are possible", len(o.DNSServers), maxDNSServers)
	}
	for _, server := range o.DNSServers {
		if addr, err := netip.ParseAddr(server); err != nil || !addr.Is4() {
			return parsed, invalid("network.dnsServers: %q is no IPv4 address", server)
		}
	}
	// An empty list of what is allowed allows nothing; E2B's rule is that it makes no
	// exception to denyOut, which is the same only where that denies everything.
	if o.AllowOut != nil && len(o.AllowOut) == 0 && !denyInternet && !slices.Contains(o.DenyOut, allTraffic) {
		return parsed, invalid("network.allowOut is empty and network.denyOut does not deny everything: leave allowOut out for the open internet, or deny everything with allow_internet_access: false")
	}
	if slices.Equal(o.DenyOut, []string{allTraffic}) && len(o.AllowOut) == 0 {
		parsed.DenyInternet, parsed.DenyOut = true, nil
	}
	if _, err := policy.FromNetwork(parsed.Policy()); err != nil {
		return parsed, invalid("network: %s", err)
	}
	parsed.Proxy = o.EgressProxy.parse()
	if err := parsed.Proxy.Check(); err != nil {
		return parsed, invalid("network.egressProxy: %s", err)
	}
	var err error
	parsed.Headers, err = parseRules(o.Rules)
	return parsed, err
}

func parseRules(rules map[string][]networkRule) ([]sandbox.HostHeaders, error) {
	transforms := map[string]secret.Transform{}
	for host, list := range rules {
		if len(list) > 1 {
			return nil, invalid("network.rules: %q has %d rules, at most one is possible", host, len(list))
		}
		transforms[host] = secret.Transform{}
		if len(list) == 1 && list[0].Transform != nil {
			transforms[host] = *list[0].Transform
		}
	}
	transforms, err := secret.NormalTransforms(transforms)
	if err != nil {
		return nil, invalid("network.%s", err)
	}
	var parsed []sandbox.HostHeaders
	for _, host := range slices.Sorted(maps.Keys(transforms)) {
		if headers := transforms[host].Headers; len(headers) > 0 {
			parsed = append(parsed, sandbox.HostHeaders{Host: host, Headers: headers})
		}
	}
	return parsed, nil
}

func (p *egressProxy) parse() *sandbox.EgressProxy {
	if p == nil {
		return nil
	}
	parsed := &sandbox.EgressProxy{Address: p.Address, Kind: "socks5"}
	if p.Username != nil {
		parsed.Username = *p.Username
	}
	if p.Password != nil {
		parsed.Password = *p.Password
	}
	if p.TLS != nil {
		parsed.TLS, parsed.ServerName, parsed.CACert = true, p.TLS.ServerName, p.TLS.CACert
	}
	return parsed
}

// setNetwork replaces what a sandbox may reach; what is left out is cleared.
func (a *api) setNetwork(w http.ResponseWriter, r *http.Request, k store.Key) error {
	options := networkOptions{}
	if err := decode(w, r, &options, false); err != nil {
		return err
	}
	var body struct {
		egressOptions
		AllowInternetAccess *bool `json:"allow_internet_access"`
	}
	if err := options.decode(&body); err != nil {
		return err
	}
	info, err := a.own(r, k)
	if err != nil {
		return err
	}
	parsed, err := body.egressOptions.parse(body.AllowInternetAccess != nil && !*body.AllowInternetAccess)
	if err != nil {
		return err
	}
	if _, err := a.sandboxes.SetNetwork(r.Context(), info.ID, func(o *sandbox.NetworkOptions) { replaceEgress(o, parsed) }); err != nil {
		return a.gone(r, k, info.ID, fmt.Errorf("change the network of sandbox %s: %w", info.ID, err))
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// replaceEgress puts others in place of all options on what goes out that E2B has.
func replaceEgress(o *sandbox.NetworkOptions, by sandbox.NetworkOptions) {
	o.DenyInternet, o.AllowOut, o.DenyOut, o.DNSServers, o.Headers = by.DenyInternet, by.AllowOut, by.DenyOut, by.DNSServers, by.Headers
	if by.Proxy != nil || !o.OwnProxy {
		o.Proxy, o.OwnProxy = by.Proxy, false
	}
}

// network is what of the network options is in force, as get tells it.
type network struct {
	AllowPublicTraffic bool                     `json:"allowPublicTraffic"`
	AllowOut           []string                 `json:"allowOut,omitempty"`
	DenyOut            []string                 `json:"denyOut,omitempty"`
	DNSServers         []string                 `json:"dnsServers,omitempty"`
	EgressProxy        *egressProxy             `json:"egressProxy,omitempty"`
	MaskRequestHost    string                   `json:"maskRequestHost,omitempty"`
	HTTPSPorts         []uint16                 `json:"httpsPorts,omitempty"`
	Rules              map[string][]networkRule `json:"rules,omitempty"`
}

func networkInForce(o sandbox.NetworkOptions) network {
	n := network{
		AllowPublicTraffic: !o.PrivateTraffic, AllowOut: o.AllowOut, DenyOut: o.DenyOut, DNSServers: o.DNSServers,
		MaskRequestHost: o.MaskRequestHost, HTTPSPorts: o.HTTPSPorts,
	}
	if o.DenyInternet {
		n.DenyOut = []string{allTraffic}
	}
	if p := o.Proxy; p != nil {
		n.EgressProxy = &egressProxy{Address: p.Address}
		if p.Username != "" {
			n.EgressProxy.Username = &p.Username
		}
		if p.TLS {
			n.EgressProxy.TLS = &egressProxyTLS{ServerName: p.ServerName}
		}
	}
	for _, h := range o.Headers {
		if n.Rules == nil {
			n.Rules = map[string][]networkRule{}
		}
		n.Rules[h.Host] = []networkRule{{Transform: &secret.Transform{Headers: h.Headers}}}
	}
	return n
}
