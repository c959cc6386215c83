package e2b

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// allTraffic is what clients call ALL_TRAFFIC.
const allTraffic = "0.0.0.0/0"

// Limits of the network options. Those of rules are E2B's.
const (
	maxNetworkEntries  = 1000 // of allowOut and of denyOut
	maxRuleHosts       = 10
	maxRuleHeaders     = 20
	maxRuleHeaderName  = 64
	maxRuleHeaderValue = 2048
	maxDNSServers      = 10
	maxHTTPSPorts      = 64
	maxProxyName       = 255 // bytes of user name and password (RFC 1929)
	maxProxyCA         = 8192
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
	Transform *struct {
		Headers map[string]string `json:"headers"`
	} `json:"transform,omitempty"`
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
	var err error
	if parsed.Headers, err = parseRules(o.Rules); err != nil {
		return parsed, err
	}
	parsed.Proxy, err = o.EgressProxy.parse()
	return parsed, err
}

func parseRules(rules map[string][]networkRule) ([]sandbox.HostHeaders, error) {
	if len(rules) > maxRuleHosts {
		return nil, invalid("network.rules has %d hosts, at most %d are possible", len(rules), maxRuleHosts)
	}
	var parsed []sandbox.HostHeaders
	for host, list := range rules {
		name, wild := strings.CutPrefix(host, "*.")
		name, err := policy.NormalHost(name)
		if err != nil {
			return nil, invalid("network.rules: %s; use a name such as \"api.example.com\" or \"*.example.com\"", err)
		}
		if wild {
			name = "*." + name
		}
		if slices.ContainsFunc(parsed, func(h sandbox.HostHeaders) bool { return h.Host == name }) {
			return nil, invalid("network.rules has the host %q twice", name)
		}
		if len(list) > 1 {
			return nil, invalid("network.rules: %q has %d rules, at most one is possible", host, len(list))
		}
		if len(list) == 0 || list[0].Transform == nil || len(list[0].Transform.Headers) == 0 {
			continue
		}
		headers, err := parseHeaders(host, list[0].Transform.Headers)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, sandbox.HostHeaders{Host: name, Headers: headers})
	}
	slices.SortFunc(parsed, func(a, b sandbox.HostHeaders) int { return strings.Compare(a.Host, b.Host) })
	return parsed, nil
}

// unsettable are headers that say how a request is carried and to whom.
var unsettable = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Trailer", "Keep-Alive", "Proxy-Connection"}

func parseHeaders(host string, headers map[string]string) (map[string]string, error) {
	if len(headers) > maxRuleHeaders {
		return nil, invalid("network.rules: %q sets %d headers, at most %d are possible", host, len(headers), maxRuleHeaders)
	}
	parsed := map[string]string{}
	for name, value := range headers {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case len(name) > maxRuleHeaderName || !httpguts.ValidHeaderFieldName(name):
			return nil, invalid("network.rules: %q cannot be the name of a header (at most %d characters)", name, maxRuleHeaderName)
		case slices.Contains(unsettable, canonical):
			return nil, invalid("network.rules: the header %s says how a request is carried and cannot be set", canonical)
		case len(value) > maxRuleHeaderValue || !httpguts.ValidHeaderFieldValue(value):
			return nil, invalid("network.rules: the value of the header %s cannot be sent: at most %d bytes, no control characters", canonical, maxRuleHeaderValue)
		case strings.Contains(value, "${e2b.identity."):
			return nil, invalid("network.rules: workload tokens (${e2b.identity…}) are not supported by this server: use a secret, ${e2b.secrets.NAME}")
		}
		if _, twice := parsed[canonical]; twice {
			return nil, invalid("network.rules: %q sets the header %s twice", host, canonical)
		}
		parsed[canonical] = value
	}
	return parsed, nil
}

func (p *egressProxy) parse() (*sandbox.EgressProxy, error) {
	if p == nil {
		return nil, nil
	}
	host, port, err := net.SplitHostPort(p.Address)
	if err == nil && host == "" {
		err = fmt.Errorf("it names no host")
	}
	if n, bad := strconv.ParseUint(port, 10, 16); err == nil && (bad != nil || n == 0) {
		err = fmt.Errorf("it has no port from 1 to 65535")
	}
	if err != nil {
		return nil, invalid("network.egressProxy.address %q: %s; use host:port", p.Address, err)
	}
	parsed := &sandbox.EgressProxy{Address: p.Address, Kind: "socks5"}
	if p.Username != nil {
		parsed.Username = *p.Username
	}
	if p.Password != nil {
		parsed.Password = *p.Password
	}
	switch {
	case parsed.Password != "" && parsed.Username == "":
		return nil, invalid("network.egressProxy has a password and no username")
	case len(parsed.Username) > maxProxyName || len(parsed.Password) > maxProxyName:
		return nil, invalid("network.egressProxy: user name and password may have %d bytes each", maxProxyName)
	}
	if p.TLS != nil {
		parsed.TLS, parsed.ServerName, parsed.CACert = true, p.TLS.ServerName, p.TLS.CACert
		if len(parsed.ServerName) > 253 || len(parsed.CACert) > maxProxyCA {
			return nil, invalid("network.egressProxy.tls: serverName may have 253 bytes and caCert %d", maxProxyCA)
		}
	}
	return parsed, nil
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
	if _, err := a.sandboxes.SetNetwork(r.Context(), info.ID, parsed); err != nil {
		return a.gone(r, k, info.ID, fmt.Errorf("change the network of sandbox %s: %w", info.ID, err))
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
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
		var rule networkRule
		rule.Transform = &struct {
			Headers map[string]string `json:"headers"`
		}{h.Headers}
		n.Rules[h.Host] = []networkRule{rule}
	}
	return n
}
