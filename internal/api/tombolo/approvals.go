package tombolo

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Desk is what the API needs of [approval.Desk].
type Desk interface {
	List(ctx context.Context, f approval.Filter) ([]approval.Hold, error)
	Get(ctx context.Context, id string) (approval.Hold, error)
	Watch(ctx context.Context, f approval.Filter) <-chan approval.Hold
	Answer(ctx context.Context, id string, a approval.Answer) (approval.Hold, error)
	Propose(ctx context.Context, id string, p approval.Proposal) (approval.Hold, error)
	Grants() []approval.Grant
	Revoke(ctx context.Context, id string) (approval.Grant, error)
}

// Limits of lists.
const (
	defaultList = 100
	maxList     = 1000
	// maxScan is how many holds are looked through for those that the caller may see.
	maxScan = 20 * maxList
)

func (a *API) approvalRoutes() []route {
	seers := []store.Role{store.RoleApprove, store.RoleSandboxes}
	return []route{
		{"GET", "/approvals", seers, a.Desk, a.listApprovals},
		{"GET", "/approvals/stream", seers, a.Desk, a.stream},
		{"GET", "/approvals/{id}", seers, a.Desk, func(c *call) (any, error) { return a.hold(c) }},
		{"POST", "/approvals/{id}/answer", []store.Role{store.RoleApprove}, a.Desk, a.answer},
		{"POST", "/approvals/{id}/proposal", []store.Role{store.RoleSandboxes}, a.Desk, a.propose},
		{"GET", "/grants", seers, a.Desk, a.listGrants},
		{"DELETE", "/grants/{id}", seers, a.Desk, a.revoke},
	}
}

func (a *API) listApprovals(c *call) (any, error) {
	q := c.r.URL.Query()
	if err := checkQuery(q, "state", "sandbox", "before", "limit"); err != nil {
		return nil, err
	}
	f := approval.Filter{SandboxID: q.Get("sandbox"), Before: q.Get("before")}
	var err error
	if f.Most, err = queryInt(q, "limit", defaultList, maxList); err != nil {
		return nil, err
	}
	if state := approval.State(q.Get("state")); state != "" {
		if !slices.Contains([]approval.State{approval.Pending, approval.Approved, approval.Denied, approval.Expired, approval.Withdrawn}, state) {
			return nil, invalid("there is no state %.20q: use pending, approved, denied, expired or withdrawn", state)
		}
		f.States = []approval.State{state}
	}
	return a.visibleHolds(c, f)
}

// visibleHolds lists the newest holds that the caller may see.
func (a *API) visibleHolds(c *call, f approval.Filter) ([]approval.Hold, error) {
	if !c.auth.Has(store.RoleApprove) {
		f.KeyID = c.auth.KeyID()
	}
	seen := []approval.Hold{}
	most := f.Most
	f.Most = maxList
	for scanned := 0; scanned < maxScan; scanned += maxList {
		page, err := a.Desk.List(c.context(), f)
		if err != nil {
			return nil, err
		}
		for _, h := range page {
			if c.auth.Sees(h.Subject.KeyID) {
				seen = append(seen, h)
			}
			if len(seen) == most {
				return seen, nil
			}
		}
		if len(page) < f.Most {
			break
		}
		f.Before = page[len(page)-1].ID
	}
	return seen, nil
}

// hold is the one that the path names. One that the caller may not see is not there.
func (a *API) hold(c *call) (approval.Hold, error) {
	id := c.r.PathValue("id")
	h, err := a.Desk.Get(c.context(), id)
	if errors.Is(err, approval.ErrNotFound) || err == nil && !c.auth.Sees(h.Subject.KeyID) {
		return approval.Hold{}, notFound("there is no approval %.60q", id)
	}
	return h, err
}

// AnswerRequest is what a person says of a hold. See approval.Answer.
type AnswerRequest struct {
	Approve bool `json:"approve"`
	// Hash is that of the hold which the person read.
	Hash     string         `json:"hash"`
	Reach    approval.Reach `json:"reach,omitempty"`
	Match    *policy.Match  `json:"match,omitempty"`
	Proposal string         `json:"proposal,omitempty"` // id of the one that was read, in place of a match
	Duration Duration       `json:"duration,omitempty"` // "90m"
	Scope    policy.Scope   `json:"scope,omitzero"`
	Reason   string         `json:"reason,omitempty"`
}

func (a *API) answer(c *call) (any, error) {
	h, err := a.hold(c)
	if err != nil {
		return nil, err
	}
	if !c.auth.AnswersFor(h.Subject.KeyID) {
		return nil, forbidden("this key may see what its own sandboxes ask for, and not approve it: that takes another key, with the role approve")
	}
	var req AnswerRequest
	if err := decode(c.w, c.r, &req); err != nil {
		return nil, err
	}
	if err := checkAnswer(c, req); err != nil {
		return nil, err
	}
	return a.Desk.Answer(c.context(), h.ID, approval.Answer{
		Approve: req.Approve, Reach: req.Reach, Hash: req.Hash, Match: req.Match, Proposal: req.Proposal, Duration: time.Duration(req.Duration),
		Scope: req.Scope, Reason: req.Reason, Approver: c.auth.Actor(),
	})
}

// checkAnswer judges what depends on who answers; the rest is the desk's.
func checkAnswer(c *call, req AnswerRequest) error {
	if req.Hash == "" {
		return invalid("hash is missing: send the hash of the approval that you read, so that nothing else is answered")
	}
	if req.Reach != approval.ByRule {
		return nil
	}
	return checkRuleScope(c, req.Scope)
}

// checkRuleScope holds a rule within what its writer answers for: the sandbox that
// asked, or its key. What is wider changes what others may do and takes the role policy.
func checkRuleScope(c *call, s policy.Scope) error {
	wide := s.Kind == policy.ServerScope || s.Kind == policy.TemplateScope
	if wide && (c.auth.Bound() || !c.auth.Has(store.RolePolicy)) {
		return forbidden("a rule for the scope %s would hold for sandboxes of other keys too: that takes a key with the role policy that answers for all keys", s)
	}
	return nil
}

func (a *API) propose(c *call) (any, error) {
	h, err := a.hold(c)
	if err != nil {
		return nil, err
	}
	if !c.auth.Owns(h.Subject.KeyID) {
		return nil, forbidden("a proposal is for those whose sandbox asks; you may answer instead")
	}
	var p approval.Proposal
	if err := decode(c.w, c.r, &p); err != nil {
		return nil, err
	}
	return a.Desk.Propose(c.context(), h.ID, p)
}

func (a *API) listGrants(c *call) (any, error) {
	if err := checkQuery(c.r.URL.Query()); err != nil {
		return nil, err
	}
	seen := []approval.Grant{}
	for _, g := range a.Desk.Grants() {
		if a.seesGrant(c, g) {
			seen = append(seen, g)
		}
	}
	return seen, nil
}

// seesGrant tells whether a grant is the caller's business. Who sees one may take it
// away, which only makes things stricter.
func (a *API) seesGrant(c *call, g approval.Grant) bool {
	switch g.Scope.Kind {
	case policy.KeyScope:
		return c.auth.Sees(g.Scope.ID)
	case policy.SandboxScope:
		keyID, known := a.ownerOf(c, g.Scope.ID)
		return c.auth.IsOwner() || known && c.auth.Sees(keyID)
	}
	return c.auth.Has(store.RoleApprove) && !c.auth.Bound()
}

// ownerOf is the key of a sandbox that lives, or lived.
func (a *API) ownerOf(c *call, id string) (keyID string, known bool) {
	if info, err := a.Sandboxes.Get(id); err == nil {
		return info.KeyID, true
	}
	record, err := a.Store.Sandbox(c.context(), id)
	return record.KeyID, err == nil
}

func (a *API) revoke(c *call) (any, error) {
	id := c.r.PathValue("id")
	all := a.Desk.Grants()
	i := slices.IndexFunc(all, func(g approval.Grant) bool { return g.ID == id })
	if i < 0 || !a.seesGrant(c, all[i]) {
		return nil, notFound("there is no grant %.60q; GET %s/grants lists those there are", id, Prefix)
	}
	_, err := a.Desk.Revoke(c.context(), id)
	return nil, err
}
