package tombolo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Rules keeps the tables of the server, of keys and of templates.
type Rules interface {
	Tables(ctx context.Context) ([]policy.Table, error)
	// Replace puts tables in place of all there are, and has them hold at once.
	Replace(ctx context.Context, tables []policy.Table) error
	// Explain tells what all tables that a sandbox is in say of an action. One without an
	// id is not there yet.
	Explain(info sandbox.Info, a policy.Action) (policy.Verdict, []policy.TableSay)
}

// Policy is the tables of the server, of keys and of templates.
type Policy struct {
	Tables []policy.Table `json:"tables"`
	// Revision names what is there. A change that names another one is refused; empty
	// changes whatever is there.
	Revision string `json:"revision,omitempty"`
	// Keys and Templates are what scopes may be of. They are answered, and mean nothing when they are sent.
	Keys      []Named `json:"keys,omitempty"`
	Templates []Named `json:"templates,omitempty"`
}

// Named is a key or a template.
type Named struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
}

// ExplainRequest asks what would be decided. A sandbox that is not there yet is described
// by its key and template.
type ExplainRequest struct {
	SandboxID    string `json:"sandboxID,omitempty"`
	KeyID        string `json:"keyID,omitempty"`
	TemplateID   string `json:"templateID,omitempty"`
	TemplateName string `json:"templateName,omitempty"`
	// Action in the words of policy.ParseAction: ["egress", "api.example.com:443"].
	Action []string `json:"action"`
}

// Explanation is the verdict on an action, and what led to it.
type Explanation struct {
	Subject policy.Subject    `json:"subject"`
	Action  policy.Action     `json:"action"`
	Verdict policy.Verdict    `json:"verdict"`
	Needs   string            `json:"needs,omitempty"` // what must be known for a decision
	Tables  []policy.TableSay `json:"tables"`
}

// maxWords bounds the words of an action.
const maxWords = 64

func (a *API) policyRoutes() []route {
	rules := []store.Role{store.RolePolicy}
	return []route{
		{"GET", "/policy", rules, a.Rules, a.getPolicy},
		{"PUT", "/policy", rules, a.Rules, a.putPolicy},
		{"POST", "/policy/explain", []store.Role{store.RolePolicy, store.RoleSandboxes}, a.Rules, a.explain},
	}
}

func (a *API) getPolicy(c *call) (any, error) {
	if err := checkQuery(c.r.URL.Query()); err != nil {
		return nil, err
	}
	return a.policy(c.context())
}

func (a *API) policy(ctx context.Context) (Policy, error) {
	tables, err := a.Rules.Tables(ctx)
	if err != nil {
		return Policy{}, err
	}
	tables = slices.DeleteFunc(append([]policy.Table{}, tables...), func(t policy.Table) bool { return t.Scope.Kind == policy.SandboxScope })
	policy.SortTables(tables)
	raw, err := json.Marshal(tables)
	if err != nil {
		return Policy{}, err
	}
	sum := sha256.Sum256(raw)
	p := Policy{Tables: tables, Revision: hex.EncodeToString(sum[:16])}
	return p, a.nameScopes(ctx, &p)
}

// nameScopes says what scopes may be of.
func (a *API) nameScopes(ctx context.Context, p *Policy) error {
	keys, err := a.Store.Keys(ctx)
	if err != nil {
		return err
	}
	for _, k := range keys {
		p.Keys = append(p.Keys, Named{k.ID, k.Name})
	}
	templates, err := a.Store.Templates(ctx)
	if err != nil {
		return err
	}
	for _, t := range templates {
		if of := (Named{t.ID, t.Name}); !slices.Contains(p.Templates, of) { // it has builds
			p.Templates = append(p.Templates, of)
		}
	}
	return nil
}

// putPolicy puts tables in place of all there are; with dry-run it only checks them.
func (a *API) putPolicy(c *call) (any, error) {
	q := c.r.URL.Query()
	if err := checkQuery(q, "dry-run"); err != nil {
		return nil, err
	}
	if !slices.Contains([]string{"", "true", "false"}, q.Get("dry-run")) {
		return nil, invalid("dry-run must be true or false")
	}
	var body struct {
		Tables   *[]policy.Table `json:"tables"` // an empty list takes all rules away; none is a mistake
		Revision string          `json:"revision"`
		// Keys and Templates may be there, since what was read is sent back.
		Keys      json.RawMessage `json:"keys"`
		Templates json.RawMessage `json:"templates"`
	}
	if err := decode(c.w, c.r, &body); err != nil {
		return nil, err
	}
	if body.Tables == nil {
		return nil, invalid("tables is missing: send all that there are to be")
	}
	for _, t := range *body.Tables {
		if t.Scope.Kind == policy.SandboxScope {
			return nil, invalid("rules of one sandbox are at %s/sandboxes/%s/rules", Prefix, t.Scope.ID)
		}
	}
	if _, err := policy.CompileAll(*body.Tables); err != nil {
		return nil, invalid("%s", err)
	}
	a.writing.Lock()
	defer a.writing.Unlock()
	before, err := a.policy(c.context())
	if err != nil {
		return nil, err
	}
	if body.Revision != "" && body.Revision != before.Revision {
		return nil, fail(http.StatusConflict, CodeConflict, "the rules were changed since you read them: read them again, so that nothing of what somebody else wrote is lost")
	}
	if q.Get("dry-run") == "true" {
		return before, nil
	}
	if err := a.Rules.Replace(c.context(), *body.Tables); err != nil {
		return nil, err
	}
	return a.policy(c.context())
}

func (a *API) explain(c *call) (any, error) {
	var body ExplainRequest
	if err := decode(c.w, c.r, &body); err != nil {
		return nil, err
	}
	if len(body.Action) > maxWords {
		return nil, invalid("an action has %d words at most", maxWords)
	}
	action, err := policy.ParseAction(body.Action...)
	if err != nil {
		return nil, invalid("%s", err)
	}
	info, err := a.asked(c, body)
	if err != nil {
		return nil, err
	}
	verdict, tables := a.Rules.Explain(info, action)
	e := Explanation{Subject: info.Subject(), Action: action, Verdict: verdict, Tables: tables}
	if verdict.Needs != 0 {
		e.Needs = verdict.Needs.String()
	}
	return e, nil
}

// asked is the sandbox that a question is about. Who has not the role policy may ask
// about sandboxes of their own key.
func (a *API) asked(c *call, body ExplainRequest) (sandbox.Info, error) {
	all := c.auth.Has(store.RolePolicy)
	if body.SandboxID != "" {
		info, err := a.Sandboxes.Get(body.SandboxID)
		if err != nil || !all && !c.auth.Owns(info.KeyID) {
			return sandbox.Info{}, notFound("there is no sandbox %.60q", body.SandboxID)
		}
		return info, nil
	}
	if !all && body.KeyID != "" && body.KeyID != c.auth.KeyID() {
		return sandbox.Info{}, forbidden("to ask about sandboxes of another key takes the role policy")
	}
	if !all {
		body.KeyID = c.auth.KeyID()
	}
	return sandbox.Info{KeyID: body.KeyID, TemplateID: body.TemplateID, TemplateName: body.TemplateName}, nil
}

// Policy returns the tables there are.
func (c *Client) Policy(ctx context.Context) (p Policy, err error) {
	return p, c.do(ctx, http.MethodGet, "/policy", nil, &p)
}

// PutPolicy puts tables in place of all there are and returns what is there now. With
// dryRun they are only checked, and what is there now is what was before.
func (c *Client) PutPolicy(ctx context.Context, p Policy, dryRun bool) (now Policy, err error) {
	path := "/policy"
	if dryRun {
		path += "?dry-run=true"
	}
	if p.Tables == nil {
		p.Tables = []policy.Table{}
	}
	return now, c.do(ctx, http.MethodPut, path, p, &now)
}

// Explain tells what would be decided on an action, and why.
func (c *Client) Explain(ctx context.Context, req ExplainRequest) (e Explanation, err error) {
	return e, c.do(ctx, http.MethodPost, "/policy/explain", req, &e)
}
