package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// storedRules are the rules of the server, of keys and of templates, in the store.
type storedRules struct{ store store.Policies }

// Tables reads them.
func (s storedRules) Tables(ctx context.Context) ([]policy.Table, error) {
	records, err := s.store.Policies(ctx)
	if err != nil {
		return nil, err
	}
	var tables []policy.Table
	for _, r := range records {
		if r.Scope == store.SandboxPolicy {
			continue
		}
		var t policy.Table
		if err := json.Unmarshal(r.Record, &t); err != nil {
			return nil, fmt.Errorf("the rules of %s %s cannot be read: %w", r.Scope, r.ScopeID, err)
		}
		t.Scope = policy.Scope{Kind: policy.ScopeKind(r.Scope), ID: r.ScopeID}
		tables = append(tables, t)
	}
	return tables, nil
}

// replace writes tables in place of all there are.
func (s storedRules) replace(ctx context.Context, tables []policy.Table) error {
	now := time.Now().UTC()
	records := make([]store.Policy, len(tables))
	for i, t := range tables {
		raw, err := json.Marshal(t)
		if err != nil {
			return err
		}
		records[i] = store.Policy{Scope: string(t.Scope.Kind), ScopeID: t.Scope.ID, Record: raw, UpdatedAt: now}
	}
	return s.store.ReplacePolicies(ctx, records)
}

// liveRules are the same in a process whose guard goes by them.
type liveRules struct {
	storedRules
	guard *guard.Guard
	log   audit.Appender
}

// Replace implements tombolo.Rules.
func (l liveRules) Replace(ctx context.Context, tables []policy.Table) error {
	if err := l.replace(ctx, tables); err != nil {
		return err
	}
	scopes := make([]string, len(tables))
	for i, t := range tables {
		scopes[i] = t.Scope.String()
	}
	l.log.Append(audit.Record{Kind: audit.Policy, Actor: actorOf(ctx), What: "replace", Detail: audit.Detail(map[string]any{"tables": scopes})})
	return l.guard.Reload(ctx)
}

// Explain implements tombolo.Rules.
func (l liveRules) Explain(info sandbox.Info, a policy.Action) (policy.Verdict, []policy.TableSay) {
	return l.guard.Explain(info, a)
}
