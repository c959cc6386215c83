// Package store owns the durable records of a server: keys, sandboxes and
// templates. It holds the interface, the records and the secrets of keys; an
// implementation lives in a folder of its own and passes storetest. It knows no
// other package of the core and touches no files but its own.
package store

import (
	"context"
	"errors"
	"time"
)

// Errors callers decide on.
var (
	// ErrNotFound: no record has this id, name or hash.
	ErrNotFound = errors.New("not found in the store")
	// ErrExists: another record has this id or name already.
	ErrExists = errors.New("exists in the store already")
)

// Store keeps records beyond the life of a process.
//
// # Life cycle
//
//  1. A process opens the store of a data folder. The implementation brings its
//     schema up to date first, and refuses a schema newer than it knows.
//  2. Several processes may have one store open, on one machine: the server and
//     any number of command lines. Every method is one atomic step; a reader sees
//     all of a write or nothing of it. There are no locks to take and no
//     transactions to end.
//  3. A method that returned nil has happened: it survives the death of the
//     process. Only a loss of power may take back the last moments.
//  4. Close ends it. No method may be called after, and none may be running.
//
// All methods are safe for concurrent use. Times are kept in UTC with
// whole microseconds; zero times stay zero. Records are values: what a caller does to
// one afterwards does not reach the store.
//
// # A sandbox's record
//
// The core writes it before anything else is made for that sandbox (so that a
// crash leaves a trace to sweep by), again whenever its state changes, and for
// the last time with EndedAt set. Ended records stay readable, so that people can
// be told why, until PruneSandboxes takes them.
//
// # A template's record
//
// PutTemplate is the moment a build becomes what the template's name means. Files
// of the build exist before it; files of the build it replaced may go after it.
type Store interface {
	Keys
	Sandboxes
	Templates

	Close() error
}

// Keys are what callers authenticate with.
type Keys interface {
	// AddKey stores a new key. ErrExists when its id, name or hash is taken.
	AddKey(ctx context.Context, k Key) error
	// KeyByHash finds the key whose secret has this hash ([HashSecret]).
	KeyByHash(ctx context.Context, hash string) (Key, error)
	// Keys lists all, oldest first.
	Keys(ctx context.Context) ([]Key, error)
	// TouchKey notes that a key was used at this time. It writes only when the
	// noted time is older than [TouchEvery], so it may be called on each request.
	TouchKey(ctx context.Context, id string, at time.Time) error
	// DeleteKey removes a key by id or name.
	DeleteKey(ctx context.Context, idOrName string) error
}

// TouchEvery is how coarse Key.LastUsed is.
const TouchEvery = 10 * time.Minute

// Sandboxes are the records of living and ended sandboxes.
type Sandboxes interface {
	// PutSandbox stores a record, whole, in place of one with the same id.
	PutSandbox(ctx context.Context, s Sandbox) error
	// Sandbox finds one by id, living or ended.
	Sandbox(ctx context.Context, id string) (Sandbox, error)
	// Sandboxes lists those that have not ended, or the ended ones, oldest first.
	Sandboxes(ctx context.Context, ended bool) ([]Sandbox, error)
	// PruneSandboxes deletes records that ended before a time, and of the others
	// that ended all but the newest keep. It returns how many it deleted.
	PruneSandboxes(ctx context.Context, endedBefore time.Time, keep int) (int, error)
}

// What the server keeps of ended sandboxes.
const (
	KeepEnded     = 24 * time.Hour
	KeepEndedMost = 1000
)

// Templates are what sandboxes start from.
type Templates interface {
	// PutTemplate makes t what its name means, in one step. When a template has
	// that name its ID, KeyID and CreatedAt stay and everything else is replaced;
	// else t is added. It returns the record as stored and the one it replaced
	// (the zero Template when there was none), whose files the caller may remove.
	// ErrExists when t.ID belongs to another name.
	PutTemplate(ctx context.Context, t Template) (stored, replaced Template, err error)
	// Template finds one by id, else by name.
	Template(ctx context.Context, idOrName string) (Template, error)
	// Templates lists all by name.
	Templates(ctx context.Context) ([]Template, error)
	// DeleteTemplate removes one by id or name and returns what it removed.
	DeleteTemplate(ctx context.Context, idOrName string) (Template, error)
}
