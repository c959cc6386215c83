package store_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

func TestNewKeySuitsEveryClientVersion(t *testing.T) {
	k, secret, err := store.NewKey("ci", time.Now())
	require.NoError(t, err)
	require.Regexp(t, regexp.MustCompile(`^e2b_[0-9a-f]{40}$`), secret)
	require.True(t, strings.HasPrefix(secret, k.Prefix))
	require.Less(t, len(k.Prefix), 12, "a prefix gives little of the secret away")
	require.Equal(t, store.DefaultMaxSandboxes, k.MaxSandboxes)

	other, otherSecret, err := store.NewKey("ci", time.Now())
	require.NoError(t, err)
	require.NotEqual(t, secret, otherSecret)
	require.NotEqual(t, k.ID, other.ID)
}

func TestHashSecretRefusesWhatNoSecretIs(t *testing.T) {
	for _, secret := range []string{"", strings.Repeat("a", 10_000)} {
		_, err := store.HashSecret(secret)
		require.Error(t, err)
	}
}

func TestNewKeyRefusesBadNames(t *testing.T) {
	for _, name := range []string{"", " ", "a b", "-a", "a\n", strings.Repeat("a", 65)} {
		_, _, err := store.NewKey(name, time.Now())
		require.Error(t, err, "%q", name)
	}
}
