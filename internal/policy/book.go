package policy

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Book holds the tables of all scopes. The zero Book has none. It is safe for
// concurrent use, and [Book.For] waits for nobody.
type Book struct {
	writing sync.Mutex
	wide    atomic.Pointer[map[Scope]*Compiled] // replaced as a whole, never changed
	narrow  sync.Map                            // of sandboxes: Scope to *Compiled; there are many, and they come and go
}

// For returns the tables that hold for a sandbox, the widest scope first.
func (b *Book) For(s Subject) Set {
	set := make(Set, 0, 4)
	if wide := b.wide.Load(); wide != nil {
		for _, scope := range [...]Scope{{ServerScope, ""}, {KeyScope, s.KeyID}, {TemplateScope, s.TemplateID}} {
			if table := (*wide)[scope]; table != nil {
				set = append(set, table)
			}
		}
	}
	if table, ok := b.narrow.Load(Scope{SandboxScope, s.SandboxID}); ok {
		set = append(set, table.(*Compiled))
	}
	return set
}

// Put adds a table, in place of the one of its scope. A table that [Compile] refuses
// changes nothing.
func (b *Book) Put(t Table) error {
	compiled, err := Compile(t)
	if err != nil {
		return err
	}
	b.writing.Lock()
	defer b.writing.Unlock()
	if t.Scope.Kind == SandboxScope {
		b.narrow.Store(t.Scope, compiled)
		return nil
	}
	b.change(func(wide map[Scope]*Compiled) { wide[t.Scope] = compiled })
	return nil
}

// Remove takes the table of a scope out, if there is one.
func (b *Book) Remove(s Scope) {
	b.writing.Lock()
	defer b.writing.Unlock()
	if s.Kind == SandboxScope {
		b.narrow.Delete(s)
		return
	}
	b.change(func(wide map[Scope]*Compiled) { delete(wide, s) })
}

// Replace puts tables in place of all there are but those of sandboxes, in one step: nobody
// sees some of the new and some of the old ones. When [Compile] refuses one nothing changes.
func (b *Book) Replace(tables []Table) error {
	next, err := CompileAll(tables)
	if err != nil {
		return err
	}
	b.writing.Lock()
	defer b.writing.Unlock()
	b.wide.Store(&next)
	return nil
}

// change replaces wide by a changed copy.
func (b *Book) change(change func(map[Scope]*Compiled)) {
	next := map[Scope]*Compiled{}
	if wide := b.wide.Load(); wide != nil {
		next = maps.Clone(*wide)
	}
	change(next)
	b.wide.Store(&next)
}

// Table returns the table of a scope.
func (b *Book) Table(s Scope) (Table, bool) {
	if s.Kind == SandboxScope {
		if table, ok := b.narrow.Load(s); ok {
			return table.(*Compiled).table, true
		}
		return Table{}, false
	}
	if wide := b.wide.Load(); wide != nil && (*wide)[s] != nil {
		return (*wide)[s].table, true
	}
	return Table{}, false
}

// Tables lists all tables, the widest scopes first, those of one kind by id.
func (b *Book) Tables() []Table {
	var all []Table
	if wide := b.wide.Load(); wide != nil {
		for _, compiled := range *wide {
			all = append(all, compiled.table)
		}
	}
	b.narrow.Range(func(_, compiled any) bool {
		all = append(all, compiled.(*Compiled).table)
		return true
	})
	SortTables(all)
	return all
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
