package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// Observe has fn told how long each "read" and each "write" takes, waiting for
// its turn included. Call it before the store is used; fn is called concurrently.
func (s *Store) Observe(fn func(kind string, took time.Duration)) {
	s.observe = fn
	s.read = query.New(timedReads{s.readDB, fn})
}

// timedReads times queries to their first row: there are few more, and they are
// read at once.
type timedReads struct {
	*sql.DB
	told func(kind string, took time.Duration)
}

func (r timedReads) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	defer r.done(time.Now())
	return r.DB.QueryContext(ctx, text, args...)
}

func (r timedReads) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	defer r.done(time.Now())
	return r.DB.QueryRowContext(ctx, text, args...)
}

func (r timedReads) done(began time.Time) { r.told("read", time.Since(began)) }
