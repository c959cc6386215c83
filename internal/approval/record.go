package approval

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Hash names an action of a sandbox; of a key's, and the template of what is to be made, where
// there is no sandbox yet. Two actions that differ in anything have different ones.
func Hash(s policy.Subject, a policy.Action) string { return hashOf(s, a.Hash()) }

func hashOf(s policy.Subject, action string) string {
	of := home(s)
	text := fmt.Appendf(nil, "tombolo approval 1\n%s %q\n%s", of.Kind, of.ID, action)
	if s.SandboxID == "" {
		text = fmt.Appendf(nil, "tombolo approval 2\n%s %q %q\n%s", of.Kind, of.ID, s.TemplateID, action)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// newID makes an id that is short enough to be typed.
func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:12]) }

func (h Hold) record() (store.Hold, error) {
	h.Waiting = 0
	data, err := json.Marshal(h)
	if err != nil {
		return store.Hold{}, fmt.Errorf("encode hold %s: %w", h.ID, err)
	}
	return store.Hold{
		ID: h.ID, SandboxID: h.Subject.SandboxID, KeyID: h.Subject.KeyID, State: string(h.State), EndedAt: h.EndedAt, Data: data,
	}, nil
}

func fromRecord(r store.Hold) (h Hold, err error) {
	if err := json.Unmarshal(r.Data, &h); err != nil {
		return Hold{}, fmt.Errorf("decode hold %s: %w", r.ID, err)
	}
	return h, nil
}

// stored reads a hold from the store.
func (d *Desk) stored(ctx context.Context, id string) (Hold, error) {
	r, err := d.config.Store.Hold(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return Hold{}, ErrNotFound
	}
	if err != nil {
		return Hold{}, err
	}
	return fromRecord(r)
}

func (g Grant) record() (store.Grant, error) {
	data, err := json.Marshal(g)
	if err != nil {
		return store.Grant{}, fmt.Errorf("encode grant %s: %w", g.ID, err)
	}
	r := store.Grant{ID: g.ID, Until: g.Until, Data: data}
	if g.Scope.Kind == policy.SandboxScope {
		r.SandboxID = g.Scope.ID
	}
	return r, nil
}

func (f Filter) record() store.HoldFilter {
	most := f.Most
	if most <= 0 {
		most = defaultList
	}
	r := store.HoldFilter{SandboxID: f.SandboxID, KeyID: f.KeyID, Before: f.Before, Most: min(most, maxList)}
	for _, s := range f.States {
		r.States = append(r.States, string(s))
	}
	return r
}
