// Package options is what a sandbox can be given that E2B's API has no words for: the rules
// of its own scope, and limits of its network. It has them as they go over the wire, and
// checks them; what they mean is the business of others.
package options

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Rules are those of a sandbox's own scope.
type Rules struct {
	Default map[policy.Kind]policy.Decision `json:"default,omitempty"`
	Rules   []policy.Rule                   `json:"rules"`
}

// OfTable is a sandbox's table as it is answered.
func OfTable(t policy.Table) Rules {
	return Rules{Default: t.Default, Rules: append([]policy.Rule{}, t.Rules...)}
}

// Table checks the rules, and is what the core takes; an error is a
// *sandbox.InvalidError.
func (r Rules) Table() (policy.Table, error) {
	table := policy.Table{Scope: policy.Scope{Kind: policy.SandboxScope, ID: "any"}, Default: r.Default, Rules: r.Rules}
	if _, err := policy.Compile(table); err != nil {
		return policy.Table{}, &sandbox.InvalidError{Message: err.Error()}
	}
	table.Scope = policy.Scope{}
	return table, nil
}

// Network is limits of what goes out, and the proxy. What is left out stays as it is.
type Network struct {
	BandwidthOut *int64 `json:"bandwidthOut"` // bytes a second; 0 is no limit
	BandwidthIn  *int64 `json:"bandwidthIn"`
	Connections  *int   `json:"connections"` // open at once; 0 is sandbox.MaxConnections
	// Proxy is a sandbox.EgressProxy, or null to have none.
	Proxy json.RawMessage `json:"proxy"`
}

// Change checks the limits, and returns what sets them. An error is a
// *sandbox.InvalidError.
func (n Network) Change() (func(*sandbox.NetworkOptions), error) {
	var proxy *sandbox.EgressProxy
	if n.Proxy != nil {
		if err := Decode(n.Proxy, &proxy); err != nil {
			return nil, &sandbox.InvalidError{Message: "proxy: " + err.Error()}
		}
	}
	change := func(o *sandbox.NetworkOptions) {
		set(&o.BandwidthOut, n.BandwidthOut)
		set(&o.BandwidthIn, n.BandwidthIn)
		set(&o.Connections, n.Connections)
		if n.Proxy != nil {
			o.Proxy, o.OwnProxy = proxy, proxy != nil
		}
	}
	var alone sandbox.NetworkOptions
	change(&alone)
	return change, alone.Check()
}

func set[T any](field, to *T) {
	if to != nil {
		*field = *to
	}
}

// Decode reads one JSON value. What is not a field of it is an error: rules or limits of
// which a part was not understood must not hold.
func Decode(raw []byte, into any) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return errors.New("it is empty: send a JSON object")
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}
