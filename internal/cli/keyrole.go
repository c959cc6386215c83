package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// roleFlags are the flags that say what a key is good for.
type roleFlags struct {
	roles, approves []string
	selfApproval    bool
}

func (f *roleFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.roles, "role", []string{string(store.RoleSandboxes)}, "what the key is good for, joined by commas: sandboxes (make them), approve (answer what waits for a person), audit (read the record), policy (change rules)")
	flags.StringSliceVar(&f.approves, "approves", nil, "names or ids of the keys whose sandboxes a key with the role approve answers for; '*' is all (default: all)")
	flags.BoolVar(&f.selfApproval, "allow-self-approval", false, "let a key with the roles sandboxes and approve approve what its own sandboxes ask for")
}

func (f *roleFlags) given(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{"role", "approves", "allow-self-approval"}, cmd.Flags().Changed)
}

// set puts what was given into a key, or all where all is set.
func (f *roleFlags) set(cmd *cobra.Command, k *store.Key, all bool) error {
	given := cmd.Flags().Changed
	if all || given("role") {
		k.Roles = nil
		for _, r := range f.roles {
			k.Roles = append(k.Roles, store.Role(strings.TrimSpace(r)))
		}
	}
	if all || given("approves") {
		k.Approves = f.approves
	}
	if all || given("allow-self-approval") {
		k.SelfApproval = f.selfApproval
	}
	if err := k.CheckRoles(); err != nil {
		return fmt.Errorf("%w (--role, --approves and --allow-self-approval say what a key may do)", err)
	}
	return nil
}

// resolve turns the names of the keys to answer for into their ids.
func (f *roleFlags) resolve(cmd *cobra.Command, records *sqlite.Store) error {
	if !cmd.Flags().Changed("approves") {
		return nil
	}
	if len(f.approves) == 0 { // an empty variable of a script must not mean all
		return errors.New("--approves is empty: name the keys it answers for, or say '*' for all")
	}
	if len(f.approves) == 1 && f.approves[0] == "*" {
		f.approves = nil
		return nil
	}
	var ids []string
	for _, name := range f.approves {
		k, err := findKey(cmd.Context(), records, strings.TrimSpace(name))
		if err != nil {
			return fmt.Errorf("--approves: %w", err)
		}
		if !slices.Contains(ids, k.ID) {
			ids = append(ids, k.ID)
		}
	}
	f.approves = ids
	return nil
}

// roles says what a key is good for. names are those of the keys, by id.
func roles(k store.Key, names map[string]string) string {
	words := make([]string, len(k.Roles))
	for i, r := range k.Roles {
		words[i] = string(r)
		if r != store.RoleApprove {
			continue
		}
		var whose []string
		for _, id := range k.Approves {
			if names[id] == "" {
				id = "deleted key " + id
			} else {
				id = names[id]
			}
			whose = append(whose, id)
		}
		if len(whose) > 0 {
			words[i] += " (" + strings.Join(whose, ", ") + ")"
		}
		if k.SelfApproval {
			words[i] += " (itself too)"
		}
	}
	return strings.Join(words, ", ")
}
