package secret

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/replace"
)

// Use is one value in one place of a request.
type Use struct {
	Secret string `json:"secret"` // its name
	// Place is the canonical name of a header, "?name" for a parameter of the query,
	// "body" or "path".
	Place string `json:"place"`
}

// Result is what became of a request.
type Result struct {
	Used []Use
	// Strays are placeholders that went out as they are, because no binding lets the
	// value into that place of that request.
	Strays []Use
	// Scrub takes out of the answer what may have been sent there; nil when nothing.
	Scrub *replace.Replacer
}

// Rewrite changes a request to a host, which is in its normal form: placeholders
// become values where a binding fits, and transforms set headers. allow, nil for yes,
// is asked for each use before its value is decrypted, and may wait. When it refuses,
// its error is returned and the request is as it was, as with every error: an
// *InvalidError says that a value cannot be where it was to go.
//
// Looked at are headers, in Authorization also the user and password of Basic, the
// parameters of the query, and the body if a binding names it, the request has a type of
// text and at most [MaxBody] bytes. A placeholder in the path or in the name of anything
// is a stray.
func (s *Session) Rewrite(req *http.Request, host string, allow func(Use) error) (Result, error) {
	v := s.view()
	r := &rewrite{session: s, view: v, req: req, host: host}
	if err := r.find(); err != nil {
		return Result{}, err
	}
	if allow != nil {
		for _, use := range r.uses() {
			if err := allow(use); err != nil {
				return Result{}, err
			}
		}
	}
	if err := r.reveal(req.Context()); err != nil {
		return Result{}, err
	}
	scrub, err := s.view().scrubber(req.Context(), s.vault, host)
	if err != nil {
		return Result{}, err
	}
	r.apply()
	return Result{Used: r.uses(), Strays: r.strays, Scrub: scrub}, nil
}

// rewrite is the work on one request.
type rewrite struct {
	session *Session
	view    *view
	req     *http.Request
	host    string
	body    *body // nil: it is not looked at

	swaps  []swap // placeholders that become values
	sets   []set  // headers that transforms set
	strays []Use
	values map[*entry]string
}

type swap struct {
	entry *entry
	place string
}

type set struct {
	header
	secrets map[string]*entry
}

// find looks for what is to be done. It changes nothing but that the body may have
// been read, and can be read again.
func (r *rewrite) find() error {
	for _, e := range r.view.entries {
		for name, values := range r.req.Header {
			place := http.CanonicalHeaderKey(name)
			if strings.Contains(name, e.Placeholder) {
				r.stray(e, "the name of a header")
			}
			if slices.ContainsFunc(values, func(value string) bool { return holds(place, value, e.Placeholder) }) {
				r.found(e, place)
			}
		}
		for _, part := range strings.Split(r.req.URL.RawQuery, "&") {
			key, value, _ := strings.Cut(part, "=")
			if strings.Contains(key, e.Placeholder) {
				r.stray(e, "the name of a parameter")
			}
			if name, err := url.QueryUnescape(key); strings.Contains(value, e.Placeholder) {
				if err != nil {
					r.stray(e, "the query")
				} else {
					r.found(e, "?"+name)
				}
			}
		}
		if strings.Contains(r.req.URL.Path, e.Placeholder) || strings.Contains(r.req.URL.RawPath, e.Placeholder) {
			r.stray(e, "path")
		}
	}
	r.findSets()
	return r.findInBody()
}

// found notes a placeholder in a place that can hold a value.
func (r *rewrite) found(e *entry, place string) {
	if !e.fits(r.req, r.host, place) {
		r.stray(e, place)
		return
	}
	if s := (swap{e, place}); !slices.Contains(r.swaps, s) {
		r.swaps = append(r.swaps, s)
	}
}

func (r *rewrite) stray(e *entry, place string) {
	if use := (Use{e.Name, place}); !slices.Contains(r.strays, use) {
		r.strays = append(r.strays, use)
	}
}

func (e *entry) fits(req *http.Request, host, place string) bool {
	return slices.ContainsFunc(e.bounds, func(b bound) bool { return b.fits(req, host, place) })
}

// findSets looks for the headers that the host's transform sets.
func (r *rewrite) findSets() {
	if i := slices.IndexFunc(r.view.rules, func(rule rule) bool { return rule.fits(r.host) }); i >= 0 {
		for _, h := range r.view.rules[i].headers {
			s := set{header: h, secrets: map[string]*entry{}}
			for _, name := range h.secrets {
				s.secrets[name] = r.view.named[name]
			}
			r.sets = append(r.sets, s)
		}
	}
	// A secret that is bound, and not to this, is not put here by a transform either.
	r.sets = slices.DeleteFunc(r.sets, func(s set) bool {
		away := false
		for _, e := range s.secrets {
			if e != nil && len(e.Bindings) > 0 && !e.fits(r.req, r.host, s.name) {
				r.stray(e, s.name)
				away = true
			}
		}
		return away
	})
	// What is set anyway need not be swapped first.
	r.swaps = slices.DeleteFunc(r.swaps, func(w swap) bool {
		return slices.ContainsFunc(r.sets, func(s set) bool { return s.name == w.place })
	})
}

// uses are what values are put where, in one order.
func (r *rewrite) uses() (uses []Use) {
	for _, w := range r.swaps {
		uses = append(uses, Use{w.entry.Name, w.place})
	}
	for _, s := range r.sets {
		for _, name := range s.header.secrets {
			if use := (Use{name, s.name}); !slices.Contains(uses, use) {
				uses = append(uses, use)
			}
		}
	}
	slices.SortFunc(uses, func(a, b Use) int {
		return strings.Compare(a.Secret+"\x00"+a.Place, b.Secret+"\x00"+b.Place)
	})
	return uses
}

// reveal gets the values as they are by now: secrets may have changed while somebody
// was asked.
func (r *rewrite) reveal(ctx context.Context) error {
	r.values = map[*entry]string{}
	for _, w := range r.swaps {
		if err := r.value(ctx, w.entry, w.place, true); err != nil {
			return err
		}
	}
	for _, s := range r.sets {
		for name, e := range s.secrets {
			if e == nil {
				return invalid("the rule for %s refers to the secret %.120q, and there is none of this name", r.host, name)
			}
			if err := r.value(ctx, e, s.name, len(e.Bindings) > 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *rewrite) value(ctx context.Context, e *entry, place string, bound bool) error {
	now := r.session.vault.current.Load().byID[e.ID]
	if now == nil || bound && !now.fits(r.req, r.host, place) {
		return invalid("the secret %q was changed while the request waited: it may not be used here any more", e.Name)
	}
	text, _, err := r.session.vault.reveal(ctx, now, now.Version)
	if err != nil {
		return err
	}
	header := place != inBody && !strings.HasPrefix(place, "?")
	if header && !fitsHeader(text) {
		return invalid("the value of the secret %q has a line break or another control character in it, and cannot be in the header %s", e.Name, place)
	}
	r.values[e] = text
	return nil
}

// apply changes the request. Nothing that it puts in is looked at again: a value that
// holds the placeholder of another secret does not become its value.
func (r *rewrite) apply() {
	places := map[string]map[*entry]string{}
	for _, w := range r.swaps {
		if places[w.place] == nil {
			places[w.place] = map[*entry]string{}
		}
		places[w.place][w.entry] = r.values[w.entry]
	}
	if values := places[inBody]; values != nil {
		r.body.swap(r.req, values)
	}
	r.swapQuery(places)
	for name, values := range r.req.Header {
		if swaps := places[http.CanonicalHeaderKey(name)]; swaps != nil {
			r.req.Header[name] = swapHeader(name, values, swaps)
		}
	}
	for _, s := range r.sets {
		deleteHeader(r.req.Header, s.name)
		r.req.Header[s.name] = []string{fill(s.text, func(name string) string { return r.values[s.secrets[name]] })}
	}
}

// deleteHeader removes a header however it is spelled.
func deleteHeader(h http.Header, canonical string) {
	maps.DeleteFunc(h, func(name string, _ []string) bool { return http.CanonicalHeaderKey(name) == canonical })
}

// replacer puts values, as encode writes them, in the place of placeholders.
func replacer(values map[*entry]string, encode func(string) string) *strings.Replacer {
	var pairs []string
	for e, value := range values {
		pairs = append(pairs, e.Placeholder, encode(value))
	}
	return strings.NewReplacer(pairs...)
}

func plain(s string) string { return s }

func swapHeader(name string, values []string, swaps map[*entry]string) []string {
	swap := replacer(swaps, plain)
	swapped := make([]string, len(values))
	for i, value := range values {
		if scheme, login, ok := basicLogin(http.CanonicalHeaderKey(name), value); ok {
			swapped[i] = scheme + base64.StdEncoding.EncodeToString([]byte(swap.Replace(login)))
			continue
		}
		swapped[i] = swap.Replace(value)
	}
	return swapped
}

// holds tells whether the value of a header has a placeholder in it.
func holds(name, value, placeholder string) bool {
	if strings.Contains(value, placeholder) {
		return true
	}
	_, login, ok := basicLogin(name, value)
	return ok && strings.Contains(login, placeholder)
}

// basicLogin is the user and password of a header of Basic authentication (RFC 7617).
func basicLogin(name, value string) (scheme, login string, ok bool) {
	const prefix = "Basic "
	if name != "Authorization" || len(value) < len(prefix) || !strings.EqualFold(value[:len(prefix)], prefix) {
		return "", "", false
	}
	encoded := strings.TrimRight(strings.TrimSpace(value[len(prefix):]), "=")
	decoded, err := base64.RawStdEncoding.DecodeString(encoded)
	return prefix, string(decoded), err == nil
}

func (r *rewrite) swapQuery(places map[string]map[*entry]string) {
	parts := strings.Split(r.req.URL.RawQuery, "&")
	for i, part := range parts {
		key, value, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(key)
		if swaps := places["?"+name]; err == nil && swaps != nil {
			parts[i] = key + "=" + replacer(swaps, url.QueryEscape).Replace(value)
		}
	}
	r.req.URL.RawQuery = strings.Join(parts, "&")
}

// findInBody looks into the body, if the value of a secret may be there.
func (r *rewrite) findInBody() error {
	var may []*entry
	for _, e := range r.view.entries {
		if e.fits(r.req, r.host, inBody) {
			may = append(may, e)
		}
	}
	if len(may) == 0 {
		return nil
	}
	b, err := readBody(r.req)
	if errors.Is(err, errNoText) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the body of the request: %w", err)
	}
	for _, e := range may {
		switch {
		case !b.has(e.Placeholder):
		case b.whole:
			r.body = b
			r.found(e, inBody)
		default:
			r.stray(e, inBody)
		}
	}
	return nil
}
