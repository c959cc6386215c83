package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

func newHold(id, sandboxID, keyID string) store.Hold {
	return store.Hold{ID: id, SandboxID: sandboxID, KeyID: keyID, State: "pending", Data: json.RawMessage(`{"of":"` + id + `"}`)}
}

func addHold(t *testing.T, s store.Store, id, sandboxID, keyID string) store.Hold {
	t.Helper()
	h := newHold(id, sandboxID, keyID)
	require.NoError(t, s.AddHold(t.Context(), h))
	return h
}

// endHold ends a hold that was added, at a time.
func endHold(t *testing.T, s store.Store, h store.Hold, at time.Time) {
	t.Helper()
	h.State, h.EndedAt = "approved", at
	require.NoError(t, s.UpdateHold(t.Context(), h))
}

func holdsOf(t *testing.T, s store.Store, f store.HoldFilter) []string {
	t.Helper()
	if f.Most == 0 {
		f.Most = 100
	}
	holds, err := s.Holds(t.Context(), f)
	require.NoError(t, err)
	return holdIDs(holds)
}

func holdIDs(holds []store.Hold) (ids []string) {
	for _, h := range holds {
		ids = append(ids, h.ID)
	}
	return ids
}

func grantIDs(t *testing.T, s store.Store) (ids []string) {
	t.Helper()
	grants, err := s.Grants(t.Context())
	require.NoError(t, err)
	for _, g := range grants {
		ids = append(ids, g.ID)
	}
	return ids
}

func newGrant(id, sandboxID string, until time.Time) store.Grant {
	return store.Grant{ID: id, SandboxID: sandboxID, Until: until, Data: json.RawMessage(`{"a":"ü\"'"}`)}
}

func holdIsReadBackAsWritten(t *testing.T, s store.Store) {
	ctx := t.Context()
	h := addHold(t, s, "h1", "i1", "a")
	require.ErrorIs(t, s.AddHold(ctx, newHold("h1", "i2", "b")), store.ErrExists)
	got, err := s.Hold(ctx, "h1")
	require.NoError(t, err)
	requireEqual(t, h, got)
	_, err = s.Hold(ctx, "h2")
	require.ErrorIs(t, err, store.ErrNotFound)

	h.State, h.EndedAt, h.Data = "denied", now, json.RawMessage(`{"other":1}`)
	changed := h
	changed.SandboxID, changed.KeyID = "other", "other"
	require.NoError(t, s.UpdateHold(ctx, changed))
	got, err = s.Hold(ctx, "h1")
	require.NoError(t, err)
	h.EndedAt = kept
	requireEqual(t, h, got)
	require.ErrorIs(t, s.UpdateHold(ctx, newHold("h2", "", "")), store.ErrNotFound)
}

func holdsAreListed(t *testing.T, s store.Store) {
	for i, of := range []string{"i1", "i2", "i1", "i1"} {
		h := addHold(t, s, fmt.Sprintf("h%d", i), of, "key of "+of)
		if i == 2 {
			endHold(t, s, h, now)
		}
	}
	for name, test := range map[string]struct {
		filter store.HoldFilter
		want   []string
	}{
		"all":                {store.HoldFilter{}, []string{"h3", "h2", "h1", "h0"}},
		"of a sandbox":       {store.HoldFilter{SandboxID: "i1"}, []string{"h3", "h2", "h0"}},
		"of a key":           {store.HoldFilter{KeyID: "key of i2"}, []string{"h1"}},
		"in a state":         {store.HoldFilter{States: []string{"approved", "denied"}}, []string{"h2"}},
		"a page":             {store.HoldFilter{Before: "h3", Most: 2}, []string{"h2", "h1"}},
		"a last page":        {store.HoldFilter{Before: "h1"}, []string{"h0"}},
		"after what is gone": {store.HoldFilter{Before: "gone"}, nil},
	} {
		require.Equal(t, test.want, holdsOf(t, s, test.filter), name)
	}
	pending, err := s.PendingHolds(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"h0", "h1", "h3"}, holdIDs(pending), "oldest first")
}

func holdEndsOnceWithItsGrants(t *testing.T, s store.Store) {
	ctx := t.Context()
	h := addHold(t, s, "h", "i1", "a")
	var ended atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			h := h
			h.State, h.EndedAt = fmt.Sprint("by ", i), now
			err := s.UpdateHold(context.WithoutCancel(ctx), h, newGrant(fmt.Sprint("g", i), "i1", time.Time{}))
			if err == nil {
				ended.Add(1)
				return
			}
			require.ErrorIs(t, err, store.ErrEnded)
		})
	}
	all.Wait()
	require.EqualValues(t, 1, ended.Load())
	got, err := s.Hold(ctx, "h")
	require.NoError(t, err)
	require.Equal(t, []string{"g" + got.State[len("by "):]}, grantIDs(t, s), "the grant of the one that ended it")

	h = addHold(t, s, "other", "i1", "a")
	h.EndedAt = now
	err = s.UpdateHold(ctx, h, newGrant("fresh", "i1", time.Time{}), newGrant(grantIDs(t, s)[0], "i1", time.Time{}))
	require.ErrorIs(t, err, store.ErrExists)
	got, err = s.Hold(ctx, "other")
	require.NoError(t, err)
	require.Zero(t, got.EndedAt, "all of it or nothing")
	require.Len(t, grantIDs(t, s), 1)
}

func grantIsTakenOnce(t *testing.T, s store.Store) {
	ctx := t.Context()
	require.NoError(t, s.AddGrant(ctx, newGrant("g", "i1", now)))
	require.ErrorIs(t, s.AddGrant(ctx, newGrant("g", "", time.Time{})), store.ErrExists)
	grants, err := s.Grants(ctx)
	require.NoError(t, err)
	require.Len(t, grants, 1)
	requireEqual(t, newGrant("g", "i1", kept), grants[0])

	var taken atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			err := s.DeleteGrant(context.WithoutCancel(ctx), "g")
			if err == nil {
				taken.Add(1)
				return
			}
			require.ErrorIs(t, err, store.ErrNotFound)
		})
	}
	all.Wait()
	require.EqualValues(t, 1, taken.Load())
	require.Empty(t, grantIDs(t, s))
}

func grantsGoWithTheirSandboxAndTime(t *testing.T, s store.Store) {
	ctx := t.Context()
	for _, g := range []store.Grant{
		newGrant("for i1", "i1", time.Time{}), newGrant("for i2", "i2", time.Time{}), newGrant("for all", "", time.Time{}),
		newGrant("over", "", now), newGrant("longer", "i2", now.Add(time.Second)),
	} {
		require.NoError(t, s.AddGrant(ctx, g))
	}
	n, err := s.DeleteGrantsOf(ctx, "i1")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = s.DeleteGrantsOf(ctx, "")
	require.NoError(t, err)
	require.Zero(t, n, "those of no sandbox go with none")
	n, err = s.PruneGrants(ctx, now)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []string{"for i2", "for all", "longer"}, grantIDs(t, s))
}

func pruneSparesPendingHolds(t *testing.T, s store.Store) {
	for i := range 5 {
		h := addHold(t, s, fmt.Sprintf("h%d", i), "i1", "a")
		if i != 0 {
			endHold(t, s, h, now.Add(time.Duration(i)*time.Minute))
		}
	}
	endHold(t, s, addHold(t, s, "other", "i2", "a"), now.Add(time.Minute))
	n, err := s.PruneHolds(t.Context(), now.Add(90*time.Second), 2)
	require.NoError(t, err)
	require.Equal(t, 3, n, "two that are old and one that is too many")
	require.Equal(t, []string{"h4", "h3", "h0"}, holdsOf(t, s, store.HoldFilter{}))
}

func changesOfApprovalsAreSeen(t *testing.T, s store.Store) {
	ctx := t.Context()
	last, err := s.ApprovalChanges(ctx)
	require.NoError(t, err)
	changes := func() bool {
		n, err := s.ApprovalChanges(ctx)
		require.NoError(t, err)
		changed := n > last
		last = n
		return changed
	}
	require.False(t, changes())
	h := addHold(t, s, "h", "i1", "a")
	require.True(t, changes())
	endHold(t, s, h, now)
	require.True(t, changes())
	require.ErrorIs(t, s.UpdateHold(ctx, h), store.ErrEnded)
	require.False(t, changes(), "nothing was changed")
	require.NoError(t, s.AddGrant(ctx, newGrant("g", "i1", time.Time{})))
	require.True(t, changes())
	require.NoError(t, s.DeleteGrant(ctx, "g"))
	require.True(t, changes())
}
