package secret

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tombolo-dev/tombolo/internal/replace"
	"github.com/tombolo-dev/tombolo/internal/store"
)

// Session is the use that one sandbox may make of secrets: of those attached to it, by
// their placeholders, and of those that its transforms name. It is safe for concurrent
// use, and follows what becomes of the secrets.
type Session struct {
	vault *Vault
	keyID string

	mu       sync.Mutex
	attached []string
	rules    []rule
	seen     *view
}

// view is what a session has at one moment. It does not change.
type view struct {
	of      *index
	entries []*entry          // attached or named, by placeholder
	named   map[string]*entry // by the names that rules have
	rules   []rule
	hosts   []string
}

// Session begins the use by a sandbox of a key. attached are ids or names of secrets;
// those that are not there are left out, now and as long as they are not.
func (v *Vault) Session(keyID string, attached []string) *Session {
	return &Session{vault: v, keyID: keyID, attached: slices.Clone(attached)}
}

// SetTransforms replaces the transforms, by host. It refuses what cannot be one, and
// leaves to [Vault.CheckTransforms] whether there are the secrets.
func (s *Session) SetTransforms(transforms map[string]Transform) error {
	rules, err := compileRules(transforms)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules, s.seen = rules, nil
	return nil
}

func (s *Session) view() *view {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.vault.current.Load(); s.seen == nil || s.seen.of != now {
		s.seen = s.look(now)
	}
	return s.seen
}

func (s *Session) look(now *index) *view {
	v := &view{of: now, rules: s.rules, named: map[string]*entry{}}
	add := func(e *entry) {
		if e == nil || slices.Contains(v.entries, e) {
			return
		}
		v.entries = append(v.entries, e)
		for _, b := range e.bounds {
			v.hosts = append(v.hosts, b.hosts...)
		}
	}
	for _, ref := range s.attached {
		add(now.find(s.keyID, NormalName(ref)))
	}
	for _, r := range s.rules {
		v.hosts = append(v.hosts, r.pattern)
		for _, h := range r.headers {
			for _, name := range h.secrets {
				v.named[name] = now.find(s.keyID, name)
				add(v.named[name])
			}
		}
	}
	slices.SortFunc(v.entries, func(a, b *entry) int { return strings.Compare(a.Placeholder, b.Placeholder) })
	slices.Sort(v.hosts)
	v.hosts = slices.Compact(v.hosts)
	return v
}

// Hosts are the hosts, as policy.Match.Host has them, whose requests must be given to
// [Session.Rewrite]: those that a secret is bound to and those that have a transform.
func (s *Session) Hosts() []string { return s.view().hosts }

// Intercepts tells whether Hosts have a host, given in its normal form.
func (s *Session) Intercepts(host string) bool { return s.view().intercepts(host) }

func (v *view) intercepts(host string) bool {
	return slices.ContainsFunc(v.rules, func(r rule) bool { return r.fits(host) }) ||
		slices.ContainsFunc(v.entries, func(e *entry) bool { return e.goesTo(host) })
}

func (e *entry) goesTo(host string) bool {
	return slices.ContainsFunc(e.bounds, func(b bound) bool { return b.fitsHost(host) })
}

// Find names the secrets whose placeholders are in some bytes that leave the sandbox
// elsewhere than in a request. It sees what is in clear text and whole.
func (s *Session) Find(b []byte) (names []string) {
	text := string(b)
	for _, e := range s.view().entries {
		if strings.Contains(text, e.Placeholder) {
			names = append(names, e.Name)
		}
	}
	return names
}

// Scrubber takes the values of all secrets of the session, in the encodings of
// answers, out of what the sandbox is given. It is nil when there are none.
func (s *Session) Scrubber(ctx context.Context) (*replace.Replacer, error) {
	return s.vault.scrubber(ctx, s.view().entries)
}

// scrubber takes out values that may come back from a host: of every secret that may
// go there, for what is echoed may have been sent before.
func (v *view) scrubber(ctx context.Context, vault *Vault, host string) (*replace.Replacer, error) {
	var may []*entry
	for _, e := range v.entries {
		if e.goesTo(host) || v.sets(e, host) {
			may = append(may, e)
		}
	}
	return vault.scrubber(ctx, may)
}

// sets tells whether a transform for the host names the secret.
func (v *view) sets(e *entry, host string) bool {
	return slices.ContainsFunc(v.rules, func(r rule) bool {
		return r.fits(host) && slices.ContainsFunc(r.headers, func(h header) bool {
			return slices.ContainsFunc(h.secrets, func(name string) bool { return v.named[name] == e })
		})
	})
}

// scrubber takes out the values of secrets, those before the ones in use too.
func (v *Vault) scrubber(ctx context.Context, entries []*entry) (*replace.Replacer, error) {
	var pairs []replace.Pair
	for _, e := range entries {
		for _, value := range e.values {
			_, forms, err := v.reveal(ctx, e, value.Version)
			if err != nil {
				return nil, err
			}
			pairs = append(pairs, forms...)
		}
	}
	if len(pairs) == 0 {
		return nil, nil
	}
	return replace.New(pairs...), nil
}

// reveal is one version of a value, and the forms in which it may come back.
func (v *Vault) reveal(ctx context.Context, e *entry, version int) (text string, forms []replace.Pair, err error) {
	text, forms, err = v.cache.get(valueID{e.ID, version}, v.now(), func() (*open, error) {
		i := slices.IndexFunc(e.values, func(value store.SecretValue) bool { return value.Version == version })
		if i < 0 {
			return nil, fmt.Errorf("it has no version %d", version)
		}
		value, err := v.keys.decrypt(ctx, e.values[i].Ciphertext)
		if err != nil {
			return nil, err
		}
		return &open{value: value, patterns: patterns(value.bytes, e.Placeholder)}, nil
	})
	if err != nil {
		return "", nil, fmt.Errorf("secret %q: %w", e.Name, err)
	}
	return text, forms, nil
}
