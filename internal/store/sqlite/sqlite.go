// Package sqlite keeps the store in one SQLite file. It owns that file, the two
// SQLite keeps beside it (-wal, -shm) and a lock file for migrations (.lock).
//
// The schema is in migrations/, the statements are in queries.sql; the package
// query is generated from both by sqlc.
package sqlite

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite/query"
)

// busyTimeout is how long a statement waits for another process's write.
const busyTimeout = 10 * time.Second

// readers is how many connections read at once. Writes go through one: SQLite
// has a single writer, and waiting for it in a queue of ours is fair and cheap.
const readers = 4

// Store is a store.Store in a SQLite file.
type Store struct {
	readDB, writeDB *sql.DB
	read            *query.Queries
	observe         func(kind string, took time.Duration) // nil is nobody
}

var _ store.Store = (*Store)(nil)

// Open opens or makes the database file at path (mode 0600: it holds tokens) and
// brings its schema up to date. Close the Store when done.
func Open(ctx context.Context, path string) (*Store, error) {
	if err := createPrivate(path); err != nil {
		return nil, err
	}
	writeDB, err := connect(path, "_txlock=immediate", 1)
	if err != nil {
		return nil, err
	}
	if err := migrate(ctx, writeDB, path+".lock"); err != nil {
		return nil, errors.Join(fmt.Errorf("bring the schema of %s up to date: %w", path, err), writeDB.Close())
	}
	readDB, err := connect(path, "_pragma=query_only(1)", readers)
	if err != nil {
		return nil, errors.Join(err, writeDB.Close())
	}
	return &Store{readDB: readDB, writeDB: writeDB, read: query.New(readDB)}, nil
}

// Close waits for running statements and closes the file.
func (s *Store) Close() error {
	return errors.Join(s.readDB.Close(), s.writeDB.Close())
}

func createPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the database (is the data folder there and writable?): %w", err)
	}
	return f.Close()
}

// connect makes a pool. WAL lets readers and the writer go on side by side;
// with it synchronous=NORMAL loses nothing when a process dies, and at worst the
// last moments when the power does.
func connect(path, extra string, conns int) (*sql.DB, error) {
	dsn := fmt.Sprintf("file:%s?_pragma=busy_timeout(%d)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&%s",
		(&url.URL{Path: path}).EscapedPath(), busyTimeout.Milliseconds(), extra)
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// write runs fn in one transaction, which holds the write lock from its start.
func (s *Store) write(ctx context.Context, fn func(q *query.Queries) error) error {
	if s.observe != nil {
		defer func(began time.Time) { s.observe("write", time.Since(began)) }(time.Now())
	}
	tx, err := s.writeDB.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	defer tx.Rollback() // does nothing after Commit
	if err := fn(query.New(tx)); err != nil {
		return storeError(err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// storeError puts the store's errors in place of the driver's.
func storeError(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return store.ErrNotFound
	}
	var e *sqlite.Error
	if errors.As(err, &e) {
		switch e.Code() {
		case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
			return store.ErrExists
		}
	}
	return err
}
