package telemetry

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// w3c carries the place in a trace from program to program.
var w3c = propagation.TraceContext{}

// request is what is known of one that the edge serves.
type request struct {
	class string // set by whoever it comes to; "refused" when nobody
}

type requestKey struct{}

// Requests counts and times every request of the edge, and makes a span of each
// that continues the trace of its client.
func (t *Telemetry) Requests(edge http.Handler) http.Handler {
	if t == nil {
		return edge
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began, req := time.Now(), &request{class: "refused"}
		ctx := context.WithValue(r.Context(), requestKey{}, req)
		if t.spans != nil {
			ctx = w3c.Extract(ctx, propagation.HeaderCarrier(r.Header))
		}
		ctx, span := t.tracer.Start(ctx, "edge", trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", r.Method)))
		answer := &answer{ResponseWriter: w, begun: func() {
			t.numbers.firstByte.WithLabelValues(req.class).Observe(time.Since(began).Seconds())
			span.AddEvent("answer begins")
		}}
		t.numbers.inFlight.Inc()
		defer func() {
			t.numbers.inFlight.Dec()
			code := answer.code
			if code == 0 {
				code = http.StatusOK // the server's, of a handler that wrote nothing
			}
			t.numbers.requests.WithLabelValues(req.class, codeLabel(code)).Inc()
			t.numbers.duration.WithLabelValues(req.class).Observe(time.Since(began).Seconds())
			if !span.IsRecording() {
				return
			}
			span.SetName("edge " + req.class)
			span.SetAttributes(classKey.String(req.class), attribute.Int("http.response.status_code", code))
			if id := sandboxOf(r); id != "" && req.class != "control" {
				span.SetAttributes(sandboxKey.String(id))
			}
			if code >= 500 {
				span.SetStatus(codes.Error, http.StatusText(code))
			}
			span.End()
		}()
		edge.ServeHTTP(answer, r.WithContext(ctx))
	})
}

// Control tells requests for the control API from the others.
func (t *Telemetry) Control(api http.Handler) http.Handler {
	if t == nil {
		return api
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setClass(r.Context(), "control")
		trace.SpanFromContext(r.Context()).SetAttributes(attribute.String("url.path", r.URL.Path))
		api.ServeHTTP(w, r)
	})
}

func setClass(ctx context.Context, class string) {
	if req, ok := ctx.Value(requestKey{}).(*request); ok {
		req.class = class
	}
}

// Inside follows requests into a sandbox; it is for edge.Options.Inside.
func (t *Telemetry) Inside(next http.RoundTripper) http.RoundTripper {
	if t == nil {
		return next
	}
	return inside{next, t}
}

type inside struct {
	next http.RoundTripper
	t    *Telemetry
}

func (i inside) RoundTrip(r *http.Request) (*http.Response, error) {
	class := classOf(r.URL.Port())
	setClass(r.Context(), class)
	if i.t.spans == nil {
		return i.next.RoundTrip(r)
	}
	ctx, span := i.t.tracer.Start(r.Context(), "sandbox request", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(classKey.String(class)))
	r, sent := r.Clone(ctx), time.Now()
	w3c.Inject(ctx, propagation.HeaderCarrier(r.Header))
	response, err := i.next.RoundTrip(r)
	if err != nil {
		endSpan(span, err)
		return nil, err
	}
	span.SetAttributes(attribute.Int("http.response.status_code", response.StatusCode))
	if class != "port" {
		i.t.agentSpan(ctx, sent, response.Header.Values(hostapi.TimingHeader))
	}
	span.End()
	return response, nil
}

// agentSpan makes a span of the time that the agent says an answer took it. Its
// clock is the sandbox's and counts for nothing; the answer is here now. Since
// anything inside can claim what it likes, the span stays within the request's.
func (t *Telemetry) agentSpan(ctx context.Context, sent time.Time, headers []string) {
	now := time.Now()
	for _, header := range headers {
		took, ok := parseTiming(header)
		if !ok {
			continue
		}
		_, span := t.tracer.Start(ctx, "agent", trace.WithTimestamp(now.Add(-min(took, now.Sub(sent)))))
		span.End(trace.WithTimestamp(now))
		return
	}
}

// parseTiming finds the agent's entry ("agent;dur=1.5", milliseconds) in a
// Server-Timing header.
func parseTiming(header string) (time.Duration, bool) {
	for entry := range strings.SplitSeq(header, ",") {
		digits, is := strings.CutPrefix(strings.TrimSpace(entry), hostapi.TimingEntry)
		if !is {
			continue
		}
		milliseconds, err := strconv.ParseFloat(digits, 64)
		if err != nil || !(milliseconds >= 0 && milliseconds < 1e9) {
			return 0, false
		}
		return time.Duration(milliseconds * float64(time.Millisecond)), true
	}
	return 0, false
}

func classOf(port string) string {
	switch port {
	case strconv.Itoa(hostapi.AgentPort):
		return "agent"
	case strconv.Itoa(hostapi.CodePort):
		return "code"
	}
	return "port"
}

// sandboxOf is the id in a request for a sandbox, as far as its headers tell.
func sandboxOf(r *http.Request) string {
	if id := r.Header.Get("E2b-Sandbox-Id"); id != "" {
		return id[:min(len(id), 63)]
	}
	label, _, _ := strings.Cut(r.Host, ".")
	_, id, _ := strings.Cut(label, "-")
	return id
}

// answer sees an answer begin.
type answer struct {
	http.ResponseWriter
	begun func()
	code  int
}

func (a *answer) WriteHeader(code int) {
	if a.code == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
		a.code = code
		a.begun()
	}
	a.ResponseWriter.WriteHeader(code)
}

func (a *answer) Write(p []byte) (int, error) {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	return a.ResponseWriter.Write(p)
}

// Unwrap gives http.ResponseController the rest.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// FlushError is what http.ResponseController calls.
func (a *answer) FlushError() error {
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Flush is for handlers that do not use http.ResponseController.
func (a *answer) Flush() { _ = a.FlushError() }
