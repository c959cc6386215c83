package inside

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
)

// view is an answer, as JSON and as text for people and for programs that read as they do.
type view interface{ text(*strings.Builder) }

func write(w http.ResponseWriter, r *http.Request, code int, v view) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, plain := v.(certificate); !plain && strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(v) // fails only when the client left
		return
	}
	var b strings.Builder
	v.text(&b)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(b.String()))
}

type failureView struct {
	Error string `json:"error"`
}

func (f failureView) text(b *strings.Builder) { fmt.Fprintln(b, f.Error) }

func writeFailure(w http.ResponseWriter, r *http.Request, err error) {
	f := toFailure(err)
	write(w, r, f.code, failureView{f.message})
}

// pageView is all there is.
type pageView struct {
	SandboxID string      `json:"sandboxID"`
	Refusals  refusalList `json:"refusals"`
	Holds     holdList    `json:"holds"`
	Rules     ruleList    `json:"rules"`
}

func (h *handler) page(r *http.Request) (view, error) {
	holds, err := h.shown(r.Context())
	if err != nil {
		return nil, err
	}
	return pageView{h.sandbox.ID(), newRefusalList(h.refused()), newHoldList(holds), newRuleList(h.sandbox.Rules())}, nil
}

func (p pageView) text(b *strings.Builder) {
	fmt.Fprintf(b, "This is sandbox %s. What leaves it is judged by rules, some of it by a person.\n\n", p.SandboxID)
	fmt.Fprint(b, "Refused lately (/refusals, /refusals/<request id>):\n\n")
	p.Refusals.text(b)
	fmt.Fprint(b, "\nFor a person to decide (/holds, /holds/<id>):\n\n")
	p.Holds.text(b)
	fmt.Fprint(b, "\nRules (/rules):\n\n")
	p.Rules.text(b)
	fmt.Fprint(b, "\n", howToAsk, "With Accept: application/json all of this is JSON. /ca.pem is the certificate that ends TLS here.\n")
}

const howToAsk = `While something waits, you can propose a narrow rule for it; a person reads it and decides:

  curl http://tombolo.internal/holds/<id>/proposal -d '{"match": {"host": ["api.example.com"]}, "reason": "why"}'

`

// refusalView is a refusal without what names other scopes.
type refusalView struct {
	ID     string           `json:"id,omitempty"`
	Time   time.Time        `json:"time"`
	Kind   policy.Kind      `json:"kind"`
	What   string           `json:"what"`
	Rule   string           `json:"rule,omitempty"`
	Scope  policy.ScopeKind `json:"scope,omitempty"`
	Reason string           `json:"reason"`
	HoldID string           `json:"holdID,omitempty"`
	Count  int              `json:"count"`
	First  time.Time        `json:"first"`
}

func newRefusalView(r Refusal) refusalView {
	return refusalView{r.ID, r.Time.UTC(), r.Kind, r.What, r.Rule, r.Scope.Kind, r.Reason, r.HoldID, r.Count, r.First.UTC()}
}

func (r refusalView) text(b *strings.Builder) {
	fmt.Fprintf(b, "%s  %s\n", r.Time.Format(time.RFC3339), line(r.What))
	fmt.Fprintf(b, "  why: %s\n", line(r.Reason))
	if r.Rule != "" {
		fmt.Fprintf(b, "  rule: %s (%s)\n", line(r.Rule), r.Scope)
	}
	if r.Count > 1 {
		fmt.Fprintf(b, "  %d times since %s\n", r.Count, r.First.Format(time.RFC3339))
	}
	if r.ID != "" {
		fmt.Fprintf(b, "  request: %s\n", r.ID)
	}
	if r.HoldID != "" {
		fmt.Fprintf(b, "  asked: /holds/%s\n", r.HoldID)
	}
}

type refusalList []refusalView

func newRefusalList(all []Refusal) refusalList {
	list := make(refusalList, len(all))
	for i, r := range all {
		list[i] = newRefusalView(r)
	}
	return list
}

func (l refusalList) text(b *strings.Builder) { lines(b, l, "nothing\n") }

// lines writes some, or what is to be said of none.
func lines[T view](b *strings.Builder, all []T, none string) {
	if len(all) == 0 {
		b.WriteString(none)
	}
	for _, v := range all {
		v.text(b)
	}
}

func (h *handler) refusals(*http.Request) (view, error) {
	return newRefusalList(h.refused()), nil
}

func (h *handler) refusal(r *http.Request) (view, error) {
	found, ok := h.sandbox.Refusals().Find(r.PathValue("id"))
	if !ok || !isInside(found.Kind) {
		return nil, failure{http.StatusNotFound, "nothing with this request id was refused lately"}
	}
	return newRefusalView(found), nil
}

// holdView is a hold without who answered it: that is nobody's business inside.
type holdView struct {
	ID        string             `json:"id"`
	State     approval.State     `json:"state"`
	Kind      policy.Kind        `json:"kind"`
	What      string             `json:"what"`
	Rule      string             `json:"rule,omitempty"`
	Scope     policy.ScopeKind   `json:"scope,omitempty"`
	Reason    string             `json:"reason,omitempty"`
	CreatedAt time.Time          `json:"createdAt"`
	Deadline  time.Time          `json:"deadline"`
	Count     int                `json:"count"`
	Proposed  *approval.Proposal `json:"proposed,omitempty"`
	Said      string             `json:"said,omitempty"` // by who answered
}

func newHoldView(h approval.Hold) holdView {
	v := holdView{
		ID: h.ID, State: h.State, Kind: h.Action.Kind, What: short(h.Action.String()), Rule: h.Rule, Scope: h.Scope.Kind,
		Reason: h.Reason, CreatedAt: h.CreatedAt.UTC(), Deadline: h.Deadline.UTC(), Count: h.Count, Proposed: h.Proposed,
	}
	if h.Answer != nil {
		v.Said = h.Answer.Reason
	}
	return v
}

func (h holdView) text(b *strings.Builder) {
	fmt.Fprintf(b, "%s  %s  %s\n", h.ID, h.State, line(h.What))
	if h.Reason != "" {
		fmt.Fprintf(b, "  why a person is asked: %s\n", line(h.Reason))
	}
	if h.Rule != "" {
		fmt.Fprintf(b, "  rule: %s (%s)\n", line(h.Rule), h.Scope)
	}
	if h.State == approval.Pending {
		fmt.Fprintf(b, "  waits until %s, then it is refused\n", h.Deadline.Format(time.RFC3339))
	}
	if h.Said != "" {
		fmt.Fprintf(b, "  the person said: %s\n", line(h.Said))
	}
	if h.Proposed != nil {
		fmt.Fprintf(b, "  proposed: %s\n", line(h.Proposed.Reason))
	}
}

type holdList []holdView

func newHoldList(all []approval.Hold) holdList {
	list := make(holdList, len(all))
	for i, h := range all {
		list[i] = newHoldView(h)
	}
	return list
}

func (l holdList) text(b *strings.Builder) { lines(b, l, "nothing\n") }

func (h *handler) holds(r *http.Request) (view, error) {
	holds, err := h.shown(r.Context())
	return newHoldList(holds), err
}

func (h *handler) hold(r *http.Request) (view, error) {
	hold, err := h.find(r)
	if err != nil {
		return nil, err
	}
	return newHoldView(hold), nil
}

// ruleView is a rule as code inside may know it: that it is there, what it decides and
// why. What exactly a rule of a wider scope fits may name other people's hosts and
// is not shown; what the sandbox's own owner wrote for it is.
type ruleView struct {
	Scope    policy.ScopeKind `json:"scope"`
	Name     string           `json:"name"`
	Kind     policy.Kind      `json:"kind"`
	Decision policy.Decision  `json:"decision"`
	Reason   string           `json:"reason,omitempty"`
	Match    []policy.Match   `json:"match,omitempty"`
	Except   []policy.Match   `json:"except,omitempty"`
}

func (r ruleView) text(b *strings.Builder) {
	fmt.Fprintf(b, "%-8s  %-9s  %-5s  %s", r.Scope, r.Kind, r.Decision, line(r.Name))
	if r.Reason != "" {
		fmt.Fprintf(b, ": %s", line(r.Reason))
	}
	b.WriteByte('\n')
}

type ruleList []ruleView

// kinds are those whose rules code inside meets.
var kinds = []policy.Kind{policy.Egress, policy.Secret}

func newRuleList(tables []policy.Table) ruleList {
	list := ruleList{}
	for _, t := range tables {
		for _, kind := range kinds {
			for _, r := range t.Rules {
				if r.Kind != kind {
					continue
				}
				v := ruleView{Scope: t.Scope.Kind, Name: r.Name, Kind: kind, Decision: r.Decision, Reason: r.Reason}
				if t.Scope.Kind == policy.SandboxScope {
					v.Match, v.Except = r.Match, r.Except
				}
				list = append(list, v)
			}
			if d := t.Default[kind]; d != "" {
				list = append(list, ruleView{Scope: t.Scope.Kind, Name: "default", Kind: kind, Decision: d})
			}
		}
	}
	return list
}

func (l ruleList) text(b *strings.Builder) { lines(b, l, "none\n") }

func (h *handler) rules(*http.Request) (view, error) { return newRuleList(h.sandbox.Rules()), nil }

type certificate []byte

func (c certificate) text(b *strings.Builder) { b.Write(c) }

func (h *handler) ca(*http.Request) (view, error) {
	pem := h.sandbox.CA()
	if len(pem) == 0 {
		return nil, failure{http.StatusNotFound, "nobody ends TLS here"}
	}
	return certificate(pem), nil
}

// line is text on one line, without what steers a terminal.
func line(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}
