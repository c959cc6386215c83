package e2b

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// allTraffic is what clients call ALL_TRAFFIC.
const allTraffic = "0.0.0.0/0"

// networkOptions are those of create, by name. An option is not there, null or
// given; one that is not known is refused, since most of them restrict something.
type networkOptions map[string]json.RawMessage

// parse knows one policy for what goes out: denyOut of everything and nothing
// allowed. Any other, and any it does not know, could let out what the caller
// wants kept in.
func (options networkOptions) parse() (sandbox.NetworkOptions, error) {
	var parsed sandbox.NetworkOptions
	for name, value := range options {
		if err := parseNetworkOption(&parsed, name, value); err != nil {
			return sandbox.NetworkOptions{}, err
		}
	}
	// An empty list of what is allowed allows nothing; E2B's rule is that it makes
	// no exception to denyOut, which is the same only where that denies everything.
	if list, ok := options["allowOut"]; ok && !parsed.DenyInternet && strings.TrimSpace(string(list)) == "[]" {
		return sandbox.NetworkOptions{}, invalid("network.allowOut is empty and network.denyOut denies nothing: leave allowOut out for the open internet, or deny everything with allow_internet_access: false")
	}
	return parsed, nil
}

func parseNetworkOption(parsed *sandbox.NetworkOptions, name string, value json.RawMessage) error {
	switch name {
	case "denyOut":
		if !given(value) {
			return nil
		}
		if parsed.DenyInternet = deniesAll(value); !parsed.DenyInternet {
			return unsupported(`network.denyOut of other than ["`+allTraffic+`"]`, "deny everything with allow_internet_access: false")
		}
	case "allowPublicTraffic":
		allow := true // null is the default
		if json.Unmarshal(value, &allow) != nil {
			return invalid("network.allowPublicTraffic must be true or false")
		}
		parsed.PrivateTraffic = !allow
	case "maskRequestHost":
		if json.Unmarshal(value, &parsed.MaskRequestHost) != nil {
			return invalid("network.maskRequestHost must be a string")
		}
		return sandbox.CheckMaskHost(parsed.MaskRequestHost)
	case "allow_internet_access", "allowInternetAccess":
		if v := string(value); v != "true" && v != "null" {
			return invalid("network.%s is no option of create: give allow_internet_access beside network", name)
		}
	default:
		if given(value) {
			return unsupported("network."+name, "leave it out, or close the network with allow_internet_access: false")
		}
	}
	return nil
}

func deniesAll(raw json.RawMessage) bool {
	var list []string
	return json.Unmarshal(raw, &list) == nil && slices.Contains(list, allTraffic)
}
