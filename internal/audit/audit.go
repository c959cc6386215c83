// Package audit keeps the record of who did what: an append-only log of JSON lines in
// which each record holds the hash of the one before, so that a change, a removal
// or a swap is found by whoever checks the chain. It knows nothing of what it records.
//
// # The files
//
// The folder audit/ of the data folder holds segments, named by the number of their
// first record; a file "head", which says up to where the log has reached the disk; and
// a lock, since several processes append to one chain. A line of a segment is one
// record, and its last member is the hash: the HMAC-SHA256 of the bytes of the line
// before `,"hash":`, which contain the hash of the record before. Who has no key
// (keys/audit.key) can therefore neither change nor add a record; that the last ones
// are missing is told by the head.
package audit

import (
	"encoding/json"
	"time"
)

// Kind says what sort of thing was done.
type Kind string

// The kinds.
const (
	API       Kind = "api"       // a request to the control API that changes something or was refused
	Lifecycle Kind = "lifecycle" // a sandbox was made, paused, resumed, copied, ended
	Exec      Kind = "exec"      // a command or code was started in a sandbox
	File      Kind = "file"      // a file was read or written by a caller
	Network   Kind = "network"   // a decision on a connection, request or question for a name
	Secret    Kind = "secret"    // a secret was put into a request, or written or deleted
	Approval  Kind = "approval"  // an action was held, approved, denied, or ran out of time
	Policy    Kind = "policy"    // rules were changed
	Server    Kind = "server"    // the server started or stopped
)

// Record is one thing that was done. Seq, Previous and Hash are given by the log, and
// Time where it is zero. What is too long is cut, and says so: see [MaxDetail].
type Record struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`
	// Actor is who did it: "key:<id>", "owner" (root on the machine), "sandbox:<id>"
	// (code inside), "server".
	Actor     string `json:"actor"`
	SandboxID string `json:"sandboxID,omitempty"`
	KeyID     string `json:"keyID,omitempty"` // of the sandbox's owner
	// What was done, a verb and its object: "create", "connect", "start".
	What string `json:"what"`
	// Decision: "allow", "deny", "ask"; empty where nothing was to be decided.
	Decision string `json:"decision,omitempty"`
	Rule     string `json:"rule,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// ID is the request id that a refusal names, or the id of an approval.
	ID string `json:"id,omitempty"`
	// Count is how many equal records this one stands for, where a sandbox did the
	// same thing so often that the log folds them; 0 is one.
	Count int `json:"count,omitempty"`
	// Detail depends on the kind and holds no secret.
	Detail json.RawMessage `json:"detail,omitempty"`
	// DetailOf is what Detail is made of where that is empty, by the log and beside who
	// appends: a value that JSON can hold and that nobody changes any more.
	DetailOf any `json:"-"`

	Previous string `json:"previous"` // Hash of the record before
	Hash     string `json:"hash"`
}

// Appender takes records. Append does not wait for the disk, and loses nothing but what
// the last milliseconds before a crash of the process held, and the last second before one
// of the machine.
type Appender interface {
	Append(Record)
}
