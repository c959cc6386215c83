package agent

import (
	"context"
	"log/slog"

	"golang.org/x/time/rate"
)

// Lines a second that a caller can provoke, and how many at once.
const (
	logRate  = 10
	logBurst = 100
)

// Sparing drops records beyond a rate: a caller who provokes messages must not
// fill the host's disk.
func Sparing(h slog.Handler) slog.Handler {
	return &sparing{Handler: h, limit: rate.NewLimiter(logRate, logBurst)}
}

type sparing struct {
	slog.Handler
	limit *rate.Limiter
}

func (s *sparing) Handle(ctx context.Context, r slog.Record) error {
	if !s.limit.Allow() {
		return nil
	}
	return s.Handler.Handle(ctx, r)
}

func (s *sparing) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &sparing{s.Handler.WithAttrs(attrs), s.limit}
}

func (s *sparing) WithGroup(name string) slog.Handler {
	return &sparing{s.Handler.WithGroup(name), s.limit}
}
