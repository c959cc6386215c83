package cli

import (
	"context"

	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/rules"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// liveRules are the rules of a server, by which its guard goes.
type liveRules struct {
	rules.Keeper
	guard *guard.Guard
	log   audit.Appender
}

func newLiveRules(s store.Policies, g *guard.Guard, log audit.Appender) *liveRules {
	return &liveRules{rules.Keeper{Store: s, Reload: g.Reload}, g, log}
}

// Replace implements tombolo.Rules.
func (l *liveRules) Replace(ctx context.Context, tables []policy.Table) error {
	before, err := l.Tables(ctx)
	if err != nil {
		return err
	}
	if err := l.Keeper.Replace(ctx, tables); err != nil {
		return err
	}
	recordRules(l.log, actorOf(ctx), before, tables)
	return nil
}

// Explain implements tombolo.Rules.
func (l *liveRules) Explain(info sandbox.Info, a policy.Action) (policy.Verdict, []policy.TableSay) {
	return l.guard.Explain(info, a)
}

// mostChanges is how many changes of rules a record names.
const mostChanges = 100

// recordRules writes down what of the rules changed.
func recordRules(log audit.Appender, actor string, before, after []policy.Table) {
	changes := rules.Changes(before, after)
	log.Append(audit.Record{Kind: audit.Policy, Actor: actor, What: "replace", Detail: audit.Detail(map[string]any{
		"changed": len(changes), "changes": changes[:min(len(changes), mostChanges)],
	})})
}
