package store

import (
	"cmp"
	"encoding/json"
	"slices"
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
	// MaxTimeout is how long a sandbox may run, from its start or resume to its
	// timeout, however often it is given more time; 0 is no limit of the key's.
	MaxTimeout time.Duration `json:"maxTimeoutNanos,omitempty"`
	// The rest of the quota; 0 is no limit. See sandbox.Quota for what counts.
	MaxCreateRate float64 `json:"maxCreateRate,omitempty"` // a second
	MaxCPUs       int     `json:"maxCPUs,omitempty"`
	MaxMemory     int64   `json:"maxMemoryBytes,omitempty"`
	MaxDisk       int64   `json:"maxDiskBytes,omitempty"`
	MaxSnapshots  int     `json:"maxSnapshots,omitempty"`

	// Roles say what the key is good for; one at least. See [CheckRoles].
	Roles []Role `json:"roles"`
	// Approves names the keys, by id, whose sandboxes' actions it may answer for, with
	// the role [RoleApprove]; empty is all. The id of a deleted key stays and means none.
	Approves []string `json:"approves,omitempty"`
	// SelfApproval: it may answer for its own sandboxes too.
	SelfApproval bool `json:"selfApproval,omitempty"`
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
	// Data is what the core needs besides to adopt or sweep the sandbox. The
	// store does not look into it.
	Data json.RawMessage `json:"data,omitempty"`
}

// Template is a template as one of its builds.
type Template struct {
	ID   string `json:"id"`             // 20 characters of a-z0-9
	Name string `json:"name,omitempty"` // the alias; unique unless empty
	// KeyID is the owner. Empty makes it the machine's: every key may use it, none
	// may change it.
	KeyID string `json:"keyID,omitempty"`
	// Public: every key may use it.
	Public    bool      `json:"public,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
	// Tags are those that point at this build, in order of the alphabet.
	Tags []string `json:"tags,omitempty"`

	BuildID     string            `json:"buildID"` // a UUID: E2B's clients parse it as one
	BuiltAt     time.Time         `json:"builtAt"`
	CPUs        int               `json:"cpus"`
	MemoryBytes int64             `json:"memoryBytes"`
	DiskBytes   int64             `json:"diskBytes"`
	SizeBytes   int64             `json:"sizeBytes"`          // of image and snapshot, on disk
	Image       string            `json:"image"`              // file name under images/
	Upper       string            `json:"upper,omitempty"`    // likewise: what was written over the image, a tar archive
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
	// ImageStamp tells the image the snapshot fits from one made again under its name.
	ImageStamp string `json:"imageStamp,omitempty"`
	// DiskOnly: the snapshot has no memory in it.
	DiskOnly bool `json:"diskOnly,omitempty"`
}

// UsableBy tells whether sandboxes of a key may start from it.
func (t Template) UsableBy(keyID string) bool { return t.KeyID == "" || t.KeyID == keyID || t.Public }

// Ref is the shortest text that means this build today: alias, id, or either with
// a tag.
func (t Template) Ref() string {
	name := cmp.Or(t.Name, t.ID)
	if len(t.Tags) == 0 || slices.Contains(t.Tags, DefaultTag) {
		return name
	}
	return name + ":" + t.Tags[0]
}

// Tag is a tag of a template and the build it points at.
type Tag struct {
	Name       string    `json:"name"`
	BuildID    string    `json:"buildID"`
	AssignedAt time.Time `json:"assignedAt"`
}

// BuildState is where a build is in its life.
type BuildState string

// The states of a build.
const (
	BuildWaiting BuildState = "waiting" // for what it is made of, or for its turn
	Building     BuildState = "building"
	BuildReady   BuildState = "ready"
	BuildError   BuildState = "error"
)

// Build is the record of the work of building: who wants what, how far it is and
// how it ended.
type Build struct {
	ID         string     `json:"id"` // a UUID; Template.BuildID of what it makes
	TemplateID string     `json:"templateID"`
	KeyID      string     `json:"keyID,omitempty"` // the owner; empty is the machine
	Alias      string     `json:"alias,omitempty"`
	Tags       []string   `json:"tags,omitempty"` // it is to have
	State      BuildState `json:"state"`
	// Reason is why it failed and Step the step at which it did, if it was one.
	Reason      string    `json:"reason,omitempty"`
	Step        string    `json:"step,omitempty"`
	CPUs        int       `json:"cpus,omitempty"`
	MemoryBytes int64     `json:"memoryBytes,omitempty"`
	DiskBytes   int64     `json:"diskBytes,omitempty"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt,omitzero"`
	FinishedAt  time.Time `json:"finishedAt,omitzero"` // zero until it has ended
}

// Volume is a directory that outlives sandboxes.
type Volume struct {
	ID    string `json:"id"`    // 20 characters of a-z0-9
	Name  string `json:"name"`  // unique among those of its key
	KeyID string `json:"keyID"` // the owner
	// Token opens its content. It is in no JSON.
	Token     string    `json:"-"`
	SizeBytes int64     `json:"sizeBytes"` // what may be in it
	CreatedAt time.Time `json:"createdAt"`
}

// Event is something that happened to a sandbox, with what the sandbox was then.
type Event struct {
	Seq         int64             `json:"-"`  // its place among all; given by AddEvent
	ID          string            `json:"id"` // a UUID
	Kind        string            `json:"kind"`
	At          time.Time         `json:"at"`
	KeyID       string            `json:"keyID"` // the sandbox's owner; empty for the machine's
	SandboxID   string            `json:"sandboxID"`
	TemplateID  string            `json:"templateID"`
	BuildID     string            `json:"buildID,omitempty"`
	ExecutionID string            `json:"executionID,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	StartedAt   time.Time         `json:"startedAt,omitzero"`
	EndAt       time.Time         `json:"endAt,omitzero"`
	CPUs        int               `json:"cpus,omitempty"`
	MemoryBytes int64             `json:"memoryBytes,omitempty"`
	Detail      string            `json:"detail,omitempty"` // in words
	Data        json.RawMessage   `json:"data,omitempty"`   // what the kind has besides; the store does not look into it
}

// Webhook is an address that events of a key are delivered to.
type Webhook struct {
	ID        string    `json:"id"`    // a UUID
	KeyID     string    `json:"keyID"` // empty: it gets the events of all keys
	Name      string    `json:"name"`
	URL       string    `json:"url"`
	Kinds     []string  `json:"kinds"` // of the events it wants
	Enabled   bool      `json:"enabled"`
	CreatedAt time.Time `json:"createdAt"`
	// Secret signs what is delivered. It is in no JSON, so that nobody gets it back.
	Secret string `json:"-"`
	// DisabledReason says why the server disabled it.
	DisabledReason string `json:"disabledReason,omitempty"`
	// Failures counts the attempts that failed since one succeeded, FailingSince is
	// when the first of them did.
	Failures     int       `json:"failures,omitempty"`
	FailingSince time.Time `json:"failingSince,omitzero"`
}

// Wants tells whether events of a kind are to be delivered.
func (w Webhook) Wants(kind string) bool { return w.Enabled && slices.Contains(w.Kinds, kind) }

// DeliveryState is where a delivery is in its life: Pending, then one of the
// others.
type DeliveryState string

// The states of a delivery.
const (
	Pending   DeliveryState = "pending"
	Delivered DeliveryState = "delivered"
	Failed    DeliveryState = "failed"  // every attempt failed
	Dropped   DeliveryState = "dropped" // given up without a last attempt
)

// Delivery is one event on its way to one webhook.
type Delivery struct {
	Seq       int64         `json:"-"`  // its place among all; given by AddEvent
	ID        string        `json:"id"` // a UUID, the same in every attempt
	WebhookID string        `json:"webhookID"`
	EventID   string        `json:"eventID"`
	EventKind string        `json:"eventKind"`
	SandboxID string        `json:"sandboxID"`
	State     DeliveryState `json:"state"`
	Reason    string        `json:"reason,omitempty"` // why it was dropped
	CreatedAt time.Time     `json:"createdAt"`
	NextAt    time.Time     `json:"nextAt,omitzero"`  // of the next attempt; zero when it ended
	EndedAt   time.Time     `json:"endedAt,omitzero"` // zero while it is pending
	Attempts  []Attempt     `json:"attempts"`
}

// Attempt is one request to a webhook and what came of it. What the receiver
// wrote is not kept: a webhook must be no way to read from a server.
type Attempt struct {
	At         time.Time     `json:"at"`
	Duration   time.Duration `json:"durationNanos"`
	StatusCode int           `json:"statusCode,omitempty"` // 0: there was no answer
	Error      string        `json:"error,omitempty"`      // empty: it was taken
}

// DueDelivery is a delivery with all that it takes to make it.
type DueDelivery struct {
	Delivery
	Event   Event
	Webhook Webhook
}

// Hold is the record of an action that waits, or waited, for a person.
type Hold struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandboxID"` // empty: of one that is not there yet
	KeyID     string `json:"keyID"`     // the sandbox's owner
	State     string `json:"state"`     // an approval.State
	// EndedAt is when it was decided, or ended otherwise; zero while it is pending.
	EndedAt time.Time `json:"endedAt,omitzero"`
	// Data is the whole of it. The store does not look into it.
	Data json.RawMessage `json:"data"`
}

// Grant is the record of what an answer left.
type Grant struct {
	ID string `json:"id"`
	// SandboxID is the sandbox that it goes with; empty: it outlives sandboxes.
	SandboxID string          `json:"sandboxID,omitempty"`
	Until     time.Time       `json:"until,omitzero"` // zero: no end
	Data      json.RawMessage `json:"data"`           // as of Hold
}

// Policy is the rules of one scope.
type Policy struct {
	Scope     string          `json:"scope"`             // server, key, template or sandbox
	ScopeID   string          `json:"scopeID,omitempty"` // of the key, template or sandbox
	Record    json.RawMessage `json:"record"`            // a policy.Table; the store does not look into it
	UpdatedAt time.Time       `json:"updatedAt"`
}

// SandboxPolicy is Policy.Scope of the rules of one sandbox.
const SandboxPolicy = "sandbox"
