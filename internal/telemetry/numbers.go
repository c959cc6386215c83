package telemetry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// numbers are what is counted and timed as it happens; what is looked up when
// somebody asks is in collect.go.
type numbers struct {
	created    *prometheus.CounterVec
	events     *prometheus.CounterVec
	operations *prometheus.HistogramVec
	steps      *prometheus.HistogramVec
	store      *prometheus.HistogramVec
	attempts   *prometheus.HistogramVec

	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	firstByte   *prometheus.HistogramVec
	inFlight    prometheus.Gauge
	connections prometheus.Gauge

	templates labels
}

// Buckets, seconds: of what the core does, of what the edge passes on, of the
// store.
var (
	operationBuckets = []float64{.01, .025, .05, .1, .2, .3, .5, .75, 1, 2, 5, 10, 30, 60}
	requestBuckets   = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600}
	storeBuckets     = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .1, .5, 2.5, 10}
)

func newNumbers(registry prometheus.Registerer, version, engine string) *numbers {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
	}
	n := &numbers{
		created: counter("sandboxes_created_total",
			"Sandboxes created, by template (the first 50 names; the rest are \"other\").", "template"),
		events: counter("sandbox_events_total",
			"What happened to sandboxes, by kind; those that nobody asked for (timeouts, traffic that wakes) included.", "kind"),
		operations: histogram("sandbox_operation_duration_seconds",
			"Time of what was asked of sandboxes, by operation and result.", operationBuckets, "operation", "result"),
		steps: histogram("sandbox_step_duration_seconds",
			"Time of the steps in which a sandbox is started.", operationBuckets, "step", "result"),
		store: histogram("store_duration_seconds",
			"Time of reads and writes of the store, waiting for their turn included.", storeBuckets, "kind"),
		attempts: histogram("webhook_attempt_duration_seconds",
			"Time of attempts to deliver an event to a webhook, by result (delivered, failed).", operationBuckets, "result"),
		requests: counter("edge_requests_total",
			"Requests answered, by class (control, agent, code, port, refused) and status code.", "class", "code"),
		duration: histogram("edge_request_duration_seconds",
			"Time of requests to the end of the answer, streams included.", requestBuckets, "class"),
		firstByte: histogram("edge_first_byte_seconds",
			"Time of requests to the beginning of the answer.", requestBuckets, "class"),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "edge_requests_in_flight",
			Help: "Requests and upgraded connections being served."}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "edge_connections",
			Help: "Open connections of clients, but those upgraded to another protocol."}),
		templates: labels{most: 50},
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "build_info",
		Help:        "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version, "engine": engine, "goversion": runtime.Version()}})
	build.Set(1)
	registry.MustRegister(build, n.created, n.events, n.operations, n.steps, n.store, n.attempts,
		n.requests, n.duration, n.firstByte, n.inFlight, n.connections)
	return n
}

// namespace begins every name.
const namespace = "tombolo"

// labels bounds how many values a label has.
type labels struct {
	most int
	mu   sync.Mutex
	seen map[string]bool
}

// bound returns the value, or "other" when there are enough already.
func (l *labels) bound(value string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen[value] {
		return value
	}
	if len(l.seen) >= l.most {
		return "other"
	}
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	l.seen[value] = true
	return value
}

// codeLabel is a status code that means something; a sandbox can answer any.
func codeLabel(code int) string {
	if http.StatusText(code) == "" {
		return "other"
	}
	return strconv.Itoa(code)
}

// result names an outcome.
func result(err error) string {
	var limit *sandbox.LimitError
	var invalid *sandbox.InvalidError
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.As(err, &limit):
		return "limit"
	case errors.As(err, &invalid):
		return "invalid"
	case errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrTemplateNotFound):
		return "not_found"
	case errors.Is(err, sandbox.ErrPaused), errors.Is(err, sandbox.ErrBusy), errors.Is(err, sandbox.ErrAsleep):
		return "wrong_state"
	case errors.Is(err, sandbox.ErrPortClosed):
		return "port_closed"
	}
	return "error"
}

// Event counts what happened to a sandbox; it is for sandbox.Config.OnEvent.
func (t *Telemetry) Event(e sandbox.Event) {
	if t == nil {
		return
	}
	t.numbers.events.WithLabelValues(string(e.Kind)).Inc()
	if e.Kind == sandbox.EventCreated {
		t.numbers.created.WithLabelValues(t.numbers.templates.bound(e.Info.TemplateName)).Inc()
	}
}

// Store notes how long a read or write of the store took.
func (t *Telemetry) Store(kind string, took time.Duration) {
	t.numbers.store.WithLabelValues(kind).Observe(took.Seconds())
}

// Attempt notes an attempt to deliver an event to a webhook; it is for
// event.DelivererConfig.OnAttempt.
func (t *Telemetry) Attempt(a store.Attempt) {
	if t == nil {
		return
	}
	result := "delivered"
	if a.Error != "" {
		result = "failed"
	}
	t.numbers.attempts.WithLabelValues(result).Observe(a.Duration.Seconds())
}

// ConnState counts connections; it is for http.Server.ConnState.
func (t *Telemetry) ConnState(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		t.numbers.connections.Inc()
	case http.StateClosed, http.StateHijacked:
		t.numbers.connections.Dec()
	}
}
