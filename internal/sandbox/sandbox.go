// Package sandbox is the core: sandboxes, their states and the manager that
// makes, finds and ends them. It knows the engine, the gateway, images and the
// store by interfaces, and no dialect.
package sandbox

import (
	"context"
	"net"
	"time"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Info describes a sandbox at one moment.
type Info struct {
	ID           string            `json:"id"`
	TemplateID   string            `json:"templateID"`
	TemplateName string            `json:"templateName"`
	BuildID      string            `json:"buildID,omitempty"` // of the template's build
	KeyID        string            `json:"keyID"`             // owner
	State        State             `json:"state"`
	Reason       string            `json:"reason,omitempty"` // why it ended, failed or is paused, in words
	StartedAt    time.Time         `json:"startedAt"`        // of the run: a resume starts a new one
	EndAt        time.Time         `json:"endAt"`            // when its timeout passes; of a paused one, when it was paused
	CPUs         int               `json:"cpus"`
	MemoryBytes  int64             `json:"memoryBytes"`
	DiskBytes    int64             `json:"diskBytes"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	AccessToken  string            `json:"accessToken,omitempty"` // of the agent in it
	// User is whom requests act as that name nobody. Empty is "user".
	User string `json:"user,omitempty"`
	// ExecutionID names the run: it changes with every resume.
	ExecutionID string         `json:"executionID,omitempty"`
	Lifecycle   Lifecycle      `json:"lifecycle"`
	Network     NetworkOptions `json:"network"`
	// DiskOnly says of a paused one that its memory was not saved.
	DiskOnly bool `json:"diskOnly,omitempty"`
	// TrafficToken opens the ports of a sandbox with Network.PrivateTraffic.
	TrafficToken string        `json:"trafficToken,omitempty"`
	Volumes      []VolumeMount `json:"volumes,omitempty"`
	// Rules are those of the sandbox's own scope; its Scope is not set.
	Rules policy.Table `json:"rules,omitzero"`
	// Secrets are the ids of those that it was given placeholders of.
	Secrets []string `json:"secrets,omitempty"`
}

// Subject is the sandbox as rules see it.
func (i Info) Subject() policy.Subject {
	return policy.Subject{SandboxID: i.ID, KeyID: i.KeyID, TemplateID: i.TemplateID, TemplateName: i.TemplateName}
}

// Lifecycle says what happens to a sandbox when its time is over and when
// somebody wants it back.
type Lifecycle struct {
	// PauseOnTimeout pauses it instead of ending it.
	PauseOnTimeout bool `json:"pauseOnTimeout,omitempty"`
	// DiskOnly leaves the memory out of the pause at the timeout.
	DiskOnly bool `json:"diskOnly,omitempty"`
	// AutoResume lets traffic to the paused sandbox resume it (see Wake).
	AutoResume bool `json:"autoResume,omitempty"`
}

// NetworkOptions say what may pass in and out. They are kept over pauses, and copies
// of a sandbox have them too. What they hold is not changed once they are handed over.
type NetworkOptions struct {
	// DenyInternet closes every connection out.
	DenyInternet bool `json:"denyInternet,omitempty"`
	// PrivateTraffic closes the ports to requests without the traffic token; the
	// agent's have a token of their own.
	PrivateTraffic bool `json:"privateTraffic,omitempty"`
	// MaskRequestHost is the Host header that servers inside see; "${PORT}" in it
	// stands for the port. Empty keeps the client's.
	MaskRequestHost string `json:"maskRequestHost,omitempty"`
	// AllowOut are addresses, ranges and names excepted from DenyOut; see
	// policy.FromNetwork.
	AllowOut []string `json:"allowOut,omitempty"`
	DenyOut  []string `json:"denyOut,omitempty"`
	// DNSServers may be reached, all of their ports, when AllowOut has a name (E2B's
	// dnsServers). The sandbox asks the gateway all the same.
	DNSServers []string `json:"dnsServers,omitempty"`
	// HTTPSPorts are ports inside that speak TLS themselves; their certificates are not
	// checked.
	HTTPSPorts []uint16 `json:"httpsPorts,omitempty"`
	// Headers are set on requests out to some hosts. It opens nothing by itself.
	Headers []HostHeaders `json:"headers,omitempty"`
	// Proxy is what connections out go through once they are allowed; nil is none.
	Proxy *EgressProxy `json:"proxy,omitempty"`
	// Bandwidth out of and into the sandbox, bytes a second; 0 is no limit.
	BandwidthOut int64 `json:"bandwidthOut,omitempty"`
	BandwidthIn  int64 `json:"bandwidthIn,omitempty"`
	// Connections is how many TCP connections out may be open; 0 is MaxConnections.
	Connections int `json:"connections,omitempty"`
	// OwnProxy says that Proxy was set by the server's own API: options of E2B, which replace
	// all that E2B has, leave it unless they name another.
	OwnProxy bool `json:"ownProxy,omitempty"`
}

// HostHeaders are set on each request to a host, over what the request has. A value
// may hold placeholders of secrets, "${e2b.secrets.NAME}", of the sandbox's owner.
type HostHeaders struct {
	Host    string            `json:"host"`
	Headers map[string]string `json:"headers"`
}

// EgressProxy is a proxy that connections out are made through.
type EgressProxy struct {
	// Address is host:port. URL schemes are not part of it.
	Address string `json:"address"`
	// Kind is "socks5" or "http" (CONNECT).
	Kind     string `json:"kind"`
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
	// TLS speaks TLS to the proxy, whose certificate is for ServerName, or the host of
	// Address, and signed by one of CACert (PEM), or what the server trusts.
	TLS        bool   `json:"tls,omitempty"`
	ServerName string `json:"serverName,omitempty"`
	CACert     string `json:"caCert,omitempty"`
}

// Owner is the sandbox that a network belongs to, as far as decisions on it need to
// know. It is not changed; another takes its place.
type Owner struct {
	policy.Subject
	Network NetworkOptions
	// Rules are those of the sandbox's own scope.
	Rules policy.Table
	// Secrets are the ids of the owner's secrets that it was given placeholders of.
	Secrets []string
	// Log takes a line for the sandbox's log; warn is for what people should look at.
	Log func(warn bool, text string)
}

// CreateRequest is what a dialect asks for. Zero values take the template's
// defaults.
type CreateRequest struct {
	Template string `json:"template"` // id or name
	KeyID    string `json:"keyID"`
	// Quota is the key's; Create answers *LimitError beyond.
	Quota     Quota             `json:"quota,omitzero"`
	Timeout   time.Duration     `json:"timeout"` // > 0
	Metadata  map[string]string `json:"metadata,omitempty"`
	EnvVars   map[string]string `json:"envVars,omitempty"`
	Lifecycle Lifecycle         `json:"lifecycle,omitzero"`
	Network   NetworkOptions    `json:"network,omitzero"`
	// Volumes of the key, by their names or ids. Create answers ErrVolumeNotFound when
	// one is missing.
	Volumes []VolumeMount `json:"volumes,omitempty"`
	// Rules of the sandbox's own scope, checked by who takes the request.
	Rules policy.Table `json:"rules,omitzero"`
	// Secrets are the ids of those whose placeholders are in EnvVars.
	Secrets []string `json:"secrets,omitempty"`
}

// Quota bounds what one key may have at once. Paused sandboxes count for disk
// only. Zero fields are no limit.
type Quota struct {
	Sandboxes   int     `json:"sandboxes,omitempty"`   // running at once
	CreateRate  float64 `json:"createRate,omitempty"`  // creates, forks and resumes a second
	CPUs        int     `json:"cpus,omitempty"`        // of the running ones
	MemoryBytes int64   `json:"memoryBytes,omitempty"` // of the running ones
	DiskBytes   int64   `json:"diskBytes,omitempty"`   // limits of the running ones and what paused ones hold
	Snapshots   int     `json:"snapshots,omitempty"`   // see Snapshot
	// Timeout bounds what Wake gives; requests that name a timeout are checked by
	// who takes them.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// ResumeRequest says how a sandbox is brought back.
type ResumeRequest struct {
	Quota   Quota         `json:"quota,omitzero"`
	Timeout time.Duration `json:"timeout"` // > 0, from now
	// Reboot drops the saved memory: the sandbox boots afresh from its disk.
	Reboot bool `json:"reboot,omitempty"`

	onlyWake bool // one that runs keeps the time it has
}

// ForkRequest says how copies of a running sandbox are made.
type ForkRequest struct {
	Quota   Quota         `json:"quota,omitzero"`
	Count   int           `json:"count"`   // 1 to MaxForks
	Timeout time.Duration `json:"timeout"` // of each copy, > 0
}

// MaxForks is the most copies of one ForkRequest (E2B's limit).
const MaxForks = 100

// Fork is one copy, or why it was not made.
type Fork struct {
	Info Info
	Err  error
}

// SnapshotRequest says what a snapshot is to be called.
type SnapshotRequest struct {
	Quota Quota `json:"quota,omitzero"`
	// Name of the snapshot, alias[:tag]; a snapshot of the same owner that has it is
	// replaced. Empty makes a template known by its id only.
	Name string `json:"name,omitempty"`
	// DiskOnly leaves the memory out: sandboxes made of it boot afresh.
	DiskOnly bool `json:"diskOnly,omitempty"`
}

// Filter selects in List; zero values select all.
type Filter struct {
	KeyID    string
	States   []State
	Metadata map[string]string // all pairs must be equal
	Template string            // id or alias of a template, or id of a build
}

// Sandboxes is what the dialects and the edge need of the manager.
//
// Every method that names a sandbox answers ErrNotFound (wrapped in a *GoneError
// when it existed and ended). One that needs it running answers ErrPaused for a
// paused one.
type Sandboxes interface {
	// Create returns when the sandbox runs. Errors: ErrTemplateNotFound,
	// *LimitError, *InvalidError, or another when the machine failed; nothing is left
	// behind then.
	Create(ctx context.Context, req CreateRequest) (Info, error)
	// Get finds a sandbox that runs or is paused.
	Get(id string) (Info, error)
	List(f Filter) []Info
	// Kill ends it, running or paused, and returns when nothing of it is left.
	Kill(ctx context.Context, id, reason string) error
	// SetTimeout makes a running sandbox end d from now; with extendOnly it never
	// moves the end earlier. A ctx that ends calls off what has not been done yet.
	SetTimeout(ctx context.Context, id string, d time.Duration, extendOnly bool) (Info, error)
	// SetNetwork changes the options on what goes out, SetRules the rules of its own scope.
	// Both hold at once, for open connections too, and of a paused sandbox from its resume
	// on. change is given the options as they are at that moment, so that who knows only some
	// leaves the others alone; it must not block, and may be called more than once. What it
	// does to those that say what comes in is dropped.
	SetNetwork(ctx context.Context, id string, change func(*NetworkOptions)) (Info, error)
	SetRules(ctx context.Context, id string, rules policy.Table) (Info, error)

	// Pause saves the sandbox and ends its processes; diskOnly leaves its memory
	// out. ErrPaused when it is paused already, ErrBusy while another change is
	// under way; after any other error it runs on.
	Pause(ctx context.Context, id string, diskOnly bool) error
	// Resume brings a paused sandbox back; one that runs is given more time, never
	// less. resumed tells which. One resume runs at a time, whoever asks gets its
	// result. Errors: ErrBusy, *LimitError; after any error it is still paused.
	Resume(ctx context.Context, id string, req ResumeRequest) (info Info, resumed bool, err error)
	// Wake makes sure that a sandbox runs because there is traffic for it: a paused
	// one is resumed for the timeout it was created with, MinWake at least. ErrAsleep
	// when Lifecycle.AutoResume is not set, ErrBusy, *LimitError.
	Wake(ctx context.Context, id string) error
	// Fork copies a running sandbox, memory and disk, Count times; it stands still
	// only while it is saved. Each copy is a sandbox of its own, with a fresh id,
	// tokens and randomness, or an error. The error is for the whole: nothing was made.
	Fork(ctx context.Context, id string, req ForkRequest) ([]Fork, error)
	// Snapshot saves a running sandbox as a template, owned by the sandbox's owner.
	Snapshot(ctx context.Context, id string, req SnapshotRequest) (store.Template, error)

	// DeleteTemplate removes a template, or what a ref with a tag means of it, and
	// the snapshots that nothing else needs. Sandboxes made from it live on.
	// ErrTemplateNotFound. See store.Templates for this and the next two.
	DeleteTemplate(ctx context.Context, ref string) error
	// TagTemplate points tags at a build; builds that lose their last one go.
	TagTemplate(ctx context.Context, ref string, tags []string) (store.Template, error)
	// UntagTemplate takes tags off a template; builds that lose their last one go.
	UntagTemplate(ctx context.Context, idOrAlias string, tags []string) error

	// Dial opens a connection to a port the sandbox listens on, on any address.
	// ErrPortClosed.
	Dial(ctx context.Context, id string, port uint16) (net.Conn, error)
	// OnStop calls fn once each time a sandbox stops running (it was paused or it
	// ended), after its last byte was served. Call it before the first Create; fn
	// must not block.
	OnStop(fn func(id string))
	// Logs returns what is kept of a sandbox's log, oldest first.
	Logs(id string) ([]LogLine, error)
	// Metrics returns what was measured from one time to another, oldest first;
	// zero times are no bounds.
	Metrics(id string, from, to time.Time) ([]Metric, error)
}

// MinWake is the least time a sandbox gets that traffic woke (E2B's).
const MinWake = 300 * time.Second

// Metric is what a sandbox used at one moment.
type Metric struct {
	Time time.Time `json:"time"`
	CPUs int       `json:"cpus"`
	// CPUPercent is the processor time used since the point before, 100 for all the
	// sandbox's processors.
	CPUPercent       float64 `json:"cpuPercent"`
	MemoryBytes      int64   `json:"memoryBytes"`
	MemoryCacheBytes int64   `json:"memoryCacheBytes"`
	MemoryTotalBytes int64   `json:"memoryTotalBytes"`
	DiskBytes        int64   `json:"diskBytes"`
	DiskTotalBytes   int64   `json:"diskTotalBytes"`
}
