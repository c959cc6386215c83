package policy

import (
	"math/bits"
	"strings"
)

// rank orders decisions by strictness. As bits of a set, rank r is 1<<r.
type rank uint8

const (
	none rank = iota
	allow
	ask
	deny
)

func rankOf(d Decision) rank {
	switch d {
	case Allow:
		return allow
	case Ask:
		return ask
	case Deny:
		return deny
	}
	return none
}

func (r rank) decision() Decision { return [...]Decision{"", Allow, Ask, Deny}[r] }

// ranks is a set of them.
type ranks uint8

func (s ranks) least() rank { return rank(bits.TrailingZeros8(uint8(s))) }
func (s ranks) most() rank  { return rank(bits.Len8(uint8(s)) - 1) }

// atLeast raises each to r.
func (s ranks) atLeast(r rank) ranks {
	if s.least() >= r {
		return s
	}
	return s&^(1<<r-1) | 1<<r
}

// strictest is what the stricter one of each pair may be.
func strictest(a, b ranks) ranks {
	low := max(a.least(), b.least())
	return (a | b).atLeast(low)
}

// Set is the tables that hold for one sandbox, the widest scope first.
type Set []*Compiled

// say is what one table says of an action.
type say struct {
	base     rank  // the strictest of the rules that fit, else the default, else none
	fits     bool  // a rule fits: base is not the default
	possible ranks // never empty; where the table has no say it is allow
	// sure and maybe are, for each rank, the first rule that fits, and that may fit.
	sure, maybe [4]*compiledRule
	needs       [4]Fields // of those that may fit
}

func (c *Compiled) say(a *Action, question bool) say {
	of := c.kinds[a.Kind]
	if of == nil {
		return say{possible: 1 << allow}
	}
	var s say
	var open ranks
	for i := range of.rules {
		r := &of.rules[i]
		switch fit, needs := r.fits(a, question); fit {
		case Yes:
			s.fits = true
			s.base = max(s.base, r.decides)
			if s.sure[r.decides] == nil {
				s.sure[r.decides] = r
			}
		case Maybe:
			open |= 1 << r.decides
			s.needs[r.decides] |= needs
			if s.maybe[r.decides] == nil {
				s.maybe[r.decides] = r
			}
		}
	}
	if !s.fits {
		s.base = of.fallback
		s.possible = 1<<max(of.fallback, allow) | open
		return s
	}
	s.possible = (1<<s.base | open).atLeast(s.base)
	return s
}

// Judge says what the tables say of an action. Of an action of which something is
// unknown, every decision that it may come to is among Possible.
func (s Set) Judge(a Action) Verdict { return s.judge(&a, false) }

// JudgeName judges the question for a name, of which no connection is known yet, as
// [Set.Judge] does; but a match that speaks of addresses and of no host does not
// fit it. So a name may not be asked for only because it might lead to an address that
// is allowed: questions carry data, and a question once sent cannot be taken back. What
// rules say of addresses is judged with the answer.
func (s Set) JudgeName(host string) Verdict {
	return s.judge(&Action{Kind: Egress, Host: host, Unknown: AddressField | PortField | RequestField}, true)
}

func (s Set) judge(a *Action, question bool) Verdict {
	var buffer [4]say
	says := buffer[:0]
	possible := ranks(1 << allow)
	for _, table := range s {
		said := table.say(a, question)
		says = append(says, said)
		possible = strictest(possible, said.possible)
	}
	v := Verdict{Possible: possible.decisions()}
	if len(v.Possible) == 1 {
		v.Decision = v.Possible[0]
	} else {
		v.Needs = needed(says, possible.least())
	}
	s.attribute(&v, says, possible.most())
	return v
}

// decisions lists a set without allocating.
func (s ranks) decisions() []Decision {
	const a, k, d = 1 << allow, 1 << ask, 1 << deny
	switch s {
	case a:
		return Decisions[0:1:1]
	case k:
		return Decisions[1:2:2]
	case d:
		return Decisions[2:3:3]
	case a | k:
		return Decisions[0:2:2]
	case k | d:
		return Decisions[1:3:3]
	case a | d:
		return allowOrDeny
	}
	return Decisions[0:3:3]
}

var allowOrDeny = []Decision{Allow, Deny}

// needed is what the rules that make a difference need. Of a table that can only
// come to what is sure anyway, none does.
func needed(says []say, floor rank) (needs Fields) {
	for i := range says {
		s := &says[i]
		if p := s.possible.atLeast(floor); p.least() == p.most() {
			continue
		}
		for r := allow; r <= deny; r++ {
			if !s.fits || r > max(s.base, floor) {
				needs |= s.needs[r]
			}
		}
	}
	return needs
}

// attribute names what led to a decision: a rule that fits before a default, that
// before a rule that may fit; of several, that of the widest scope.
func (s Set) attribute(v *Verdict, says []say, r rank) {
	name := func(i int, rule *compiledRule) {
		v.Rule, v.Reason, v.Scope = rule.name, rule.reason, s[i].table.Scope
	}
	for i := range says {
		if rule := says[i].sure[r]; rule != nil {
			name(i, rule)
			return
		}
	}
	for i := range says {
		if !says[i].fits && says[i].base == r {
			v.Rule, v.Scope = DefaultRule, s[i].table.Scope
			return
		}
	}
	for i := range says {
		if rule := says[i].maybe[r]; rule != nil {
			name(i, rule)
			return
		}
	}
}

// String lists the fields in words.
func (f Fields) String() string {
	var words []string
	for i, name := range [...]string{"the host", "the address", "the port", "the request", "the language"} {
		if f&(1<<i) != 0 {
			words = append(words, name)
		}
	}
	if words == nil {
		return "nothing"
	}
	return strings.Join(words, " and ")
}

// TableSay is what one table says of an action, for people who ask why.
type TableSay struct {
	Scope    Scope      `json:"scope"`
	Possible []Decision `json:"possible"` // allow alone also where the table has no say
	Silent   bool       `json:"silent"`   // no rule fits or may fit, and there is no default
	Default  Decision   `json:"default,omitempty"`
	Rules    []RuleSay  `json:"rules"` // that fit or may fit
}

// RuleSay is a rule that fits or may fit.
type RuleSay struct {
	Name     string   `json:"name"`
	Decision Decision `json:"decision"`
	Reason   string   `json:"reason,omitempty"`
	Fit      string   `json:"fit"`             // "yes" or "maybe"
	Needs    string   `json:"needs,omitempty"` // of maybe: what it depends on
}

// Explain tells what every table says of an action.
func (s Set) Explain(a Action) []TableSay {
	all := make([]TableSay, len(s))
	for i, table := range s {
		said := table.say(&a, false)
		all[i] = TableSay{Scope: table.table.Scope, Possible: said.possible.decisions(), Rules: []RuleSay{}}
		of := table.kinds[a.Kind]
		if of == nil {
			all[i].Silent = true
			continue
		}
		all[i].Default = of.fallback.decision()
		for j := range of.rules {
			r := &of.rules[j]
			fit, needs := r.fits(&a, false)
			if fit == No {
				continue
			}
			told := RuleSay{Name: r.name, Decision: r.decides.decision(), Reason: r.reason, Fit: fit.String()}
			if fit == Maybe {
				told.Needs = needs.String()
			}
			all[i].Rules = append(all[i].Rules, told)
		}
		all[i].Silent = len(all[i].Rules) == 0 && of.fallback == none
	}
	return all
}
