package event_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// refusals collects what is recorded, with a clock of its own.
type refusals struct {
	*event.Refusals
	clock time.Time

	mu     sync.Mutex
	events []sandbox.Event
}

func newRefusals(t *testing.T) *refusals {
	r := &refusals{clock: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
	r.Refusals = event.NewRefusalsWith(func(e sandbox.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
	}, func() time.Time { return r.clock })
	t.Cleanup(r.Close)
	return r
}

func (r *refusals) refuse(id, host string) {
	r.Tell(sandbox.Event{Kind: event.NetworkRefused, Info: sandbox.Info{ID: id}, Detail: host}, host, func(n event.Repeats) any { return n })
}

// recorded ends it and returns "sandbox host count untold" of each event.
func (r *refusals) recorded(t *testing.T) (all []string) {
	r.Close()
	for _, e := range r.events {
		var n event.Repeats
		require.NoError(t, json.Unmarshal(e.Data, &n))
		all = append(all, fmt.Sprintf("%s %s %d %d", e.Info.ID, e.Detail, n.Count, n.Untold))
	}
	return all
}

func TestEqualRefusalsAreCounted(t *testing.T) {
	r := newRefusals(t)
	for range 1000 {
		r.refuse("i1", "a")
	}
	r.refuse("i2", "a")
	r.clock = r.clock.Add(time.Minute)
	r.refuse("i1", "a")
	r.refuse("i1", "a")
	require.Equal(t, []string{"i1 a 1 0", "i2 a 1 0", "i1 a 1000 0"}, r.recorded(t))
}

func TestFloodOfRefusalsIsBounded(t *testing.T) {
	r := newRefusals(t)
	for i := range 10_000 {
		r.refuse("i1", fmt.Sprint(i))
	}
	r.refuse("i2", "of another")
	r.clock = r.clock.Add(3 * time.Second)
	r.refuse("i1", "9999")
	r.refuse("i1", "0")
	r.clock = r.clock.Add(time.Hour)
	r.refuse("i1", "0")
	got := r.recorded(t)
	require.Len(t, got, 23)
	require.Equal(t, "i1 19 1 0", got[19])
	require.Equal(t, "i2 of another 1 0", got[20], "that of another sandbox is told")
	require.Equal(t, "i1 9999 2 9912", got[21], "one more every 3 s, and how many were left out")
	require.Equal(t, "i1 0 2 0", got[22])
}

func TestRefusalIsDelivered(t *testing.T) {
	receiver := newReceiver(t, nil)
	w := newWorld(t, options{})
	hook := w.webhook(receiver.URL)
	r := event.NewRefusals(w.recorder)
	r.Tell(sandbox.Event{Kind: event.NetworkRefused, Time: time.Now(), Info: sandbox.Info{ID: "i1", KeyID: "alice"}, Detail: "why"}, "a", func(n event.Repeats) any {
		return map[string]any{"rule": "default", "repeats": n}
	})
	r.Close()
	r.Tell(sandbox.Event{Info: sandbox.Info{ID: "i1"}}, "b", func(event.Repeats) any { return nil }) // does nothing
	d := w.await(hook, "it is delivered", in(store.Delivered))
	require.Equal(t, "network.refused", d.EventKind)
	var e store.Event
	require.NoError(t, json.Unmarshal(receiver.requests()[0].body, &e))
	require.JSONEq(t, `{"rule":"default","repeats":{"count":1}}`, string(e.Data))
}
