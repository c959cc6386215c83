package e2b

import (
	"net/http"

	"github.com/tombolo-dev/tombolo/internal/api/options"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Headers of a create that hold what our own API takes for a sandbox that is there, as
// JSON. Clients send headers that they are told, and of the body only what E2B has.
const (
	rulesHeader   = "Tombolo-Rules"   // options.Rules
	networkHeader = "Tombolo-Network" // options.Network
)

// readOwn reads these headers into a request.
func readOwn(h http.Header, req *sandbox.CreateRequest) error {
	var rules options.Rules
	given, err := readHeader(h, rulesHeader, &rules)
	if given && err == nil {
		if req.Rules, err = rules.Table(); err != nil {
			err = invalid("the header %s: %s", rulesHeader, err)
		}
	}
	if err != nil {
		return err
	}
	var network options.Network
	if given, err = readHeader(h, networkHeader, &network); !given || err != nil {
		return err
	}
	change, err := network.Change()
	if err != nil {
		return invalid("the header %s: %s", networkHeader, err)
	}
	change(&req.Network)
	return nil
}

func readHeader(h http.Header, name string, into any) (given bool, err error) {
	values := h.Values(name)
	if len(values) == 0 {
		return false, nil
	}
	if len(values) > 1 {
		return true, invalid("the header %s is there twice", name)
	}
	if err := options.Decode([]byte(values[0]), into); err != nil {
		return true, invalid("the header %s: %s", name, err)
	}
	return true, nil
}
