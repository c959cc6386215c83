package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/time/rate"
)

// newSpans makes what sends spans, or nil when they are not wanted. The variables
// are those of the OpenTelemetry specification; the libraries read the others
// (headers, certificates, sampler, batches, resource attributes).
func newSpans(ctx context.Context, o Options) (*sdktrace.TracerProvider, error) {
	if !spansWanted(o.OTLPEndpoint) {
		return nil, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if p := os.Getenv(name); p != "" && p != "http/protobuf" {
			return nil, fmt.Errorf("%s is %q: spans are sent by http/protobuf only; set it to that and give the collector's HTTP port (4318)", name, p)
		}
	}
	var options []otlptracehttp.Option
	if o.OTLPEndpoint != "" {
		base, err := url.Parse(o.OTLPEndpoint)
		if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
			return nil, fmt.Errorf("--otlp-endpoint %q: give a URL such as http://127.0.0.1:4318", o.OTLPEndpoint)
		}
		options = append(options, otlptracehttp.WithEndpointURL(base.JoinPath("v1", "traces").String()))
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("set up OpenTelemetry: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "tombolo"), attribute.String("service.version", o.Version)),
		resource.WithFromEnv(), // last: what the owner says counts
	)
	if err != nil {
		return nil, fmt.Errorf("set up OpenTelemetry (OTEL_RESOURCE_ATTRIBUTES?): %w", err)
	}
	reportTo(o.Log)
	return sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)), nil
}

func spansWanted(endpoint string) bool {
	if os.Getenv("OTEL_SDK_DISABLED") == "true" || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return endpoint != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// reportTo has the exporter's trouble logged, now and then: each batch that a
// collector does not take is an error.
func reportTo(log *slog.Logger) {
	sometimes := rate.Sometimes{First: 1, Interval: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		sometimes.Do(func() { log.Warn("spans are lost", "error", err) })
	}))
}
