// Package sandbox is the core: sandboxes, their states and the manager that
// makes, finds and ends them. It knows the engine, the gateway, images and the
// store by interfaces, and no dialect.
package sandbox

import (
	"context"
	"net"
	"time"
)

// Info describes a sandbox at one moment.
type Info struct {
	ID           string            `json:"id"`
	TemplateID   string            `json:"templateID"`
	TemplateName string            `json:"templateName"`
	KeyID        string            `json:"keyID"` // owner
	State        State             `json:"state"`
	Reason       string            `json:"reason,omitempty"` // why it ended or failed, in words
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	CPUs         int               `json:"cpus"`
	MemoryBytes  int64             `json:"memoryBytes"`
	DiskBytes    int64             `json:"diskBytes"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	AccessToken  string            `json:"accessToken,omitempty"`  // of the agent in it
	DenyInternet bool              `json:"denyInternet,omitempty"` // as asked for in CreateRequest
}

// CreateRequest is what a dialect asks for. Zero values take the template's
// defaults.
type CreateRequest struct {
	Template string `json:"template"` // id or name
	KeyID    string `json:"keyID"`
	// MaxSandboxes is how many sandboxes the key may have at once, this one
	// included; Create answers *LimitError beyond. 0 is no limit.
	MaxSandboxes int               `json:"maxSandboxes,omitempty"`
	Timeout      time.Duration     `json:"timeout"` // > 0
	Metadata     map[string]string `json:"metadata,omitempty"`
	EnvVars      map[string]string `json:"envVars,omitempty"`
	// DenyInternet closes every connection out.
	DenyInternet bool `json:"denyInternet,omitempty"`
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
	// Logs returns what is kept of a live sandbox's log, oldest first.
	// ErrNotFound.
	Logs(id string) ([]LogLine, error)
}
