package policy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"unicode"
)

// Limits on one table.
const (
	MaxRules    = 1000
	MaxPatterns = 50_000 // entries in the lists of all its matches
	maxMatches  = 200    // of one rule, each of match and except
	maxExamples = 100    // of one rule, each of matches and matches-not
	maxExample  = 8192   // bytes
	maxReason   = 500    // bytes
)

// DefaultRule is what [Verdict.Rule] says for the default of a table. No rule may be
// named so.
const DefaultRule = "default"

var ruleName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$`)

// Compiled is a [Table] that was checked and made ready to judge by. It does not
// change and is safe for concurrent use.
type Compiled struct {
	table Table
	kinds map[Kind]*kindRules
}

// kindRules is what a table says of one kind.
type kindRules struct {
	rules    []compiledRule
	fallback rank // 0: no default
}

type compiledRule struct {
	name, reason  string
	decides       rank
	match, except []*Matcher
	index         int // in Table.Rules
}

// Table is the table as it was given. It must not be changed.
func (c *Compiled) Table() Table { return c.table }

// RuleError is what is wrong with one rule of a table.
type RuleError struct {
	Index int // in Table.Rules
	Name  string
	Err   error
}

// Error names the rule.
func (e *RuleError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("rule %d: %v", e.Index+1, e.Err)
	}
	return fmt.Sprintf("rule %.64q: %v", e.Name, e.Err)
}

// Unwrap gives what is wrong.
func (e *RuleError) Unwrap() error { return e.Err }

// Compile checks a table, with the examples of its rules, and makes it ready. What is
// wrong with a rule is a [RuleError].
func Compile(t Table) (*Compiled, error) {
	if err := t.Scope.Check(); err != nil {
		return nil, err
	}
	if len(t.Rules) > MaxRules {
		return nil, fmt.Errorf("the table has %d rules; it may have %d", len(t.Rules), MaxRules)
	}
	c := &Compiled{table: t, kinds: map[Kind]*kindRules{}}
	if err := c.addDefaults(); err != nil {
		return nil, err
	}
	names, patterns := map[string]bool{}, 0
	for i, r := range t.Rules {
		compiled, err := compileRule(r)
		if err == nil && names[r.Name] {
			err = errors.New("another rule of the table has this name")
		}
		if patterns += r.patterns(); err == nil && patterns > MaxPatterns {
			err = fmt.Errorf("with it the matches of the table have more than %d entries", MaxPatterns)
		}
		if err != nil {
			return nil, &RuleError{i, r.Name, err}
		}
		names[r.Name] = true
		compiled.index = i
		of := c.of(r.Kind)
		of.rules = append(of.rules, compiled)
	}
	return c, nil
}

// of returns the rules of a kind, for adding to them.
func (c *Compiled) of(kind Kind) *kindRules {
	if c.kinds[kind] == nil {
		c.kinds[kind] = &kindRules{}
	}
	return c.kinds[kind]
}

func (c *Compiled) addDefaults() error {
	for kind, d := range c.table.Default {
		if !slices.Contains(Kinds, kind) {
			return fmt.Errorf("default: kind %.40q: use %s", kind, join(Kinds))
		}
		if err := d.check(); err != nil {
			return fmt.Errorf("default: %s: %w", kind, err)
		}
		c.of(kind).fallback = rankOf(d)
	}
	return nil
}

// Check returns an error unless a table or a grant may have the scope.
func (s Scope) Check() error {
	switch s.Kind {
	case ServerScope:
		if s.ID != "" {
			return errors.New("the scope server has no id")
		}
		return nil
	case KeyScope, TemplateScope, SandboxScope:
		if err := checkText(s.ID, 128); err != nil {
			return fmt.Errorf("the id of the scope %s: %w", s.Kind, err)
		}
		return nil
	}
	return fmt.Errorf("scope %.40q: use server, key, template or sandbox", s.Kind)
}

func (d Decision) check() error {
	if !slices.Contains(Decisions, d) {
		return fmt.Errorf("decision %.40q: use %s", d, join(Decisions))
	}
	return nil
}

// Check returns an error unless the rule can be loaded, its examples included.
func (r Rule) Check() error {
	_, err := compileRule(r)
	return err
}

func compileRule(r Rule) (compiledRule, error) {
	c := compiledRule{name: r.Name, reason: r.Reason, decides: rankOf(r.Decision)}
	if err := r.checkWords(); err != nil {
		return c, err
	}
	var err error
	if c.match, err = compileMatches("match", r.Kind, r.Match, r.Decision == Allow); err != nil {
		return c, err
	}
	if c.except, err = compileMatches("except", r.Kind, r.Except, r.Decision != Allow); err != nil {
		return c, err
	}
	return c, c.try(r)
}

func (r Rule) checkWords() error {
	switch {
	case !ruleName.MatchString(r.Name):
		return errors.New("a name has 1 to 64 of a to z, 0 to 9 and '-', no '-' at its ends")
	case r.Name == DefaultRule:
		return fmt.Errorf("the name %q stands for the default of a table", DefaultRule)
	case !slices.Contains(Kinds, r.Kind):
		return fmt.Errorf("kind %.40q: use %s", r.Kind, join(Kinds))
	case len(r.Reason) > maxReason:
		return fmt.Errorf("the reason is longer than %d bytes", maxReason)
	}
	for _, letter := range r.Reason {
		if !unicode.IsPrint(letter) {
			return fmt.Errorf("the reason has %U in it, which cannot be seen", letter)
		}
	}
	return r.Decision.check()
}

// patterns counts the entries of all lists.
func (r Rule) patterns() (n int) {
	for _, m := range slices.Concat(r.Match, r.Except) {
		for _, f := range m.fields() {
			n += len(f.entries)
		}
	}
	return n
}

func compileMatches(list string, kind Kind, matches []Match, opens bool) ([]*Matcher, error) {
	if matches != nil && len(matches) == 0 {
		return nil, fmt.Errorf("%s: the list is empty; leave it out", list)
	}
	if len(matches) > maxMatches {
		return nil, fmt.Errorf("%s: the list may have %d entries", list, maxMatches)
	}
	var compiled []*Matcher
	for i, m := range matches {
		if m.empty() {
			return nil, fmt.Errorf("%s %d says nothing; a rule about all actions of its kind has no match", list, i+1)
		}
		if opens && kind == Egress {
			m = m.overTCP()
		}
		c, err := m.Compile(kind)
		if err != nil {
			return nil, fmt.Errorf("%s %d: %w", list, i+1, err)
		}
		compiled = append(compiled, c)
	}
	return compiled, nil
}

// overTCP is a match that opens something. One that speaks of names or requests and of
// no protocol opens TCP only: datagrams say no name, and HTTP/3 hides the requests.
func (m Match) overTCP() Match {
	if len(m.Protocol) == 0 && (len(m.Host) > 0 || len(m.Method) > 0 || len(m.Path) > 0) {
		m.Protocol = []string{"tcp"}
	}
	return m
}

// try runs the examples of a rule.
func (c *compiledRule) try(r Rule) error {
	for _, list := range []struct {
		name     string
		examples []string
		want     Fit
	}{{"matches", r.Matches, Yes}, {"matches-not", r.MatchesNot, No}} {
		if len(list.examples) > maxExamples {
			return fmt.Errorf("%s: the list may have %d entries", list.name, maxExamples)
		}
		for _, example := range list.examples {
			if err := c.tryOne(r.Kind, example, list.want); err != nil {
				return fmt.Errorf("%s %.200q: %w", list.name, example, err)
			}
		}
	}
	return nil
}

func (c *compiledRule) tryOne(kind Kind, example string, want Fit) error {
	if len(example) > maxExample {
		return fmt.Errorf("is longer than %d bytes", maxExample)
	}
	a, err := ParseAction(example)
	if err != nil {
		return err
	}
	if a.Kind != kind {
		return fmt.Errorf("is an action of kind %s; the rule is about %s", a.Kind, kind)
	}
	fit, needs := c.fits(&a, false)
	switch {
	case fit == want:
		return nil
	case fit == Maybe:
		return fmt.Errorf("whether the rule fits depends on %s, which the example does not say", needs)
	case want == Yes:
		return fmt.Errorf("the rule does not fit: %s", c.why(&a))
	}
	return fmt.Errorf("the rule fits: %s", c.why(&a))
}

// why says which part of the rule made it fit or not fit.
func (c *compiledRule) why(a *Action) string {
	for i, m := range c.except {
		if fit, _ := m.fits(a, false); fit == Yes {
			return fmt.Sprintf("except %d does", i+1)
		}
	}
	for i, m := range c.match {
		if fit, _ := m.fits(a, false); fit == Yes {
			return fmt.Sprintf("match %d does", i+1)
		}
	}
	if len(c.match) == 0 {
		return "it is about all actions of its kind"
	}
	return "no match does"
}

// fits tells whether the rule fits, and what must be known when it is Maybe.
func (c *compiledRule) fits(a *Action, question bool) (Fit, Fields) {
	matched, needs := No, Fields(0)
	if len(c.match) == 0 {
		matched = Yes
	}
	for _, m := range c.match {
		fit, need := m.fits(a, question)
		if fit == Yes {
			matched, needs = Yes, 0
			break
		}
		matched = max(matched, fit)
		needs |= need
	}
	if matched == No {
		return No, 0
	}
	for _, m := range c.except {
		fit, need := m.fits(a, question)
		if fit == Yes {
			return No, 0
		}
		if fit == Maybe {
			matched = Maybe
			needs |= need
		}
	}
	return matched, needs
}

// CompileAll compiles the tables of several scopes, none of them a sandbox. An error
// names the scope.
func CompileAll(tables []Table) (map[Scope]*Compiled, error) {
	all := map[Scope]*Compiled{}
	for _, t := range tables {
		compiled, err := Compile(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Scope, err)
		}
		if t.Scope.Kind == SandboxScope {
			return nil, fmt.Errorf("%s: tables of sandboxes are not among those that are replaced together", t.Scope)
		}
		if all[t.Scope] != nil {
			return nil, fmt.Errorf("%s: there are two tables of this scope", t.Scope)
		}
		all[t.Scope] = compiled
	}
	return all, nil
}

// String is the scope in words: "server", "key 3f2a".
func (s Scope) String() string {
	if s.ID == "" {
		return string(s.Kind)
	}
	return string(s.Kind) + " " + s.ID
}
