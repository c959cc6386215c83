// Package approval owns what waits for a person: holds (actions that rules say to
// ask about), the answers to them, and the grants that answers leave. It decides
// nothing by itself and knows no choke point; it keeps its records in the store, so
// that a hold outlives a restart of the server.
package approval

import (
	"time"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// State is where a hold is in its life: Pending, then one of the others.
type State string

// The states.
const (
	Pending  State = "pending"
	Approved State = "approved"
	Denied   State = "denied"
	Expired  State = "expired" // nobody answered in time
	// Withdrawn: who asked wants it no more, or the sandbox ended.
	Withdrawn State = "withdrawn"
)

// Hold is an action that waits, or waited, for a person. Equal actions of one
// sandbox share one.
type Hold struct {
	ID        string         `json:"id"`
	Subject   policy.Subject `json:"subject"`
	Action    policy.Action  `json:"action"`
	Hash      string         `json:"hash"` // see [Hash]: what is approved is just this
	Rule      string         `json:"rule"` // that said to ask
	Scope     policy.Scope   `json:"scope"`
	Reason    string         `json:"reason,omitempty"`
	State     State          `json:"state"`
	CreatedAt time.Time      `json:"createdAt"`
	Deadline  time.Time      `json:"deadline"`
	EndedAt   time.Time      `json:"endedAt,omitzero"` // zero while it is pending
	// Count is how often the action was tried while the hold was pending, Waiting how
	// many wait at this moment.
	Count   int `json:"count"`
	Waiting int `json:"waiting"`
	// Proposed is a rule that code inside, or a caller, would like to have.
	Proposed *Proposal `json:"proposed,omitempty"`
	Answer   *Answer   `json:"answer,omitempty"`
}

// Proposal is a narrow rule that the asking side suggests, and why.
type Proposal struct {
	// ID is given by the desk, a new one for each: who asks may replace what it proposed,
	// so an answer names the one that was read.
	ID     string       `json:"id,omitempty"`
	Match  policy.Match `json:"match"`
	Reason string       `json:"reason"`
}

// Reach says what an approval is good for.
type Reach string

// The reaches.
const (
	// Once is this very action, one time: those who wait for it when the answer comes go
	// on together. When nobody does, the next equal action within [Limits].OnceFor goes on.
	Once       Reach = "once"
	ForSandbox Reach = "sandbox" // what Match says, for the life of the sandbox
	ForTime    Reach = "time"    // the same, until Duration has passed
	ByRule     Reach = "rule"    // what Match says, in Scope, from now on
)

// Answer is what a person said.
type Answer struct {
	Approve bool   `json:"approve"`
	Reach   Reach  `json:"reach,omitempty"` // of an approval; empty is Once
	Hash    string `json:"hash"`            // of the hold that was read: an answer to another action is refused
	// Match is what is granted beyond this very action; nil is an action equal to it
	// (ForSandbox, ForTime). It must fit the action. ByRule wants one, see [Narrow].
	Match *policy.Match `json:"match,omitempty"`
	// Proposal is the ID of the proposal that was read, whose Match is taken. With it Match is
	// not given.
	Proposal string        `json:"proposal,omitempty"`
	Duration time.Duration `json:"durationNanos,omitempty"`
	// Scope of ByRule: one that the sandbox is in. An empty ID is that of the sandbox's.
	Scope    policy.Scope `json:"scope,omitzero"`
	Reason   string       `json:"reason,omitempty"`
	Approver string       `json:"approver"` // given by who takes the answer, not by who sends it
	At       time.Time    `json:"at"`
}

// Grant is what an answer left: it turns the verdict ask into allow for what it
// fits, and never a deny.
type Grant struct {
	ID       string        `json:"id"`
	Reach    Reach         `json:"reach"`
	Scope    policy.Scope  `json:"scope"`
	Kind     policy.Kind   `json:"kind"`
	Hash     string        `json:"hash,omitempty"`  // of the one action that it fits
	Match    *policy.Match `json:"match,omitempty"` // nil: by Hash
	Until    time.Time     `json:"until,omitzero"`
	HoldID   string        `json:"holdID"`
	Approver string        `json:"approver"`
	Reason   string        `json:"reason,omitempty"`
	At       time.Time     `json:"at"`
}
