package cli

import (
	"fmt"
	"net/url"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// parseProxy reads the URL of a proxy that connections out of sandboxes go through:
// socks5://, http:// (CONNECT) or https:// (the same, over TLS), with a name and a
// password where it takes them. Empty is none.
func parseProxy(text string) (*sandbox.EgressProxy, error) {
	if text == "" {
		return nil, nil
	}
	const how = "--egress-proxy: give socks5://[USER:PASSWORD@]HOST:PORT, http://… or https://…"
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Port() == "" || u.Opaque != "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%s", how) // not the text: it may hold a password
	}
	p := &sandbox.EgressProxy{Address: u.Host, Username: u.User.Username()}
	p.Password, _ = u.User.Password()
	switch u.Scheme {
	case "socks5", "socks5h":
		p.Kind = string(gateway.SOCKS5)
	case "http":
		p.Kind = string(gateway.HTTPConnect)
	case "https":
		p.Kind, p.TLS = string(gateway.HTTPConnect), true
	default:
		return nil, fmt.Errorf("%s; %q is none of these", how, u.Scheme)
	}
	check := gateway.Proxy{Kind: gateway.ProxyKind(p.Kind), Address: p.Address, Username: p.Username, Password: p.Password}
	if err := check.Check(); err != nil {
		return nil, fmt.Errorf("--egress-proxy: %w", err)
	}
	return p, nil
}
