package sqlite_test

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func TestObserverIsToldOfReadsAndWrites(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "tombolo.db"))
	var mu sync.Mutex
	counts := map[string]int{}
	s.Observe(func(kind string, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		counts[kind]++
		require.Positive(t, took)
	})
	require.NoError(t, s.PutSandbox(t.Context(), store.Sandbox{ID: "a"}))
	_, err := s.Sandbox(t.Context(), "a")
	require.NoError(t, err)
	_, err = s.Sandbox(t.Context(), "b")
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = s.Sandboxes(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"read": 3, "write": 1}, counts)
}

func TestPendingDeliveriesAreCounted(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "tombolo.db"))
	require.Zero(t, pending(t, s))
	now := time.Now().UTC()
	require.NoError(t, s.AddWebhook(t.Context(), store.Webhook{
		ID: "w", KeyID: "k", URL: "http://example.com", Secret: "s", Enabled: true, Kinds: []string{"created"}, CreatedAt: now,
	}, 1))
	for _, id := range []string{"1", "2"} {
		_, err := s.AddEvent(t.Context(), store.Event{ID: id, KeyID: "k", SandboxID: "i", Kind: "created", At: now})
		require.NoError(t, err)
	}
	require.Equal(t, 2, pending(t, s))
	due, _, err := s.DueDeliveries(t.Context(), now.Add(time.Hour), 1, 1)
	require.NoError(t, err)
	require.NoError(t, s.UpdateDelivery(t.Context(), due[0].ID, func(d *store.Delivery, _ *store.Webhook) { d.State = store.Delivered }))
	require.Equal(t, 1, pending(t, s))
}

func pending(t *testing.T, s *sqlite.Store) int {
	t.Helper()
	count, err := s.PendingDeliveries(t.Context())
	require.NoError(t, err)
	return count
}
