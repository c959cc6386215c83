package event

import (
	"slices"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Lifecycle are the kinds of events that the core tells of.
var Lifecycle = []string{
	string(sandbox.EventCreated), string(sandbox.EventUpdated), string(sandbox.EventPaused),
	string(sandbox.EventResumed), string(sandbox.EventCheckpointed), string(sandbox.EventEnded),
}

// The kinds that those tell of who guard sandboxes. Their events have Data.
const (
	// ApprovalRequested: an action waits for a person. Told again when there is a
	// proposal.
	ApprovalRequested sandbox.EventKind = "approval.requested"
	// ApprovalDecided: it was approved or denied, nobody answered in time, or it was
	// withdrawn.
	ApprovalDecided sandbox.EventKind = "approval.decided"
	// NetworkRefused: a connection, request or question for a name was refused. See
	// [Refusals].
	NetworkRefused sandbox.EventKind = "network.refused"
	// SecretMisplaced: what stands for a secret was sent where that is not bound to, and
	// arrived as it was.
	SecretMisplaced sandbox.EventKind = "secret.misplaced"
)

// Approvals are the kinds about what waits for a person.
var Approvals = []string{string(ApprovalRequested), string(ApprovalDecided)}

// Kinds are those a webhook may ask for.
var Kinds = slices.Concat(Lifecycle, Approvals, []string{string(NetworkRefused), string(SecretMisplaced)})

// KindTest is the kind of the event that [Webhooks.Test] sends. It is recorded
// nowhere.
const KindTest = "test"
