package secret

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

const (
	maxBindings = 16
	maxEntries  = 64 // of each list of a binding
)

// inBody is the place of a binding that is the body.
const inBody = "body"

// bound is a binding made ready.
type bound struct {
	match *policy.Matcher
	hosts []string
	paths bool     // it names paths
	in    []string // canonical; empty is every header
}

func compileBindings(bindings []Binding) ([]bound, error) {
	if len(bindings) > maxBindings {
		return nil, invalid("%d bindings are possible, not %d", maxBindings, len(bindings))
	}
	var all []bound
	for _, b := range bindings {
		compiled, err := b.compile()
		if err != nil {
			return nil, invalid("binding: %s", err)
		}
		all = append(all, compiled)
	}
	return all, nil
}

func (b Binding) compile() (bound, error) {
	for name, list := range map[string][]string{"host": b.Host, "method": b.Method, "path": b.Path, "in": b.In} {
		if len(list) > maxEntries {
			return bound{}, fmt.Errorf("%s: %d entries are possible, not %d", name, maxEntries, len(list))
		}
	}
	if len(b.Host) == 0 {
		return bound{}, fmt.Errorf("name a host that the value may go to, such as api.example.com")
	}
	if slices.Contains(b.Host, "*") {
		return bound{}, fmt.Errorf("host *: name the hosts; a value that may go everywhere is no secret")
	}
	match, err := policy.Match{Host: b.Host, Method: none(b.Method), Path: none(b.Path)}.Compile(policy.Secret)
	if err != nil {
		return bound{}, err
	}
	in, err := places(b.In)
	return bound{match: match, hosts: b.Host, paths: len(b.Path) > 0, in: in}, err
}

// none makes an empty list one that says nothing.
func none(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return list
}

// places checks where in a request a value may be and returns them in their one form.
func places(in []string) ([]string, error) {
	if _, err := (policy.Match{Header: none(in)}).Compile(policy.Secret); err != nil {
		return nil, err
	}
	var all []string
	for _, place := range in {
		if place != inBody && !strings.HasPrefix(place, "?") {
			place = http.CanonicalHeaderKey(place)
			if framing[place] {
				return nil, fmt.Errorf("in %s: that header says what a request is, and holds no value", place)
			}
		}
		all = append(all, place)
	}
	return all, nil
}

// framing are headers that say where a request ends or goes, and what every hop
// writes for itself. No value is put into one.
var framing = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Trailer": true, "Te": true,
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Upgrade": true, "Expect": true,
	"Content-Type": true, "Content-Encoding": true,
}

// fits tells whether the value may be put into a place of a request.
func (b *bound) fits(req *http.Request, host, place string) bool {
	return b.fitsRequest(req, host) && b.fitsPlace(place)
}

func (b *bound) fitsPlace(place string) bool {
	if len(b.in) == 0 {
		return place != inBody && !strings.HasPrefix(place, "?") && !framing[place]
	}
	return slices.Contains(b.in, place)
}

func (b *bound) fitsRequest(req *http.Request, host string) bool {
	if b.paths && ambiguous(req.URL) {
		return false
	}
	return b.match.Fits(policy.Action{
		Kind: policy.Secret, Host: host, Method: req.Method, Path: path.Clean("/" + req.URL.Path),
	}) == policy.Yes
}

func (b *bound) fitsHost(host string) bool {
	return b.match.Fits(policy.Action{Kind: policy.Secret, Host: host, Unknown: policy.RequestField}) != policy.No
}

// ambiguous tells whether servers may read the path in different ways, so that it
// could be another one than a binding names.
func ambiguous(u *url.URL) bool {
	raw := u.Opaque // what is sent, where it is set
	if raw == "" {
		raw = u.EscapedPath()
	}
	raw = strings.ToLower(raw)
	for _, part := range []string{"%2f", "%5c", "%2e", "%00", "%25", "\\", "//", ";"} {
		if strings.Contains(raw, part) {
			return true
		}
	}
	return raw != "" && path.Clean(raw) != strings.TrimSuffix(raw, "/") && raw != "/"
}

// Keys of metadata that bind a secret, for callers of E2B's API, which has no bindings.
// Each holds entries joined by commas, and all together are one binding.
const (
	metadataMark   = "tombolo."
	metadataHosts  = metadataMark + "hosts"
	metadataMethod = metadataMark + "methods"
	metadataPaths  = metadataMark + "paths"
	metadataIn     = metadataMark + "in"
	metadataPrefix = metadataMark + "placeholder-prefix"
)

// metadataBindings is what metadata say of bindings; ok is false where it is nothing.
func metadataBindings(metadata map[string]string) (bindings []Binding, ok bool, err error) {
	var b Binding
	lists := map[string]*[]string{metadataHosts: &b.Host, metadataMethod: &b.Method, metadataPaths: &b.Path, metadataIn: &b.In}
	for key, value := range metadata {
		if !strings.HasPrefix(key, metadataMark) || key == metadataPrefix {
			continue
		}
		list := lists[key]
		if list == nil {
			known := append(slices.Sorted(maps.Keys(lists)), metadataPrefix)
			return nil, false, invalid("metadata: %.80q means nothing; what begins with %s is one of %s", key, metadataMark, strings.Join(known, ", "))
		}
		for entry := range strings.SplitSeq(value, ",") {
			*list = append(*list, strings.TrimSpace(entry))
		}
		ok = true
	}
	if ok && len(b.Host) == 0 {
		return nil, false, invalid("metadata: a binding needs %s, such as api.example.com", metadataHosts)
	}
	if ok {
		bindings = []Binding{b}
	}
	return bindings, ok, nil
}
