package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

func secretIsFound(t *testing.T, s store.Store) {
	ctx := t.Context()
	add := func(id, key, name string) {
		added := secret(id, name)
		added.KeyID = key
		require.NoError(t, s.AddSecret(ctx, added, 0))
	}
	add("sec_1", "k", "token")
	add("sec_2", "k", "sec_1")
	add("sec_3", "other", "token")
	for by, want := range map[string]string{"token": "sec_1", "sec_1": "sec_1", "sec_2": "sec_2"} {
		got, err := s.Secret(ctx, "k", by)
		require.NoError(t, err)
		require.Equal(t, want, got.ID, "ids come before names")
	}
	for _, by := range []string{"sec_3", "none", "", "TOKEN"} {
		_, err := s.Secret(ctx, "k", by)
		require.ErrorIs(t, err, store.ErrNotFound, by)
		_, err = s.UpdateSecret(ctx, "k", by, func(*store.Secret) error { return nil })
		require.ErrorIs(t, err, store.ErrNotFound, by)
		_, err = s.DeleteSecret(ctx, "k", by)
		require.ErrorIs(t, err, store.ErrNotFound, by)
	}
	deleted, err := s.DeleteSecret(ctx, "k", "token")
	require.NoError(t, err)
	require.Equal(t, "sec_1", deleted.ID)
	_, err = s.Secret(ctx, "k", "token")
	require.ErrorIs(t, err, store.ErrNotFound)
	add("sec_1", "k", "token")
	got, err := s.Secret(ctx, "k", "sec_1")
	require.NoError(t, err)
	require.Len(t, got.Values, 1, "nothing is left of one that was deleted")
}

func secretIsReadBackAsWritten(t *testing.T, s store.Store) {
	ctx := t.Context()
	full := secret("sec_1", "full")
	full.Version = 7
	full.Values = []store.SecretValue{
		{Version: 7, Ciphertext: []byte{0, 1, 0xff}, CreatedAt: now},
		{Version: 6, Ciphertext: []byte("formerly"), CreatedAt: now.Add(-time.Hour)},
	}
	full.Metadata = map[string]string{"a": "ä\x01", "": ""}
	full.Bindings = json.RawMessage(`[{"host":["a"]}]`)
	bare := secret("sec_2", "bare")
	bare.CreatedAt = bare.CreatedAt.Add(-time.Second)
	for _, added := range []store.Secret{full, bare} {
		require.NoError(t, s.AddSecret(ctx, added, 0))
	}
	full, bare = keptSecret(full), keptSecret(bare)
	all, _, err := s.Secrets(ctx, "k")
	require.NoError(t, err)
	requireEqual(t, []store.Secret{bare, full}, all)
	got, err := s.Secret(ctx, "k", "full")
	require.NoError(t, err)
	requireEqual(t, full, got)
	told, err := json.Marshal(got)
	require.NoError(t, err)
	require.NotContains(t, string(told), "formerly")
}

func keptSecret(s store.Secret) store.Secret {
	for _, t := range []*time.Time{&s.CreatedAt, &s.UpdatedAt} {
		*t = t.UTC().Truncate(time.Microsecond)
	}
	for i := range s.Values {
		s.Values[i].CreatedAt = s.Values[i].CreatedAt.UTC().Truncate(time.Microsecond)
	}
	return s
}

func secretsAreLimited(t *testing.T, s store.Store) {
	ctx := t.Context()
	require.NoError(t, s.AddSecret(ctx, secret("sec_1", "a"), 2))
	require.ErrorIs(t, s.AddSecret(ctx, secret("sec_2", "a"), 2), store.ErrExists)
	require.ErrorIs(t, s.AddSecret(ctx, secret("sec_1", "b"), 2), store.ErrExists)
	twin := secret("sec_2", "b")
	twin.Placeholder = secret("sec_1", "a").Placeholder
	require.ErrorIs(t, s.AddSecret(ctx, twin, 2), store.ErrExists, "no two have one placeholder")
	require.NoError(t, s.AddSecret(ctx, secret("sec_2", "b"), 2))
	require.ErrorIs(t, s.AddSecret(ctx, secret("sec_3", "c"), 2), store.ErrFull)
	require.ErrorIs(t, s.AddSecret(ctx, secret("sec_3", "a"), 2), store.ErrExists, "which is what the caller can change")
	other := secret("sec_3", "a")
	other.KeyID = "other"
	require.NoError(t, s.AddSecret(ctx, other, 2), "another key has names and limits of its own")
	all, _, err := s.Secrets(ctx, "")
	require.NoError(t, err)
	require.Len(t, all, 3)
}

func secretChangesAtOnce(t *testing.T, s store.Store) {
	ctx := t.Context()
	require.NoError(t, s.AddSecret(ctx, secret("sec_1", "a"), 0))
	refused := errors.New("refused")
	_, err := s.UpdateSecret(ctx, "k", "a", func(c *store.Secret) error { c.Version = 99; return refused })
	require.ErrorIs(t, err, refused)

	const writers = 8
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			_, err := s.UpdateSecret(ctx, "k", "a", func(c *store.Secret) error {
				c.ID, c.KeyID, c.Name, c.Placeholder, c.CreatedAt = "x", "x", "x", "x", time.Time{}
				c.Version++
				c.Values = append([]store.SecretValue{{Version: c.Version, Ciphertext: fmt.Append(nil, c.Version), CreatedAt: now}}, c.Values[0])
				return nil
			})
			require.NoError(t, err)
		})
	}
	wg.Wait()
	want := keptSecret(secret("sec_1", "a"))
	want.Version = writers + 1
	want.Values = []store.SecretValue{
		{Version: 9, Ciphertext: []byte("9"), CreatedAt: kept},
		{Version: 8, Ciphertext: []byte("8"), CreatedAt: kept},
	}
	got, err := s.Secret(ctx, "k", "a")
	require.NoError(t, err)
	requireEqual(t, want, got)
}

func secretChangesAreCounted(t *testing.T, s store.Store) {
	ctx := t.Context()
	var last int64
	counted := func(about string) {
		n, err := s.SecretChanges(ctx)
		require.NoError(t, err)
		require.Greater(t, n, last, about)
		_, listed, err := s.Secrets(ctx, "")
		require.NoError(t, err)
		require.Equal(t, n, listed)
		last = n
	}
	last = -1
	counted("none")
	require.NoError(t, s.AddSecret(ctx, secret("sec_1", "a"), 0))
	counted("added")
	_, err := s.UpdateSecret(ctx, "k", "a", func(c *store.Secret) error { c.Metadata = nil; return nil })
	require.NoError(t, err)
	counted("changed")
	_, err = s.DeleteSecret(ctx, "k", "a")
	require.NoError(t, err)
	counted("deleted")
	require.Error(t, func() error { _, err := s.DeleteSecret(ctx, "k", "a"); return err }())
	n, err := s.SecretChanges(ctx)
	require.NoError(t, err)
	require.Equal(t, last, n, "what changed nothing")
}

func deletedKeyTakesSecrets(t *testing.T, s store.Store) {
	ctx := t.Context()
	k, _ := newKey(t, "ci")
	require.NoError(t, s.AddKey(ctx, k))
	mine := secret("sec_1", "a")
	mine.KeyID = k.ID
	require.NoError(t, s.AddSecret(ctx, mine, 0))
	require.NoError(t, s.AddSecret(ctx, secret("sec_2", "a"), 0))
	before, err := s.SecretChanges(ctx)
	require.NoError(t, err)
	require.NoError(t, s.DeleteKey(ctx, "ci"))
	all, changes, err := s.Secrets(ctx, "")
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, "sec_2", all[0].ID)
	require.Greater(t, changes, before)
}

func secret(id, name string) store.Secret {
	return store.Secret{
		ID: id, KeyID: "k", Name: name, Version: 1, Placeholder: "tombolo_" + id, CreatedAt: now, UpdatedAt: now,
		Values: []store.SecretValue{{Version: 1, Ciphertext: []byte("value of " + name), CreatedAt: now}},
	}
}
