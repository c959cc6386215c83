package rules

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// Change is one difference between tables that were and that are to be.
type Change struct {
	What string `json:"what"` // added, removed or changed
	// Scope and the rule, or the default of a kind, that differs.
	Scope   policy.Scope    `json:"scope"`
	Rule    string          `json:"rule,omitempty"`
	Default policy.Kind     `json:"default,omitempty"`
	Before  policy.Decision `json:"before,omitempty"`
	After   policy.Decision `json:"after,omitempty"`
}

// Changes lists what differs, the widest scopes first. The order of rules is no
// difference, since it means nothing.
func Changes(before, after []policy.Table) []Change {
	was, is := byScope(before), byScope(after)
	all := maps.Clone(was)
	maps.Copy(all, is)
	tables := slices.Collect(maps.Values(all))
	policy.SortTables(tables)
	var changes []Change
	for _, t := range tables {
		changes = append(changes, defaultChanges(t.Scope, was[t.Scope], is[t.Scope])...)
		changes = append(changes, ruleChanges(t.Scope, was[t.Scope], is[t.Scope])...)
	}
	return changes
}

func byScope(tables []policy.Table) map[policy.Scope]policy.Table {
	all := map[policy.Scope]policy.Table{}
	for _, t := range tables {
		all[t.Scope] = t
	}
	return all
}

func defaultChanges(scope policy.Scope, was, is policy.Table) (changes []Change) {
	for _, kind := range policy.Kinds {
		before, after := was.Default[kind], is.Default[kind]
		if before != after {
			changes = append(changes, Change{What: what(before != "", after != ""), Scope: scope, Default: kind, Before: before, After: after})
		}
	}
	return changes
}

func ruleChanges(scope policy.Scope, was, is policy.Table) (changes []Change) {
	before, after := byName(was), byName(is)
	names := slices.Collect(maps.Keys(before))
	for name := range after {
		if _, there := before[name]; !there {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, strings.Compare)
	for _, name := range names {
		old, had := before[name]
		now, has := after[name]
		if had != has || !reflect.DeepEqual(old, now) {
			changes = append(changes, Change{What: what(had, has), Scope: scope, Rule: name, Before: old.Decision, After: now.Decision})
		}
	}
	return changes
}

func byName(t policy.Table) map[string]policy.Rule {
	rules := map[string]policy.Rule{}
	for _, r := range t.Rules {
		rules[r.Name] = r
	}
	return rules
}

func what(had, has bool) string {
	switch {
	case !had:
		return "added"
	case !has:
		return "removed"
	}
	return "changed"
}
