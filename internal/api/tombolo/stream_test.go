package tombolo_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// sse is a stream as it is read without the client.
type sse struct {
	t      *testing.T
	lines  *bufio.Scanner
	cancel context.CancelFunc
	code   int
}

// event is one of a stream; a comment has only text.
type event struct{ kind, id, text string }

func (w *world) open(who, last string) *sse {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	w.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", w.server.URL+tombolo.Prefix+"/approvals/stream", nil)
	require.NoError(w.t, err)
	r.Header.Set("X-API-KEY", w.secrets[who])
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode == 200 {
		require.Equal(w.t, "text/event-stream", response.Header.Get("Content-Type"))
	}
	return &sse{w.t, bufio.NewScanner(response.Body), cancel, response.StatusCode}
}

func (s *sse) next() (e event, ok bool) {
	some := false
	for s.lines.Scan() {
		name, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch name {
		case "event":
			e.kind = value
		case "id":
			e.id = value
		case "data":
			e.text = value
		case "":
			if value != "" {
				e.text = value
			}
		}
		if s.lines.Text() == "" && some {
			return e, true
		}
		some = true
	}
	return event{}, false
}

// until reads up to an event that fits, and returns it.
func (s *sse) until(what string, fits func(event) bool) event {
	s.t.Helper()
	for {
		e, ok := s.next()
		require.True(s.t, ok, "the stream ended before %s", what)
		if fits(e) {
			return e
		}
	}
}

func (s *sse) hold(id string, state approval.State) event {
	s.t.Helper()
	return s.until(id+" is "+string(state), func(e event) bool {
		var h approval.Hold
		return e.kind == "hold" && json.Unmarshal([]byte(e.text), &h) == nil && h.ID == id && h.State == state
	})
}

func (s *sse) synced() (e event, pending []string) {
	s.t.Helper()
	var all tombolo.Synced
	e = s.until("synced", func(e event) bool { return e.kind == "synced" })
	require.NoError(s.t, json.Unmarshal([]byte(e.text), &all))
	return e, all.Pending
}

func TestStreamTellsWhatWaitsAndWhatChanges(t *testing.T) {
	w := newWorld(t)
	first, _ := w.ask("alice", "first.example")
	s := w.open("ann", "")
	s.hold(first.ID, approval.Pending)
	_, pending := s.synced()
	require.Equal(t, []string{first.ID}, pending)

	second, _ := w.ask("bob", "second.example")
	require.NotEmpty(t, s.hold(second.ID, approval.Pending).id)
	_, err := w.client("ben").Answer(t.Context(), first.ID, tombolo.AnswerRequest{Approve: true, Hash: first.Hash})
	require.NoError(t, err)
	s.hold(first.ID, approval.Approved)
}

func TestStreamGoesOnWhereItWas(t *testing.T) {
	w := newWorld(t)
	s := w.open("ann", "")
	last, _ := s.synced()
	first, _ := w.ask("alice", "first.example")
	last = s.hold(first.ID, approval.Pending)
	s.cancel()

	_, err := w.client("ben").Answer(t.Context(), first.ID, tombolo.AnswerRequest{Hash: first.Hash})
	require.NoError(t, err)
	second, _ := w.ask("alice", "second.example")
	again := w.open("ann", last.id)
	e, ok := again.next()
	require.True(t, ok)
	require.Contains(t, e.text, `"state":"denied"`, "the first it hears is what it missed: %v", e)
	again.hold(second.ID, approval.Pending)

	for _, id := range []string{"00000000-7", "nonsense", last.id + "999999", "-", last.id[:8] + "-99999999999999999999999"} {
		_, pending := w.open("ann", id).synced()
		require.Equal(t, []string{second.ID}, pending, "with an id of elsewhere it begins anew: %q", id)
	}
}

// TestStreamThatMissedTooMuchBeginsAnew: a reader costs its place only.
func TestStreamThatMissedTooMuchBeginsAnew(t *testing.T) {
	w := newWorld(t)
	s := w.open("ann", "")
	last, _ := s.synced()
	s.cancel()
	follow := w.open("ann", "")
	follow.synced()
	for i := range tombolo.FeedLength/2 + 1 { // each is told twice
		h, _ := w.ask("alice", fmt.Sprintf("h%d.example", i))
		follow.hold(h.ID, approval.Pending)
		_, err := w.desk.Withdraw(t.Context(), h.ID)
		require.NoError(t, err)
		follow.hold(h.ID, approval.Withdrawn)
	}
	h, _ := w.ask("alice", "last.example")
	follow.hold(h.ID, approval.Pending)
	_, pending := w.open("ann", last.id).synced()
	require.Equal(t, []string{h.ID}, pending)
}

func TestStreamTellsNobodyOfOthers(t *testing.T) {
	w := newWorld(t)
	hers, _ := w.ask("alice", "hers.example")
	ben, bob := w.open("ben", ""), w.open("bob", "")
	_, pending := ben.synced()
	require.Equal(t, []string{hers.ID}, pending)
	_, pending = bob.synced()
	require.Empty(t, pending)

	more, _ := w.ask("alice", "more.example")
	his, _ := w.ask("bob", "his.example")
	last, _ := w.ask("alice", "last.example")
	ben.hold(more.ID, approval.Pending)
	e, ok := ben.next()
	require.True(t, ok)
	require.Contains(t, e.text, last.ID, "nothing of bob's between")
	e, ok = bob.next()
	require.True(t, ok)
	require.Contains(t, e.text, his.ID)
	require.NotContains(t, e.text, "alice")
}

func TestStreamsOfAKeyAreLimited(t *testing.T) {
	w := newWorld(t)
	var open []*sse
	for range tombolo.MaxStreamsOfKey {
		s := w.open("ann", "")
		s.synced()
		open = append(open, s)
	}
	require.Equal(t, 429, w.open("ann", "").code)
	require.Equal(t, 200, w.open("ben", "").code, "others have their own")
	open[0].cancel()
	require.Eventually(t, func() bool { return w.open("ann", "").code == 200 }, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, http.StatusMethodNotAllowed, w.do("ann", "HEAD", "/approvals/stream", "").code)
}

func TestStreamEndsWithItsRights(t *testing.T) {
	for name, change := range map[string]func(w *world) error{
		"deleted": func(w *world) error { return w.store.DeleteKey(t.Context(), "ann") },
		"other roles": func(w *world) error {
			_, err := w.store.UpdateKey(t.Context(), "ann", func(k *store.Key) error { k.Roles = []store.Role{audits}; return nil })
			return err
		},
		"bound": func(w *world) error {
			_, err := w.store.UpdateKey(t.Context(), "ann", func(k *store.Key) error { k.Approves = []string{"key-bob"}; return nil })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.api.SetHeartbeat(5 * time.Millisecond)
			s := w.open("ann", "")
			s.until("a heartbeat", func(e event) bool { return e.text == "still here" })
			require.NoError(t, change(w))
			for ok := true; ok; {
				_, ok = s.next()
			}
		})
	}
}

func TestStreamsEndWithTheServer(t *testing.T) {
	w := newWorld(t)
	s := w.open("ann", "")
	s.synced()
	w.api.Close()
	_, ok := s.next()
	require.False(t, ok)
}

func TestClientWatchesOverBreaks(t *testing.T) {
	w := newWorld(t)
	// A server that breaks every stream after its first events.
	breaks := 0
	broken := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		if breaks++; breaks < 4 {
			time.AfterFunc(50*time.Millisecond, cancel)
		}
		w.api.ForKeys().ServeHTTP(rw, r.WithContext(ctx))
	}))
	t.Cleanup(broken.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	changes, lost := make(chan tombolo.Change, 100), make(chan error, 100)
	watched := make(chan error, 1)
	go func() {
		watched <- tombolo.NewClient(broken.URL, w.secrets["ann"], nil).Watch(ctx, func(c tombolo.Change) error {
			changes <- c
			return nil
		}, func(err error) { lost <- err })
	}()
	require.NotNil(t, (<-changes).Synced)
	first, _ := w.ask("alice", "first.example")
	require.Equal(t, first.ID, (<-changes).Hold.ID)
	for range 2 {
		require.Error(t, <-lost)
	}
	second, _ := w.ask("alice", "second.example")
	for got := ""; got != second.ID; {
		c := <-changes
		require.Nil(t, c.Synced, "it goes on, and does not begin anew")
		got = c.Hold.ID
	}
	cancel()
	require.ErrorIs(t, <-watched, context.Canceled)

	err := w.client("eve").Watch(t.Context(), func(tombolo.Change) error { return nil }, nil)
	require.True(t, tombolo.HasCode(err, tombolo.CodeRole), "it does not try again what it may not: %v", err)
	stop := fmt.Errorf("enough")
	require.ErrorIs(t, w.client("ann").Watch(t.Context(), func(tombolo.Change) error { return stop }, nil), stop)
}
