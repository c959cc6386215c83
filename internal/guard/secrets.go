package guard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
)

// Stray is a placeholder of a secret that was sent where its value may not go.
type Stray struct {
	Secret string `json:"secret"`
	Place  string `json:"place"` // as secret.Use
	Host   string `json:"host"`
	Method string `json:"method"`
	Path   string `json:"path"`
}

// session is the use that an owner may make of secrets; nil where there are none.
func (g *Guard) session(o *sandbox.Owner) (*secret.Session, error) {
	if g.config.Vault == nil {
		return nil, nil
	}
	session := g.config.Vault.Session(o.KeyID, o.Secrets)
	transforms := map[string]secret.Transform{}
	for _, h := range o.Network.Headers {
		transforms[h.Host] = secret.Transform{Headers: h.Headers}
	}
	return session, session.SetTransforms(transforms)
}

// sees tells whether requests to one of these hosts have to be seen: headers are set on
// them, or a secret of the sandbox may go there.
func (st *standing) sees(hosts ...string) bool {
	if st.session == nil {
		return false
	}
	for _, host := range hosts {
		if host != "" && st.session.Intercepts(host) {
			return true
		}
	}
	return false
}

// hasHosts tells whether there is any host that sees is true of.
func (st *standing) hasHosts() bool { return st.session != nil && len(st.session.Hosts()) > 0 }

// watches tells whether requests in the clear are looked at: for hosts that are seen,
// and for placeholders that go astray.
func (st *standing) watches(port uint16) bool {
	return port == 80 && (len(st.owner.Secrets) > 0 || st.hasHosts())
}

// Rewrite implements gateway.Rewriter: headers are set and placeholders become values,
// when rules let them, and never in the clear.
func (n judge) Rewrite(ctx context.Context, r gateway.Request, out *http.Request) (gateway.Scrubber, error) {
	st := n.standing()
	if st == nil || st.session == nil {
		return nil, nil
	}
	var denied *gateway.Refusal
	result, err := st.session.Rewrite(out, r.Name, func(use secret.Use) error {
		if r.Unreadable != nil {
			return r.Unreadable
		}
		a := egress(r, "tcp", r.Name)
		a.Kind, a.Method, a.Path, a.Secret, a.Header, a.Unknown = policy.Secret, r.Method, r.Path, use.Secret, use.Place, 0
		o := outcome{id: newID(), reason: "secrets go over TLS only: use https", verdict: policy.Verdict{Decision: policy.Deny, Rule: "secrets-over-tls"}}
		if r.Encrypted {
			use := a // a may change while it is judged again
			judge := func() (policy.Action, policy.Verdict) {
				if now := n.standing(); now != nil && now.broken == "" {
					return strictestPath(n.set(now), use, r.OtherPaths)
				}
				return use, policy.Verdict{Decision: policy.Deny, Reason: "the sandbox is gone, or its rules cannot be read"}
			}
			var v policy.Verdict
			if a, v = judge(); v.Decision == policy.Ask {
				a.Query = n.guard.digest("query", r.Query)
			}
			o = n.guard.settle(ctx, st.owner.Subject, a, v, func() policy.Verdict { _, v := judge(); return v }, false)
		}
		n.guard.record(st.owner.Subject, audit.Secret, "sandbox:"+st.owner.SandboxID, "use", a, o)
		if !o.allowed {
			denied = &gateway.Refusal{Decision: n.tellRefusal(st, a, o)}
			return denied
		}
		return nil
	})
	var invalid *secret.InvalidError
	switch {
	case errors.As(err, &denied):
		return nil, denied
	case errors.As(err, &invalid):
		a := egress(r, "tcp", r.Name)
		a.Method, a.Path, a.Unknown = r.Method, r.Path, 0
		o := outcome{id: newID(), reason: invalid.Message, verdict: policy.Verdict{Decision: policy.Deny, Rule: "secrets"}}
		return nil, &gateway.Refusal{Decision: n.tellRefusal(st, a, o)}
	case err != nil:
		return nil, err
	}
	for _, stray := range result.Strays {
		n.astray(st, r, stray)
	}
	if result.Scrub == nil {
		return nil, nil
	}
	return result.Scrub, nil
}

// astray tells of a placeholder that went out as it is.
func (n judge) astray(st *standing, r gateway.Request, stray secret.Use) {
	a := egress(r, "tcp", r.Name)
	a.Kind, a.Method, a.Path, a.Secret, a.Header, a.Unknown = policy.Secret, r.Method, r.Path, stray.Secret, stray.Place, 0
	o := outcome{
		id: newID(), verdict: policy.Verdict{Decision: policy.Deny, Rule: "secret-bindings"},
		reason: "the secret is not bound to this place; its placeholder was sent as it is",
	}
	n.guard.record(st.owner.Subject, audit.Secret, "sandbox:"+st.owner.SandboxID, "stray", a, o)
	st.owner.Log(true, fmt.Sprintf("the placeholder of the secret %s was sent in %s to %s, which it is not bound to (%s)", stray.Secret, stray.Place, r.Name, o.id))
	if n.guard.config.OnStray != nil {
		n.guard.config.OnStray(st.owner.Subject, Stray{stray.Secret, stray.Place, r.Name, r.Method, r.Path})
	}
}

// giveSecrets puts placeholders where the variables of a create name secrets, and checks
// that there are those that its headers name.
func (g *Guard) giveSecrets(ctx context.Context, req *sandbox.CreateRequest) error {
	if g.config.Vault == nil {
		return nil
	}
	vars, names, err := g.config.Vault.Env(ctx, req.KeyID, req.EnvVars)
	if err != nil {
		return badSecret("envVars", err)
	}
	req.EnvVars, req.Secrets = vars, append(req.Secrets, names...)
	return nil
}

// checkNetwork checks limits and proxy, and what only the guard can of network options: that there are the
// secrets that headers name, and that a proxy is not where sandboxes may not go.
func (g *Guard) checkNetwork(ctx context.Context, keyID string, o sandbox.NetworkOptions) error {
	if err := o.Check(); err != nil {
		return err
	}
	if o.Proxy != nil {
		host, _, _ := net.SplitHostPort(o.Proxy.Address)
		if addr, err := netip.ParseAddr(host); err == nil && g.floorOfProxy(addr, portOf(o.Proxy.Address)) != "" {
			return &sandbox.InvalidError{Message: fmt.Sprintf("the proxy %s is at an address that is %s: use one at a public address", o.Proxy.Address, g.floorOfProxy(addr, portOf(o.Proxy.Address)))}
		}
	}
	return g.checkHeaders(ctx, keyID, o)
}

func (g *Guard) checkHeaders(ctx context.Context, keyID string, o sandbox.NetworkOptions) error {
	if g.config.Vault == nil || len(o.Headers) == 0 {
		return nil
	}
	transforms := map[string]secret.Transform{}
	for _, h := range o.Headers {
		transforms[h.Host] = secret.Transform{Headers: h.Headers}
	}
	if err := g.config.Vault.CheckTransforms(ctx, keyID, transforms); err != nil {
		return badSecret("network", err)
	}
	return nil
}

func badSecret(where string, err error) error {
	var invalid *secret.InvalidError
	if errors.As(err, &invalid) || errors.Is(err, secret.ErrNotFound) {
		return &sandbox.InvalidError{Message: where + ": " + strings.TrimPrefix(err.Error(), where+": ")}
	}
	return err
}
