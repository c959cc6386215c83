package e2b

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// missing are endpoints of the dialect that this server does not have, with the
// words for what they do.
var missing = map[string]string{
	"POST /sandboxes/{id}/pause":     "pausing a sandbox",
	"POST /sandboxes/{id}/resume":    "resuming a sandbox",
	"POST /sandboxes/{id}/fork":      "forking a sandbox",
	"POST /sandboxes/{id}/snapshots": "making a snapshot",
	"GET /snapshots":                 "listing snapshots",
	"PUT /sandboxes/{id}/network":    "changing the network policy of a sandbox",
	"GET /sandboxes/{id}/metrics":    "the metrics of a sandbox",
	"GET /sandboxes/metrics":         "the metrics of sandboxes",

	"POST /templates":                        buildingByAPI,
	"POST /v2/templates":                     buildingByAPI,
	"POST /v3/templates":                     buildingByAPI,
	"POST /templates/{id}":                   buildingByAPI,
	"GET /templates/{id}/files/{hash}":       buildingByAPI,
	"POST /templates/{id}/builds/{build}":    buildingByAPI,
	"POST /v2/templates/{id}/builds/{build}": buildingByAPI,
	"GET /templates/{id}/builds/{build}/{x}": buildingByAPI, // status and logs
	"PATCH /templates/{id}":                  "publishing a template",
	"PATCH /v2/templates/{id}":               "publishing a template",
	"GET /v2/templates":                      "the paged list of templates",
	"POST /templates/tags":                   "tagging a template",
	"DELETE /templates/tags":                 "tagging a template",
	"GET /templates/{id}/{part}":             "the tags of a template",

	"/volumes":              "volumes",
	"/volumes/{id}":         "volumes",
	"/volumecontent/":       "volumes",
	"/secrets":              "secrets",
	"/secrets/{id}":         "secrets",
	"GET /teams":            "teams",
	"GET /teams/{id}/":      "teams",
	"/api-keys":             "managing keys by the API (use `tombolo key`)",
	"/api-keys/{id}":        "managing keys by the API (use `tombolo key`)",
	"/nodes":                "nodes",
	"/nodes/{id}":           "nodes",
	"/events/":              "events",
	"/events/webhooks":      "webhooks",
	"/events/webhooks/{id}": "webhooks",
}

const buildingByAPI = "building templates by the API (use `tombolo template build`)"

func (a *api) notSupported(what string) handler {
	server := strings.TrimSpace("tombolo " + a.version)
	return func(http.ResponseWriter, *http.Request, store.Key) error {
		return failure(http.StatusNotImplemented, "%s: not supported yet by this server (%s)", what, server)
	}
}

// laterOptions are options of create that this server cannot keep. A caller who
// asks for one must not get a sandbox without it, for most of them restrict
// something.
type laterOptions struct {
	AutoPause  *bool `json:"autoPause"`
	AutoResume *struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	MCP json.RawMessage `json:"mcp"`
	IAM *struct {
		Tokens json.RawMessage `json:"tokens"`
	} `json:"iam"`
	VolumeMounts json.RawMessage            `json:"volumeMounts"`
	Network      map[string]json.RawMessage `json:"network"`
}

// check refuses what is asked for and not supported, and tells whether the
// network options close every connection out.
func (o laterOptions) check() (denyInternet bool, err error) {
	switch {
	case o.AutoPause != nil && *o.AutoPause:
		return false, unsupported("autoPause: true", "leave it out to have the sandbox killed at its timeout")
	case o.AutoResume != nil && o.AutoResume.Enabled:
		return false, unsupported("autoResume", "leave it out")
	case len(o.MCP) > 0 && string(o.MCP) != "null":
		return false, unsupported("mcp", "leave it out")
	case o.IAM != nil && given(o.IAM.Tokens):
		return false, unsupported("iam", "leave it out")
	case given(o.VolumeMounts):
		return false, unsupported("volumeMounts", "leave it out")
	}
	return checkNetwork(o.Network)
}

// checkNetwork knows one policy: denyOut of everything and nothing allowed. Any
// other, and any it does not know, could let out what the caller wants kept in.
func checkNetwork(options map[string]json.RawMessage) (denyInternet bool, err error) {
	for name, value := range options {
		switch name {
		case "denyOut":
			if !given(value) {
				continue
			}
			if denyInternet = deniesAll(value); !denyInternet {
				return false, unsupported(`network.denyOut of other than ["0.0.0.0/0"]`, "deny everything with allow_internet_access: false")
			}
		case "allowPublicTraffic":
			if v := string(value); v != "true" && v != "null" {
				return false, unsupported("network.allowPublicTraffic: false", "leave it out")
			}
		case "allow_internet_access", "allowInternetAccess":
			if v := string(value); v != "true" && v != "null" {
				return false, invalid("network.%s is no option of create: give allow_internet_access beside network", name)
			}
		default:
			if given(value) {
				return false, unsupported("network."+name, "leave it out, or close the network with allow_internet_access: false")
			}
		}
	}
	// An empty list of what is allowed allows nothing; E2B's rule is that it makes
	// no exception to denyOut, which is the same only where that denies everything.
	if list, ok := options["allowOut"]; ok && !denyInternet && strings.TrimSpace(string(list)) == "[]" {
		return false, invalid("network.allowOut is empty and network.denyOut denies nothing: leave allowOut out for the open internet, or deny everything with allow_internet_access: false")
	}
	return denyInternet, nil
}

func deniesAll(raw json.RawMessage) bool {
	var list []string
	if json.Unmarshal(raw, &list) != nil {
		return false
	}
	return slices.Contains(list, "0.0.0.0/0")
}

func unsupported(option, remedy string) *wireError {
	return invalid("%s is not supported yet by this server: %s", option, remedy)
}
