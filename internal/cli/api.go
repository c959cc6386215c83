package cli

import (
	"context"
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/api/auth"
	"github.com/tombolo-dev/tombolo/internal/api/record"
	api "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// openAPI makes the server's own API over sandboxes, which are those that rules hold for.
func (c *core) openAPI(sandboxes sandbox.Sandboxes) *api.API {
	return api.New(api.Options{
		Store: c.store, Sandboxes: sandboxes, Desk: revoking{c.gate.desk, c.gate.guard}, Networks: networks{c.gate.guard},
		Rules: newLiveRules(c.store, c.gate.guard, c.gate.audit), Vault: c.gate.secrets, AuditDir: audit.Dir(c.config.Data), Log: c.log,
	})
}

// revoking is a desk whose grants are taken back from what is open, too.
type revoking struct {
	*approval.Desk
	guard *guard.Guard
}

// Revoke implements api.Desk.
func (r revoking) Revoke(ctx context.Context, id string) (approval.Grant, error) {
	grant, err := r.Desk.Revoke(ctx, id)
	if err == nil {
		r.guard.Recheck()
	}
	return grant, err
}

// recorded has the calls of an API be written into the audit log.
func (c *core) recorded(name, actor string, h http.Handler) http.Handler {
	return record.Requests{Log: c.gate.audit, API: name, Actor: actor}.Wrap(h)
}

// asOwner has whoever reaches a handler be the machine's owner.
func asOwner(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, auth.Request(r, auth.Owner()))
	})
}

// networks tells the API what went out.
type networks struct{ guard *guard.Guard }

func (n networks) Refusals(id string) []guard.Refusal { return n.guard.Refusals(id) }

func (n networks) Destinations(id string) []api.Destination {
	var all []api.Destination
	for _, d := range n.guard.Destinations(id) {
		all = append(all, api.Destination{
			Name: d.Name, Address: d.Address, Port: d.Port, Protocol: string(d.Protocol),
			Connections: d.Connections, Denied: d.Denied, BytesOut: d.BytesOut, BytesIn: d.BytesIn,
		})
	}
	return all
}

// recordHolds writes down what waited for a person and what became of it.
func recordHolds(log audit.Appender) func(approval.Hold) {
	return func(h approval.Hold) {
		r := audit.Record{
			Kind: audit.Approval, Actor: "server", SandboxID: h.Subject.SandboxID, KeyID: h.Subject.KeyID,
			ID: h.ID, Rule: h.Rule, Detail: audit.Detail(map[string]any{"action": h.Action.String(), "hash": h.Hash, "scope": h.Scope}),
		}
		switch {
		case h.State == approval.Pending && h.Proposed != nil:
			r.What, r.Decision, r.Reason = "propose", "ask", h.Proposed.Reason
			r.Detail = audit.Detail(map[string]any{"action": h.Action.String(), "hash": h.Hash, "proposed": h.Proposed})
		case h.State == approval.Pending:
			r.What, r.Decision, r.Reason = "hold", "ask", h.Reason
		case h.Answer != nil && h.Answer.Approve:
			r.Actor, r.What, r.Decision, r.Reason = h.Answer.Approver, "approve", "allow", h.Answer.Reason
			r.Detail = audit.Detail(map[string]any{"action": h.Action.String(), "hash": h.Hash, "answer": h.Answer})
		case h.Answer != nil:
			r.Actor, r.What, r.Decision, r.Reason = h.Answer.Approver, "deny", "deny", h.Answer.Reason
		case h.State == approval.Withdrawn: // what became of the action has a record of its own
			r.What, r.Reason = string(h.State), h.Reason
		default: // expired
			r.What, r.Decision, r.Reason = string(h.State), "deny", h.Reason
		}
		log.Append(r)
	}
}
