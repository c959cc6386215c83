package e2b

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/store"
)

// missing are endpoints of the dialect that this server does not have, with the
// words for what they do.
var missing = map[string]string{
	"GET /teams":       "teams",
	"GET /teams/{id}/": "teams",
	"/api-keys":        "managing keys by the API (use `tombolo key`)",
	"/api-keys/{id}":   "managing keys by the API (use `tombolo key`)",
	"/nodes":           "nodes",
	"/nodes/{id}":      "nodes",

	"GET /events/webhooks/{id}/stats":                 "the statistics of a webhook",
	"GET /events/webhooks/{id}/deliveries/{delivery}": "one delivery of a webhook by itself (the list has them)",
}

func (a *api) notSupported(what string) handler {
	server := strings.TrimSpace("tombolo " + a.version)
	return func(http.ResponseWriter, *http.Request, store.Key) error {
		return failure(http.StatusNotImplemented, "%s: not supported yet by this server (%s)", what, server)
	}
}

// laterOptions are options of create that this server cannot keep. A caller who
// asks for one must not get a sandbox without it.
type laterOptions struct {
	IAM struct {
		Tokens json.RawMessage `json:"tokens"`
	} `json:"iam"`
}

// check refuses what is asked for.
func (o laterOptions) check() error {
	if given(o.IAM.Tokens) {
		return unsupported("iam", "leave it out")
	}
	return nil
}

func unsupported(option, remedy string) *wireError {
	return invalid("%s is not supported yet by this server: %s", option, remedy)
}

// given tells whether a field was sent with something in it.
func given(raw json.RawMessage) bool {
	switch strings.Join(strings.Fields(string(raw)), "") {
	case "", "null", "{}", "[]", `""`:
		return false
	}
	return true
}
