package policy_test

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/policy"
)

// TestHashDiffersWhenAnythingDiffers goes through the fields of Action by
// reflection, so that a new one cannot be forgotten.
func TestHashDiffersWhenAnythingDiffers(t *testing.T) {
	var zero policy.Action
	seen := map[string]string{zero.Hash(): "nothing"}
	note := func(what string, a policy.Action) {
		t.Helper()
		require.Len(t, a.Hash(), 64)
		require.Equal(t, a.Hash(), a.Hash())
		require.NotContains(t, seen, a.Hash(), "%s is as %s", what, seen[a.Hash()])
		seen[a.Hash()] = what
	}
	for i := range reflect.TypeFor[policy.Action]().NumField() {
		for _, value := range valuesFor(t, reflect.TypeFor[policy.Action]().Field(i).Type) {
			var a policy.Action
			reflect.ValueOf(&a).Elem().Field(i).Set(reflect.ValueOf(value).Convert(reflect.TypeFor[policy.Action]().Field(i).Type))
			note(reflect.TypeFor[policy.Action]().Field(i).Name, a)
		}
	}
}

func valuesFor(t *testing.T, of reflect.Type) []any {
	switch of.Kind() {
	case reflect.String:
		return []any{"a", "b", "a\x00", "\xff", "\ufffd", `\xff`, `a" "b`, "a\nHost \"b\"", " a"}
	case reflect.Uint8:
		return []any{1, 2, 4, 8, 15}
	case reflect.Uint16, reflect.Int, reflect.Int64:
		return []any{1, 2, 443}
	}
	require.Equal(t, reflect.TypeFor[netip.Addr](), of, "say here which values a field of this type has")
	return []any{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("::ffff:192.0.2.7"), netip.MustParseAddr("::")}
}

func TestHashIsOfWhatIsKnown(t *testing.T) {
	a := policy.Action{Kind: policy.Egress, Host: "a.example", Port: 443, Protocol: "tcp", Unknown: policy.AddressField | policy.RequestField}
	hinted := a
	hinted.Address, hinted.Method = netip.MustParseAddr("192.0.2.7"), "GET"
	require.Equal(t, a.Hash(), hinted.Hash(), "a hint at what is unknown changes nothing")
	known := a
	known.Unknown = policy.RequestField
	require.NotEqual(t, a.Hash(), known.Hash(), "not known is not the same as not there")
	require.Equal(t, "caa1c5f231fc8d419e596c1f8e292c1bc79affc1bd1a8b93a5137064bbef64b0",
		policy.Action{Kind: policy.Exec, Command: "rm -rf /", User: "root"}.Hash(), "holds outlive the server: the hash may not change with its version")
}
