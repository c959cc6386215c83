// Package sandbox is the core: sandboxes, their states and the manager that
// makes, finds and ends them. It knows the engine, the gateway, images and the
// store by interfaces, and no dialect.
package sandbox

import (
	"context"
	"net"
	"time"
)

// State is where a sandbox is in its life.
type State string

// Info describes a sandbox at one moment.
type Info struct {
	ID           string
	TemplateID   string
	TemplateName string
	KeyID        string // owner
	State        State
	Reason       string // why it ended or failed, in words; empty while it runs
	StartedAt    time.Time
	EndAt        time.Time
	CPUs         int
	MemoryBytes  int64
	DiskBytes    int64
	Metadata     map[string]string
	AccessToken  string // of the agent in it
	DenyInternet bool   // as asked for in CreateRequest
}

// CreateRequest is what a dialect asks for. Zero values take the template's
// defaults.
type CreateRequest struct {
	Template string // id or name
	KeyID    string
	// MaxSandboxes is how many sandboxes the key may have at once, this one
	// included; Create answers *LimitError beyond. 0 is no limit.
	MaxSandboxes int
	Timeout      time.Duration // > 0
	Metadata     map[string]string
	EnvVars      map[string]string
	// DenyInternet closes every connection out.
	DenyInternet bool
}

// Filter selects in List; zero values select all.
type Filter struct {
	KeyID    string
	States   []State
	Metadata map[string]string // all pairs must be equal
	Template string            // id or name
}

// Sandboxes is what the dialects and the edge need of the manager.
type Sandboxes interface {
	// Create returns when the sandbox runs. Errors: ErrTemplateNotFound,
	// *LimitError, *InvalidError, or another when the machine failed; nothing is left
	// behind then.
	Create(ctx context.Context, req CreateRequest) (Info, error)
	// Get finds a live sandbox; ErrNotFound (wrapped in a *GoneError when it
	// existed and ended).
	Get(id string) (Info, error)
	List(f Filter) []Info
	// Kill ends it and returns when nothing of it is left. ErrNotFound.
	Kill(ctx context.Context, id, reason string) error
	// SetTimeout makes the sandbox end d from now; with extendOnly it never
	// moves the end earlier. ErrNotFound.
	SetTimeout(id string, d time.Duration, extendOnly bool) (Info, error)
	// Dial opens a connection to a port the sandbox listens on, on any address.
	// ErrNotFound, ErrPortClosed.
	Dial(ctx context.Context, id string, port uint16) (net.Conn, error)
	// OnEnd calls fn once for every sandbox that ends, after its last byte was
	// served. Call it before the first Create; fn must not block.
	OnEnd(fn func(id string))
}
