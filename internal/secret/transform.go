package secret

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// Limits of E2B's service on rules.
const (
	maxRules       = 10
	maxHeaders     = 20
	maxHeaderName  = 64
	maxHeaderValue = 2048
)

// Transform sets headers of the requests to a host, whatever the sandbox says in them.
// A value may hold references ${e2b.secrets.NAME}; the sandbox sees neither.
type Transform struct {
	Headers map[string]string `json:"headers"`
}

// rule is a transform made ready.
type rule struct {
	pattern string // as policy.Match.Host
	match   *policy.Matcher
	headers []header // by name
}

type header struct {
	name, text string
	secrets    []string // that text refers to
}

func (r *rule) fits(host string) bool {
	return r.match.Fits(policy.Action{Kind: policy.Secret, Host: host}) == policy.Yes
}

// compileRules makes transforms ready, those that come first for a host first: of names,
// then of patterns, the longest first. That order, and that they are not merged, is
// E2B's.
func compileRules(transforms map[string]Transform) ([]rule, error) {
	if len(transforms) > maxRules {
		return nil, invalid("rules: %d hosts are possible, not %d", maxRules, len(transforms))
	}
	var rules []rule
	for host, t := range transforms {
		pattern, err := normalPattern(host)
		if err != nil {
			return nil, invalid("rules: %s; use a name such as \"api.example.com\" or \"*.example.com\"", err)
		}
		if slices.ContainsFunc(rules, func(r rule) bool { return r.pattern == pattern }) {
			return nil, invalid("rules: the host %q is there twice", pattern)
		}
		match, err := policy.Match{Host: []string{pattern}}.Compile(policy.Secret)
		if err != nil {
			return nil, invalid("rules: %s", err)
		}
		headers, err := compileHeaders(pattern, t.Headers)
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule{pattern, match, headers})
	}
	slices.SortFunc(rules, func(a, b rule) int {
		wild := func(r rule) int {
			if strings.HasPrefix(r.pattern, "*") {
				return 1
			}
			return 0
		}
		return cmp.Or(wild(a)-wild(b), len(b.pattern)-len(a.pattern), cmp.Compare(a.pattern, b.pattern))
	})
	return rules, nil
}

// normalPattern is a name, or "*." and a name: headers are not set for all hosts.
func normalPattern(host string) (string, error) {
	name, wild := strings.CutPrefix(host, "*.")
	name, err := policy.NormalHost(name)
	if wild {
		name = "*." + name
	}
	return name, err
}

// NormalTransforms checks transforms as far as that can be done without the secrets that
// they refer to, and returns them with hosts and names of headers in their normal form.
// What is wrong with them is an *InvalidError.
func NormalTransforms(transforms map[string]Transform) (map[string]Transform, error) {
	rules, err := compileRules(transforms)
	if err != nil {
		return nil, err
	}
	normal := map[string]Transform{}
	for _, r := range rules {
		t := Transform{Headers: map[string]string{}}
		for _, h := range r.headers {
			t.Headers[h.name] = h.text
		}
		normal[r.pattern] = t
	}
	return normal, nil
}

func compileHeaders(host string, headers map[string]string) ([]header, error) {
	if len(headers) > maxHeaders {
		return nil, invalid("rules: %d headers are possible for %s, not %d", maxHeaders, host, len(headers))
	}
	var all []header
	for name, text := range headers {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case len(name) > maxHeaderName || !httpguts.ValidHeaderFieldName(name):
			return nil, invalid("rules: %.80q is no name of a header", name)
		case framing[canonical] && canonical != "Content-Type":
			return nil, invalid("rules: the header %s says what a request is and cannot be set", canonical)
		case len(text) > maxHeaderValue:
			return nil, invalid("rules: the value of %s is longer than %d bytes", canonical, maxHeaderValue)
		case !httpguts.ValidHeaderFieldValue(text):
			return nil, invalid("rules: the value of %s has characters in it that no header has", canonical)
		case strings.Contains(text, "${e2b.identity."):
			return nil, invalid("rules: the value of %s refers to a workload identity, which this server does not have", canonical)
		}
		if slices.ContainsFunc(all, func(h header) bool { return h.name == canonical }) {
			return nil, invalid("rules: the header %s is set twice for %s", canonical, host)
		}
		all = append(all, header{canonical, text, references(text)})
	}
	slices.SortFunc(all, func(a, b header) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

// CheckTransforms tells whether a key may have these for a sandbox, by host. What is
// wrong with them is an *InvalidError: a secret that the key does not have, too, and one
// that is bound to other hosts.
func (v *Vault) CheckTransforms(ctx context.Context, keyID string, transforms map[string]Transform) error {
	rules, err := compileRules(transforms)
	if err != nil {
		return err
	}
	for _, r := range rules {
		for _, h := range r.headers {
			for _, name := range h.secrets {
				e, err := v.named(ctx, keyID, name)
				switch {
				case err != nil:
					return err
				case e == nil:
					return invalid("rules: %s for %s refers to the secret %.120q, and there is none of this name", h.name, r.pattern, name)
				case !e.mayGoTo(r.pattern):
					return invalid("rules: %s for %s refers to the secret %q, which is bound to other hosts", h.name, r.pattern, name)
				}
			}
		}
	}
	return nil
}

// mayGoTo tells whether a transform may put the value into some request to a host, or to
// hosts of a pattern. A secret without bindings goes where its owner's transforms say.
func (e *entry) mayGoTo(pattern string) bool {
	if len(e.Bindings) == 0 {
		return true
	}
	// What is below a name stands for all that the pattern means.
	host := strings.ToLower(strings.Replace(pattern, "*.", "any.", 1))
	return slices.ContainsFunc(e.bounds, func(b bound) bool { return b.fitsHost(host) })
}
