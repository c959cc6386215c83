package approval

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// grant is a Grant, ready to be asked.
type grant struct {
	Grant
	match *policy.Matcher // nil: by Hash
	used  atomic.Bool
}

func newGrant(g Grant) (*grant, error) {
	ready := &grant{Grant: g}
	if g.Match != nil {
		match, err := g.Match.Compile(g.Kind)
		if err != nil {
			return nil, err
		}
		ready.match = match
	}
	return ready, nil
}

// fits tells whether the grant is for an action of a sandbox in its scope. hash is
// called where it takes that.
func (g *grant) fits(a policy.Action, hash func() string, at time.Time) policy.Fit {
	switch {
	case g.Kind != a.Kind, !g.Until.IsZero() && !at.Before(g.Until), g.used.Load():
		return policy.No
	case g.match != nil:
		return g.match.Fits(a)
	case g.Hash == hash():
		return policy.Yes
	}
	return policy.No
}

// grantSet is all grants at one moment. It is never changed, so that it is read
// without a lock.
type grantSet struct {
	byID    map[string]*grant
	byScope map[policy.Scope][]*grant // those for one use last
}

func newGrantSet(all []*grant) *grantSet {
	set := &grantSet{byID: map[string]*grant{}, byScope: map[policy.Scope][]*grant{}}
	for _, g := range all {
		set.byID[g.ID] = g
		set.byScope[g.Scope] = append(set.byScope[g.Scope], g)
	}
	for _, of := range set.byScope {
		slices.SortStableFunc(of, func(a, b *grant) int { return uses(a) - uses(b) })
	}
	return set
}

func uses(g *grant) int {
	if g.Reach == Once {
		return 1
	}
	return 0
}

// of are those of all scopes that a sandbox is in, the widest scope first.
func (s *grantSet) of(subject policy.Subject) (all [4][]*grant) {
	if len(s.byID) == 0 {
		return all
	}
	all[0] = s.byScope[policy.Scope{Kind: policy.ServerScope}]
	all[1] = s.byScope[policy.Scope{Kind: policy.KeyScope, ID: subject.KeyID}]
	if subject.TemplateID != "" {
		all[2] = s.byScope[policy.Scope{Kind: policy.TemplateScope, ID: subject.TemplateID}]
	}
	if subject.SandboxID != "" {
		all[3] = s.byScope[policy.Scope{Kind: policy.SandboxScope, ID: subject.SandboxID}]
	}
	return all
}

func (s *grantSet) with(g *grant) *grantSet {
	return newGrantSet(append(slices.Collect(s.all()), g))
}

func (s *grantSet) without(drop func(*grant) bool) *grantSet {
	var left []*grant
	for g := range s.all() {
		if !drop(g) {
			left = append(left, g)
		}
	}
	return newGrantSet(left)
}

func (s *grantSet) all() func(func(*grant) bool) {
	return func(yield func(*grant) bool) {
		for _, g := range s.byID {
			if !yield(g) {
				return
			}
		}
	}
}

// sandboxes are those that have grants of their own, with when the latest was given.
func (s *grantSet) sandboxes() map[string]time.Time {
	latest := map[string]time.Time{}
	for scope, grants := range s.byScope {
		if scope.Kind != policy.SandboxScope {
			continue
		}
		for _, g := range grants {
			if g.At.After(latest[scope.ID]) {
				latest[scope.ID] = g.At
			}
		}
	}
	return latest
}

// Granted tells whether an action that rules say to ask about was approved
// beforehand. It reads memory only and takes no lock, but for a grant that is
// good for one use: that is taken from the store first, so that neither another
// caller nor a crash can use it again. actionHash is a.Hash(); where it is empty it is
// worked out when it is needed.
func (d *Desk) Granted(s policy.Subject, a policy.Action, actionHash string) (Grant, bool) {
	g, ok, err := d.granted(s, a, actionHash)
	if err != nil {
		d.config.Log.Error("an approval could not be used up, so the action has to wait", "grant", g.ID, "error", err)
	}
	return g, ok
}

// granted is Granted; an error is that there is a grant for one use which could not be used up.
func (d *Desk) granted(s policy.Subject, a policy.Action, actionHash string) (Grant, bool, error) {
	set := d.grants.Load()
	if len(set.byID) == 0 {
		return Grant{}, false, nil
	}
	hash, at := lazyHash(s, a, actionHash), time.Now()
	of := set.of(s)
	for _, reach := range []int{0, 1} { // what is good for more than once comes first
		for _, list := range of {
			for _, g := range list {
				if uses(g) != reach || g.fits(a, hash, at) != policy.Yes {
					continue
				}
				taken, err := reach == 0, error(nil)
				if reach == 1 {
					taken, err = d.take(g)
				}
				if taken || err != nil {
					return g.Grant, taken, err
				}
			}
		}
	}
	return Grant{}, false, nil
}

// CouldGrant tells whether [Desk.Granted] may find a grant once what is unknown of
// the action is known. It uses up nothing.
func (d *Desk) CouldGrant(s policy.Subject, a policy.Action) bool {
	return d.bestFit(s, a) != policy.No
}

func (d *Desk) bestFit(s policy.Subject, a policy.Action) (best policy.Fit) {
	hash, at := lazyHash(s, a, ""), time.Now()
	for _, list := range d.grants.Load().of(s) {
		for _, g := range list {
			best = max(best, g.fits(a, hash, at))
		}
	}
	return best
}

func lazyHash(s policy.Subject, a policy.Action, action string) func() string {
	var hash string
	return func() string {
		if hash == "" {
			hash = hashOf(s, hashOfAction(a, action))
		}
		return hash
	}
}

func hashOfAction(a policy.Action, known string) string {
	if known != "" {
		return known
	}
	return a.Hash()
}

// take uses up a grant, and tells whether it was still there.
func (d *Desk) take(g *grant) (bool, error) {
	if !g.used.CompareAndSwap(false, true) {
		return false, nil
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	ctx, cancel := writeContext(context.Background())
	defer cancel()
	err := d.config.Store.DeleteGrant(ctx, g.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		// It may be gone from the store or not; the next attempt finds out.
		g.used.Store(false)
		return false, fmt.Errorf("an approval of it could not be used up: %w", err)
	}
	d.grants.Store(d.grants.Load().without(func(other *grant) bool { return other == g }))
	return err == nil, nil
}

// Grants lists what was granted and is not over, oldest first.
func (d *Desk) Grants() []Grant {
	at := time.Now()
	grants := []Grant{}
	for g := range d.grants.Load().all() {
		if (g.Until.IsZero() || at.Before(g.Until)) && !g.used.Load() {
			grants = append(grants, g.Grant)
		}
	}
	slices.SortFunc(grants, func(a, b Grant) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	return grants
}

// Revoke removes a grant. What it let through goes on.
func (d *Desk) Revoke(ctx context.Context, id string) (Grant, error) {
	d.writing.Lock()
	defer d.writing.Unlock()
	g := d.grants.Load().byID[id]
	ctx, cancel := writeContext(ctx)
	defer cancel()
	err := d.config.Store.DeleteGrant(ctx, id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Grant{}, err
	}
	d.grants.Store(d.grants.Load().without(func(other *grant) bool { return other.ID == id }))
	if err != nil || g == nil {
		return Grant{}, ErrNotFound
	}
	return g.Grant, nil
}

// Forget ends what waits for a sandbox and removes what was granted for its life. It
// is called when the sandbox has ended.
func (d *Desk) Forget(sandboxID string) {
	if sandboxID == "" {
		return
	}
	for _, id := range d.ids() {
		if p := d.find(id); p != nil && d.copyOf(p).Subject.SandboxID == sandboxID {
			if _, err := d.Withdraw(context.Background(), id); err != nil && !errors.Is(err, ErrDecided) {
				d.config.Log.Error("what waited for a sandbox that ended could not be withdrawn", "hold", id, "sandbox", sandboxID, "error", err)
			}
		}
	}
	scope := policy.Scope{Kind: policy.SandboxScope, ID: sandboxID}
	d.writing.Lock()
	defer d.writing.Unlock()
	d.grants.Store(d.grants.Load().without(func(g *grant) bool { return g.Scope == scope }))
	ctx, cancel := writeContext(context.Background())
	defer cancel()
	if _, err := d.config.Store.DeleteGrantsOf(ctx, sandboxID); err != nil {
		d.config.Log.Error("the grants of a sandbox that ended could not be removed", "sandbox", sandboxID, "error", err)
	}
}

// readGrants makes the grants here those of the store. writing is held.
func (d *Desk) readGrants(ctx context.Context) error {
	records, err := d.config.Store.Grants(ctx)
	if err != nil {
		return err
	}
	known := d.grants.Load().byID
	var all []*grant
	for _, r := range records {
		if g := known[r.ID]; g != nil {
			all = append(all, g)
			continue
		}
		g, err := decodeGrant(r)
		if err != nil {
			d.config.Log.Error("a grant cannot be read and grants nothing", "grant", r.ID, "error", err)
			continue
		}
		all = append(all, g)
	}
	d.grants.Store(newGrantSet(all))
	return nil
}

func decodeGrant(r store.Grant) (*grant, error) {
	var g Grant
	if err := json.Unmarshal(r.Data, &g); err != nil {
		return nil, fmt.Errorf("decode grant %s: %w", r.ID, err)
	}
	return newGrant(g)
}

func (d *Desk) pruneGrants(ctx context.Context, at time.Time) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	over := func(g *grant) bool { return !g.Until.IsZero() && !at.Before(g.Until) }
	d.grants.Store(d.grants.Load().without(over))
	_, err := d.config.Store.PruneGrants(ctx, at)
	return err
}
