package cli

import (
	"context"
	"math"
	"time"

	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
	"github.com/tombolo-dev/tombolo/internal/telemetry"
)

// newTelemetry makes what measures the server, or nil when the settings ask for
// nothing.
func newTelemetry(ctx context.Context, c config) (*telemetry.Telemetry, error) {
	log, err := newLogger(c)
	if err != nil {
		return nil, err
	}
	return telemetry.New(ctx, telemetry.Options{
		MetricsListen: c.MetricsListen,
		OTLPEndpoint:  c.OTLPEndpoint,
		Version:       version(),
		Engine:        gvisor.Version(),
		Log:           log,
	})
}

// watch has told what is looked up when somebody collects.
func watch(t *telemetry.Telemetry, manager *sandbox.Manager, records *sqlite.Store, g *guard.Guard) {
	t.Watch(manager)
	t.Gauge("webhook_deliveries_pending", "Events that wait to be delivered to webhooks.", func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		count, err := records.PendingDeliveries(ctx)
		if err != nil {
			return math.NaN()
		}
		return float64(count)
	})
	t.Gauge("guard_networks", "Networks that rules are applied to, those of what waits for a sandbox included.", func() float64 {
		networks, _ := g.Kept()
		return float64(networks)
	})
	t.Gauge("guard_sandboxes", "Sandboxes, running and paused, of which something was decided.", func() float64 {
		_, sandboxes := g.Kept()
		return float64(sandboxes)
	})
}
