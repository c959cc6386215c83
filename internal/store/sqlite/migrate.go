package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrate applies what is missing. Processes that start at once take turns by a
// lock on lockPath, which the kernel drops if one of them dies.
func migrate(ctx context.Context, db *sql.DB, lockPath string) error {
	unlock, err := lock(ctx, lockPath)
	if err != nil {
		return err
	}
	defer unlock()

	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, dir)
	if err != nil {
		return err
	}
	have, want, err := provider.GetVersions(ctx)
	if err != nil {
		return err
	}
	if have > want {
		return fmt.Errorf("schema %d was written by a newer tombolo than this one, which knows %d: upgrade this one", have, want)
	}
	if _, err := provider.Up(ctx); err != nil {
		return err
	}
	return nil
}

// lockPoll is how often a taken lock is tried again.
const lockPoll = 10 * time.Millisecond

func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for another process to leave %s: %w", path, ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}
