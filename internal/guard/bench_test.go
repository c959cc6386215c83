package guard_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// nowhere drops records.
type nowhere struct{}

func (nowhere) Append(audit.Record) {}

// hundred is as many rules of a kind, of which the last fits what benchmarks ask.
func hundred(kind policy.Kind) policy.Table {
	table := policy.Table{Scope: server, Default: map[policy.Kind]policy.Decision{kind: policy.Deny}}
	for i := range 100 {
		match := policy.Match{Host: []string{fmt.Sprintf("*.h%d.example", i)}}
		if kind == policy.Exec {
			match = policy.Match{Command: []string{fmt.Sprintf("program%d *", i)}}
		}
		table.Rules = append(table.Rules, policy.Rule{
			Name: fmt.Sprintf("r%d", i), Kind: kind, Decision: policy.Allow, Match: []policy.Match{match},
		})
	}
	return table
}

func benchGuard(b *testing.B, log audit.Appender, tables ...policy.Table) *guard.Guard {
	b.Helper()
	g, err := guard.New(b.Context(), guard.Config{
		Store: noTemplates{}, Audit: log, Log: slog.New(slog.DiscardHandler),
		Tables: func(context.Context) ([]policy.Table, error) { return tables, nil },
	})
	require.NoError(b, err)
	return g
}

func openLog(b *testing.B) audit.Appender {
	b.Helper()
	log, err := audit.Open(b.TempDir()+"/audit", audit.Options{Log: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, log.Close()) })
	return log
}

// BenchmarkDecide is one decision on a TLS connection, under a hundred rules of the
// server: with the record of it, and with records dropped. Of many sandboxes, since the
// log folds what is too much of one.
func BenchmarkDecide(b *testing.B) {
	for name, open := range map[string]func(*testing.B) audit.Appender{
		"unrecorded": func(*testing.B) audit.Appender { return nowhere{} }, "recorded": openLog,
	} {
		b.Run(name, func(b *testing.B) {
			g := benchGuard(b, open(b), hundred(policy.Egress))
			var policies []gateway.Policy
			for i := range 100 {
				owner := &sandbox.Owner{
					Subject: policy.Subject{SandboxID: fmt.Sprint("i", i), KeyID: "k1"}, Log: func(bool, string) {},
				}
				policies = append(policies, g.Policy(func() *sandbox.Owner { return owner }))
			}
			r := gateway.Request{Protocol: gateway.TLS, Destination: at("203.0.113.7:443"), Name: "a.h99.example", Names: []string{"a.h99.example"}}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if d := policies[i%len(policies)].Decide(context.Background(), r); !d.Allowed() {
					b.Fatal(d)
				}
			}
		})
	}
}

// BenchmarkAdmit is one command that a caller starts in a sandbox: with a hundred rules of
// its own, and with none.
func BenchmarkAdmit(b *testing.B) {
	for name, rules := range map[string]policy.Table{"ruled": hundred(policy.Exec), "free": {}} {
		b.Run(name, func(b *testing.B) {
			g := benchGuard(b, nowhere{})
			info := sandbox.Info{ID: "i1", KeyID: "k1", Rules: rules, EndAt: time.Now().Add(time.Hour)}
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, g.Admit(b.Context(), info, policy.Action{Kind: policy.Exec, Command: "program99 run", User: "user"}))
			}
		})
	}
}
