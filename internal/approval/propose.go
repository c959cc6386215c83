package approval

import (
	"context"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// maxProposals is how often a proposal may be made for one hold.
const maxProposals = 10

// Propose puts a rule that the asking side would like to have beside a hold, in
// place of one before. It grants nothing: a person reads it. So that nobody approves
// more than he sees, it must fit the action and be about its host, secret, command or
// file only. Errors: ErrNotFound, ErrDecided, ErrExpired, ErrWithdrawn, *InvalidError.
func (d *Desk) Propose(ctx context.Context, id string, proposal Proposal) (Hold, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	p, h, err := d.toChange(ctx, id)
	if err != nil {
		return h, err
	}
	if p.proposals >= maxProposals {
		return h, invalid("%d proposals were made for it already", maxProposals)
	}
	if err := proposal.check(h.Action); err != nil {
		return h, err
	}
	proposal.ID = newID("prp_")
	h.Proposed = &proposal
	ctx, cancel := writeContext(ctx)
	defer cancel()
	if err := d.write(ctx, h, nil); err != nil {
		return h, err
	}
	d.mu.Lock()
	p.proposals++
	p.hold.Proposed = &proposal
	h = p.hold
	d.tell(h)
	d.mu.Unlock()
	d.config.OnChange(h)
	return h, nil
}

func (p Proposal) check(a policy.Action) error {
	if p.ID != "" {
		return invalid("a proposal is given its id, and brings none")
	}
	if p.Reason == "" {
		return invalid("a proposal needs a reason: say what it is for")
	}
	if strings.Contains(p.Reason, "\n") {
		return invalid("the reason of a proposal must be one line")
	}
	if err := checkText("reason", p.Reason); err != nil {
		return err
	}
	if err := checkMatch(p.Match, a); err != nil {
		return err
	}
	if what := tooWide(p.Match, a); what != "" {
		return invalid("the proposal is too wide: %s", what)
	}
	return nil
}

// tooWide says what of a match that fits an action is about more than a proposal may
// be, or "".
func tooWide(m policy.Match, a policy.Action) string {
	switch a.Kind {
	case policy.Secret:
		if !exact(m.Secret) {
			return "name the one secret"
		}
		fallthrough
	case policy.Egress:
		if a.Host != "" && !exact(m.Host) {
			return "name the one host, without *"
		}
		if a.Host == "" && !(exact(m.Address) && !strings.Contains(m.Address[0], "/")) {
			return "name the one address"
		}
	case policy.Exec:
		program, _, _ := strings.Cut(a.Command, " ")
		if !exact(m.Command) && !(len(m.Command) == 1 && strings.HasPrefix(literal(m.Command[0]), program+" ")) {
			return "give one command that begins with the same program"
		}
	case policy.FileOut:
		folder := path.Dir(a.File)
		if !exact(m.File) && !(len(m.File) == 1 && folder != "/" && strings.HasPrefix(literal(m.File[0]), folder+"/")) {
			return "give one path in the same folder"
		}
	case policy.Port:
		if !exact(m.Port) || strings.Contains(m.Port[0], "-") {
			return "name the one port"
		}
	case policy.Snapshot:
		if !exact(m.Copy) {
			return "name the one kind of copy"
		}
	default:
		return "of this kind each action is asked about by itself"
	}
	return ""
}

// exact tells whether a list has one entry, and that no pattern.
func exact(list []string) bool { return len(list) == 1 && !strings.Contains(list[0], "*") }

// literal is what a pattern begins with before its first *.
func literal(pattern string) string {
	before, _, _ := strings.Cut(pattern, "*")
	return before
}

// Narrow is the narrowest match that fits an action, for who wants to approve more
// than this one and no more than its like. An action of which it matters how much it takes has
// none.
func Narrow(a policy.Action) (policy.Match, bool) {
	m := policy.Match{
		Host: one(a.Host), Protocol: one(a.Protocol), Method: one(a.Method), Path: one(a.Path),
		Secret: one(a.Secret), Header: one(a.Header),
		Command: one(a.Command), Language: one(a.Language), User: one(a.User), File: one(a.File), Copy: one(a.Copy),
	}
	if a.Host == "" && a.Address != (netip.Addr{}) {
		m.Address = one(a.Address.String())
	}
	if a.Port != 0 {
		m.Port = one(strconv.Itoa(int(a.Port)))
	}
	return m, a.Kind != policy.Lifetime && a.Kind != policy.Resources
}

func one(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}
