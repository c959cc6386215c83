package event_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

const (
	patience = 20 * time.Second
	secret   = "a secret of the test"
)

// world is a store with the parts that work on it.
type world struct {
	t         testing.TB
	store     *sqlite.Store
	recorder  *event.Recorder
	webhooks  *event.Webhooks
	sender    *event.Sender
	deliverer *event.Deliverer
}

// options change what a world is made of.
type options struct {
	path    string // of the store; a new one when empty
	timeout time.Duration
	refuse  func(netip.Addr) string
	backoff func(int) (time.Duration, bool)
}

func newWorld(t testing.TB, o options) *world {
	t.Helper()
	if o.path == "" {
		o.path = filepath.Join(t.TempDir(), "tombolo.db")
	}
	if o.refuse == nil {
		o.refuse = func(netip.Addr) string { return "" }
	}
	if o.backoff == nil {
		o.backoff = func(failed int) (time.Duration, bool) { return 10 * time.Millisecond, failed < 5 }
	}
	s, err := sqlite.Open(t.Context(), o.path)
	require.NoError(t, err)
	log := slog.New(slog.DiscardHandler)
	w := &world{t: t, store: s, recorder: event.NewRecorder(s, log)}
	w.sender = event.NewSender(event.SenderConfig{Format: format, Refuse: o.refuse, Timeout: o.timeout, UserAgent: "tombolo/test"})
	w.webhooks = event.NewWebhooks(s, w.sender)
	w.deliverer = event.NewDeliverer(event.DelivererConfig{Store: s, Sender: w.sender, Recorder: w.recorder, Log: log, Backoff: o.backoff})
	t.Cleanup(func() { w.close() })
	return w
}

// close ends the parts as a server does, without waiting for what is under way.
func (w *world) close() {
	if w.store == nil {
		return
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	w.deliverer.Close(now)
	w.recorder.Close()
	require.NoError(w.t, w.store.Close())
	w.store = nil
}

// format is the simplest a dialect could have.
func format(d store.DueDelivery) ([]byte, http.Header, error) {
	body, err := json.Marshal(d.Event)
	return body, http.Header{"X-Dialect": {"test"}}, err
}

func (w *world) record(kind sandbox.EventKind, id string) {
	w.recorder.Record(sandbox.Event{Kind: kind, Time: time.Now(), Info: sandbox.Info{ID: id, KeyID: "alice"}})
}

func (w *world) webhook(address string) store.Webhook {
	w.t.Helper()
	hook, err := w.webhooks.Create(w.t.Context(), "alice", spec(address))
	require.NoError(w.t, err)
	return hook
}

func spec(address string) event.Spec {
	return event.Spec{Name: ptr("hook"), URL: &address, Kinds: &event.Kinds, Secret: ptr(secret)}
}

func ptr[T any](v T) *T { return &v }

// deliveries lists those of a webhook, oldest first.
func (w *world) deliveries(hook store.Webhook) []store.Delivery {
	w.t.Helper()
	list, err := w.webhooks.Deliveries(w.t.Context(), "alice", store.DeliveryFilter{WebhookID: hook.ID, Most: 100})
	require.NoError(w.t, err)
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
	return list
}

// await waits until the first delivery of a webhook is as wanted, and returns it.
func (w *world) await(hook store.Webhook, what string, is func(store.Delivery) bool) (d store.Delivery) {
	w.t.Helper()
	eventually(w.t, what, func() bool {
		list := w.deliveries(hook)
		if len(list) > 0 {
			d = list[0]
		}
		return len(list) > 0 && is(d)
	})
	return d
}

func in(state store.DeliveryState) func(store.Delivery) bool {
	return func(d store.Delivery) bool { return d.State == state }
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, patience, 2*time.Millisecond, what)
}

// receiver is what a webhook points to. It keeps what it was sent and answers as
// it is told, 204 when it is told nothing.
type receiver struct {
	*httptest.Server
	ended  chan struct{} // closed when the test ends
	mu     sync.Mutex
	got    []request
	answer http.HandlerFunc
}

type request struct {
	header http.Header
	body   []byte
	event  store.Event
}

func newReceiver(t testing.TB, answer http.HandlerFunc) *receiver {
	r := &receiver{ended: make(chan struct{}), answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		got := request{header: q.Header, body: body}
		_ = json.Unmarshal(body, &got.event)
		r.mu.Lock()
		r.got = append(r.got, got)
		answer := r.answer
		r.mu.Unlock()
		if answer == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		answer(w, q)
	}))
	t.Cleanup(func() {
		close(r.ended)
		r.CloseClientConnections()
		r.Close()
	})
	return r
}

// hang is an answer that does not come before the test ends.
func (r *receiver) hang(http.ResponseWriter, *http.Request) { <-r.ended }

func newHangingReceiver(t testing.TB) *receiver {
	r := newReceiver(t, nil)
	r.set(r.hang)
	return r
}

func (r *receiver) set(answer http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]request(nil), r.got...)
}

func code(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

func TestEventIsDeliveredOnceAndSigned(t *testing.T) {
	w, r := newWorld(t, options{}), newReceiver(t, nil)
	hook := w.webhook(r.URL + "/hook?a=b")
	w.recorder.Record(sandbox.Event{Kind: sandbox.EventEnded, Time: time.Now(), Detail: "killed", Info: sandbox.Info{
		ID: "i1", KeyID: "alice", TemplateID: "t", BuildID: "b", ExecutionID: "x", CPUs: 2, MemoryBytes: 1 << 30,
		Metadata: map[string]string{"a": "b"}, AccessToken: "not for receivers", TrafficToken: "not for receivers",
	}})

	d := w.await(hook, "the event is delivered", in(store.Delivered))
	require.Len(t, d.Attempts, 1)
	require.Equal(t, http.StatusNoContent, d.Attempts[0].StatusCode)
	require.Empty(t, d.Attempts[0].Error)
	require.Positive(t, d.Attempts[0].Duration)

	got := r.requests()
	require.Len(t, got, 1)
	require.Equal(t, "application/json", got[0].header.Get("Content-Type"))
	require.Equal(t, "tombolo/test", got[0].header.Get("User-Agent"))
	require.Equal(t, "test", got[0].header.Get("X-Dialect"))
	require.Equal(t, "1", got[0].header.Get("Tombolo-Attempt"))
	require.Equal(t, d.ID, got[0].header.Get("Webhook-Id"))
	requireStandardSignature(t, got[0])
	require.NotContains(t, string(got[0].body), "not for receivers")

	e := got[0].event
	require.Equal(t, d.EventID, e.ID)
	require.Equal(t, "ended i1 t b x 2 1073741824 killed", fmt.Sprint(e.Kind, " ", e.SandboxID, " ", e.TemplateID, " ", e.BuildID, " ", e.ExecutionID, " ", e.CPUs, " ", e.MemoryBytes, " ", e.Detail))
	require.Equal(t, map[string]string{"a": "b"}, e.Metadata)
}

// requireStandardSignature verifies a request as the Standard Webhooks
// specification tells receivers to.
func requireStandardSignature(t *testing.T, r request) {
	t.Helper()
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(r.header.Get("Webhook-Id") + "." + r.header.Get("Webhook-Timestamp") + "."))
	mac.Write(r.body)
	require.Equal(t, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)), r.header.Get("Webhook-Signature"))
	var sent int64
	_, err := fmt.Sscan(r.header.Get("Webhook-Timestamp"), &sent)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), time.Unix(sent, 0), patience)
}

func TestOnlyWantedEventsOfTheKeyAreDelivered(t *testing.T) {
	w, r := newWorld(t, options{}), newReceiver(t, nil)
	s := spec(r.URL)
	s.Kinds = &[]string{"ended", "ended"}
	hook, err := w.webhooks.Create(t.Context(), "alice", s)
	require.NoError(t, err)
	require.Equal(t, []string{"ended"}, hook.Kinds)

	w.recorder.Record(sandbox.Event{Kind: sandbox.EventEnded, Time: time.Now(), Info: sandbox.Info{ID: "i0", KeyID: "bob"}})
	w.record(sandbox.EventCreated, "i1")
	w.record(sandbox.EventEnded, "i1")
	w.await(hook, "the event is delivered", in(store.Delivered))
	require.Len(t, w.deliveries(hook), 1)
	require.Equal(t, "i1", r.requests()[0].event.SandboxID)
	require.Equal(t, "ended", r.requests()[0].event.Kind)

	_, err = w.webhooks.Update(t.Context(), "alice", hook.ID, event.Spec{Enabled: ptr(false)})
	require.NoError(t, err)
	w.record(sandbox.EventEnded, "i2")
	require.Len(t, w.deliveries(hook), 1, "a disabled webhook gets nothing")
	kept, err := w.store.Events(t.Context(), store.EventFilter{KeyID: "alice", Most: 10})
	require.NoError(t, err)
	require.Len(t, kept, 3, "every event is kept")
}

func TestReceiversThatFail(t *testing.T) {
	elsewhere := newReceiver(t, nil)
	for name, test := range map[string]struct {
		answer  http.HandlerFunc
		code    int
		message string
	}{
		"server error": {code(500), 500, "500 Internal Server Error"},
		"refusal":      {code(404), 404, "404 Not Found"},
		"redirect": {func(w http.ResponseWriter, q *http.Request) {
			http.Redirect(w, q, elsewhere.URL, http.StatusTemporaryRedirect)
		}, 307, "307"},
		"no answer":     {nil, 0, "no whole answer within 300ms"},
		"hangs up":      {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, "closed the connection"},
		"huge headers":  {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("a", 1<<20)) }, 0, "no HTTP"},
		"not even HTTP": {notHTTP, 0, "no HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			timeout := patience
			if test.answer == nil {
				timeout = 300 * time.Millisecond
			}
			w := newWorld(t, options{timeout: timeout, backoff: func(n int) (time.Duration, bool) { return time.Millisecond, n < 2 }})
			r := newHangingReceiver(t)
			if test.answer != nil {
				r.set(test.answer)
			}
			hook := w.webhook(r.URL + "/?token=not-for-the-log")
			w.record(sandbox.EventCreated, "i1")
			d := w.await(hook, "the delivery is given up", in(store.Failed))
			require.Len(t, d.Attempts, 2)
			for _, a := range d.Attempts {
				require.Equal(t, test.code, a.StatusCode)
				require.Contains(t, a.Error, test.message)
				require.NotContains(t, a.Error, "not-for-the-log")
				require.NotContains(t, a.Error, "hello", "nothing of what the receiver wrote is told")
			}
			require.False(t, d.EndedAt.IsZero())
			got, err := w.webhooks.Get(t.Context(), "alice", hook.ID)
			require.NoError(t, err)
			require.Equal(t, 2, got.Failures)
			require.False(t, got.FailingSince.IsZero())
			require.True(t, got.Enabled)
		})
	}
	require.Empty(t, elsewhere.requests(), "no redirect is followed")
}

func TestReceiversThatAreNotReached(t *testing.T) {
	plain := newReceiver(t, nil)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(secure.Close)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	closed := newReceiver(t, nil)
	closed.Close()
	w := newWorld(t, options{})
	for address, message := range map[string]string{
		closed.URL: "connection refused",
		strings.Replace(plain.URL, "http:", "https:", 1): "does not speak https",
		secure.URL:                      "does not trust its authority",
		"http://no-such-name.invalid./": "name of the receiver",
	} {
		attempt, err := w.webhooks.Test(t.Context(), "alice", w.webhook(address).ID)
		require.NoError(t, err)
		require.Contains(t, attempt.Error, message, address)
		require.Zero(t, attempt.StatusCode)
		require.NotContains(t, attempt.Error, "127.0.0.1")
	}
}

func notHTTP(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_, _ = conn.Write([]byte("hello\r\n\r\n"))
		_ = conn.Close()
	}
}

func TestEndlessAnswerCountsAndIsCutOff(t *testing.T) {
	cut := make(chan struct{})
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(cut)
		for {
			if _, err := w.Write(make([]byte, 32<<10)); err != nil {
				return
			}
		}
	})
	w := newWorld(t, options{})
	hook := w.webhook(r.URL)
	w.record(sandbox.EventCreated, "i1")
	w.await(hook, "an answer of 200 is enough", in(store.Delivered))
	select {
	case <-cut:
	case <-time.After(patience):
		t.Fatal("the answer is read without end")
	}
}

func TestFailedDeliveryIsTriedAgainWithTheSameID(t *testing.T) {
	w := newWorld(t, options{backoff: func(int) (time.Duration, bool) { return 10 * time.Millisecond, true }})
	r := newReceiver(t, code(503))
	hook := w.webhook(r.URL)
	w.record(sandbox.EventCreated, "i1")
	eventually(t, "two attempts", func() bool { return len(r.requests()) >= 2 })
	r.set(nil)
	d := w.await(hook, "the event is delivered", in(store.Delivered))

	got := r.requests()
	require.Len(t, d.Attempts, len(got))
	for i, q := range got {
		require.Equal(t, d.ID, q.header.Get("Webhook-Id"))
		require.Equal(t, fmt.Sprint(i+1), q.header.Get("Tombolo-Attempt"))
		require.Equal(t, string(got[0].body), string(q.body))
		requireStandardSignature(t, q)
	}
	after, err := w.webhooks.Get(t.Context(), "alice", hook.ID)
	require.NoError(t, err)
	require.Zero(t, after.Failures, "a success ends the row of failures")
	require.True(t, after.FailingSince.IsZero())
}

func TestBackoffGrowsAndEnds(t *testing.T) {
	var total time.Duration
	tries := 1
	for {
		wait, again := event.Backoff(tries)
		if !again {
			break
		}
		next, _ := event.Backoff(tries)
		require.InEpsilon(t, wait, next, 0.7, "within a quarter of the same wait")
		total += wait
		tries++
	}
	require.Equal(t, 8, tries)
	require.Greater(t, total, 5*time.Hour)
	require.Less(t, total, 11*time.Hour)
	first, _ := event.Backoff(1)
	require.Less(t, first, 10*time.Second)
}

func TestRetryAfterIsHonoured(t *testing.T) {
	for value, least := range map[string]time.Duration{
		"120":                  120 * time.Second,
		"0":                    0,
		"":                     0,
		"soon":                 0,
		"-1":                   0,
		"99999999999999999999": 24 * time.Hour,
		time.Now().Add(time.Hour).UTC().Format(http.TimeFormat):  59 * time.Minute,
		time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat): 0,
	} {
		t.Run(value, func(t *testing.T) {
			w := newWorld(t, options{backoff: func(int) (time.Duration, bool) { return time.Minute, true }})
			hook := w.webhook(newReceiver(t, func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Retry-After", value)
				rw.WriteHeader(http.StatusTooManyRequests)
			}).URL)
			w.record(sandbox.EventCreated, "i1")
			d := w.await(hook, "an attempt", func(d store.Delivery) bool { return len(d.Attempts) == 1 })
			require.Equal(t, store.Pending, d.State)
			require.WithinDuration(t, d.Attempts[0].At.Add(max(least, time.Minute)), d.NextAt, 2*time.Minute)
			require.GreaterOrEqual(t, d.NextAt.Sub(d.Attempts[0].At), max(least, time.Minute))
		})
	}
}

func TestReceiverThatWantsToBeLeftAloneIs(t *testing.T) {
	busy := newReceiver(t, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Retry-After", "3600")
		rw.WriteHeader(http.StatusServiceUnavailable)
	})
	other := newReceiver(t, nil)
	w := newWorld(t, options{})
	held := w.webhook(busy.URL)
	w.record(sandbox.EventCreated, "i1")
	w.await(held, "an attempt", func(d store.Delivery) bool { return len(d.Attempts) == 1 })

	hook := w.webhook(other.URL)
	w.record(sandbox.EventCreated, "i2")
	w.await(hook, "the other webhook's is delivered", in(store.Delivered))
	require.Len(t, busy.requests(), 1)
	require.Len(t, w.deliveries(held), 2, "what waits is kept")
}

func TestEventsOfASandboxArriveInOrder(t *testing.T) {
	var mu sync.Mutex
	var taken []string
	refusals := 2
	r := newReceiver(t, nil)
	r.set(func(rw http.ResponseWriter, _ *http.Request) {
		all := r.requests()
		mu.Lock()
		defer mu.Unlock()
		for _, q := range all[len(taken)+2-refusals:] {
			if q.event.SandboxID == "i1" && refusals > 0 {
				refusals--
				rw.WriteHeader(500)
				return
			}
			taken = append(taken, q.event.SandboxID+" "+q.event.Kind)
		}
	})
	w := newWorld(t, options{})
	hook := w.webhook(r.URL)
	for _, kind := range []sandbox.EventKind{sandbox.EventCreated, sandbox.EventPaused, sandbox.EventResumed, sandbox.EventEnded} {
		w.record(kind, "i1")
	}
	eventually(t, "all are delivered", func() bool {
		for _, d := range w.deliveries(hook) {
			if d.State != store.Delivered {
				return false
			}
		}
		return true
	})
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []string{"i1 created", "i1 paused", "i1 resumed", "i1 ended"}, taken)
}

func TestReceiverThatHangsHoldsUpNoOther(t *testing.T) {
	stuck := newHangingReceiver(t)
	w := newWorld(t, options{})
	for range event.MaxWebhooks - 1 {
		w.webhook(stuck.URL)
	}
	good := w.webhook(newReceiver(t, nil).URL)
	for i := range 10 {
		w.record(sandbox.EventCreated, fmt.Sprintf("i%d", i))
	}
	eventually(t, "all are delivered to the one that answers", func() bool {
		for _, d := range w.deliveries(good) {
			if d.State != store.Delivered {
				return false
			}
		}
		return true
	})
	require.LessOrEqual(t, len(stuck.requests()), 64, "requests at once")
}

func TestGoneDisablesAtOnce(t *testing.T) {
	w := newWorld(t, options{})
	hook := w.webhook(newReceiver(t, code(http.StatusGone)).URL)
	w.record(sandbox.EventCreated, "i1")
	w.await(hook, "an attempt", func(d store.Delivery) bool { return len(d.Attempts) == 1 })
	got, err := w.webhooks.Get(t.Context(), "alice", hook.ID)
	require.NoError(t, err)
	require.False(t, got.Enabled)
	require.Contains(t, got.DisabledReason, "410")
}

func TestDaysOfFailuresDisable(t *testing.T) {
	for name, test := range map[string]struct {
		failures int
		since    time.Duration
		enabled  bool
	}{
		"many for days":   {20, 73 * time.Hour, false},
		"many in a day":   {500, 24 * time.Hour, true},
		"few for days":    {3, 200 * time.Hour, true},
		"the first of it": {0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := newWorld(t, options{backoff: func(int) (time.Duration, bool) { return time.Hour, true }}), newReceiver(t, code(500))
			hook := w.webhook(r.URL)
			_, err := w.store.UpdateWebhook(t.Context(), hook.ID, func(h *store.Webhook) error {
				if h.Failures = test.failures; h.Failures > 0 {
					h.FailingSince = time.Now().Add(-test.since)
				}
				return nil
			})
			require.NoError(t, err)
			w.record(sandbox.EventCreated, "i1")
			w.await(hook, "an attempt", func(d store.Delivery) bool { return len(d.Attempts) == 1 })
			got, err := w.webhooks.Get(t.Context(), "alice", hook.ID)
			require.NoError(t, err)
			require.Equal(t, test.enabled, got.Enabled, got.DisabledReason)
			if test.enabled {
				return
			}
			require.Contains(t, got.DisabledReason, "500", "the reason tells the last failure")
			require.Contains(t, got.DisabledReason, "21")

			r.set(nil)
			got, err = w.webhooks.Update(t.Context(), "alice", hook.ID, event.Spec{Enabled: ptr(true)})
			require.NoError(t, err)
			require.True(t, got.Enabled)
			require.Empty(t, got.DisabledReason)
			require.Zero(t, got.Failures)
			w.record(sandbox.EventCreated, "i2")
			eventually(t, "it is used again", func() bool { return len(r.requests()) == 2 })
		})
	}
}

func TestCloseDeliversWhatIsDue(t *testing.T) {
	w, r := newWorld(t, options{}), newReceiver(t, nil)
	hook := w.webhook(r.URL)
	for i := range 20 {
		w.record(sandbox.EventEnded, fmt.Sprintf("i%d", i))
	}
	w.deliverer.Close(t.Context())
	for _, d := range w.deliveries(hook) {
		require.Equal(t, store.Delivered, d.State)
	}
	require.Equal(t, 20, len(r.requests()), "each once")
}

func TestCloseBreaksOffWhatHangsAndLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tombolo.db")
	w, r := newWorld(t, options{path: path}), newHangingReceiver(t)
	hook := w.webhook(r.URL)
	w.record(sandbox.EventCreated, "i1")
	eventually(t, "an attempt begins", func() bool { return len(r.requests()) == 1 })
	w.close()

	r.set(nil)
	w = newWorld(t, options{path: path})
	d := w.await(hook, "the next one delivers it", in(store.Delivered))
	require.Len(t, d.Attempts, 1, "what was broken off is no failure")
	require.Equal(t, r.requests()[0].header.Get("Webhook-Id"), r.requests()[1].header.Get("Webhook-Id"))
}

func BenchmarkRecord(b *testing.B) {
	for _, hooks := range []int{0, 1, event.MaxWebhooks} {
		b.Run(fmt.Sprintf("webhooks=%d", hooks), func(b *testing.B) {
			w := newWorld(b, options{})
			for range hooks {
				w.webhook("http://127.0.0.1:1")
			}
			w.deliverer.Close(b.Context()) // only the recording is measured
			for b.Loop() {
				w.record(sandbox.EventCreated, "i1")
			}
		})
	}
}
