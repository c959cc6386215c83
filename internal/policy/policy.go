// Package policy owns the rules for what sandboxes may do: what an action is, what
// a rule says of it, how rules of several scopes come to one verdict, and the file
// format that people write. It decides on values alone: it holds nothing, waits for
// nobody and touches no file, network or store.
//
// # How a verdict is reached
//
// Every scope that a sandbox is in (the server, its key, its template, itself) may
// have a [Table]. Of each table the rules of the action's kind that match are taken,
// and the strictest of their decisions is the table's; when none matches it is the
// table's default for that kind, if it has one. The strictest decision of all tables
// is the verdict; where no table has a say, the action is allowed. So nothing in a
// narrower scope can allow what a wider one forbids, and a deny is final.
//
// # What is not known yet
//
// The gateway learns what a connection is for in steps: a name that is looked up,
// an address and a port, the name in a TLS handshake, the request. [Action.Unknown]
// says what is still to come; a verdict then tells which decisions are possible.
package policy

import (
	"net/netip"
	"time"
)

// Kind says what sort of action a rule is about.
type Kind string

// The kinds.
const (
	Egress    Kind = "egress"    // a connection, datagram, question for a name or request out
	Secret    Kind = "secret"    // the value of a secret put into a request
	Exec      Kind = "exec"      // a command or code started by a caller
	FileOut   Kind = "file-out"  // a file read by a caller
	Port      Kind = "port"      // a port inside reached from outside
	Lifetime  Kind = "lifetime"  // how long a sandbox may run from now
	Resources Kind = "resources" // the processors and memory that a sandbox is made with
	Snapshot  Kind = "snapshot"  // a copy of a sandbox: a snapshot or a fork
)

// Kinds are all kinds.
var Kinds = []Kind{Egress, Secret, Exec, FileOut, Port, Lifetime, Resources, Snapshot}

// Decision is what is said of an action. The strictest of several counts.
type Decision string

// The decisions, from the mildest to the strictest. Empty is none.
const (
	Allow Decision = "allow"
	Ask   Decision = "ask" // hold the action until a person has answered
	Deny  Decision = "deny"
)

// Decisions are all decisions, the strictest last.
var Decisions = []Decision{Allow, Ask, Deny}

// Fields is a set of what may be unknown of an action.
type Fields uint8

// What may be unknown. A field that is known and empty is not there: a connection
// that is neither TLS nor HTTP has no host but the one its address was looked up by.
const (
	HostField     Fields = 1 << iota // Host
	AddressField                     // Address
	PortField                        // Port and Protocol
	RequestField                     // Method, Path and Query
	LanguageField                    // Language, of code for a context that was made before
)

// Action is what a sandbox, or a caller of one, is about to do. Fields that do not
// belong to its kind are empty.
type Action struct {
	Kind Kind `json:"kind"`

	// Egress and Secret.
	Protocol string     `json:"protocol,omitempty"` // "tcp" or "udp"
	Host     string     `json:"host,omitempty"`     // normalised, see NormalHost
	Address  netip.Addr `json:"address,omitzero"`
	Port     uint16     `json:"port,omitempty"` // of Port too
	Method   string     `json:"method,omitempty"`
	Path     string     `json:"path,omitempty"` // decoded and cleaned, without query
	// Query is a digest of the query of a request that a person is asked about, which may be
	// secret: so that requests which differ in it are asked about apart.
	Query   string `json:"query,omitempty"`
	Unknown Fields `json:"-"`

	// Secret.
	Secret string `json:"secret,omitempty"` // its name
	Header string `json:"header,omitempty"` // canonical name of the header it goes into

	// Exec: the command line or the code, whole.
	Command string `json:"command,omitempty"`
	// Language is that of code, or "context ID", of which it is unknown; empty for a command.
	Language string `json:"language,omitempty"`
	User     string `json:"user,omitempty"`
	Cwd      string `json:"cwd,omitempty"`
	// Env are the variables it is given besides, by name, and a digest of their values:
	// "LD_PRELOAD PATH #5c1e…". Values may be secret, and are not for people to read.
	Env string `json:"env,omitempty"`
	// Input is how it can be told more when it runs, which nobody judges: "pty" by a terminal,
	// "stdin" by its standard input; empty is not at all.
	Input string `json:"input,omitempty"`

	// FileOut: absolute and clean. Name is the id of the volume where one is read by the
	// volume's own token.
	File string `json:"file,omitempty"`

	Timeout     time.Duration `json:"timeoutNanos,omitempty"` // Lifetime
	CPUs        int           `json:"cpus,omitempty"`         // Resources
	MemoryBytes int64         `json:"memoryBytes,omitempty"`  // Resources

	// Snapshot. Copy is "snapshot" or "fork"; Count how many copies, when that is more than
	// one; Name that of the snapshot, or of the one that is replaced.
	Copy  string `json:"copy,omitempty"`
	Count int    `json:"count,omitempty"`
	Name  string `json:"name,omitempty"`
}

// Subject is the sandbox that an action is of, with the scopes it is in.
type Subject struct {
	SandboxID    string `json:"sandboxID"`
	KeyID        string `json:"keyID,omitempty"`
	TemplateID   string `json:"templateID,omitempty"`
	TemplateName string `json:"templateName,omitempty"`
}

// ScopeKind says what a table holds for.
type ScopeKind string

// The scopes, from the widest to the narrowest.
const (
	ServerScope   ScopeKind = "server"
	KeyScope      ScopeKind = "key"
	TemplateScope ScopeKind = "template"
	SandboxScope  ScopeKind = "sandbox"
)

// Scope is what a table or a grant holds for. ID is the id of the key, template or
// sandbox, and empty for the server.
type Scope struct {
	Kind ScopeKind `json:"kind"`
	ID   string    `json:"id,omitempty"`
}

// Covers tells whether a sandbox is in the scope.
func (s Scope) Covers(of Subject) bool {
	switch s.Kind {
	case ServerScope:
		return true
	case KeyScope:
		return s.ID == of.KeyID
	case TemplateScope:
		return s.ID == of.TemplateID
	case SandboxScope:
		return s.ID == of.SandboxID
	}
	return false
}

// Match says which actions a rule is about. Every field that is set must fit; of a
// list one entry is enough. The zero Match fits every action of the rule's kind. A field
// that the kind does not have is an error when the rule is loaded.
type Match struct {
	// Host: a name, or "*.example.com" for every name below example.com, one level
	// and deeper, but not itself. "*" is any name (and no bare address).
	// What allows something by host, method or path and says no protocol means TCP.
	Host []string `json:"host,omitempty" yaml:"host,omitempty"`
	// Address: IPv4 or IPv6 addresses and CIDR ranges.
	Address []string `json:"address,omitempty" yaml:"address,omitempty"`
	// Port: "443" or "8000-8099".
	Port     []string `json:"port,omitempty" yaml:"port,omitempty"`
	Protocol []string `json:"protocol,omitempty" yaml:"protocol,omitempty"` // tcp, udp
	Method   []string `json:"method,omitempty" yaml:"method,omitempty"`
	// Path: "/v1/models", or with "*" for what is within one element and "**" for any
	// number of elements.
	Path   []string `json:"path,omitempty" yaml:"path,omitempty"`
	Secret []string `json:"secret,omitempty" yaml:"secret,omitempty"`
	Header []string `json:"header,omitempty" yaml:"header,omitempty"`
	// Command: a pattern of the whole text in which "*" is any run of characters.
	Command  []string `json:"command,omitempty" yaml:"command,omitempty"`
	Language []string `json:"language,omitempty" yaml:"language,omitempty"`
	User     []string `json:"user,omitempty" yaml:"user,omitempty"`
	File     []string `json:"file,omitempty" yaml:"file,omitempty"` // as Path
	// LongerThan, CPUsOver and MemoryOver fit what is more.
	LongerThan string   `json:"longerThan,omitempty" yaml:"longer-than,omitempty"` // a duration, "2h"
	CPUsOver   int      `json:"cpusOver,omitempty" yaml:"cpus-over,omitempty"`
	MemoryOver string   `json:"memoryOver,omitempty" yaml:"memory-over,omitempty"` // a size, "2GiB"
	Copy       []string `json:"copy,omitempty" yaml:"copy,omitempty"`              // snapshot, fork
}

// Rule says what is decided about some actions of one kind.
type Rule struct {
	Name     string   `json:"name" yaml:"name"` // unique in its table: a-z, 0-9 and "-"
	Kind     Kind     `json:"kind" yaml:"kind"`
	Decision Decision `json:"decision" yaml:"decision"`
	// Reason is told to who meets the rule, inside and outside.
	Reason string `json:"reason,omitempty" yaml:"reason,omitempty"`
	// The rule is about actions that fit one of Match, all of the kind where that is
	// empty, and none of Except.
	Match  []Match `json:"match,omitempty" yaml:"match,omitempty"`
	Except []Match `json:"except,omitempty" yaml:"except,omitempty"`
	// Matches and MatchesNot are actions that the rule must fit and must not fit, in
	// the words that `tombolo policy explain` takes. A rule that fails one is not loaded.
	Matches    []string `json:"matches,omitempty" yaml:"matches,omitempty"`
	MatchesNot []string `json:"matchesNot,omitempty" yaml:"matches-not,omitempty"`
}

// Table is the rules of one scope.
type Table struct {
	Scope Scope `json:"scope"`
	// Default is decided, by kind, when no rule of this table fits.
	Default map[Kind]Decision `json:"default,omitempty"`
	Rules   []Rule            `json:"rules,omitempty"`
}

// Verdict is what the tables say of an action.
type Verdict struct {
	// Decision of an action of which all is known that the tables ask for. Else empty.
	Decision Decision `json:"decision,omitempty"`
	// Possible are the decisions that what is unknown may lead to, strictest last; one when Decision
	// is set.
	Possible []Decision `json:"possible,omitempty"`
	// Rule and Scope name what decided; Rule is "default" for a table's default and empty
	// when no table has a say. Of an undecided action they name the strictest possible.
	Rule   string `json:"rule,omitempty"`
	Scope  Scope  `json:"scope,omitzero"`
	Reason string `json:"reason,omitempty"`
	// Needs is what must be known for a decision.
	Needs Fields `json:"-"`
}
