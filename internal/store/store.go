// Package store owns the durable records of a server: keys, sandboxes,
// templates and their builds, volumes, events, webhooks and what is delivered to
// them, rules, and what waits for a person's approval. It holds the interface, the
// records and the secrets of keys; an implementation lives in a folder of its own and passes storetest. It knows no
// other package of the core and touches no files but its own.
package store

import (
	"context"
	"errors"
	"time"
)

// Errors callers decide on.
var (
	// ErrNotFound: no record has this id, name or hash.
	ErrNotFound = errors.New("not found in the store")
	// ErrExists: another record has this id or name already.
	ErrExists = errors.New("exists in the store already")
	// ErrFull: there are as many records of this kind as there may be.
	ErrFull = errors.New("no more of these may be in the store")
	// ErrDefaultTag: the tag default cannot be taken off by itself.
	ErrDefaultTag = errors.New("the tag " + DefaultTag + " cannot be removed")
	// ErrEnded: the record is of something that has ended, and stays as it is.
	ErrEnded = errors.New("has ended and does not change any more")
)

// Store keeps records beyond the life of a process.
//
// # Life cycle
//
//  1. A process opens the store of a data folder. The implementation brings its
//     schema up to date first, and refuses a schema newer than it knows.
//  2. Several processes may have one store open, on one machine: the server and
//     any number of command lines. Every method is one atomic step; a reader sees
//     all of a write or nothing of it. There are no locks to take and no
//     transactions to end.
//  3. A method that returned nil has happened: it survives the death of the
//     process. Only a loss of power may take back the last moments.
//  4. Close ends it. No method may be called after, and none may be running.
//
// All methods are safe for concurrent use. Times are kept in UTC with
// whole microseconds; zero times stay zero. Records are values: what a caller does to
// one afterwards does not reach the store.
//
// # A sandbox's record
//
// The core writes it before anything else is made for that sandbox (so that a
// crash leaves a trace to sweep by), again whenever its state changes, and for
// the last time with EndedAt set. Ended records stay readable, so that people can
// be told why, until PruneSandboxes takes them.
//
// # Templates and builds
//
// A template has an id, an alias or none, and an owner. What sandboxes start from
// is one of its builds, and tags of the template say which: alias:tag. A tag that
// is assigned again leaves the build it pointed at, and a build that no tag points
// at any more is gone. A template without builds is gone too.
//
// PutTemplate is the moment a build becomes what its tags mean. Files of the build
// exist before it; files of the builds it returns as replaced may go after it.
//
// The work of building has a record of its own, [Build], from before there is
// anything to start from until it is pruned. Its id is that of the build it makes.
type Store interface {
	Keys
	Sandboxes
	Templates
	Builds
	Volumes
	Events
	Webhooks
	Deliveries
	Approvals
	Policies
	Secrets

	Close() error
}

// Keys are what callers authenticate with.
type Keys interface {
	// AddKey stores a new key. ErrExists when its id, name or hash is taken.
	AddKey(ctx context.Context, k Key) error
	// KeyByHash finds the key whose secret has this hash ([HashSecret]).
	KeyByHash(ctx context.Context, hash string) (Key, error)
	// Keys lists all, oldest first.
	Keys(ctx context.Context) ([]Key, error)
	// TouchKey notes that a key was used at this time. It writes only when the
	// noted time is older than [TouchEvery], so it may be called on each request.
	TouchKey(ctx context.Context, id string, at time.Time) error
	// UpdateKey changes a key, found by id or name, as change says and returns what
	// it became. Only the name, the limits and the roles are kept of what change does; an error
	// of change is returned and nothing is stored. ErrExists when the new name is
	// taken. change must not use the store.
	UpdateKey(ctx context.Context, idOrName string, change func(*Key) error) (Key, error)
	// DeleteKey removes a key by id or name, and its webhooks and secrets with it. Its
	// rules go with the last of its sandboxes and builds, see [Policies].
	DeleteKey(ctx context.Context, idOrName string) error
}

// TouchEvery is how coarse Key.LastUsed is.
const TouchEvery = 10 * time.Minute

// Sandboxes are the records of living and ended sandboxes.
type Sandboxes interface {
	// PutSandbox stores a record, whole, in place of one with the same id.
	PutSandbox(ctx context.Context, s Sandbox) error
	// Sandbox finds one by id, living or ended.
	Sandbox(ctx context.Context, id string) (Sandbox, error)
	// Sandboxes lists those that have not ended, or the ended ones, oldest first.
	Sandboxes(ctx context.Context, ended bool) ([]Sandbox, error)
	// PruneSandboxes deletes records that ended before a time, and of the others
	// that ended all but the newest keep. It returns how many it deleted.
	PruneSandboxes(ctx context.Context, endedBefore time.Time, keep int) (int, error)
}

// What the server keeps of ended sandboxes.
const (
	KeepEnded     = 24 * time.Hour
	KeepEndedMost = 1000
)

// Templates are what sandboxes start from. A ref is the id or alias of a template,
// either with a :tag, or the id of a build. Without a tag it means the tag default,
// where not said otherwise.
type Templates interface {
	// PutTemplate makes the build t.BuildID what t.Tags of its template mean, or the
	// tag default where t has none. The template is the one with the alias t.Name or,
	// where there is none or no name, the id t.ID; its ID, KeyID, Public and CreatedAt stay. Else
	// it is added, with the id that the builds of this alias and key have, or t.ID.
	// A build with this id already there is replaced. It returns the build as stored
	// and the builds that have no tag any more. ErrExists when the alias belongs to
	// another key or is being built by one, when t.ID is that of another alias, or
	// t.BuildID is another template's; ErrFull beyond [MaxTags].
	PutTemplate(ctx context.Context, t Template) (stored Template, replaced []Template, err error)
	// PutBuiltTemplate is PutTemplate for what the build with the record t.BuildID made:
	// ErrNotFound, and nothing is stored, when that record is gone.
	PutBuiltTemplate(ctx context.Context, t Template) (stored Template, replaced []Template, err error)
	// RefreshTemplate changes what is stored of the build t.BuildID and neither its tags
	// nor its template: ErrNotFound when it is gone.
	RefreshTemplate(ctx context.Context, t Template) (stored Template, err error)
	// Template finds a template as the build that a ref means.
	Template(ctx context.Context, ref string) (Template, error)
	// Templates lists every build, by alias and id of the template, newest first.
	Templates(ctx context.Context) ([]Template, error)
	// TemplateBuilds lists the builds of one template, newest first; ErrNotFound
	// when there is none.
	TemplateBuilds(ctx context.Context, idOrAlias string) ([]Template, error)
	// TemplateTags lists the tags of one template, the latest assignment first;
	// ErrNotFound when there is no such template.
	TemplateTags(ctx context.Context, idOrAlias string) ([]Tag, error)
	// TagTemplate points tags of the template at the build that ref means, and
	// returns the builds that have no tag any more. ErrFull beyond [MaxTags].
	TagTemplate(ctx context.Context, ref string, tags []string) (tagged Template, replaced []Template, err error)
	// UntagTemplate takes tags off a template, those of them that it has, and returns
	// the builds that have none any more. ErrDefaultTag when default is among them.
	UntagTemplate(ctx context.Context, idOrAlias string, tags []string) (removed []Template, err error)
	// SetPublic changes whether every key may use a template.
	SetPublic(ctx context.Context, idOrAlias string, public bool) error
	// DeleteTemplate removes a whole template, one tag of it when ref has a tag, or
	// one build when ref is its id, and returns the builds that are gone. With a whole template the records of its
	// [Builds] go too, of those under way as well: who builds then finds its record
	// gone and gives up. A template that has nothing but such records is found by id,
	// and by alias while one is under way.
	DeleteTemplate(ctx context.Context, ref string) (removed []Template, err error)
}

// MaxTags is how many tags a template may have.
const MaxTags = 256

// Builds are the records of the work of building templates.
type Builds interface {
	// AddBuild stores a new one and returns it as stored. It gets the TemplateID of
	// the template with its alias, else of the builds with its alias and key, else it keeps
	// its own. ErrExists when the alias belongs to another key or is being built by
	// one, when TemplateID is another's, or a build has its id.
	AddBuild(ctx context.Context, b Build) (Build, error)
	Build(ctx context.Context, id string) (Build, error)
	// Builds lists those a filter selects in the order of CreatedAt.
	Builds(ctx context.Context, f BuildFilter) ([]Build, error)
	// UpdateBuild changes one as change says and returns what it became; ID,
	// TemplateID, KeyID, Alias and CreatedAt stay. It has ended when FinishedAt is
	// set. An error of change is returned and nothing is stored. change must not use
	// the store.
	UpdateBuild(ctx context.Context, id string, change func(*Build) error) (Build, error)
	// PruneBuilds deletes the records of builds that ended before a time, and of each
	// template's others that ended all but the newest keepPerTemplate. It returns
	// their ids.
	PruneBuilds(ctx context.Context, finishedBefore time.Time, keepPerTemplate int) ([]string, error)
}

// BuildFilter selects builds; zero values select all.
type BuildFilter struct {
	TemplateID  string
	KeyID       string
	States      []BuildState
	NewestFirst bool
	Skip        int
	Most        int // 0: all
}

// Volumes are directories that outlive sandboxes and that several may share.
type Volumes interface {
	// AddVolume stores a new one. ErrExists when its key has one of this name, ErrFull
	// when it has most already; 0 is no limit.
	AddVolume(ctx context.Context, v Volume, most int) error
	// Volume finds one of a key's by id, else by name.
	Volume(ctx context.Context, keyID, idOrName string) (Volume, error)
	VolumeByID(ctx context.Context, id string) (Volume, error)
	// Volumes lists those of a key, oldest first, or all where keyID is empty.
	Volumes(ctx context.Context, keyID string) ([]Volume, error)
	DeleteVolume(ctx context.Context, id string) error
}

// Events are what happened to sandboxes.
type Events interface {
	// AddEvent stores an event and, in the same step, a pending delivery for each
	// enabled webhook that wants its kind, of its key or of all. It tells how many.
	AddEvent(ctx context.Context, e Event) (queued int, err error)
	// Events lists those a filter selects in the order they were added.
	Events(ctx context.Context, f EventFilter) ([]Event, error)
	// PruneEvents deletes the oldest events until, for each key, what is left is
	// within the limits. Deliveries that still wait for a deleted event become
	// [Dropped], which is what bounds the queue. It returns how many events it deleted.
	PruneEvents(ctx context.Context, limits EventLimits) (int, error)
}

// EventFilter selects events of one key.
type EventFilter struct {
	KeyID       string
	SandboxID   string   // empty: of any
	Kinds       []string // empty: all
	NewestFirst bool
	Skip, Most  int // Most > 0
}

// EventLimits bound what is kept of one key's events.
type EventLimits struct {
	Now   time.Time // what is dropped ended then
	Since time.Time // events before it go
	Most  int
	Bytes int64 // of their records
}

// Webhooks are addresses that events of a key are delivered to.
type Webhooks interface {
	// AddWebhook stores a new one. ErrFull when its key has most already.
	AddWebhook(ctx context.Context, w Webhook, most int) error
	Webhook(ctx context.Context, id string) (Webhook, error)
	// Webhooks lists those of a key, oldest first, or all there are where keyID is empty.
	Webhooks(ctx context.Context, keyID string) ([]Webhook, error)
	// UpdateWebhook changes one as change says and returns what it became; ID, KeyID
	// and CreatedAt stay. An error of change is returned and nothing is stored.
	// change must not use the store.
	UpdateWebhook(ctx context.Context, id string, change func(*Webhook) error) (Webhook, error)
	// DeleteWebhook removes one with all its deliveries.
	DeleteWebhook(ctx context.Context, id string) error
}

// Deliveries are the queue of what is to be sent to webhooks and the log of what
// was.
type Deliveries interface {
	// DueDeliveries returns pending deliveries of enabled webhooks whose time has
	// come, those first that have been due longest, for each webhook at most perWebhook. One waits for those
	// before it of the same sandbox and webhook until they have been tried
	// orderedTries times. next is when the next one's time comes; zero for never.
	DueDeliveries(ctx context.Context, now time.Time, perWebhook, orderedTries int) (due []DueDelivery, next time.Time, err error)
	// UpdateDelivery changes a delivery and its webhook as change says, in one step.
	// Of the delivery only State, Reason, NextAt, EndedAt and Attempts are kept, of the
	// webhook what UpdateWebhook keeps. ErrNotFound when either is gone. change must
	// not use the store.
	UpdateDelivery(ctx context.Context, id string, change func(*Delivery, *Webhook)) error
	// Deliveries lists those a filter selects, newest first.
	Deliveries(ctx context.Context, f DeliveryFilter) ([]Delivery, error)
	// PruneDeliveries deletes, of each webhook's deliveries that ended, those that did
	// before a time and all but the newest most. It returns how many it deleted.
	PruneDeliveries(ctx context.Context, endedBefore time.Time, most int) (int, error)
}

// Policies are the rules of scopes: what people wrote that sandboxes may do. The
// rules of a key or template stay after it as long as one of its sandboxes lives, or one
// of its builds is under way, which they hold for; then they go, at the latest with the next PruneSandboxes. Those of a
// sandbox go likewise after its end.
type Policies interface {
	// PutPolicy stores the rules of a scope, in place of those it has.
	PutPolicy(ctx context.Context, p Policy) error
	// Policies lists all, the widest scopes first, those of one kind by id.
	Policies(ctx context.Context) ([]Policy, error)
	// ReplacePolicies stores these in place of all there are but those of sandboxes.
	ReplacePolicies(ctx context.Context, all []Policy) error
	// DeletePolicy removes the rules of a scope.
	DeletePolicy(ctx context.Context, scope, scopeID string) error
}

// DeliveryFilter selects deliveries of one webhook.
type DeliveryFilter struct {
	WebhookID string
	States    []DeliveryState // empty: in any
	Kinds     []string        // of their events; empty: all
	Before    int64           // a Delivery.Seq: only older ones; 0: from the newest
	Most      int             // > 0
}

// Approvals are actions that wait for a person, called holds, and the grants that
// answers leave.
type Approvals interface {
	// AddHold stores a new one. ErrExists when its id is taken.
	AddHold(ctx context.Context, h Hold) error
	Hold(ctx context.Context, id string) (Hold, error)
	// Holds lists those a filter selects, newest first.
	Holds(ctx context.Context, f HoldFilter) ([]Hold, error)
	// PendingHolds lists those that have not ended, oldest first.
	PendingHolds(ctx context.Context) ([]Hold, error)
	// UpdateHold stores State, EndedAt and Data of h in place of those of the pending
	// hold with its id and, in the same step, the grants that it leaves. ErrEnded when
	// that hold is not pending any more: of several who end one, one does.
	UpdateHold(ctx context.Context, h Hold, leaves ...Grant) error
	// PruneHolds deletes, of each sandbox's holds that ended, those that did before a
	// time and all but the newest keepPerSandbox. It returns how many it deleted.
	PruneHolds(ctx context.Context, endedBefore time.Time, keepPerSandbox int) (int, error)

	// AddGrant stores a new one. ErrExists when its id is taken.
	AddGrant(ctx context.Context, g Grant) error
	// Grants lists all, oldest first.
	Grants(ctx context.Context) ([]Grant, error)
	// DeleteGrant removes one. Of several who do one gets nil, the others ErrNotFound.
	DeleteGrant(ctx context.Context, id string) error
	// DeleteGrantsOf removes those that go with a sandbox, and tells how many.
	DeleteGrantsOf(ctx context.Context, sandboxID string) (int, error)
	// PruneGrants removes those whose time was over at now, and tells how many.
	PruneGrants(ctx context.Context, now time.Time) (int, error)

	// ApprovalChanges is a number that grows with every change of a hold or grant, by
	// whichever process. It is cheap to ask for.
	ApprovalChanges(ctx context.Context) (int64, error)
}

// HoldFilter selects holds; zero values select all.
type HoldFilter struct {
	SandboxID string
	KeyID     string
	States    []string
	Before    string // the id of one: only older ones; none when it is gone
	Most      int    // > 0
}
