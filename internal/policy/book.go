package policy

import (
	"slices"
	"strings"
	"sync/atomic"
)

// Book holds the tables of all scopes but those of sandboxes. The zero Book has none. It is
// safe for concurrent use, and [Book.For] waits for nobody.
type Book struct {
	tables atomic.Pointer[map[Scope]*Compiled] // replaced as a whole, never changed
}

// For returns the tables that hold for a sandbox, the widest scope first.
func (b *Book) For(s Subject) Set {
	set := make(Set, 0, 4) // with room for its own
	tables := b.tables.Load()
	if tables == nil {
		return set
	}
	for _, scope := range [...]Scope{{ServerScope, ""}, {KeyScope, s.KeyID}, {TemplateScope, s.TemplateID}} {
		if table := (*tables)[scope]; table != nil {
			set = append(set, table)
		}
	}
	return set
}

// Replace puts tables in place of all there are, in one step: nobody sees some of the new
// and some of the old ones. When [Compile] refuses one nothing changes.
func (b *Book) Replace(tables []Table) error {
	next, err := CompileAll(tables)
	if err != nil {
		return err
	}
	b.tables.Store(&next)
	return nil
}

// SortTables orders tables by scope, the widest first, those of one kind by id.
func SortTables(tables []Table) {
	order := []ScopeKind{ServerScope, KeyScope, TemplateScope, SandboxScope}
	slices.SortFunc(tables, func(a, b Table) int {
		if a.Scope.Kind != b.Scope.Kind {
			return slices.Index(order, a.Scope.Kind) - slices.Index(order, b.Scope.Kind)
		}
		return strings.Compare(a.Scope.ID, b.Scope.ID)
	})
}
