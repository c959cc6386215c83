package store_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

func TestNamesAreKeptInOneForm(t *testing.T) {
	for _, test := range []struct{ name, kept, full string }{
		{"mine", "mine", "mine:default"},
		{"Mine", "mine", "mine:default"},
		{"mine:default", "mine", "mine:default"},
		{"mine:", "mine", "mine:default"},
		{"mine:V1.2", "mine:v1.2", "mine:v1.2"},
	} {
		n := store.SplitName(test.name)
		require.NoError(t, n.Check(), test.name)
		require.Equal(t, test.kept, n.String(), test.name)
		require.Equal(t, test.full, n.Full(), test.name)
		require.Equal(t, n, store.SplitName(n.String()), "%s is read back from its kept form", test.name)
	}
}

func TestBadNamesAreRefused(t *testing.T) {
	for _, name := range []string{
		"", ":", ":v1", "a b", "a/b", "a.b", "a:b:c", "a:b c", "ä", "a\n", "a:../x",
		"a:12345678-1234-1234-1234-123456789abc",
		strings.Repeat("a", 129), "a:" + strings.Repeat("a", 129),
	} {
		require.Error(t, store.SplitName(name).Check(), "%q", name)
	}
}
