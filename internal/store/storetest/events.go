package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

func eventsAreListed(t *testing.T, s store.Store) {
	addEvent(t, s, "a", "i1", "created")
	addEvent(t, s, "b", "i2", "created")
	addEvent(t, s, "a", "i3", "created")
	addEvent(t, s, "a", "i1", "paused")
	addEvent(t, s, "a", "i1", "ended")

	for name, test := range map[string]struct {
		filter store.EventFilter
		want   []string
	}{
		"of a key":     {store.EventFilter{KeyID: "a"}, []string{"i1 created", "i3 created", "i1 paused", "i1 ended"}},
		"newest first": {store.EventFilter{KeyID: "a", NewestFirst: true}, []string{"i1 ended", "i1 paused", "i3 created", "i1 created"}},
		"of a sandbox": {store.EventFilter{KeyID: "a", SandboxID: "i1"}, []string{"i1 created", "i1 paused", "i1 ended"}},
		"of another's": {store.EventFilter{KeyID: "b", SandboxID: "i1"}, nil},
		"of kinds":     {store.EventFilter{KeyID: "a", Kinds: []string{"created", "ended"}}, []string{"i1 created", "i3 created", "i1 ended"}},
		"of no kind":   {store.EventFilter{KeyID: "a", Kinds: []string{"other"}}, nil},
		"a page":       {store.EventFilter{KeyID: "a", Skip: 1, Most: 2}, []string{"i3 created", "i1 paused"}},
		"a last page":  {store.EventFilter{KeyID: "a", NewestFirst: true, Skip: 3, Most: 2}, []string{"i1 created"}},
		"beyond":       {store.EventFilter{KeyID: "a", Skip: 9}, nil},
		"of no key":    {store.EventFilter{}, nil},
	} {
		require.Equal(t, test.want, eventsOf(t, s, test.filter), name)
	}
}

func eventIsReadBackAsWritten(t *testing.T, s store.Store) {
	e := store.Event{
		ID: "e1", Kind: "ended", At: now, KeyID: "a", SandboxID: "i1", TemplateID: "t", BuildID: "b", ExecutionID: "x",
		Metadata: map[string]string{"a/b": "ü\"'"}, StartedAt: now, EndAt: now, CPUs: 2, MemoryBytes: 1 << 40, Detail: "why",
	}
	queued, err := s.AddEvent(t.Context(), e)
	require.NoError(t, err)
	require.Zero(t, queued)
	got, err := s.Events(t.Context(), store.EventFilter{KeyID: "a", Most: 2})
	require.NoError(t, err)
	require.Len(t, got, 1)
	e.At, e.StartedAt, e.EndAt, e.Seq = kept, kept, kept, got[0].Seq
	requireEqual(t, e, got[0])
}

func pruneKeepsNewestEvents(t *testing.T, s store.Store) {
	ctx := t.Context()
	for i := range 6 {
		e := newEvent("a", fmt.Sprintf("i%d", i), "created")
		e.At = now.Add(time.Duration(i) * time.Minute)
		_, err := s.AddEvent(ctx, e)
		require.NoError(t, err)
	}
	addEvent(t, s, "b", "i9", "created")
	ids := func() []string { return eventsOf(t, s, store.EventFilter{KeyID: "a"}) }
	limits := store.EventLimits{Now: now, Since: now.Add(90 * time.Second), Most: 100, Bytes: 1 << 30}

	n, err := s.PruneEvents(ctx, limits)
	require.NoError(t, err)
	require.Equal(t, 3, n, "two of a and the one of b are old")
	require.Equal(t, []string{"i2 created", "i3 created", "i4 created", "i5 created"}, ids())

	addEvent(t, s, "b", "i9", "created")
	limits.Since, limits.Most = time.Time{}, 3
	n, err = s.PruneEvents(ctx, limits)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []string{"i3 created", "i4 created", "i5 created"}, ids())

	big := newEvent("a", "i6", "created")
	big.Metadata = map[string]string{"a": string(make([]byte, 1<<10))}
	_, err = s.AddEvent(ctx, big)
	require.NoError(t, err)
	limits.Most, limits.Bytes = 100, 10<<10
	n, err = s.PruneEvents(ctx, limits)
	require.NoError(t, err)
	require.Zero(t, n, "all is within the limits")
	limits.Bytes = 1 << 10
	n, err = s.PruneEvents(ctx, limits)
	require.NoError(t, err)
	require.Equal(t, 4, n, "one that is larger than all that is kept goes too")
	require.Empty(t, ids())
	require.Len(t, eventsOf(t, s, store.EventFilter{KeyID: "b"}), 1)
}

func eventIsQueued(t *testing.T, s store.Store) {
	ctx := t.Context()
	addWebhook(t, s, "all", "a", "created", "ended")
	addWebhook(t, s, "ended", "a", "ended")
	addWebhook(t, s, "other", "b", "created")
	addWebhook(t, s, "off", "a", "created")
	_, err := s.UpdateWebhook(ctx, "off", func(w *store.Webhook) error { w.Enabled = false; return nil })
	require.NoError(t, err)

	queued, err := s.AddEvent(ctx, newEvent("a", "i1", "created"))
	require.NoError(t, err)
	require.Equal(t, 1, queued)
	queued, err = s.AddEvent(ctx, newEvent("a", "i2", "ended"))
	require.NoError(t, err)
	require.Equal(t, 2, queued)

	due, next, err := s.DueDeliveries(ctx, now, 10, 1)
	require.NoError(t, err)
	require.Zero(t, next, "none is for later")
	require.Len(t, due, 3)
	first := due[0]
	require.Equal(t, "all", first.Webhook.ID)
	require.Equal(t, "secret", first.Webhook.Secret)
	require.Equal(t, "i1", first.Event.SandboxID)
	require.NotEmpty(t, first.ID)
	requireEqual(t, store.Delivery{
		Seq: first.Seq, ID: first.ID, WebhookID: "all", EventID: first.Event.ID, EventKind: "created", SandboxID: "i1",
		State: store.Pending, CreatedAt: kept, NextAt: kept, Attempts: []store.Attempt{},
	}, first.Delivery)
	require.Equal(t, "i2", due[1].SandboxID)
	require.Equal(t, "ended", due[2].WebhookID)

	due, next, err = s.DueDeliveries(ctx, now.Add(-time.Second), 10, 1)
	require.NoError(t, err)
	require.Empty(t, due, "before its time none is due")
	require.Equal(t, kept, next)

	_, err = s.UpdateWebhook(ctx, "all", func(w *store.Webhook) error { w.Enabled = false; return nil })
	require.NoError(t, err)
	due, _, err = s.DueDeliveries(ctx, now, 10, 1)
	require.NoError(t, err)
	require.Len(t, due, 1, "a disabled webhook is sent nothing")
}

func webhookIsReadBackAsWritten(t *testing.T, s store.Store) {
	ctx := t.Context()
	w := store.Webhook{
		ID: "w", KeyID: "a", Name: "n", URL: "https://example.com/?a=b", Kinds: []string{"created", "ended"}, Enabled: true,
		CreatedAt: now, Secret: "s", DisabledReason: "r", Failures: 3, FailingSince: now,
	}
	require.NoError(t, s.AddWebhook(ctx, w, 1))
	w.CreatedAt, w.FailingSince = kept, kept
	got, err := s.Webhook(ctx, "w")
	require.NoError(t, err)
	requireEqual(t, w, got)

	want := w
	want.Name, want.URL, want.Kinds, want.Enabled, want.Secret = "m", "http://example.org", []string{"paused"}, false, "t"
	want.DisabledReason, want.Failures, want.FailingSince = "", 0, time.Time{}
	got, err = s.UpdateWebhook(ctx, "w", func(w *store.Webhook) error {
		*w = want
		w.ID, w.KeyID, w.CreatedAt = "x", "b", time.Time{} // stay as they are
		return nil
	})
	require.NoError(t, err)
	requireEqual(t, want, got)
	list, err := s.Webhooks(ctx, "a")
	require.NoError(t, err)
	requireEqual(t, []store.Webhook{want}, list)

	_, err = s.Webhook(ctx, "x")
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = s.UpdateWebhook(ctx, "x", func(*store.Webhook) error { return nil })
	require.ErrorIs(t, err, store.ErrNotFound)
	require.NoError(t, s.DeleteWebhook(ctx, "w"))
	require.ErrorIs(t, s.DeleteWebhook(ctx, "w"), store.ErrNotFound)
}

func webhooksAreLimited(t *testing.T, s store.Store) {
	ctx := t.Context()
	add := func(id, key string) error { return s.AddWebhook(ctx, newWebhook(id, key, "created"), 2) }
	require.NoError(t, add("w1", "a"))
	require.NoError(t, add("w2", "a"))
	require.ErrorIs(t, add("w3", "a"), store.ErrFull)
	require.NoError(t, add("w3", "b"))
	require.NoError(t, s.DeleteWebhook(ctx, "w1"))
	require.NoError(t, add("w4", "a"))

	for key, want := range map[string]int{"a": 2, "b": 1, "c": 0, "": 3} {
		list, err := s.Webhooks(ctx, key)
		require.NoError(t, err)
		require.Len(t, list, want, "of %q", key)
	}
}

func deletedKeyTakesWebhooks(t *testing.T, s store.Store) {
	ctx := t.Context()
	k, _ := newKey(t, "ci")
	require.NoError(t, s.AddKey(ctx, k))
	addWebhook(t, s, "w", k.ID, "created")
	addWebhook(t, s, "other", "a", "created")
	addEvent(t, s, k.ID, "i1", "created")

	require.NoError(t, s.DeleteKey(ctx, "ci"))
	list, err := s.Webhooks(ctx, "")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "other", list[0].ID)
	require.Empty(t, deliveries(t, s, ""))
}

func deliveryAndWebhookChangeTogether(t *testing.T, s store.Store) {
	ctx := t.Context()
	addWebhook(t, s, "w", "a", "created")
	addEvent(t, s, "a", "i1", "created")
	due, _, err := s.DueDeliveries(ctx, now, 10, 1)
	require.NoError(t, err)
	require.Len(t, due, 1)

	later := now.Add(time.Minute)
	attempt := store.Attempt{At: now, Duration: time.Second, StatusCode: 500, Error: "500"}
	err = s.UpdateDelivery(ctx, due[0].ID, func(d *store.Delivery, w *store.Webhook) {
		d.Attempts, d.NextAt = append(d.Attempts, attempt), later
		w.Failures, w.FailingSince = 1, now
	})
	require.NoError(t, err)
	none, next, err := s.DueDeliveries(ctx, now, 10, 1)
	require.NoError(t, err)
	require.Empty(t, none)
	require.Equal(t, later.UTC().Truncate(time.Microsecond), next)
	w, err := s.Webhook(ctx, "w")
	require.NoError(t, err)
	require.Equal(t, 1, w.Failures)

	due, _, err = s.DueDeliveries(ctx, later, 10, 1)
	require.NoError(t, err)
	require.Len(t, due, 1)
	attempt.At = kept
	requireEqual(t, []store.Attempt{attempt}, due[0].Attempts)
	err = s.UpdateDelivery(ctx, due[0].ID, func(d *store.Delivery, w *store.Webhook) {
		d.Attempts = append(d.Attempts, store.Attempt{At: later, StatusCode: 204})
		d.State, d.NextAt, d.EndedAt = store.Delivered, time.Time{}, later
		w.Failures, w.FailingSince = 0, time.Time{}
	})
	require.NoError(t, err)
	due, next, err = s.DueDeliveries(ctx, later.Add(time.Hour), 10, 1)
	require.NoError(t, err)
	require.Empty(t, due)
	require.Zero(t, next)

	for state, want := range map[store.DeliveryState]int{"": 1, store.Delivered: 1, store.Pending: 0} {
		list := deliveries(t, s, state)
		require.Len(t, list, want, "in state %q", state)
	}
	change := func(*store.Delivery, *store.Webhook) {}
	require.ErrorIs(t, s.UpdateDelivery(ctx, "none", change), store.ErrNotFound)
}

func deliveriesKeepOrder(t *testing.T, s store.Store) {
	ctx := t.Context()
	addWebhook(t, s, "w", "a", "created", "paused", "ended")
	for _, kind := range []string{"created", "paused", "ended"} {
		addEvent(t, s, "a", "i1", kind)
	}
	addEvent(t, s, "a", "i2", "created")
	due := func() (names []string) {
		list, _, err := s.DueDeliveries(ctx, now, 10, 2)
		require.NoError(t, err)
		for _, d := range list {
			names = append(names, d.SandboxID+" "+d.EventKind)
		}
		return names
	}
	try := func(kind string, state store.DeliveryState) {
		list := deliveries(t, s, store.Pending)
		for _, d := range list {
			if d.SandboxID == "i1" && d.EventKind == kind {
				require.NoError(t, s.UpdateDelivery(ctx, d.ID, func(d *store.Delivery, _ *store.Webhook) {
					d.State, d.NextAt, d.Attempts = state, now.Add(time.Hour), append(d.Attempts, store.Attempt{At: now})
				}))
			}
		}
	}

	require.Equal(t, []string{"i1 created", "i2 created"}, due(), "the later ones of a sandbox wait")
	try("created", store.Pending)
	require.Equal(t, []string{"i2 created"}, due(), "also while it is to be tried again")
	try("created", store.Pending)
	require.Equal(t, []string{"i1 paused", "i2 created"}, due(), "but not for ever")
	try("paused", store.Delivered)
	require.Equal(t, []string{"i1 ended", "i2 created"}, due())
}

func noWebhookStarvesAnother(t *testing.T, s store.Store) {
	addWebhook(t, s, "w1", "a", "created")
	for i := range 5 {
		addEvent(t, s, "a", fmt.Sprintf("i%d", i), "created")
	}
	addWebhook(t, s, "w2", "a", "created")
	addEvent(t, s, "a", "i9", "created")

	due, _, err := s.DueDeliveries(t.Context(), now, 2, 1)
	require.NoError(t, err)
	var got []string
	for _, d := range due {
		got = append(got, d.WebhookID+" "+d.SandboxID)
	}
	require.ElementsMatch(t, []string{"w1 i0", "w1 i1", "w2 i9"}, got)
}

func deliveriesAreListed(t *testing.T, s store.Store) {
	addWebhook(t, s, "w", "a", "created", "ended")
	addWebhook(t, s, "other", "a", "created")
	for _, sandbox := range []string{"i1", "i2"} {
		for _, kind := range []string{"created", "ended"} {
			addEvent(t, s, "a", sandbox, kind)
		}
	}
	list := func(f store.DeliveryFilter) (names []string) {
		f.WebhookID = "w"
		if f.Most == 0 {
			f.Most = 10
		}
		found, err := s.Deliveries(t.Context(), f)
		require.NoError(t, err)
		for _, d := range found {
			names = append(names, d.SandboxID+" "+d.EventKind)
		}
		return names
	}
	all := deliveries(t, s, "")

	require.Equal(t, []string{"i2 ended", "i2 created", "i1 ended", "i1 created"}, list(store.DeliveryFilter{}))
	require.Equal(t, []string{"i2 ended", "i2 created"}, list(store.DeliveryFilter{Most: 2}))
	require.Equal(t, []string{"i1 ended", "i1 created"}, list(store.DeliveryFilter{Before: all[1].Seq}))
	require.Equal(t, []string{"i2 created", "i1 created"}, list(store.DeliveryFilter{Kinds: []string{"created"}}))
	require.Len(t, list(store.DeliveryFilter{States: []store.DeliveryState{store.Failed, store.Pending}}), 4)
	require.Empty(t, list(store.DeliveryFilter{States: []store.DeliveryState{store.Failed, store.Dropped}}))
}

func deliveryOfPrunedEventIsDropped(t *testing.T, s store.Store) {
	ctx := t.Context()
	addWebhook(t, s, "w", "a", "created")
	addEvent(t, s, "a", "i1", "created")
	addEvent(t, s, "a", "i2", "created")
	_, err := s.PruneEvents(ctx, store.EventLimits{Now: now, Most: 1, Bytes: 1 << 20})
	require.NoError(t, err)

	list := deliveries(t, s, store.Dropped)
	require.Len(t, list, 1)
	require.Equal(t, "i1", list[0].SandboxID)
	require.NotEmpty(t, list[0].Reason)
	require.Equal(t, kept, list[0].EndedAt)
	due, _, err := s.DueDeliveries(ctx, now, 10, 1)
	require.NoError(t, err)
	require.Len(t, due, 1)
	require.Equal(t, "i2", due[0].SandboxID)
}

func pruneSparesPendingDeliveries(t *testing.T, s store.Store) {
	ctx := t.Context()
	addWebhook(t, s, "w", "a", "created")
	for i := range 6 {
		addEvent(t, s, "a", fmt.Sprintf("i%d", i), "created")
	}
	list := deliveries(t, s, "")
	require.Len(t, list, 6)
	for i, d := range list[:4] { // the newest four end, each earlier than the one before
		require.NoError(t, s.UpdateDelivery(ctx, d.ID, func(d *store.Delivery, _ *store.Webhook) {
			d.State, d.NextAt, d.EndedAt = store.Delivered, time.Time{}, now.Add(-time.Duration(i)*time.Minute)
		}))
	}

	n, err := s.PruneDeliveries(ctx, now.Add(-150*time.Second), 100)
	require.NoError(t, err)
	require.Equal(t, 1, n, "of those that ended before the time")
	n, err = s.PruneDeliveries(ctx, time.Time{}, 2)
	require.NoError(t, err)
	require.Equal(t, 1, n, "of those beyond the number")
	list = deliveries(t, s, store.Pending)
	require.Len(t, list, 2)
}

func newEvent(key, sandbox, kind string) store.Event {
	return store.Event{ID: sandbox + "-" + kind, Kind: kind, At: now, KeyID: key, SandboxID: sandbox}
}

func addEvent(t *testing.T, s store.Store, key, sandbox, kind string) {
	t.Helper()
	_, err := s.AddEvent(t.Context(), newEvent(key, sandbox, kind))
	require.NoError(t, err)
}

func newWebhook(id, key string, kinds ...string) store.Webhook {
	return store.Webhook{ID: id, KeyID: key, URL: "https://example.com", Kinds: kinds, Enabled: true, CreatedAt: now, Secret: "secret"}
}

func addWebhook(t *testing.T, s store.Store, id, key string, kinds ...string) {
	t.Helper()
	require.NoError(t, s.AddWebhook(t.Context(), newWebhook(id, key, kinds...), 10))
}

func eventsOf(t *testing.T, s store.Store, f store.EventFilter) (names []string) {
	t.Helper()
	if f.Most == 0 {
		f.Most = 100
	}
	list, err := s.Events(t.Context(), f)
	require.NoError(t, err)
	for _, e := range list {
		names = append(names, e.SandboxID+" "+e.Kind)
	}
	return names
}

// deliveries lists those of the webhook w, newest first, in a state or in any.
func deliveries(t *testing.T, s store.Store, state store.DeliveryState) []store.Delivery {
	t.Helper()
	f := store.DeliveryFilter{WebhookID: "w", Most: 100}
	if state != "" {
		f.States = []store.DeliveryState{state}
	}
	list, err := s.Deliveries(t.Context(), f)
	require.NoError(t, err)
	return list
}

func webhookOfAllKeysGetsAllEvents(t *testing.T, s store.Store) {
	addWebhook(t, s, "alls", "", "created")
	addWebhook(t, s, "theirs", "b", "created")
	for key, want := range map[string]int{"a": 1, "b": 2, "": 1} {
		queued, err := s.AddEvent(t.Context(), newEvent(key, "i1", "created"))
		require.NoError(t, err)
		require.Equal(t, want, queued, "the event of key %q", key)
	}
	queued, err := s.AddEvent(t.Context(), newEvent("a", "i1", "ended"))
	require.NoError(t, err)
	require.Zero(t, queued, "it wants others")
}
