// Package rules keeps the tables of rules of the server, of keys and of templates in
// the store, and has them hold when they change. It joins policy, which knows no store,
// and the store, which does not look into tables; it finds the ids of keys and templates
// for the names in a policy file, and the other way.
package rules

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Store is what of the store is used.
type Store interface {
	store.Policies
	Keys(ctx context.Context) ([]store.Key, error)
	Templates(ctx context.Context) ([]store.Template, error)
	Template(ctx context.Context, ref string) (store.Template, error)
}

// Read returns the tables in the store, but those of sandboxes.
func Read(ctx context.Context, s store.Policies) ([]policy.Table, error) {
	records, err := s.Policies(ctx)
	if err != nil {
		return nil, err
	}
	var tables []policy.Table
	for _, r := range records {
		if r.Scope == store.SandboxPolicy {
			continue
		}
		var t policy.Table
		if err := json.Unmarshal(r.Record, &t); err != nil {
			return nil, fmt.Errorf("the rules of %s %s in the store cannot be read: %w", r.Scope, r.ScopeID, err)
		}
		t.Scope = policy.Scope{Kind: policy.ScopeKind(r.Scope), ID: r.ScopeID}
		tables = append(tables, t)
	}
	return tables, nil
}

// Write checks tables and puts them in place of all there are in the store but those of
// sandboxes. A running server does not learn of it.
func Write(ctx context.Context, s store.Policies, tables []policy.Table) error {
	if _, err := policy.CompileAll(tables); err != nil {
		return err
	}
	records := make([]store.Policy, len(tables))
	for i, t := range tables {
		raw, err := json.Marshal(t)
		if err != nil {
			return err
		}
		records[i] = store.Policy{Scope: string(t.Scope.Kind), ScopeID: t.Scope.ID, Record: raw, UpdatedAt: time.Now()}
	}
	return s.ReplacePolicies(ctx, records)
}

// Keeper keeps the tables of a server.
type Keeper struct {
	Store store.Policies
	// Reload has what is in the store hold, at once.
	Reload func(ctx context.Context) error
}

// Tables lists what is in the store, but the tables of sandboxes.
func (k *Keeper) Tables(ctx context.Context) ([]policy.Table, error) { return Read(ctx, k.Store) }

// Replace puts tables in place of all there are and has them hold. When they cannot, what
// was there before is put back.
func (k *Keeper) Replace(ctx context.Context, tables []policy.Table) error {
	before, err := k.Tables(ctx)
	if err != nil {
		return err
	}
	if err := Write(ctx, k.Store, tables); err != nil {
		return err
	}
	if err := k.Reload(ctx); err != nil {
		ctx := context.WithoutCancel(ctx)
		return errors.Join(err, Write(ctx, k.Store, before), k.Reload(ctx))
	}
	return nil
}

// Names finds keys and templates. The zero value knows none.
type Names struct {
	keys      []store.Key
	templates []store.Template
	find      func(ref string) (store.Template, error)
}

// LoadNames reads what there is to be named.
func LoadNames(ctx context.Context, s Store) (*Names, error) {
	keys, err := s.Keys(ctx)
	if err != nil {
		return nil, err
	}
	templates, err := s.Templates(ctx)
	return &Names{keys, templates, func(ref string) (store.Template, error) { return s.Template(ctx, ref) }}, err
}

// NewNames are those of keys and templates that are known, which need ids and names only.
func NewNames(keys []store.Key, templates []store.Template) *Names {
	return &Names{keys: keys, templates: templates}
}

// ID finds the id of a key or template by its name or id, for policy.File.Resolve.
func (n *Names) ID(kind policy.ScopeKind, name string) (string, error) {
	if kind == policy.KeyScope {
		for _, is := range []func(store.Key) bool{
			func(k store.Key) bool { return k.ID == name },
			func(k store.Key) bool { return k.Name == name },
		} {
			if i := slices.IndexFunc(n.keys, is); i >= 0 {
				return n.keys[i].ID, nil
			}
		}
		return "", fmt.Errorf("no key %q; `tombolo key list` shows what there is", name)
	}
	for _, t := range n.templates { // whatever tags it has
		if t.Name == name || t.ID == name {
			return t.ID, nil
		}
	}
	t, err := store.Template{}, store.ErrNotFound
	if n.find != nil {
		t, err = n.find(name)
	}
	if errors.Is(err, store.ErrNotFound) {
		return "", fmt.Errorf("no template %q; `tombolo template list` shows what there is", name)
	}
	return t.ID, err
}

// Name is the name of the key or template of a scope by which [Names.ID] finds it: its id where
// it has no name, is gone, or has a name that is the id of another.
func (n *Names) Name(s policy.Scope) string {
	name := n.plainName(s)
	if id, err := n.ID(s.Kind, name); err != nil || id != s.ID {
		return s.ID
	}
	return name
}

func (n *Names) plainName(s policy.Scope) string {
	switch s.Kind {
	case policy.KeyScope:
		for _, k := range n.keys {
			if k.ID == s.ID {
				return k.Name
			}
		}
	case policy.TemplateScope:
		for _, t := range n.templates {
			if t.ID == s.ID && t.Name != "" {
				return t.Name
			}
		}
	}
	return s.ID
}

// Scope is a scope in words, with the name of what it is.
func (n *Names) Scope(s policy.Scope) string {
	if s.ID == "" {
		return string(s.Kind)
	}
	return string(s.Kind) + " " + n.Name(s)
}
