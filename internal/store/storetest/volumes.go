package storetest

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

func volumeIsFound(t *testing.T, s store.Store) {
	ctx := t.Context()
	v := volume(idA, "data")
	require.NoError(t, s.AddVolume(ctx, v, 0))
	v.CreatedAt = kept
	for _, by := range []string{v.ID, v.Name} {
		got, err := s.Volume(ctx, "k", by)
		require.NoError(t, err)
		requireEqual(t, v, got)
		_, err = s.Volume(ctx, "other", by)
		require.ErrorIs(t, err, store.ErrNotFound, "another key's")
	}
	got, err := s.VolumeByID(ctx, v.ID)
	require.NoError(t, err)
	requireEqual(t, v, got)
	_, err = s.VolumeByID(ctx, v.Name)
	require.ErrorIs(t, err, store.ErrNotFound)
	told, err := json.Marshal(got)
	require.NoError(t, err)
	require.NotContains(t, string(told), v.Token)

	imposter := volume(idB, idA)
	require.NoError(t, s.AddVolume(ctx, imposter, 0))
	got, err = s.Volume(ctx, "k", idA)
	require.NoError(t, err)
	require.Equal(t, "data", got.Name, "ids come before names")

	require.NoError(t, s.DeleteVolume(ctx, v.ID))
	require.ErrorIs(t, s.DeleteVolume(ctx, v.ID), store.ErrNotFound)
	_, err = s.Volume(ctx, "k", "data")
	require.ErrorIs(t, err, store.ErrNotFound)
}

func volumesAreLimited(t *testing.T, s store.Store) {
	ctx := t.Context()
	for i, v := range []store.Volume{volume(idA, "a"), volume(idB, "b")} {
		v.CreatedAt = now.Add(-time.Duration(i) * time.Second)
		require.NoError(t, s.AddVolume(ctx, v, 2))
	}
	require.ErrorIs(t, s.AddVolume(ctx, volume(idC, "c"), 2), store.ErrFull)
	require.ErrorIs(t, s.AddVolume(ctx, volume(idC, "a"), 0), store.ErrExists)
	require.ErrorIs(t, s.AddVolume(ctx, volume(idA, "d"), 0), store.ErrExists)
	other := volume(idC, "a")
	other.KeyID = "other"
	require.NoError(t, s.AddVolume(ctx, other, 2), "another key has names and limits of its own")
	names := func(keyID string) (names []string) {
		all, err := s.Volumes(ctx, keyID)
		require.NoError(t, err)
		for _, v := range all {
			names = append(names, v.KeyID+"/"+v.Name)
		}
		return names
	}
	require.Equal(t, []string{"k/b", "k/a"}, names("k"))
	require.Equal(t, []string{"k/b", "k/a", "other/a"}, names(""))
	require.Empty(t, names("none"))
}

func volumeNameIsTakenOnce(t *testing.T, s store.Store) {
	var made atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if s.AddVolume(t.Context(), volume(fmt.Sprintf("%020d", i), "data"), 0) == nil {
				made.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, made.Load())
}

func volume(id, name string) store.Volume {
	return store.Volume{ID: id, Name: name, KeyID: "k", Token: "token of " + name, SizeBytes: 1 << 30, CreatedAt: now}
}
