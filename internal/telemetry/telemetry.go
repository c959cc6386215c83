// Package telemetry measures a server and follows its requests: the numbers
// that Prometheus collects and the spans of OpenTelemetry. It owns their names
// and labels, the listener for the numbers and the exporter of the spans.
//
// It looks at the rest from outside, by wrapping what the parts already have in
// common (an http.Handler, an http.RoundTripper, sandbox.Sandboxes) and by the
// hooks they offer; none of them imports it or the libraries below it. A nil
// *Telemetry measures nothing and wraps nothing: a server without it pays
// nothing.
//
// Labels hold only what this program makes up itself. Ids, names of keys, paths
// and whatever else comes from callers or sandboxes would make numbers without
// end, so they are attributes of spans only.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Options say what is wanted.
type Options struct {
	// MetricsListen is the address of the listener for Prometheus; empty for none.
	MetricsListen string
	// OTLPEndpoint is the base URL that spans are sent to. When it is empty the
	// standard variables (OTEL_EXPORTER_OTLP_ENDPOINT and so on) decide; without
	// either there are no spans.
	OTLPEndpoint string
	// Version and Engine are told in tombolo_build_info.
	Version, Engine string
	Log             *slog.Logger
}

// Telemetry is what measures one server. Make it before the parts it measures.
type Telemetry struct {
	log      *slog.Logger
	tracer   trace.Tracer             // never nil
	spans    *sdktrace.TracerProvider // nil without spans
	registry *prometheus.Registry
	numbers  *numbers
	networks *networks
	listener net.Listener // nil without
	server   *http.Server
}

// New returns nil when nothing is wanted. It listens already; what it serves is
// whole once the server watches its parts (see Watch).
func New(ctx context.Context, o Options) (*Telemetry, error) {
	spans, err := newSpans(ctx, o)
	if err != nil {
		return nil, err
	}
	if spans == nil && o.MetricsListen == "" {
		return nil, nil
	}
	t := &Telemetry{
		log: o.Log, spans: spans, tracer: noop.NewTracerProvider().Tracer(""),
		registry: prometheus.NewRegistry(), networks: newNetworks(),
	}
	if spans != nil {
		t.tracer = spans.Tracer("github.com/tombolo-dev/tombolo", trace.WithInstrumentationVersion(o.Version))
	}
	t.numbers = newNumbers(t.registry, o.Version, o.Engine)
	t.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		t.networks,
	)
	if o.MetricsListen != "" {
		if t.listener, err = net.Listen("tcp", o.MetricsListen); err != nil {
			return nil, errors.Join(fmt.Errorf("listen for Prometheus: %w (--metrics-listen takes another address)", err), t.Close())
		}
		t.serve()
	}
	return t, nil
}

// serve answers GET /metrics, to a few at a time: an answer costs a look at every
// sandbox.
func (t *Telemetry) serve() {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(t.log.Handler(), slog.LevelError),
		MaxRequestsInFlight: 4,
		Timeout:             10 * time.Second,
	}))
	t.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(t.log.Handler(), slog.LevelDebug),
	}
	go t.server.Serve(t.listener)
}

// Addr is where Prometheus is served; empty when it is not.
func (t *Telemetry) Addr() string {
	if t == nil || t.listener == nil {
		return ""
	}
	return t.listener.Addr().String()
}

// flushPatience is how long the last spans may take to leave.
const flushPatience = 5 * time.Second

// Close ends the listener and sends the spans that are not sent yet.
func (t *Telemetry) Close() error {
	if t == nil {
		return nil
	}
	var errs []error
	if t.server != nil {
		errs = append(errs, t.server.Close())
	}
	if t.spans != nil {
		ctx, cancel := context.WithTimeout(context.Background(), flushPatience)
		defer cancel()
		if err := t.spans.Shutdown(ctx); err != nil {
			t.log.Warn("the last spans were not sent", "error", err)
		}
	}
	return errors.Join(errs...)
}
