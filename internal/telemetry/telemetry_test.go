package telemetry_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tombolo-dev/tombolo/internal/edge"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
	"github.com/tombolo-dev/tombolo/internal/telemetry"
)

func TestMain(m *testing.M) { sandboxtest.Main(m, nil) }

const patience = 30 * time.Second

// server is one that is measured, with a real core.
type server struct {
	*sandboxtest.World
	measured  *telemetry.Telemetry
	sandboxes sandbox.Sandboxes
	url       string
}

// closed is a network that is closed to any owner.
type closed struct{ *gateway.Network }

func (closed) OwnerChanged() {}

func start(t *testing.T, o telemetry.Options) *server {
	t.Helper()
	o.Log, o.Version, o.Engine = slog.New(slog.DiscardHandler), "v1", "gvisor-1"
	measured, err := telemetry.New(t.Context(), o)
	require.NoError(t, err)
	s := &server{measured: measured}
	t.Cleanup(func() { require.NoError(t, measured.Close()) })
	s.World = sandboxtest.New(t, func(c *sandbox.Config) {
		c.OnEvent, c.OnStep = measured.Event, measured.Step
		c.Network = func(ctx context.Context, c sandbox.NetworkConfig) (sandbox.Network, error) {
			n, err := gateway.New(ctx, gateway.Config{Dir: c.Dir, Policy: gateway.DenyAll{}, Log: o.Log})
			if err != nil {
				return nil, err
			}
			return measured.Network(closed{n}), nil
		}
	})
	s.Store.Observe(measured.Store)
	measured.Watch(s.Manager)
	s.sandboxes = measured.Sandboxes(s.Manager)
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := s.sandboxes.Create(r.Context(), sandbox.CreateRequest{Template: r.URL.Query().Get("template"), Timeout: time.Minute})
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		fmt.Fprint(w, info.ID)
	})
	front := httptest.NewUnstartedServer(measured.Requests(edge.New(edge.Options{
		Sandboxes: s.sandboxes, Control: measured.Control(api), Inside: measured.Inside, Log: o.Log,
	})))
	front.Config.ConnState = measured.ConnState
	front.Start()
	t.Cleanup(front.Close)
	s.url = front.URL
	return s
}

// get answers status and body; headers are pairs.
func (s *server) get(t *testing.T, path string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	require.NoError(t, err)
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	res, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

// create makes a sandbox by the edge.
func (s *server) create(t *testing.T, headers ...string) string {
	t.Helper()
	status, id := s.get(t, "/?template="+sandboxtest.Warm, headers...)
	require.Equal(t, http.StatusOK, status, id)
	return id
}

func (s *server) agent(t *testing.T, id, path string, headers ...string) (int, string) {
	t.Helper()
	info, err := s.Manager.Get(id)
	require.NoError(t, err)
	return s.get(t, path, append(headers, "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983", "X-Access-Token", info.AccessToken)...)
}

func (s *server) scrape(t *testing.T) string {
	t.Helper()
	res, err := http.Get("http://" + s.measured.Addr() + "/metrics")
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(body)
}

func TestNumbersOfAServer(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	s := start(t, telemetry.Options{MetricsListen: "127.0.0.1:0"})
	id := s.create(t)
	for range 3 {
		status, _ := s.agent(t, id, "/health")
		require.Equal(t, http.StatusNoContent, status)
	}
	status, _ := s.get(t, "/?template=nothing")
	require.Equal(t, http.StatusNotFound, status)
	status, _ = s.get(t, "/", "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "4004")
	require.Equal(t, http.StatusBadGateway, status)
	status, _ = s.get(t, "/", "E2b-Sandbox-Id", "inobody", "E2b-Sandbox-Port", "80")
	require.Equal(t, http.StatusBadGateway, status)
	require.NoError(t, s.sandboxes.Pause(t.Context(), id, false))
	paused := s.scrape(t)
	require.Contains(t, paused, `tombolo_sandboxes{state="paused"} 1`)
	require.Contains(t, paused, `tombolo_sandboxes{state="running"} 0`)
	_, _, err := s.sandboxes.Resume(t.Context(), id, sandbox.ResumeRequest{Timeout: time.Minute})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Manager.Usage().MemoryBytes > 0 }, patience, 20*time.Millisecond)

	text := s.scrape(t)
	for _, want := range []string{
		`tombolo_build_info{engine="gvisor-1",goversion="go`,
		`tombolo_sandboxes{state="running"} 1`,
		`tombolo_sandboxes_created_total{template="warm"} 1`,
		`tombolo_sandbox_events_total{kind="paused"} 1`,
		`tombolo_sandbox_operation_duration_seconds_count{operation="create",result="ok"} 1`,
		`tombolo_sandbox_operation_duration_seconds_count{operation="create",result="not_found"} 1`,
		`tombolo_sandbox_operation_duration_seconds_count{operation="dial",result="port_closed"} `,
		`tombolo_sandbox_operation_duration_seconds_count{operation="resume",result="ok"} 1`,
		`tombolo_sandbox_step_duration_seconds_count{result="ok",step="save"} 1`,
		`tombolo_sandbox_step_duration_seconds_count{result="ok",step="engine"} 2`,
		`tombolo_edge_requests_total{class="agent",code="204"} 3`,
		`tombolo_edge_requests_total{class="control",code="404"} 1`,
		`tombolo_edge_requests_total{class="port",code="502"} 1`,
		`tombolo_edge_requests_total{class="refused",code="502"} 1`,
		`tombolo_edge_request_duration_seconds_count{class="agent"} 3`,
		`tombolo_edge_first_byte_seconds_count{class="agent"} 3`,
		`tombolo_edge_requests_in_flight 0`,
		`tombolo_gateway_connections_total{direction="in"} `,
		`tombolo_store_duration_seconds_count{kind="write"} `,
		`go_goroutines `, `process_open_fds `,
	} {
		require.Contains(t, text, want)
	}
	for _, above := range []string{
		`tombolo_edge_connections`, `tombolo_sandboxes_memory_bytes{kind="inside"}`, `tombolo_sandboxes_memory_bytes{kind="engine"}`,
		`tombolo_gateway_bytes_total{direction="in"}`, `tombolo_store_duration_seconds_count{kind="read"}`,
	} {
		require.NotContains(t, text, above+" 0\n")
		require.Contains(t, text, above+" ")
	}
	require.NotContains(t, text, id, "an id is no label")
	require.NotContains(t, text, "inobody")

	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	problems = slices.DeleteFunc(problems, func(p promlint.Problem) bool { return !strings.HasPrefix(p.Metric, "tombolo_") })
	require.Empty(t, problems)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	_, err = parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
}

// Totals are counters: they do not fall when a sandbox goes.
func TestTotalsOutliveSandboxes(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	s := start(t, telemetry.Options{MetricsListen: "127.0.0.1:0"})
	id := s.create(t)
	s.agent(t, id, "/health")
	number := func(name string) (value float64) {
		for line := range strings.Lines(s.scrape(t)) {
			if rest, is := strings.CutPrefix(line, name+" "); is {
				_, err := fmt.Sscan(rest, &value)
				require.NoError(t, err)
				return value
			}
		}
		require.Fail(t, "no number "+name)
		return 0
	}
	require.Eventually(t, func() bool { return number(`tombolo_sandboxes_memory_bytes{kind="engine"}`) > 0 }, patience, 20*time.Millisecond)
	counters := []string{`tombolo_gateway_bytes_total{direction="in"}`, `tombolo_gateway_connections_total{direction="in"}`, `tombolo_sandboxes_cpu_seconds_total`}
	var before []float64
	for _, name := range counters {
		before = append(before, number(name))
	}
	require.Positive(t, before[0])
	require.NoError(t, s.sandboxes.Kill(t.Context(), id, "the test wants it"))
	for i, name := range counters {
		require.GreaterOrEqual(t, number(name), before[i], name)
	}
	require.Zero(t, number(`tombolo_sandboxes_memory_bytes{kind="inside"}`))
	require.Zero(t, number(`tombolo_gateway_open_connections`))
}

// What a sandbox answers must not make numbers without end.
func TestLabelsAreBounded(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	measured, err := telemetry.New(t.Context(), telemetry.Options{MetricsListen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer measured.Close()
	handler := measured.Requests(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var code int
		fmt.Sscan(r.URL.Path[1:], &code)
		w.WriteHeader(code)
	}))
	for code := 200; code < 1000; code++ {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, fmt.Sprint("/", code), nil))
	}
	for n := range 200 {
		measured.Event(sandbox.Event{Kind: sandbox.EventCreated, Info: sandbox.Info{TemplateName: fmt.Sprint("template", n)}})
	}
	text := (&server{measured: measured}).scrape(t)
	require.LessOrEqual(t, strings.Count(text, "tombolo_edge_requests_total{"), 70)
	require.Equal(t, 51, strings.Count(text, "tombolo_sandboxes_created_total{"))
	require.Contains(t, text, `tombolo_sandboxes_created_total{template="other"} 150`)
}

func TestNothingIsMeasuredUnasked(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	measured, err := telemetry.New(t.Context(), telemetry.Options{Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.Nil(t, measured)
	handler := http.NewServeMux()
	require.Same(t, handler, measured.Requests(handler), "requests should not pay for it")
	require.Same(t, http.DefaultTransport, measured.Inside(http.DefaultTransport))
	require.Nil(t, measured.Sandboxes(nil))
	measured.Event(sandbox.Event{})
	require.Empty(t, measured.Addr())
	require.NoError(t, measured.Close())
}

func TestSettingsThatCannotWork(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	_, err := telemetry.New(t.Context(), telemetry.Options{MetricsListen: "127.0.0.1:99999", Log: log})
	require.ErrorContains(t, err, "--metrics-listen")
	for _, endpoint := range []string{"127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://"} {
		_, err = telemetry.New(t.Context(), telemetry.Options{OTLPEndpoint: endpoint, Log: log})
		require.ErrorContains(t, err, "--otlp-endpoint", endpoint)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	_, err = telemetry.New(t.Context(), telemetry.Options{OTLPEndpoint: "http://127.0.0.1:4318", Log: log})
	require.ErrorContains(t, err, "http/protobuf")
	t.Setenv("OTEL_SDK_DISABLED", "true")
	measured, err := telemetry.New(t.Context(), telemetry.Options{OTLPEndpoint: "http://127.0.0.1:4318", Log: log})
	require.NoError(t, err)
	require.Nil(t, measured)
}

// receiver is an OpenTelemetry collector.
type receiver struct {
	mu    sync.Mutex
	spans []*spans.Span
	about map[string]string
}

func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var request collector.ExportTraceServiceRequest
	if r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(body, &request) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.GetResourceSpans() {
		c.about = map[string]string{}
		for _, a := range of.GetResource().GetAttributes() {
			c.about[a.GetKey()] = a.GetValue().GetStringValue()
		}
		for _, scope := range of.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
}

// await returns the spans of a trace once there is one of each name.
func (c *receiver) await(t *testing.T, trace string, names ...string) map[string]*spans.Span {
	t.Helper()
	found := map[string]*spans.Span{}
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range c.spans {
			if fmt.Sprintf("%x", s.GetTraceId()) == trace {
				found[s.GetName()] = s
			}
		}
		return !slices.ContainsFunc(names, func(name string) bool { return found[name] == nil })
	}, patience, 20*time.Millisecond, "want %v, got %v", names, found)
	return found
}

func attribute(s *spans.Span, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

func TestTracesGoFromTheClientToTheAgent(t *testing.T) {
	received := &receiver{}
	otlp := httptest.NewServer(received)
	defer otlp.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", otlp.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	s := start(t, telemetry.Options{})
	require.Empty(t, s.measured.Addr())

	const create, client = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	id := s.create(t, "Traceparent", "00-"+create+"-"+client+"-01")
	steps := []string{"turn", "network", "engine", "agent"}
	got := received.await(t, create, append(steps, "edge control", "sandbox create")...)
	require.Equal(t, client, fmt.Sprintf("%x", got["edge control"].GetParentSpanId()))
	require.Equal(t, got["edge control"].GetSpanId(), got["sandbox create"].GetParentSpanId())
	for _, step := range steps {
		require.Equal(t, got["sandbox create"].GetSpanId(), got[step].GetParentSpanId(), step)
		require.LessOrEqual(t, got["sandbox create"].GetStartTimeUnixNano(), got[step].GetStartTimeUnixNano(), step)
	}
	require.Equal(t, id, attribute(got["sandbox create"], "tombolo.sandbox.id"))
	require.Equal(t, "tombolo", received.about["service.name"])
	require.Equal(t, "test", received.about["deployment.environment.name"])

	const run = "4bf92f3577b34da6a3ce929d0e0e4736"
	status, _ := s.agent(t, id, "/health", "Traceparent", "00-"+run+"-"+client+"-01")
	require.Equal(t, http.StatusNoContent, status)
	got = received.await(t, run, "edge agent", "sandbox request", "sandbox dial", "agent")
	require.Equal(t, got["edge agent"].GetSpanId(), got["sandbox request"].GetParentSpanId())
	require.Equal(t, got["sandbox request"].GetSpanId(), got["sandbox dial"].GetParentSpanId())
	require.Equal(t, got["sandbox request"].GetSpanId(), got["agent"].GetParentSpanId())
	require.GreaterOrEqual(t, got["agent"].GetStartTimeUnixNano(), got["sandbox request"].GetStartTimeUnixNano())
	require.LessOrEqual(t, got["agent"].GetEndTimeUnixNano(), got["sandbox request"].GetEndTimeUnixNano())
	require.Equal(t, id, attribute(got["edge agent"], "tombolo.sandbox.id"))

	// A server inside goes on with the trace.
	conn, err := s.Manager.Dial(t.Context(), id, 8000)
	require.NoError(t, err)
	conn.Close()
	var inside bytes.Buffer
	transport := s.measured.Inside(roundTrip(func(r *http.Request) (*http.Response, error) {
		inside.WriteString(r.Header.Get("Traceparent"))
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{"Server-Timing": {"agent;dur=99999999"}}}, nil
	}))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost:49983/", nil)
	require.NoError(t, err)
	_, err = transport.RoundTrip(r)
	require.NoError(t, err)
	require.Regexp(t, "^00-[0-9a-f]{32}-[0-9a-f]{16}-01$", inside.String())
	require.Empty(t, r.Header.Get("Traceparent"), "the request of the caller is not changed")
	lied := received.await(t, inside.String()[3:35], "sandbox request", "agent")
	require.LessOrEqual(t, lied["sandbox request"].GetStartTimeUnixNano(), lied["agent"].GetStartTimeUnixNano(), "what is inside may lie")
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestDeadCollectorDoesNotHoldTheServer(t *testing.T) {
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	var log bytes.Buffer
	measured, err := telemetry.New(t.Context(), telemetry.Options{OTLPEndpoint: dead.URL, Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	handler := measured.Requests(http.NotFoundHandler())
	began := time.Now()
	for range 5000 { // more than the queue of spans holds
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	require.Less(t, time.Since(began), patience/3)
	require.NoError(t, measured.Close())
	require.Less(t, time.Since(began), patience)
	require.Contains(t, log.String(), "spans")
}
