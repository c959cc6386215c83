package store_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
)

func TestCheckRoles(t *testing.T) {
	tests := []struct {
		key store.Key
		bad string
	}{
		{store.Key{Roles: []store.Role{"sandboxes"}}, ""},
		{store.Key{Roles: []store.Role{"approve", "audit", "policy"}, Approves: []string{"a"}}, ""},
		{store.Key{Roles: []store.Role{"sandboxes", "approve"}, SelfApproval: true}, ""},
		{store.Key{}, "needs a role"},
		{store.Key{Roles: []store.Role{"admin"}}, `no role "admin"`},
		{store.Key{Roles: []store.Role{"sandboxes,approve"}}, "no role"},
		{store.Key{Roles: []store.Role{"audit", "audit"}}, "twice"},
		{store.Key{Roles: []store.Role{"sandboxes", "approve"}}, "use two keys"},
		{store.Key{Roles: []store.Role{"approve"}, SelfApproval: true}, "self-approval is for"},
		{store.Key{Roles: []store.Role{"audit"}, Approves: []string{"a"}}, "without the role approve"},
		{store.Key{Roles: []store.Role{"approve"}, Approves: make([]string, 65)}, "64 keys at most"},
	}
	for _, tt := range tests {
		err := tt.key.CheckRoles()
		if tt.bad == "" {
			require.NoError(t, err, "%+v", tt.key)
			continue
		}
		require.ErrorContains(t, err, tt.bad, "%+v", tt.key)
	}
}

func TestWhomAKeyAnswersFor(t *testing.T) {
	tests := []struct {
		key  store.Key
		of   string
		want bool
	}{
		{store.Key{ID: "a", Roles: []store.Role{"approve"}}, "b", true},
		{store.Key{ID: "a", Roles: []store.Role{"approve"}}, "", true}, // the owner's sandboxes
		{store.Key{ID: "a", Roles: []store.Role{"approve"}, Approves: []string{"b"}}, "b", true},
		{store.Key{ID: "a", Roles: []store.Role{"approve"}, Approves: []string{"b"}}, "c", false},
		{store.Key{ID: "a", Roles: []store.Role{"approve"}, Approves: []string{"b"}}, "", false},
		{store.Key{ID: "a", Roles: []store.Role{"sandboxes"}}, "a", false},
		{store.Key{ID: "a", Roles: []store.Role{"sandboxes", "approve"}}, "a", false}, // a record of another hand
		{store.Key{ID: "a", Roles: []store.Role{"sandboxes", "approve"}, SelfApproval: true}, "a", true},
		{store.Key{ID: "a", Roles: []store.Role{"sandboxes", "approve"}, SelfApproval: true, Approves: []string{"b"}}, "a", false},
		{store.Key{ID: "a", Roles: []store.Role{"audit", "policy"}}, "b", false},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, tt.key.AnswersFor(tt.of), fmt.Sprintf("%+v for %q", tt.key, tt.of))
	}
}
