package e2b_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/e2b"
	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

const (
	alicesHook = "00000000-0000-4000-8000-00000000000a"
	bobsHook   = "00000000-0000-4000-8000-00000000000b"
	hookSecret = "secret of the webhook"
)

// newWebhooks is what a server has, with loopback refused by its address alone.
func newWebhooks(s store.Store) *event.Webhooks {
	return event.NewWebhooks(s, event.NewSender(event.SenderConfig{Format: e2b.FormatDelivery, Refuse: func(a netip.Addr) string {
		if a == netip.MustParseAddr("10.0.0.1") {
			return "private"
		}
		return ""
	}}))
}

// addEvents adds an event of each kind for alice, one for bob, and a webhook for
// both. None is queued: the webhooks come after the events.
func addEvents(s store.Store) error {
	ctx := context.Background()
	at := start
	add := func(kind sandbox.EventKind, key, id, detail string) error {
		at = at.Add(time.Minute)
		_, err := s.AddEvent(ctx, store.Event{
			ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", at.Sub(start)/time.Minute), Kind: string(kind), At: at,
			KeyID: key, SandboxID: id, TemplateID: baseID, BuildID: "00000000-0000-4000-8000-000000000001", ExecutionID: "x1",
			Metadata: map[string]string{"n": "1", "<&>": "ü"}, StartedAt: start, EndAt: start.Add(time.Hour), CPUs: 2, MemoryBytes: 1 << 30, Detail: detail,
		})
		return err
	}
	for _, e := range []struct {
		kind   sandbox.EventKind
		detail string
	}{
		{sandbox.EventCreated, ""}, {sandbox.EventUpdated, "its timeout was set"}, {sandbox.EventPaused, "paused by its owner"},
		{sandbox.EventResumed, ""}, {sandbox.EventCheckpointed, "snapshot " + snapID}, {sandbox.EventEnded, "killed by its owner"},
	} {
		if err := add(e.kind, "key-of-alice", "i0001", e.detail); err != nil {
			return err
		}
	}
	if err := add(sandbox.EventCreated, "key-of-bob", "i0004", ""); err != nil {
		return err
	}
	for id, key := range map[string]string{alicesHook: "key-of-alice", bobsHook: "key-of-bob"} {
		h := store.Webhook{ID: id, KeyID: key, Name: "hook", URL: "https://example.com/hook", Kinds: []string{"created", "ended"}, CreatedAt: start, Secret: hookSecret}
		if key == "key-of-alice" {
			h.DisabledReason, h.Failures, h.FailingSince = "every attempt failed", 12, start
		} else {
			h.Enabled = true
		}
		if err := s.AddWebhook(ctx, h, 1); err != nil {
			return err
		}
	}
	return nil
}

// call sends a request with alice's key and decodes the answer into v.
func (w *world) call(t *testing.T, method, path, body string, code int, v any) {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("X-API-KEY", w.secrets["alice"])
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, r)
	require.Equal(t, code, answer.Code, answer.Body.String())
	require.NotContains(t, answer.Body.String(), hookSecret, "no answer holds the secret")
	if v != nil {
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), v))
	}
}

func TestWebhookIsMadeChangedAndDeleted(t *testing.T) {
	w := newWorld(t)
	var made, got struct {
		ID, TeamID, Name, URL string
		Enabled               bool
		Events                []string
		CreatedAt             time.Time
	}
	w.call(t, "POST", "/events/webhooks", `{"name":"n","url":"https://example.com/?a=b","events":["sandbox.lifecycle.killed","sandbox.lifecycle.checkpointed"],"signatureSecret":"`+hookSecret+`"}`, 201, &made)
	require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, made.ID)
	require.Equal(t, "key-of-alice", made.TeamID)
	require.True(t, made.Enabled, "enabled unless said otherwise")
	require.WithinDuration(t, time.Now(), made.CreatedAt, time.Minute)
	w.call(t, "GET", "/events/webhooks/"+made.ID, "", 200, &got)
	require.Equal(t, made, got)

	w.call(t, "PATCH", "/events/webhooks/"+made.ID, `{"enabled":false,"signatureSecret":"another one"}`, 200, &got)
	require.False(t, got.Enabled)
	require.Equal(t, made.Events, got.Events, "what is left out stays")
	stored, err := w.store.Webhook(t.Context(), made.ID)
	require.NoError(t, err)
	require.Equal(t, "another one", stored.Secret)

	w.call(t, "DELETE", "/events/webhooks/"+made.ID, "", 200, nil)
	w.call(t, "GET", "/events/webhooks/"+made.ID, "", 404, nil)
}

func TestWebhooksBeyondTheLimitAreRefused(t *testing.T) {
	w := newWorld(t)
	body := `{"name":"n","url":"https://example.com","events":["sandbox.lifecycle.killed"],"signatureSecret":"12345678"}`
	for range event.MaxWebhooks - 1 { // there is one
		w.call(t, "POST", "/events/webhooks", body, 201, nil)
	}
	w.call(t, "POST", "/events/webhooks", body, 409, nil)
}

func TestWebhookTestTellsWhatTheReceiverAnswered(t *testing.T) {
	w := newWorld(t)
	receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { rw.WriteHeader(418) }))
	defer receiver.Close()
	w.call(t, "PATCH", "/events/webhooks/"+alicesHook, `{"url":"`+receiver.URL+`"}`, 200, nil)
	var attempt struct {
		Status, ErrorClass, ErrorMessage string
		ResponseHTTPStatusCode           int `json:"responseHttpStatusCode"`
	}
	w.call(t, "POST", "/events/webhooks/"+alicesHook+"/test", "", 200, &attempt)
	require.Equal(t, "failed", attempt.Status)
	require.Equal(t, "http_error", attempt.ErrorClass)
	require.Equal(t, 418, attempt.ResponseHTTPStatusCode)
	w.call(t, "POST", "/events/webhooks/"+bobsHook+"/test", "", 404, nil)
}

func TestDeliveriesAreListedInPages(t *testing.T) {
	w := newWorld(t)
	w.call(t, "PATCH", "/events/webhooks/"+alicesHook, `{"enabled":true}`, 200, nil)
	for i := range 5 {
		_, err := w.store.AddEvent(t.Context(), store.Event{ID: fmt.Sprintf("e%d", i), Kind: "created", At: start, KeyID: "key-of-alice", SandboxID: "i0001"})
		require.NoError(t, err)
	}
	all, err := w.store.Deliveries(t.Context(), store.DeliveryFilter{WebhookID: alicesHook, Most: 10})
	require.NoError(t, err)
	require.NoError(t, w.store.UpdateDelivery(t.Context(), all[4].ID, func(d *store.Delivery, _ *store.Webhook) {
		d.State, d.NextAt, d.EndedAt = store.Failed, time.Time{}, start.Add(time.Hour)
		d.Attempts = []store.Attempt{{At: start, Duration: 1500 * time.Millisecond, StatusCode: 500, Error: "500"}, {At: start, Error: "no route"}}
	}))

	type page struct {
		Data []struct {
			EventID, EventType, SandboxID, DeliveryID, State string
			NextAttemptAt                                    *time.Time
			Attempts                                         []map[string]any
		}
		NextCursor *string
	}
	var first, second, failed page
	path := "/events/webhooks/" + alicesHook + "/deliveries"
	w.call(t, "GET", path+"?limit=3", "", 200, &first)
	require.Len(t, first.Data, 3)
	require.Equal(t, "e4", first.Data[0].EventID)
	require.Equal(t, "sandbox.lifecycle.created", first.Data[0].EventType)
	require.Equal(t, "pending", first.Data[0].State)
	require.NotNil(t, first.Data[0].NextAttemptAt)
	require.NotNil(t, first.NextCursor)
	w.call(t, "GET", path+"?limit=3&cursor="+*first.NextCursor, "", 200, &second)
	require.Len(t, second.Data, 2)
	require.Nil(t, second.NextCursor)
	require.Equal(t, "e0", second.Data[1].EventID)

	w.call(t, "GET", path+"?deliveryStatus=failed&eventType=sandbox.lifecycle.created", "", 200, &failed)
	require.Len(t, failed.Data, 1)
	require.Equal(t, all[4].ID, failed.Data[0].DeliveryID)
	require.Equal(t, []map[string]any{
		{"status": "failed", "durationMs": 1500.0, "responseHttpStatusCode": 500.0, "errorClass": "http_error", "errorMessage": "500", "timestamp": "2026-03-04T05:06:07.890123Z"},
		{"status": "failed", "durationMs": 0.0, "responseHttpStatusCode": nil, "errorClass": "transport_error", "errorMessage": "no route", "timestamp": "2026-03-04T05:06:07.890123Z"},
	}, failed.Data[0].Attempts)

	for _, query := range []string{"?limit=0", "?limit=101", "?cursor=x", "?cursor=-1", "?deliveryStatus=lost", "?eventType=x", "?orderAsc=true", "?start=2026-01-01T00:00:00Z"} {
		w.call(t, "GET", path+query, "", 400, nil)
	}
	w.call(t, "GET", "/events/webhooks/"+bobsHook+"/deliveries", "", 404, nil)
}

// TestDeliverySignatureVerifiesBothWays checks a delivery as receivers do, written
// for what the service sends and for what its documentation says.
func TestDeliverySignatureVerifiesBothWays(t *testing.T) {
	for i := range 50 {
		d := store.DueDelivery{
			Delivery: store.Delivery{ID: "d"},
			Event:    store.Event{ID: fmt.Sprint(i), Kind: "ended", At: start, Metadata: map[string]string{"a": "<&>\u00fc"}},
			Webhook:  store.Webhook{ID: "w", Secret: hookSecret},
		}
		d.WebhookID = "w"
		body, header, err := e2b.FormatDelivery(d)
		require.NoError(t, err)
		sum := sha256.Sum256([]byte(hookSecret + string(body)))
		require.Equal(t, base64.RawStdEncoding.EncodeToString(sum[:]), header.Get("e2b-signature"))
		require.Equal(t, base64.RawURLEncoding.EncodeToString(sum[:]), header.Get("e2b-signature"))
		require.Equal(t, "v1", header.Get("e2b-signature-version"))
		require.Equal(t, "w", header.Get("e2b-webhook-id"))
		require.Equal(t, "d", header.Get("e2b-delivery-id"))
		require.Contains(t, string(body), "<&>", "JSON as JavaScript writes it")

		again, _, err := e2b.FormatDelivery(d)
		require.NoError(t, err)
		require.Equal(t, string(body), string(again), "each attempt sends the same")
	}
}

func TestDeliveryHasBothSpellings(t *testing.T) {
	body, _, err := e2b.FormatDelivery(store.DueDelivery{Webhook: store.Webhook{Secret: hookSecret}, Event: store.Event{
		ID: "e", Kind: "paused", At: start.Add(90 * time.Second), KeyID: "k", SandboxID: "i1", TemplateID: "t", BuildID: "b", ExecutionID: "x",
		StartedAt: start, CPUs: 2, MemoryBytes: 512 << 20, Metadata: map[string]string{"a": "b"}, Detail: "why",
	}})
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(body, &got))
	delete(got, "salt")
	data := map[string]any{
		"sandbox_metadata": map[string]any{"a": "b"}, "detail": "why",
		"execution": map[string]any{"started_at": "2026-03-04T05:06:07.890123Z", "vcpu_count": 2.0, "memory_mb": 512.0, "execution_time": 90000.0},
	}
	require.Equal(t, map[string]any{
		"id": "e", "version": "v2", "type": "sandbox.lifecycle.paused", "timestamp": "2026-03-04T05:07:37.890123Z",
		"event_category": "lifecycle", "event_label": "pause", "event_data": data, "eventData": data,
		"sandbox_id": "i1", "sandbox_execution_id": "x", "sandbox_template_id": "t", "sandbox_build_id": "b", "sandbox_team_id": "k",
		"sandboxId": "i1", "sandboxExecutionId": "x", "sandboxTemplateId": "t", "sandboxBuildId": "b", "sandboxTeamId": "k",
	}, got)
}

func TestEventsOfOurOwnKindsHaveTheirData(t *testing.T) {
	body, header, err := e2b.FormatDelivery(store.DueDelivery{Webhook: store.Webhook{Secret: hookSecret}, Event: store.Event{
		ID: "e", Kind: "approval.requested", At: start, KeyID: "k", SandboxID: "i1", Detail: "egress a.example:443",
		Data: json.RawMessage(`{"action":"exec \u003c\u0026\u003e","count":12345678901234567}`),
	}})
	require.NoError(t, err)
	require.NotEmpty(t, header.Get("e2b-signature"))
	require.Contains(t, string(body), `"data":{"action":"exec <&>","count":12345678901234567}`, "JSON as JavaScript writes it")
	var got map[string]any
	require.NoError(t, json.Unmarshal(body, &got))
	require.Equal(t, "tombolo.approval.requested", got["type"])
	require.Equal(t, "approval", got["event_category"])
	require.Equal(t, "requested", got["event_label"])
}

func TestEventsOfOurOwnKindsAreListedWhereAskedFor(t *testing.T) {
	w := newWorld(t)
	for _, kind := range []string{"created", "approval.requested", "network.refused"} {
		_, err := w.store.AddEvent(t.Context(), store.Event{ID: kind, Kind: kind, At: start, KeyID: "key-of-alice", SandboxID: "i77"})
		require.NoError(t, err)
	}
	for query, want := range map[string][]string{
		"": {"created"}, // clients of E2B's know these only
		"?types=tombolo.approval.requested,tombolo.network.refused": {"network.refused", "approval.requested"},
	} {
		var events []struct{ ID string }
		w.call(t, "GET", "/events/sandboxes/i77"+query, "", 200, &events)
		var ids []string
		for _, e := range events {
			ids = append(ids, e.ID)
		}
		require.Equal(t, want, ids, query)
	}
}
