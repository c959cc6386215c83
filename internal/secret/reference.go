package secret

import (
	"context"
	"regexp"
	"slices"
)

// reference is how E2B's clients name a secret in a text (Secret.fill).
var reference = regexp.MustCompile(`\$\{e2b\.secrets\.([^{}\x00-\x1f\x7f]+)\}`)

// references are the names of the secrets that a text refers to.
func references(text string) (names []string) {
	for _, found := range reference.FindAllStringSubmatch(text, -1) {
		if name := NormalName(found[1]); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// fill puts what value says in the place of each reference of a text. What is put in
// is not looked at again.
func fill(text string, value func(name string) string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		return value(NormalName(reference.FindStringSubmatch(found)[1]))
	})
}

// Refers tells whether a text names a secret.
func Refers(text string) bool { return len(references(text)) > 0 }

// Env puts placeholders in the place of the references ${e2b.secrets.NAME} in
// variables of a sandbox that a key makes. attached are the ids of the secrets found,
// for [Vault.Session]. An *InvalidError names a secret that the key does not have.
func (v *Vault) Env(ctx context.Context, keyID string, vars map[string]string) (env map[string]string, attached []string, err error) {
	env = make(map[string]string, len(vars))
	for name, text := range vars {
		placeholders := map[string]string{}
		for _, of := range references(text) {
			e, err := v.named(ctx, keyID, of)
			if err != nil {
				return nil, nil, err
			}
			if e == nil {
				return nil, nil, invalid("envVars: %.80s refers to the secret %.120q, and there is none of this name; `tombolo secret list` shows those of each key", name, of)
			}
			if !slices.Contains(attached, e.ID) {
				attached = append(attached, e.ID)
			}
			placeholders[of] = e.Placeholder
		}
		env[name] = fill(text, func(of string) string { return placeholders[of] })
	}
	slices.Sort(attached)
	return env, attached, nil
}

// named is a secret of a key by name or id, nil when there is none. One that another
// process has just written is found too.
func (v *Vault) named(ctx context.Context, keyID, name string) (*entry, error) {
	if e := v.current.Load().find(keyID, name); e != nil {
		return e, nil
	}
	if err := v.Refresh(ctx); err != nil {
		return nil, err
	}
	return v.current.Load().find(keyID, name), nil
}

func (i *index) find(keyID, idOrName string) *entry {
	if e := i.byID[idOrName]; e != nil && e.KeyID == keyID {
		return e
	}
	return i.byName[ownName{keyID, idOrName}]
}
