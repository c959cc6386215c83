package e2b

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// The sizes of pages, where a query gives none.
const (
	defaultEvents     = 10
	defaultDeliveries = 25
)

// eventVersion is that of the fields of an event.
const eventVersion = "v2"

// eventTypes are the wire's names of what happens to sandboxes: the type, and the
// label that older receivers look at.
var eventTypes = []struct{ kind, name, label string }{
	{string(sandbox.EventCreated), "sandbox.lifecycle.created", "create"},
	{string(sandbox.EventUpdated), "sandbox.lifecycle.updated", "update"},
	{string(sandbox.EventPaused), "sandbox.lifecycle.paused", "pause"},
	{string(sandbox.EventResumed), "sandbox.lifecycle.resumed", "resume"},
	{string(sandbox.EventCheckpointed), "sandbox.lifecycle.checkpointed", "checkpoint"},
	{string(sandbox.EventEnded), "sandbox.lifecycle.killed", "kill"},
	{string(event.ApprovalRequested), ours + "approval.requested", "requested"},
	{string(event.ApprovalDecided), ours + "approval.decided", "decided"},
	{string(event.NetworkRefused), ours + "network.refused", "refused"},
	{string(event.SecretMisplaced), ours + "secret.misplaced", "misplaced"},
	{event.KindTest, ours + "webhook.test", "test"}, // the last: nobody subscribes to it
}

// ours begins the types that the service does not have.
const ours = "tombolo."

func (a *api) eventRoutes() map[string]handler {
	return map[string]handler{
		"GET /events/sandboxes":      a.listEvents,
		"GET /events/sandboxes/{id}": a.listEvents,

		"GET /events/webhooks":                 a.listWebhooks,
		"POST /events/webhooks":                a.createWebhook,
		"GET /events/webhooks/{id}":            a.getWebhook,
		"PATCH /events/webhooks/{id}":          a.updateWebhook,
		"DELETE /events/webhooks/{id}":         a.deleteWebhook,
		"GET /events/webhooks/{id}/deliveries": a.listDeliveries,
		"POST /events/webhooks/{id}/test":      a.testWebhook, // ours
	}
}

// wireEvent is an event in an answer.
type wireEvent struct {
	ID                 string    `json:"id"`
	Version            string    `json:"version"`
	Type               string    `json:"type"`
	EventCategory      string    `json:"eventCategory"`
	EventLabel         string    `json:"eventLabel"`
	EventData          eventData `json:"eventData"`
	Timestamp          time.Time `json:"timestamp"`
	SandboxID          string    `json:"sandboxId"`
	SandboxExecutionID string    `json:"sandboxExecutionId"`
	SandboxTemplateID  string    `json:"sandboxTemplateId"`
	SandboxBuildID     string    `json:"sandboxBuildId"`
	SandboxTeamID      string    `json:"sandboxTeamId"`
}

// eventData is spelled alike in answers and deliveries.
type eventData struct {
	Metadata map[string]string `json:"sandbox_metadata"`
	// SetTimeout is when the timeout passes, of an update.
	SetTimeout time.Time `json:"set_timeout,omitzero"`
	// Execution is the run that a pause or a kill ended.
	Execution *execution `json:"execution,omitempty"`
	// The rest is ours: why it was paused or ended, what was made of it; and what our own
	// types have besides.
	Detail string          `json:"detail,omitempty"`
	Data   json.RawMessage `json:"data,omitempty"`
}

type execution struct {
	StartedAt     time.Time `json:"started_at"`
	VCPUCount     int       `json:"vcpu_count"`
	MemoryMB      int64     `json:"memory_mb"`
	ExecutionTime int64     `json:"execution_time"` // milliseconds
}

func encodeEvent(e store.Event) wireEvent {
	wire := wireEvent{
		ID:                 e.ID,
		Version:            eventVersion,
		EventCategory:      "lifecycle",
		EventData:          eventData{Metadata: e.Metadata, Detail: e.Detail, Data: unescaped(e.Data)},
		Timestamp:          e.At,
		SandboxID:          e.SandboxID,
		SandboxExecutionID: e.ExecutionID,
		SandboxTemplateID:  e.TemplateID,
		SandboxBuildID:     e.BuildID,
		SandboxTeamID:      e.KeyID,
	}
	wire.Type, wire.EventLabel = typeOf(e.Kind)
	if own, is := strings.CutPrefix(wire.Type, ours); is && e.Kind != event.KindTest {
		wire.EventCategory, _, _ = strings.Cut(own, ".")
	}
	if wire.EventData.Metadata == nil {
		wire.EventData.Metadata = map[string]string{}
	}
	switch sandbox.EventKind(e.Kind) {
	case sandbox.EventUpdated:
		wire.EventData.SetTimeout = e.EndAt
	case sandbox.EventPaused, sandbox.EventEnded:
		wire.EventData.Execution = &execution{
			StartedAt: e.StartedAt, VCPUCount: e.CPUs, MemoryMB: e.MemoryBytes / mib, ExecutionTime: e.At.Sub(e.StartedAt).Milliseconds(),
		}
	}
	return wire
}

// unescaped undoes what the store does to <, > and & in JSON, which JavaScript would
// not do: see encodeDelivered.
func unescaped(data json.RawMessage) json.RawMessage {
	if data == nil {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var v any
	var plain bytes.Buffer
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	if decoder.Decode(&v) != nil || encoder.Encode(v) != nil {
		return data
	}
	return plain.Bytes()
}

func typeOf(kind string) (name, label string) {
	for _, t := range eventTypes {
		if t.kind == kind {
			return t.name, t.label
		}
	}
	return kind, kind // none that this version records
}

// kindsOf finds the kinds that wire names stand for.
func kindsOf(names []string) ([]string, error) {
	kinds := []string{}
	for _, name := range names {
		i := slices.IndexFunc(eventTypes, func(t struct{ kind, name, label string }) bool { return t.name == name })
		if i < 0 || eventTypes[i].kind == event.KindTest {
			var known []string
			for _, t := range eventTypes[:len(eventTypes)-1] {
				known = append(known, t.name)
			}
			return nil, invalid("there is no event type %.64q: use %s", name, strings.Join(known, ", "))
		}
		kinds = append(kinds, eventTypes[i].kind)
	}
	return kinds, nil
}

// listEvents answers a key's events, of all its sandboxes or of the one that the
// path names. One that the key never had has none.
func (a *api) listEvents(w http.ResponseWriter, r *http.Request, k store.Key) error {
	f, err := parseEventQuery(r.URL.Query())
	if err != nil {
		return err
	}
	if len(f.Kinds) == 0 {
		f.Kinds = event.Lifecycle // clients expect these only
	}
	f.KeyID = k.ID
	f.SandboxID, _, _ = strings.Cut(r.PathValue("id"), "-") // old clients append a client id
	events, err := a.store.Events(r.Context(), f)
	if err != nil {
		return err
	}
	answer := make([]wireEvent, len(events))
	for i, e := range events {
		answer[i] = encodeEvent(e)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

func parseEventQuery(v url.Values) (f store.EventFilter, err error) {
	if f.Kinds, err = kindsOf(list(v["types"])); err != nil {
		return f, err
	}
	if f.Most, err = parsePage(v.Get("limit"), defaultEvents); err != nil {
		return f, err
	}
	if offset := v.Get("offset"); offset != "" {
		if f.Skip, err = strconv.Atoi(offset); err != nil || f.Skip < 0 {
			return f, invalid("offset %.20q: use 0 or more", offset)
		}
	}
	switch order := v.Get("orderAsc"); order {
	case "", "false":
		f.NewestFirst = true
	case "true":
	default:
		return f, invalid("orderAsc %.20q: use true or false", order)
	}
	return f, nil
}

func parsePage(limit string, otherwise int) (int, error) {
	if limit == "" {
		return otherwise, nil
	}
	return parseLimit(limit)
}

// list takes a parameter that is given several times as well as one with commas.
func list(values []string) (all []string) {
	for _, v := range strings.Split(strings.Join(values, ","), ",") {
		if v != "" {
			all = append(all, v)
		}
	}
	return all
}

// wireWebhook is a webhook in an answer, without its secret. The clients' schema
// says teamId, the documentation teamID.
type wireWebhook struct {
	ID        string    `json:"id"`
	TeamID    string    `json:"teamId"`
	TeamIDToo string    `json:"teamID"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
	URL       string    `json:"url"`
	Enabled   bool      `json:"enabled"`
	Events    []string  `json:"events"`
	// The rest is ours: why the server disabled it, and since when it fails.
	DisabledReason string    `json:"disabledReason,omitempty"`
	Failures       int       `json:"failures,omitempty"`
	FailingSince   time.Time `json:"failingSince,omitzero"`
}

func encodeWebhook(h store.Webhook) wireWebhook {
	wire := wireWebhook{
		ID: h.ID, TeamID: h.KeyID, TeamIDToo: h.KeyID, Name: h.Name, CreatedAt: h.CreatedAt, URL: h.URL, Enabled: h.Enabled,
		Events: []string{}, DisabledReason: h.DisabledReason, Failures: h.Failures, FailingSince: h.FailingSince,
	}
	for _, kind := range h.Kinds {
		name, _ := typeOf(kind)
		wire.Events = append(wire.Events, name)
	}
	return wire
}

// webhookBody is what create and update take.
type webhookBody struct {
	Name    *string   `json:"name"`
	URL     *string   `json:"url"`
	Enabled *bool     `json:"enabled"`
	Events  *[]string `json:"events"`
	Secret  *string   `json:"signatureSecret"`
}

func decodeWebhook(w http.ResponseWriter, r *http.Request) (event.Spec, error) {
	var body webhookBody
	if err := decode(w, r, &body, false); err != nil {
		return event.Spec{}, err
	}
	spec := event.Spec{Name: body.Name, URL: body.URL, Secret: body.Secret, Enabled: body.Enabled}
	if body.Events != nil {
		kinds, err := kindsOf(*body.Events)
		if err != nil {
			return event.Spec{}, err
		}
		spec.Kinds = &kinds
	}
	return spec, nil
}

func (a *api) listWebhooks(w http.ResponseWriter, r *http.Request, k store.Key) error {
	hooks, err := a.webhooks.List(r.Context(), k.ID)
	if err != nil {
		return err
	}
	answer := make([]wireWebhook, len(hooks))
	for i, h := range hooks {
		answer[i] = encodeWebhook(h)
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

func (a *api) createWebhook(w http.ResponseWriter, r *http.Request, k store.Key) error {
	spec, err := decodeWebhook(w, r)
	if err != nil {
		return err
	}
	h, err := a.webhooks.Create(r.Context(), k.ID, spec)
	record.Note(r.Context(), "webhook", h.ID)
	return answerWebhook(w, http.StatusCreated, h, err)
}

func (a *api) getWebhook(w http.ResponseWriter, r *http.Request, k store.Key) error {
	h, err := a.webhooks.Get(r.Context(), k.ID, r.PathValue("id"))
	return answerWebhook(w, http.StatusOK, h, err)
}

func (a *api) updateWebhook(w http.ResponseWriter, r *http.Request, k store.Key) error {
	spec, err := decodeWebhook(w, r)
	if err != nil {
		return err
	}
	h, err := a.webhooks.Update(r.Context(), k.ID, r.PathValue("id"), spec)
	return answerWebhook(w, http.StatusOK, h, err)
}

func answerWebhook(w http.ResponseWriter, code int, h store.Webhook, err error) error {
	if err != nil {
		return webhookError(err)
	}
	writeJSON(w, code, encodeWebhook(h))
	return nil
}

// deleteWebhook answers 200, as the service's schema has it, and not 204.
func (a *api) deleteWebhook(w http.ResponseWriter, r *http.Request, k store.Key) error {
	if err := a.webhooks.Delete(r.Context(), k.ID, r.PathValue("id")); err != nil {
		return webhookError(err)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// testWebhook sends a test event at once and answers what came of it.
func (a *api) testWebhook(w http.ResponseWriter, r *http.Request, k store.Key) error {
	attempt, err := a.webhooks.Test(r.Context(), k.ID, r.PathValue("id"))
	if err != nil {
		return webhookError(err)
	}
	writeJSON(w, http.StatusOK, encodeAttempt(attempt))
	return nil
}

func webhookError(err error) error {
	switch {
	case errors.Is(err, event.ErrNotFound):
		return failure(http.StatusNotFound, "webhook not found")
	case errors.Is(err, event.ErrFull):
		return failure(http.StatusConflict, "%s", err)
	}
	return err
}

// wireDelivery is an event on its way to a webhook, in the service's shape, where
// attempts are grouped by their event, and with what there is beside the attempts.
type wireDelivery struct {
	EventID   string        `json:"eventId"`
	EventType string        `json:"eventType"`
	SandboxID string        `json:"sandboxId"`
	Attempts  []wireAttempt `json:"attempts"`

	// The rest is ours.
	DeliveryID    string              `json:"deliveryId"` // the header e2b-delivery-id of every attempt
	State         store.DeliveryState `json:"state"`
	Reason        string              `json:"reason,omitempty"`
	CreatedAt     time.Time           `json:"createdAt"`
	NextAttemptAt time.Time           `json:"nextAttemptAt,omitzero"`
	EndedAt       time.Time           `json:"endedAt,omitzero"`
}

// wireAttempt leaves out what the service tells of request and answer: nobody who
// has a key shall read with the server's eyes.
type wireAttempt struct {
	Status       string    `json:"status"` // success or failed
	DurationMs   int64     `json:"durationMs"`
	StatusCode   *int      `json:"responseHttpStatusCode"`
	ErrorClass   *string   `json:"errorClass"`
	ErrorMessage *string   `json:"errorMessage"`
	Timestamp    time.Time `json:"timestamp"`
}

func encodeAttempt(a store.Attempt) wireAttempt {
	wire := wireAttempt{Status: "success", DurationMs: a.Duration.Milliseconds(), Timestamp: a.At}
	if a.StatusCode != 0 {
		wire.StatusCode = &a.StatusCode
	}
	if a.Error != "" {
		class := "transport_error"
		if a.StatusCode != 0 {
			class = "http_error"
		}
		wire.Status, wire.ErrorClass, wire.ErrorMessage = "failed", &class, &a.Error
	}
	return wire
}

func encodeDelivery(d store.Delivery) wireDelivery {
	wire := wireDelivery{
		EventID: d.EventID, SandboxID: d.SandboxID, Attempts: make([]wireAttempt, len(d.Attempts)),
		DeliveryID: d.ID, State: d.State, Reason: d.Reason, CreatedAt: d.CreatedAt, NextAttemptAt: d.NextAt, EndedAt: d.EndedAt,
	}
	wire.EventType, _ = typeOf(d.EventKind)
	for i, a := range d.Attempts {
		wire.Attempts[i] = encodeAttempt(a)
	}
	return wire
}

// listDeliveries answers a webhook's deliveries, newest first, a page at a time.
func (a *api) listDeliveries(w http.ResponseWriter, r *http.Request, k store.Key) error {
	f, err := parseDeliveryQuery(r.URL.Query())
	if err != nil {
		return err
	}
	f.WebhookID = r.PathValue("id")
	f.Most++ // one more tells whether there is another page
	deliveries, err := a.webhooks.Deliveries(r.Context(), k.ID, f)
	if err != nil {
		return webhookError(err)
	}
	answer := struct {
		Data       []wireDelivery `json:"data"`
		NextCursor *string        `json:"nextCursor"`
	}{Data: []wireDelivery{}}
	if len(deliveries) == f.Most {
		deliveries = deliveries[:f.Most-1]
		next := strconv.FormatInt(deliveries[len(deliveries)-1].Seq, 10)
		answer.NextCursor = &next
	}
	for _, d := range deliveries {
		answer.Data = append(answer.Data, encodeDelivery(d))
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// deliveryStates are the wire's words. The service knows the first two.
var deliveryStates = map[string]store.DeliveryState{
	"success": store.Delivered, "failed": store.Failed, "pending": store.Pending, "dropped": store.Dropped,
}

func parseDeliveryQuery(v url.Values) (f store.DeliveryFilter, err error) {
	for _, unknown := range []string{"start", "end"} {
		if v.Has(unknown) {
			return f, unsupported(unknown, "leave it out")
		}
	}
	if v.Get("orderAsc") == "true" {
		return f, unsupported("orderAsc=true", "leave it out")
	}
	if f.Most, err = parsePage(v.Get("limit"), defaultDeliveries); err != nil {
		return f, err
	}
	if f.Kinds, err = kindsOf(list(v["eventType"])); err != nil {
		return f, err
	}
	for _, name := range list(v["deliveryStatus"]) {
		state, known := deliveryStates[name]
		if !known {
			return f, invalid("deliveryStatus %.20q: use success, failed, pending or dropped", name)
		}
		f.States = append(f.States, state)
	}
	if cursor := v.Get("cursor"); cursor != "" {
		if f.Before, err = strconv.ParseInt(cursor, 10, 64); err != nil || f.Before <= 0 {
			return f, invalid("cursor is none of this server's: take it from nextCursor of the page before")
		}
	}
	return f, nil
}
