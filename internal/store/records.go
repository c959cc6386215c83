package store

import (
	"encoding/json"
	"time"
)

// Key is an API key without its secret.
type Key struct {
	ID   string `json:"id"`
	Name string `json:"name"` // unique
	// Hash is [HashSecret] of the secret, which nobody keeps.
	Hash string `json:"-"`
	// Prefix is the beginning of the secret, for people to tell keys apart.
	Prefix    string    `json:"prefix"`
	CreatedAt time.Time `json:"createdAt"`
	LastUsed  time.Time `json:"lastUsed,omitzero"` // see TouchEvery
	// MaxSandboxes is how many sandboxes may live at once; > 0.
	MaxSandboxes int `json:"maxSandboxes"`
	// MaxTimeout is the longest timeout, from now on, that a request may ask for; 0
	// is no limit of the key's. A sandbox may be given more time again.
	MaxTimeout time.Duration `json:"maxTimeoutNanos,omitempty"`
	// The rest of the quota; 0 is no limit. See sandbox.Quota for what counts.
	MaxCreateRate float64 `json:"maxCreateRate,omitempty"` // a second
	MaxCPUs       int     `json:"maxCPUs,omitempty"`
	MaxMemory     int64   `json:"maxMemoryBytes,omitempty"`
	MaxDisk       int64   `json:"maxDiskBytes,omitempty"`
	MaxSnapshots  int     `json:"maxSnapshots,omitempty"`
}

// Sandbox is the record of one sandbox.
type Sandbox struct {
	ID            string            `json:"id"`
	State         string            `json:"state"` // a sandbox.State
	Reason        string            `json:"reason,omitempty"`
	KeyID         string            `json:"keyID"`
	TemplateID    string            `json:"templateID"`
	TemplateName  string            `json:"templateName,omitempty"`
	TemplateBuild string            `json:"templateBuild,omitempty"`
	CreatedAt     time.Time         `json:"createdAt"`
	StartedAt     time.Time         `json:"startedAt,omitzero"`
	EndAt         time.Time         `json:"endAt,omitzero"`   // when its timeout ends it
	EndedAt       time.Time         `json:"endedAt,omitzero"` // when it ended; zero while it lives
	CPUs          int               `json:"cpus,omitempty"`
	MemoryBytes   int64             `json:"memoryBytes,omitempty"`
	DiskBytes     int64             `json:"diskBytes,omitempty"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	EnvVars       map[string]string `json:"envVars,omitempty"`
	DenyInternet  bool              `json:"denyInternet,omitempty"`
	AccessToken   string            `json:"accessToken,omitempty"`
	// Owner is the process that runs the sandbox.
	Owner Owner `json:"owner,omitzero"`
	// Data is what the core needs besides to adopt or sweep the sandbox. The
	// store does not look into it.
	Data json.RawMessage `json:"data,omitempty"`
}

// Owner names a process so that another can tell whether it still lives: a pid
// alone is given out again.
type Owner struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks since boot, field 22 of /proc/PID/stat
	BootID    string `json:"bootID"`    // /proc/sys/kernel/random/boot_id
}

// Template is the record of a template and the build it stands for.
type Template struct {
	ID   string `json:"id"`             // 20 characters of a-z0-9
	Name string `json:"name,omitempty"` // unique unless empty
	// KeyID is the owner. Empty makes it the machine's: every key may use it, none
	// may change it.
	KeyID     string    `json:"keyID,omitempty"`
	CreatedAt time.Time `json:"createdAt"`

	BuildID     string            `json:"buildID"` // a UUID: E2B's clients parse it as one
	BuiltAt     time.Time         `json:"builtAt"`
	CPUs        int               `json:"cpus"`
	MemoryBytes int64             `json:"memoryBytes"`
	DiskBytes   int64             `json:"diskBytes"`
	SizeBytes   int64             `json:"sizeBytes"`          // of image and snapshot, on disk
	Image       string            `json:"image"`              // file name under images/
	Snapshot    string            `json:"snapshot,omitempty"` // folder name under snapshots/; empty starts cold
	StartCmd    string            `json:"startCmd,omitempty"`
	ReadyCmd    string            `json:"readyCmd,omitempty"`
	EnvVars     map[string]string `json:"envVars,omitempty"`
	User        string            `json:"user,omitempty"`
	Workdir     string            `json:"workdir,omitempty"`
	Kernels     []string          `json:"kernels,omitempty"` // languages kept warm
	AgentHash   string            `json:"agentHash,omitempty"`
	EngineHash  string            `json:"engineHash,omitempty"` // folder name under engines/
	RecipeHash  string            `json:"recipeHash,omitempty"`
	// SourceSandbox is the sandbox a snapshot was taken of; empty for what was
	// built from a recipe. A snapshot has its disk in it and cannot start cold.
	SourceSandbox string `json:"sourceSandbox,omitempty"`
}
