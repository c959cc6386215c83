package policy_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

func TestBook(t *testing.T) {
	var book policy.Book
	subject := policy.Subject{SandboxID: "s", KeyID: "k", TemplateID: "t"}
	require.Empty(t, book.For(subject))
	scopes := []policy.Scope{{Kind: policy.ServerScope}, {Kind: policy.KeyScope, ID: "k"}, {Kind: policy.TemplateScope, ID: "t"}}
	other := policy.Scope{Kind: policy.KeyScope, ID: "other"}
	require.NoError(t, book.Replace([]policy.Table{{Scope: other}, {Scope: scopes[2]}, {Scope: scopes[1]}, {Scope: scopes[0]}}))
	require.Equal(t, scopes, scopesOf(book.For(subject)), "the widest first")
	require.Equal(t, scopes[:1], scopesOf(book.For(policy.Subject{})), "no id is no scope")

	for about, tables := range map[string][]policy.Table{
		"a rule of no kind":   {{Scope: scopes[1], Rules: []policy.Rule{{Name: "bad"}}}},
		"a key without an id": {{Scope: policy.Scope{Kind: policy.KeyScope}}},
		"the server of an id": {{Scope: policy.Scope{Kind: policy.ServerScope, ID: "x"}}},
		"one scope twice":     {{Scope: scopes[0]}, {Scope: scopes[0]}},
		"that of a sandbox":   {{Scope: policy.Scope{Kind: policy.SandboxScope, ID: "s"}}},
	} {
		require.Error(t, book.Replace(tables), about)
		require.Equal(t, scopes, scopesOf(book.For(subject)), "what is refused changes nothing")
	}
	require.NoError(t, book.Replace([]policy.Table{{Scope: scopes[2]}}))
	require.Equal(t, scopes[2:], scopesOf(book.For(subject)), "what is not among the new ones is gone")
}

// TestNobodySeesHalfOfAReplacement: the two tables of each generation agree.
func TestNobodySeesHalfOfAReplacement(t *testing.T) {
	var book policy.Book
	generation := func(d policy.Decision) []policy.Table {
		def := map[policy.Kind]policy.Decision{policy.Exec: d}
		return []policy.Table{{Scope: policy.Scope{Kind: policy.ServerScope}, Default: def}, {Scope: policy.Scope{Kind: policy.KeyScope, ID: "k"}, Default: def}}
	}
	require.NoError(t, book.Replace(generation(policy.Allow)))
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				set := book.For(policy.Subject{KeyID: "k"})
				if len(set) != 2 || set[0].Table().Default[policy.Exec] != set[1].Table().Default[policy.Exec] {
					t.Error("tables of two generations were seen")
					return
				}
			}
		})
	}
	for i := range 2000 {
		require.NoError(t, book.Replace(generation(policy.Decisions[i%3])))
	}
	close(done)
	readers.Wait()
}

func scopesOf(set policy.Set) (scopes []policy.Scope) {
	for _, table := range set {
		scopes = append(scopes, table.Table().Scope)
	}
	return scopes
}
