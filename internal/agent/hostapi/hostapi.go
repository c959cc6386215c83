// Package hostapi is the contract between the host and the agent inside a
// sandbox: the ports, the inside addresses and the host-only endpoints. It
// holds types only, so that both sides can import it.
//
// The host-only endpoints live on a port of their own ([HostPort]). The agent
// answers there only to [GatewayAddr], which no connection made inside the
// sandbox has as its source; the edge never routes a request to that port.
//
//	POST    /init        Init, answered 204, after every start, every restore and
//	                     every adoption by another process of the host.
//	                     Repeatable: the last one counts. Every connection made
//	                     before the one it comes by is ended; runs in kernels whose clients are lost
//	                     that way are not interrupted. 422 with the reason, in words
//	                     for the caller, when a volume cannot be seen at its path.
//	POST    /relieve     Relieve, answered 200 with a Relieved.
//	POST    /warm        Warm, answered 204 when the named kernels are idle. Used
//	                     while a template is built, before its snapshot.
//	POST    /copy        the copying of a build's step: Copy as JSON in the query's
//	                     "copy", a tar archive (plain or gzip) as body; 204, or 400 with
//	                     the reason in words for the caller.
//	POST    /archive     Archive, answered 200 with a tar of what it names; 404 with
//	                     the pattern that names nothing. A tar that cannot be
//	                     finished breaks off.
//	CONNECT host:port    a byte tunnel to a port on the sandbox's loopback
//	                     (127.0.0.1, then ::1); 502 when nothing listens.
package hostapi

import "time"

// Ports the agent listens on, inside every sandbox.
const (
	// AgentPort serves process.Process, filesystem.Filesystem, /files, /health,
	// /metrics and /envs. The number is E2B's (envd).
	AgentPort = 49983
	// CodePort serves /execute and /contexts. The number is E2B's.
	CodePort = 49999
	// HostPort serves the host-only endpoints.
	HostPort = 49982
)

// Addresses of the point-to-point network of a sandbox. Every sandbox has the
// same ones, each in a network namespace of its own.
const (
	SandboxAddr = "10.0.0.2"
	GatewayAddr = "10.0.0.1"
	PrefixLen   = 30
)

// EnvdVersion is the version the agent reports to E2B clients, which switch
// features on by it (0.6.4 is the highest gate known; upstream is at 0.6.13).
const EnvdVersion = "0.6.13"

// Init tells a freshly started or restored agent who it is.
type Init struct {
	SandboxID  string `json:"sandboxID"`
	TemplateID string `json:"templateID"`
	// AccessToken guards the agent port and /execute. Empty leaves them open,
	// which happens only while a template is being built.
	AccessToken string `json:"accessToken,omitempty"`
	// Resumed: the same sandbox goes on, after a pause or with another process of
	// the host. Then its host name, its kernels (their variables and their
	// randomness) and its polled watches are left alone. False is for a sandbox that
	// is another than the one that was saved, or that has booted.
	Resumed bool              `json:"resumed,omitempty"`
	EnvVars map[string]string `json:"envVars,omitempty"`
	// DefaultUser and DefaultWorkdir apply to requests that name none; empty
	// keeps "user" and that user's home.
	DefaultUser    string    `json:"defaultUser,omitempty"`
	DefaultWorkdir string    `json:"defaultWorkdir,omitempty"`
	Hostname       string    `json:"hostname,omitempty"`
	Timestamp      time.Time `json:"timestamp"`
	// Entropy is fresh randomness (64 bytes) that clones of one snapshot do not
	// share; everything with userspace random state is reseeded from it.
	Entropy []byte `json:"entropy"`
	// Volumes are to be seen at these paths. Of a sandbox that goes on they are there
	// already.
	Volumes []VolumeMount `json:"volumes,omitempty"`
	// CABundle replaces the system trust store (PEM). Empty leaves it.
	CABundle []byte `json:"caBundle,omitempty"`
	// MemoryLimit is the memory the sandbox may use, bytes.
	MemoryLimit int64 `json:"memoryLimit,omitempty"`
	// ProcessLimit is how many processes and threads may exist besides the
	// agent's own.
	ProcessLimit int64 `json:"processLimit,omitempty"`
}

// VolumesDir is where the volumes of a sandbox are seen inside, one folder each;
// Init.Volumes says where else they are to be seen.
const VolumesDir = "/.volumes"

// VolumeMount shows the volume in the folder Name below [VolumesDir] at Path.
type VolumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"` // absolute
}

// Copy puts what an archive holds into the file system, as COPY of a Dockerfile does:
// a destination that ends in "/" or is a folder takes things in by their names, the
// contents of a folder are merged into the destination, one file given to a path
// that is no folder becomes that path. Folders on the way are made. Links on the
// way to the destination are followed; those in the archive are copied as links.
type Copy struct {
	// Source is what the caller asked to be copied, a path or pattern that the entries
	// of the archive begin with; it decides what are names and what is content. What a
	// pattern names keeps its path below the pattern's fixed part, as in E2B: "src/*.py"
	// and "src/**" are content of src. Empty is for an archive that [Archive] asked
	// for: each first element of a path is a thing to copy of its own, and where there
	// are several, and not all are folders, the destination must be a folder.
	Source string `json:"source"`
	// Destination is absolute, and cleaned but for a trailing "/".
	Destination string `json:"destination"`
	// User owns what is copied, and folders made on the way, "name[:group]" or
	// numbers; empty is root, or with an empty Source whom the archive says.
	User string `json:"user,omitempty"`
	// Mode, when not nil, is given to what is copied: permission bits.
	Mode *uint32 `json:"mode,omitempty"`
	// Unpack unpacks the archives among the files, as ADD does.
	Unpack bool `json:"unpack,omitempty"`
}

// Archive asks for the files and folders that the patterns name (path.Match, with
// what is below them), each with a path in the archive that begins with its own
// last element.
type Archive struct {
	Patterns []string `json:"patterns"`
}

// Warm names the languages whose default kernel a template keeps running.
type Warm struct {
	Languages []string `json:"languages"`
}

// Relieve asks the agent to end the process that uses most memory, because the
// sandbox is at its memory limit.
type Relieve struct {
	LimitBytes int64 `json:"limitBytes"`
}

// Relieved names the process that was ended. PID is 0 when there was none.
type Relieved struct {
	PID      int    `json:"pid"`
	Name     string `json:"name"`
	RSSBytes int64  `json:"rssBytes"`
}

// ExecErrorHeader is in the metadata of the error of process.Process/Start when
// the program itself was the trouble.
const (
	ExecErrorHeader  = "Exec-Error"
	ExecNotFound     = "not-found"
	ExecNotPermitted = "not-permitted"
)

// OrphansHeader in a request of process.Process/Start says, as a time.Duration, how long
// after the exit of the process its end is told when others still hold its output.
// Without it their end is awaited.
const OrphansHeader = "Exec-Orphans"

// The agent tells how long it took to begin an answer, when the request is part
// of a trace (W3C's traceparent): an entry of the header Server-Timing, the
// milliseconds after TimingEntry.
const (
	TraceHeader  = "Traceparent"
	TimingHeader = "Server-Timing"
	TimingEntry  = "agent;dur="
)

// ProcessSource is the attribute "source" of what the agent writes about the
// processes of callers, by lines of slog.TextHandler.
const ProcessSource = "process"
