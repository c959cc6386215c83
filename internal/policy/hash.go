package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
)

// fieldOf says which of Fields a field of Action belongs to.
var fieldOf = map[string]Fields{
	"Host": HostField, "Address": AddressField, "Port": PortField, "Protocol": PortField,
	"Method": RequestField, "Path": RequestField, "Query": RequestField,
}

// Hash is SHA-256, in hex, of all that is known of an action and of what is not: two
// actions with one hash are the same action. It stays the same over versions, as long as
// what the action has means the same.
func (a Action) Hash() string {
	h := sha256.New()
	h.Write([]byte("tombolo action 1\n"))
	v := reflect.ValueOf(a)
	for i := range v.NumField() {
		name, value := v.Type().Field(i).Name, v.Field(i)
		if value.IsZero() || a.Unknown&fieldOf[name] != 0 {
			continue
		}
		// Each line has one reading: %q leaves no line break and no quote as it is, and
		// tells bytes that are not UTF-8 apart.
		fmt.Fprintf(h, "%s %q\n", name, fmt.Sprint(value.Interface()))
	}
	return hex.EncodeToString(h.Sum(nil))
}
