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
	require.Empty(t, book.Tables())
	scopes := []policy.Scope{{Kind: policy.ServerScope}, {Kind: policy.KeyScope, ID: "k"}, {Kind: policy.TemplateScope, ID: "t"}, {Kind: policy.SandboxScope, ID: "s"}}
	for i := len(scopes) - 1; i >= 0; i-- {
		require.NoError(t, book.Put(policy.Table{Scope: scopes[i]}))
	}
	require.NoError(t, book.Put(policy.Table{Scope: policy.Scope{Kind: policy.KeyScope, ID: "other"}}))
	require.Equal(t, scopes, scopesOf(book.For(subject)), "the widest first")
	require.Equal(t, scopes[:1], scopesOf(book.For(policy.Subject{})), "no id is no scope")
	require.Len(t, book.Tables(), 5)

	require.Error(t, book.Put(policy.Table{Scope: scopes[1], Rules: []policy.Rule{{Name: "bad"}}}))
	require.Equal(t, scopes, scopesOf(book.For(subject)), "what is refused changes nothing")
	require.Error(t, book.Put(policy.Table{Scope: policy.Scope{Kind: policy.KeyScope}}), "a key without an id")
	require.Error(t, book.Put(policy.Table{Scope: policy.Scope{Kind: policy.ServerScope, ID: "x"}}))

	require.Error(t, book.Replace([]policy.Table{{Scope: scopes[0]}, {Scope: scopes[0]}}), "one scope twice")
	require.Error(t, book.Replace([]policy.Table{{Scope: scopes[3]}}), "a sandbox")
	require.NoError(t, book.Replace([]policy.Table{{Scope: scopes[2]}}))
	require.Equal(t, scopes[2:], scopesOf(book.For(subject)), "those of sandboxes stay")
	for _, scope := range scopes {
		book.Remove(scope)
	}
	require.Empty(t, book.Tables())
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
