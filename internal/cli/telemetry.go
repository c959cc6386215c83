package cli

import (
	"context"

	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
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
