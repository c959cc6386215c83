package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// LogTo returns a writer to a pipe whose reader may be slow, gone, or gone and
// back: what the pipe does not take at once is lost, and no write fails or waits.
// From then on no write of this program to a pipe without a reader ends it; its
// children are not concerned.
func LogTo(pipe *os.File) (io.Writer, error) {
	fd := int(pipe.Fd())
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("make the log non-blocking: %w", err)
	}
	// Taken rather than ignored, because children inherit ignoring.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return &losing{fd: fd}, nil
}

// losing is a non-blocking descriptor that lines are written to.
type losing struct {
	fd int

	mu   sync.Mutex
	torn bool // the last line was taken in part
}

func (l *losing) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	whole := line
	if l.torn {
		line = append([]byte("\n"), line...)
	}
	n, err := unix.Write(l.fd, line)
	for err == unix.EINTR {
		n, err = unix.Write(l.fd, line)
	}
	if err == nil {
		l.torn = n < len(line)
	}
	return len(whole), nil
}

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
