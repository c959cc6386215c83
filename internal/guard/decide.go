package guard

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/guard/inside"
	"github.com/tombolo-dev/tombolo/internal/policy"
)

// Refusal is something that was refused, as who met it is told.
type Refusal = inside.Refusal

// outcome is how an action was decided.
type outcome struct {
	allowed bool
	verdict policy.Verdict
	reason  string // of a refusal, or why it is allowed
	id      string // of a refusal, a hold or a grant
	hold    string
}

// settle turns a verdict on an action of which all is known into an outcome; it may
// wait for a person. judge is how the rules of the moment judge it: those of the moment at
// which the person answers count. again is for what must not wait.
func (g *Guard) settle(ctx context.Context, s policy.Subject, a policy.Action, v policy.Verdict, judge func() policy.Verdict, again bool) outcome {
	if v.Decision == policy.Ask {
		return g.ask(ctx, s, a, v, judge, again)
	}
	return ruled(v)
}

// ruled is the outcome of a verdict that asks nobody.
func ruled(v policy.Verdict) outcome {
	if v.Decision == policy.Allow {
		return outcome{allowed: true, verdict: v, reason: v.Reason}
	}
	return outcome{verdict: v, reason: v.Reason, id: newID()}
}

// ask looks for a grant, then for a person. A named destination is asked about by its
// name: that its address belongs to it was seen, and which of several it is changes
// nothing.
func (g *Guard) ask(ctx context.Context, s policy.Subject, a policy.Action, v policy.Verdict, judge func() policy.Verdict, again bool) outcome {
	if a.Host != "" {
		a.Address, a.Unknown = netip.Addr{}, a.Unknown&^policy.AddressField
	}
	if g.config.Desk == nil {
		return outcome{verdict: v, id: newID(), reason: "a rule says to ask a person, and nobody can be asked here: start a server"}
	}
	hash, once := a.Hash(), &g.narrowOf(s.SandboxID).once
	if again { // what is open was allowed: nothing is used up, and nobody asked again
		if once.has(hash) || g.config.Desk.CouldGrant(s, a) {
			return outcome{allowed: true, verdict: v, reason: "approved before"}
		}
		return outcome{verdict: v, id: newID(), reason: "a rule says to ask a person first"}
	}
	if grant, ok := g.config.Desk.Granted(s, a, hash); ok {
		if grant.Reach == approval.Once {
			once.add(hash)
		}
		return outcome{allowed: true, verdict: v, reason: "approved by " + grant.Approver, id: grant.ID, hold: grant.HoldID}
	}
	hold, now, err := g.askPerson(ctx, s, a, v, judge)
	o := outcome{verdict: v, id: hold.ID, hold: hold.ID}
	if now.Decision != policy.Ask {
		o = ruled(now)
		o.hold = hold.ID
		return o
	}
	switch {
	case err != nil && ctx.Err() != nil && hold.State == approval.Pending:
		o.reason = "who asked went away before a person had answered"
	case err != nil:
		o.reason = "a person could not be asked: " + err.Error()
	case hold.State == approval.Approved:
		o.allowed, o.reason = true, "approved"
		if hold.Answer != nil {
			o.reason = "approved by " + hold.Answer.Approver
		}
		if hold.Answer == nil || cmp.Or(hold.Answer.Reach, approval.Once) == approval.Once {
			once.add(hash)
		}
	case hold.State == approval.Expired:
		o.reason = "a person was asked and nobody answered in time"
	case hold.State == approval.Withdrawn:
		o.reason = "a person was asked, and then nobody wanted it any more"
	default:
		o.reason = "a person denied it"
		if hold.Answer != nil && hold.Answer.Reason != "" {
			o.reason += ": " + hold.Answer.Reason
		}
	}
	if o.id == "" {
		o.id = newID()
	}
	return o
}

// askPerson asks, and stops when rules that came meanwhile decide it without a person: then
// now says what they decide. It is Ask else, and what the person said counts.
func (g *Guard) askPerson(ctx context.Context, s policy.Subject, a policy.Action, v policy.Verdict, judge func() policy.Verdict) (hold approval.Hold, now policy.Verdict, err error) {
	for {
		hold, err = g.askUntilDecided(ctx, s, a, v, judge)
		if hold.State == approval.Denied || ctx.Err() != nil {
			return hold, v, err
		}
		if now = judge(); decides(now) {
			break
		}
		// Else they decided it for a moment only, which this one saw, or another who waited
		// for the same and has withdrawn it.
		withdrawn := hold.State == approval.Withdrawn && !g.ended.has(s.SandboxID)
		if !errors.Is(err, context.Canceled) && !withdrawn {
			return hold, v, err
		}
	}
	if hold.State == approval.Pending && hold.ID != "" {
		if _, err := g.config.Desk.Withdraw(context.WithoutCancel(ctx), hold.ID); err != nil {
			g.config.Log.Debug("what rules decided could not be withdrawn", "hold", hold.ID, "error", err)
		}
	}
	return hold, now, nil
}

// askUntilDecided asks until there is an answer, or rules decide; then the error is
// context.Canceled.
func (g *Guard) askUntilDecided(ctx context.Context, s policy.Subject, a policy.Action, v policy.Verdict, judge func() policy.Verdict) (approval.Hold, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer func() {
			if p := recover(); p != nil { // who waits judges once more, and denies
				g.config.Log.Error("recovered from a panic in a judgement, please report it", "sandbox", s.SandboxID, "panic", p, "stack", string(debug.Stack()))
				stop()
			}
		}()
		for ctx.Err() == nil {
			rules, own := g.rulesChange(s.SandboxID)
			if decides(judge()) {
				stop()
			}
			select {
			case <-rules:
			case <-own:
			case <-ctx.Done():
			}
		}
	}()
	return g.config.Desk.Ask(ctx, s, a, v, 0)
}

// decides tells whether a verdict needs nobody.
func decides(v policy.Verdict) bool { return v.Decision == policy.Allow || v.Decision == policy.Deny }

// refusal is what is told about an outcome that is not to allow.
func (o outcome) refusal(a policy.Action) Refusal {
	return Refusal{
		ID: o.id, Time: time.Now().UTC(), Kind: a.Kind, What: words(a), Rule: o.verdict.Rule, Scope: o.verdict.Scope,
		Reason: o.reason, HoldID: o.hold,
	}
}

// detail is what a record of an outcome holds besides its own members.
type detail struct {
	Action any          `json:"action"`
	Hold   string       `json:"hold,omitempty"`
	Scope  policy.Scope `json:"scope,omitzero"`
}

// record writes an outcome down.
func (g *Guard) record(s policy.Subject, kind audit.Kind, actor, what string, a policy.Action, o outcome) {
	decision := string(policy.Deny)
	if o.allowed {
		decision = string(policy.Allow)
	}
	g.config.Audit.Append(audit.Record{
		Kind: kind, Actor: actor, SandboxID: s.SandboxID, KeyID: s.KeyID, What: what,
		Decision: decision, Rule: o.verdict.Rule, Reason: o.reason, ID: o.id,
		DetailOf: detail{Action: Shortened(a), Hold: o.hold, Scope: o.verdict.Scope},
	})
}

// What is recorded of one text of an action at most, as bytes of JSON: so that whoever chooses
// one cannot push the others out of the record.
const (
	maxRecordedCommand = 2 << 10
	maxRecordedText    = 512
)

// Shortened is an action as it is recorded: where anything of it is cut, with the hash of
// all of it.
func Shortened(a policy.Action) any {
	whole := a
	for _, text := range []*string{&a.Command, &a.Path, &a.File, &a.Env, &a.Cwd, &a.User, &a.Language, &a.Method, &a.Header, &a.Name} {
		most := maxRecordedText
		if text == &a.Command || text == &a.Path || text == &a.File {
			most = maxRecordedCommand
		}
		*text = cut(*text, most)
	}
	if a == whole {
		return a
	}
	return struct {
		policy.Action
		Hash string `json:"hash"`
	}{a, whole.Hash()}
}

// cut cuts a text that takes more than so many bytes in JSON.
func cut(text string, most int) string {
	size := 0
	for i, r := range text {
		switch {
		case r == utf8.RuneError, r == '<', r == '>', r == '&', r < ' ', r == 0x2028, r == 0x2029:
			size += len(`\u0000`)
		case r == '"', r == '\\':
			size += 2
		default:
			size += utf8.RuneLen(r)
		}
		if size > most {
			return text[:i] + "…"
		}
	}
	return text
}

// maxWords bounds an action in words, for logs and messages.
const maxWords = 300

func words(a policy.Action) string {
	text := a.String()
	if len(text) > maxWords {
		text = strings.ToValidUTF8(text[:maxWords], "?") + "…"
	}
	return text
}

// newID names a refusal.
func newID() string { return "req_" + strings.ToLower(rand.Text()[:16]) }

var errNoInterceptor = errors.New("this process has no authority to end TLS with")
