package guard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/tombolo-dev/tombolo/internal/audit"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// guarded is a manager whose callers' actions are decided first.
type guarded struct {
	sandbox.Sandboxes
	guard *Guard
}

// Sandboxes wraps a manager, for the dialects: what they ask of it is decided by the
// rules, and may wait for a person. A refusal is a *sandbox.DeniedError.
func (g *Guard) Sandboxes(inner sandbox.Sandboxes) sandbox.Sandboxes { return &guarded{inner, g} }

// Create decides on lifetime and resources before anything is made, and puts
// placeholders of secrets into the variables.
func (s *guarded) Create(ctx context.Context, req sandbox.CreateRequest) (sandbox.Info, error) {
	if err := CheckRules(req.Rules); err != nil {
		return sandbox.Info{}, err
	}
	t, err := s.guard.config.Store.Template(ctx, req.Template)
	if err == nil {
		subject := policy.Subject{KeyID: req.KeyID, TemplateID: t.ID, TemplateName: t.Name}
		actions := []policy.Action{
			{Kind: policy.Lifetime, Timeout: req.Timeout},
			{Kind: policy.Resources, CPUs: t.CPUs, MemoryBytes: t.MemoryBytes},
		}
		for _, a := range actions {
			if err := s.guard.admit(ctx, subject, &req.Rules, audit.Lifecycle, "create", a); err != nil {
				return sandbox.Info{}, err
			}
		}
	} else if !errors.Is(err, store.ErrNotFound) { // else the manager says it in its words
		return sandbox.Info{}, err
	}
	if err := s.guard.checkNetwork(ctx, req.KeyID, req.Network); err != nil {
		return sandbox.Info{}, err
	}
	if err := s.guard.giveSecrets(ctx, &req); err != nil {
		return sandbox.Info{}, err
	}
	return s.Sandboxes.Create(ctx, req)
}

// SetTimeout decides on lifetimes that become longer.
func (s *guarded) SetTimeout(ctx context.Context, id string, d time.Duration, extendOnly bool) (sandbox.Info, error) {
	info, err := s.Get(id)
	if err == nil && time.Now().Add(d).After(info.EndAt) {
		err = s.lifetime(ctx, info, d)
	}
	if err != nil {
		return sandbox.Info{}, err
	}
	return s.Sandboxes.SetTimeout(ctx, id, d, extendOnly)
}

func (s *guarded) lifetime(ctx context.Context, info sandbox.Info, d time.Duration) error {
	return s.guard.admitFor(ctx, info, audit.Lifecycle, "lengthen", policy.Action{Kind: policy.Lifetime, Timeout: d})
}

// Resume decides on the lifetime that it gives.
func (s *guarded) Resume(ctx context.Context, id string, req sandbox.ResumeRequest) (sandbox.Info, bool, error) {
	info, err := s.Get(id)
	if err == nil && time.Now().Add(req.Timeout).After(info.EndAt) {
		err = s.lifetime(ctx, info, req.Timeout)
	}
	if err != nil {
		return sandbox.Info{}, false, err
	}
	return s.Sandboxes.Resume(ctx, id, req)
}

// Fork decides on the copy and its lifetime.
func (s *guarded) Fork(ctx context.Context, id string, req sandbox.ForkRequest) ([]sandbox.Fork, error) {
	info, err := s.Get(id)
	if err == nil {
		a := policy.Action{Kind: policy.Snapshot, Copy: "fork"}
		if req.Count > 1 {
			a.Count = req.Count
		}
		err = s.guard.admitFor(ctx, info, audit.Lifecycle, "copy", a)
	}
	if err == nil {
		err = s.lifetime(ctx, info, req.Timeout)
	}
	if err != nil {
		return nil, err
	}
	return s.Sandboxes.Fork(ctx, id, req)
}

// Snapshot decides on the copy.
func (s *guarded) Snapshot(ctx context.Context, id string, req sandbox.SnapshotRequest) (store.Template, error) {
	info, err := s.Get(id)
	if err == nil {
		err = s.guard.admitFor(ctx, info, audit.Lifecycle, "copy", policy.Action{Kind: policy.Snapshot, Copy: "snapshot", Name: req.Name})
	}
	if err != nil {
		return store.Template{}, err
	}
	return s.Sandboxes.Snapshot(ctx, id, req)
}

// SetNetwork checks the options first.
func (s *guarded) SetNetwork(ctx context.Context, id string, change func(*sandbox.NetworkOptions)) (sandbox.Info, error) {
	info, err := s.Get(id)
	if err == nil {
		change(&info.Network)
		err = s.guard.checkNetwork(ctx, info.KeyID, info.Network)
	}
	if err != nil {
		return sandbox.Info{}, err
	}
	return s.Sandboxes.SetNetwork(ctx, id, change)
}

// SetRules checks the rules first.
func (s *guarded) SetRules(ctx context.Context, id string, rules policy.Table) (sandbox.Info, error) {
	if err := CheckRules(rules); err != nil {
		return sandbox.Info{}, err
	}
	return s.Sandboxes.SetRules(ctx, id, rules)
}

// CheckRules returns a *sandbox.InvalidError unless rules can be those of a sandbox.
func CheckRules(rules policy.Table) error {
	rules.Scope = policy.Scope{Kind: policy.SandboxScope, ID: "any"}
	if _, err := policy.Compile(rules); err != nil {
		return &sandbox.InvalidError{Message: err.Error()}
	}
	return nil
}

// AdmitBuild decides on what a build of a template will do, each action by itself, and records
// its commands. A refusal is a *sandbox.DeniedError.
func (g *Guard) AdmitBuild(ctx context.Context, s policy.Subject, actions []policy.Action) error {
	for _, a := range actions {
		kind := audit.Lifecycle
		if a.Kind == policy.Exec {
			kind = audit.Exec
		}
		if err := g.admit(ctx, s, nil, kind, "build", a); err != nil {
			return err
		}
	}
	return nil
}

// Admit implements edge.Guard. Ports are recorded when they are first admitted, since
// a page may ask for them a thousand times.
func (g *Guard) Admit(ctx context.Context, info sandbox.Info, a policy.Action) error {
	switch a.Kind {
	case policy.Exec:
		a.Env = g.keyed(a.Env)
		return g.admitFor(ctx, info, audit.Exec, "start", a)
	case policy.FileOut:
		return g.admitFor(ctx, info, audit.File, "read", a)
	}
	return g.admitFor(ctx, info, audit.Network, "expose", a)
}

type actorKey struct{}

// AdmitVolume decides on a file of a volume that whoever has the volume's token reads: by
// the rules of the server and of the key, since no sandbox and no template is known. The
// file is named as in the volume.
func (g *Guard) AdmitVolume(ctx context.Context, volumeID, keyID, file string) error {
	ctx = context.WithValue(ctx, actorKey{}, "volume:"+volumeID)
	return g.admit(ctx, policy.Subject{KeyID: keyID}, nil, audit.File, "read", policy.Action{Kind: policy.FileOut, File: file, Name: volumeID})
}

// HasRules implements edge.Guard.
func (g *Guard) HasRules(info sandbox.Info, kind policy.Kind) bool {
	return g.setFor(info.Subject(), info.Rules).Has(kind)
}

// setFor are the tables that hold for what callers do with a sandbox.
func (g *Guard) setFor(s policy.Subject, own policy.Table) policy.Set {
	set := g.book.For(s)
	if len(own.Rules) == 0 && len(own.Default) == 0 {
		return set
	}
	own.Scope = policy.Scope{Kind: policy.SandboxScope, ID: cmp.Or(s.SandboxID, "new")}
	return append(set, g.narrowOf(s.SandboxID).compiled(own))
}

func (g *Guard) admitFor(ctx context.Context, info sandbox.Info, kind audit.Kind, what string, a policy.Action) error {
	return g.admit(ctx, info.Subject(), &info.Rules, kind, what, a)
}

// admit decides on what a caller does.
func (g *Guard) admit(ctx context.Context, s policy.Subject, own *policy.Table, kind audit.Kind, what string, a policy.Action) error {
	if own == nil {
		own = &policy.Table{}
	}
	judge := func(own policy.Table) policy.Verdict {
		v := g.setFor(s, own).Judge(a)
		if v.Decision == "" { // nothing more becomes known, so the strictest that it may be counts
			v.Decision = v.Possible[len(v.Possible)-1]
		}
		return v
	}
	v := judge(*own)
	kept := g.narrowOf(s.SandboxID) // before anything is waited for: the sandbox may end meanwhile, and is forgotten then
	o := g.settle(ctx, s, a, v, func() policy.Verdict { return judge(g.ownRules(s, *own)) }, false)
	actor := g.actor(ctx, s, a.Kind)
	routine := o.allowed && o.verdict.Rule == ""
	if !routine || kind == audit.Exec || kind == audit.File || a.Kind == policy.Port && !kept.seenPort(a.Port) {
		g.record(s, kind, actor, what, a, o)
	}
	if o.allowed {
		return nil
	}
	refusal := o.refusal(a)
	kept.refusals.Add(refusal)
	if g.config.OnRefusal != nil {
		g.config.OnRefusal(s, refusal)
	}
	return &sandbox.DeniedError{What: refusal.What, Reason: o.reason, Rule: o.verdict.Rule, ID: o.id}
}

// ownRules are the rules of a sandbox as they are now; before where it does not run here.
func (g *Guard) ownRules(s policy.Subject, before policy.Table) policy.Table {
	if s.SandboxID == "" {
		return before
	}
	if n := g.networkOf(s.SandboxID); n != nil {
		if o := n.owner(); o != nil {
			return o.Rules
		}
	}
	return before
}

// actor is who does something: a key or the owner where an API knows, else who has the
// token of the sandbox, or anybody who reaches a port of it.
func (g *Guard) actor(ctx context.Context, s policy.Subject, kind policy.Kind) string {
	if actor, known := ctx.Value(actorKey{}).(string); known {
		return actor
	}
	if g.config.Actor != nil {
		if actor := g.config.Actor(ctx); actor != "" {
			return actor
		}
	}
	if kind == policy.Port {
		return "visitor"
	}
	if s.SandboxID == "" {
		return "key:" + s.KeyID
	}
	return "token:" + s.SandboxID
}

// OnEvent records what happens to sandboxes, and forgets those that end.
func (g *Guard) OnEvent(e sandbox.Event) {
	detail, err := json.Marshal(map[string]any{"template": e.Info.TemplateName, "state": e.Info.State, "endAt": e.Info.EndAt})
	if err != nil {
		detail = nil
	}
	g.config.Audit.Append(audit.Record{
		Kind: audit.Lifecycle, Actor: "server", SandboxID: e.Info.ID, KeyID: e.Info.KeyID,
		What: string(e.Kind), Reason: e.Detail, Detail: detail,
	})
	if e.Kind == sandbox.EventEnded {
		g.Forget(e.Info.ID)
	}
}
