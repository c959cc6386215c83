package telemetry

import (
	"context"
	"net"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Attributes of spans.
const (
	sandboxKey  = attribute.Key("tombolo.sandbox.id")
	templateKey = attribute.Key("tombolo.template")
	portKey     = attribute.Key("tombolo.port")
	classKey    = attribute.Key("tombolo.class")
)

// Sandboxes times what is asked of sandboxes, and makes a span of each.
func (t *Telemetry) Sandboxes(s sandbox.Sandboxes) sandbox.Sandboxes {
	if t == nil {
		return s
	}
	return observed{s, t}
}

// observed is a sandbox.Sandboxes whose slow methods are followed.
type observed struct {
	sandbox.Sandboxes
	t *Telemetry
}

// operation begins one; the function it returns ends it with *err.
func (t *Telemetry) operation(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, func(err *error)) {
	began := time.Now()
	ctx, span := t.tracer.Start(ctx, "sandbox "+name, trace.WithAttributes(attributes...))
	return ctx, func(err *error) {
		t.numbers.operations.WithLabelValues(name, result(*err)).Observe(time.Since(began).Seconds())
		endSpan(span, *err)
	}
}

func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// Step times a step of a start and makes a span of it; it is for
// sandbox.Config.OnStep.
func (t *Telemetry) Step(ctx context.Context, step string) (context.Context, func(error)) {
	began := time.Now()
	ctx, span := t.tracer.Start(ctx, step)
	return ctx, func(err error) {
		t.numbers.steps.WithLabelValues(step, result(err)).Observe(time.Since(began).Seconds())
		endSpan(span, err)
	}
}

func (o observed) Create(ctx context.Context, req sandbox.CreateRequest) (info sandbox.Info, err error) {
	ctx, end := o.t.operation(ctx, "create", templateKey.String(req.Template))
	defer end(&err)
	info, err = o.Sandboxes.Create(ctx, req)
	if err == nil {
		trace.SpanFromContext(ctx).SetAttributes(sandboxKey.String(info.ID))
	}
	return info, err
}

func (o observed) Kill(ctx context.Context, id, reason string) (err error) {
	ctx, end := o.t.operation(ctx, "kill", sandboxKey.String(id))
	defer end(&err)
	return o.Sandboxes.Kill(ctx, id, reason)
}

func (o observed) Pause(ctx context.Context, id string, diskOnly bool) (err error) {
	ctx, end := o.t.operation(ctx, "pause", sandboxKey.String(id))
	defer end(&err)
	return o.Sandboxes.Pause(ctx, id, diskOnly)
}

// Resume is timed under another name when the sandbox ran already.
func (o observed) Resume(ctx context.Context, id string, req sandbox.ResumeRequest) (info sandbox.Info, resumed bool, err error) {
	name := "resume"
	if info, err := o.Get(id); err == nil && info.State == sandbox.Running {
		name = "connect"
	}
	ctx, end := o.t.operation(ctx, name, sandboxKey.String(id))
	defer end(&err)
	return o.Sandboxes.Resume(ctx, id, req)
}

func (o observed) Wake(ctx context.Context, id string) (err error) {
	ctx, end := o.t.operation(ctx, "wake", sandboxKey.String(id))
	defer end(&err)
	return o.Sandboxes.Wake(ctx, id)
}

func (o observed) Fork(ctx context.Context, id string, req sandbox.ForkRequest) (forks []sandbox.Fork, err error) {
	ctx, end := o.t.operation(ctx, "fork", sandboxKey.String(id), attribute.Int("tombolo.forks", req.Count))
	defer end(&err)
	return o.Sandboxes.Fork(ctx, id, req)
}

func (o observed) Snapshot(ctx context.Context, id string, req sandbox.SnapshotRequest) (t store.Template, err error) {
	ctx, end := o.t.operation(ctx, "snapshot", sandboxKey.String(id))
	defer end(&err)
	return o.Sandboxes.Snapshot(ctx, id, req)
}

func (o observed) Dial(ctx context.Context, id string, port uint16) (conn net.Conn, err error) {
	ctx, end := o.t.operation(ctx, "dial", sandboxKey.String(id), portKey.Int(int(port)))
	defer end(&err)
	return o.Sandboxes.Dial(ctx, id, port)
}
