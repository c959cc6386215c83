package e2b

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Clients name a template by its id or by [namespace/]alias, either with a :tag.
// The namespace is that of the owner and says nothing: aliases are the server's.

// namespace is what stands before the names of a key's snapshots: the name of
// the key, in the letters E2B has for it.
func namespace(k store.Key) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '-'
	}, strings.ToLower(k.Name))
}

// splitName takes the key's namespace off a name. ok is false when there is
// another's.
func splitName(k store.Key, name string) (n store.TemplateName, ok bool) {
	if space, rest, found := strings.Cut(name, "/"); found {
		return store.SplitName(rest), strings.EqualFold(space, namespace(k))
	}
	return store.SplitName(name), true
}

// usableName is splitName for templates that a key may use: before one that another
// key has made public there may be that key's namespace.
func (a *api) usableName(ctx context.Context, k store.Key, name string) (n store.TemplateName, ok bool, err error) {
	if n, ok = splitName(k, name); ok || n.Alias == "" {
		return n, ok, nil
	}
	builds, err := a.store.TemplateBuilds(ctx, n.Alias)
	if errors.Is(err, store.ErrNotFound) || err == nil && (len(builds) == 0 || !builds[0].UsableBy(k.ID)) {
		return n, false, nil
	}
	if err != nil {
		return n, false, err
	}
	keys, err := a.store.Keys(ctx)
	owner := slices.IndexFunc(keys, func(k store.Key) bool { return k.ID == builds[0].KeyID })
	if err != nil || owner < 0 {
		return n, false, err
	}
	_, ok = splitName(keys[owner], name)
	return n, ok, nil
}

// notReserved refuses the names of templates that come with Tombolo: clients ask for
// some of them by themselves, and hand what they make secrets.
func notReserved(alias string) error {
	if slices.Contains(image.Recipes(), strings.ToLower(alias)) {
		return failure(http.StatusForbidden, "the name %q is kept for the template that comes with Tombolo: choose another", alias)
	}
	return nil
}

// newName checks what a snapshot is to be called; empty is no name.
func newName(k store.Key, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	n, ok := splitName(k, name)
	if !ok {
		return "", invalid("name %.140q: a namespace before the '/' must be that of the key, which is %q; leave it out", name, namespace(k))
	}
	if err := n.Check(); err != nil {
		return "", invalid("%s", err)
	}
	return n.String(), notReserved(n.Alias)
}

// names are the names of a template without tags, none when it is known by its id
// only. A namespace has what the key owns.
func names(k store.Key, keyID, alias string) []string {
	switch {
	case alias == "":
		return []string{}
	case keyID != k.ID:
		return []string{alias}
	}
	return []string{namespace(k) + "/" + alias}
}

// aliases are the names of a template without namespace and tag.
func aliases(alias string) []string {
	if alias == "" {
		return []string{}
	}
	return []string{alias}
}

// tagNames are the names of a snapshot of the key, one for each tag.
func tagNames(k store.Key, t store.Template) []string {
	list := []string{}
	for _, name := range names(k, t.KeyID, t.Name) {
		for _, tag := range t.Tags {
			list = append(list, name+":"+tag)
		}
	}
	return list
}

// snapshotID is what clients hand back to create from a snapshot and to delete
// it.
func snapshotID(k store.Key, t store.Template) string {
	if t.Name == "" {
		return t.ID + ":" + t.Tags[0]
	}
	return tagNames(k, t)[0]
}

// tagged tells whether a name says its tag.
func tagged(name string) bool { return strings.Contains(name, ":") }
