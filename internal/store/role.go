package store

import (
	"fmt"
	"slices"
	"strings"
)

// Role is something that a key may be good for.
type Role string

// The roles.
const (
	// RoleSandboxes: making sandboxes, and all that is done with one's own. What every
	// key has that was made without saying.
	RoleSandboxes Role = "sandboxes"
	// RoleApprove: seeing what waits for a person, and answering.
	RoleApprove Role = "approve"
	// RoleAudit: reading the record of who did what.
	RoleAudit Role = "audit"
	// RolePolicy: reading and writing the rules of the server, of keys and of templates.
	RolePolicy Role = "policy"
)

// Roles are all there are.
var Roles = []Role{RoleSandboxes, RoleApprove, RoleAudit, RolePolicy}

// MaxApproves is how many keys may be named in Key.Approves.
const MaxApproves = 64

// Has tells whether the key has a role.
func (k Key) Has(r Role) bool { return slices.Contains(k.Roles, r) }

// AnswersFor tells whether the key may see and answer what sandboxes of a key ask
// for; keyID is empty for those of the machine's owner.
func (k Key) AnswersFor(keyID string) bool {
	if !k.Has(RoleApprove) || keyID == k.ID && !k.SelfApproval {
		return false
	}
	return len(k.Approves) == 0 || slices.Contains(k.Approves, keyID)
}

// CheckRoles says what is wrong with the roles of a key. A key that makes sandboxes
// and answers for them is one only where that was asked for: whoever takes it from a
// program could let the program's sandboxes do what a person should have decided.
func (k Key) CheckRoles() error {
	if len(k.Roles) == 0 {
		return fmt.Errorf("a key needs a role: %s", roleNames())
	}
	for i, r := range k.Roles {
		if !slices.Contains(Roles, r) {
			return fmt.Errorf("there is no role %q, only %s", r, roleNames())
		}
		if slices.Contains(k.Roles[:i], r) {
			return fmt.Errorf("the role %s is named twice", r)
		}
	}
	both := k.Has(RoleSandboxes) && k.Has(RoleApprove)
	switch {
	case len(k.Approves) > 0 && !k.Has(RoleApprove):
		return fmt.Errorf("a key without the role %s answers for no other keys", RoleApprove)
	case len(k.Approves) > MaxApproves:
		return fmt.Errorf("a key may be bound to %d keys at most, not %d", MaxApproves, len(k.Approves))
	case both && !k.SelfApproval:
		return fmt.Errorf("a key with the roles %s and %s could approve what its own sandboxes ask for: use two keys, or allow it self-approval", RoleSandboxes, RoleApprove)
	case k.SelfApproval && !both:
		return fmt.Errorf("self-approval is for a key with the roles %s and %s", RoleSandboxes, RoleApprove)
	}
	return nil
}

func roleNames() string {
	names := make([]string, len(Roles))
	for i, r := range Roles {
		names[i] = string(r)
	}
	return strings.Join(names, ", ")
}
