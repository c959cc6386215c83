package policy

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Network is what E2B's network options say about what a sandbox may reach.
type Network struct {
	AllowOut     []string // addresses, CIDR ranges, names and *.names
	DenyOut      []string // addresses and CIDR ranges
	DenyInternet bool     // allow_internet_access is false
}

const (
	allTraffic = "0.0.0.0/0"
	// NetworkRule is the name of the rule that [FromNetwork] makes.
	NetworkRule = "network"
	maxNetwork  = 1000 // entries of one list
)

// errDomainsNeedDenyAll is E2B's message, which its users may look for.
const errDomainsNeedDenyAll = "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in deny out to block all other traffic."

// FromNetwork makes rules of E2B's network options, with E2B's meaning and, where it
// refuses, E2B's messages. What is allowed wins over what is denied; a name is allowed
// on TCP ports 80 and 443 only, by what a connection says it is for; anything that is
// not denied is allowed. The result is one rule that denies, or none.
//
// When all is denied, so is every question for a name that no entry allows, see
// [Set.JudgeName]. (E2B opens its name server for all names once one is allowed.)
func FromNetwork(n Network) ([]Rule, error) {
	denied, all, err := deniedOut(n.DenyOut)
	if err != nil {
		return nil, err
	}
	except, err := allowedOut(n.AllowOut, all)
	if err != nil {
		return nil, err
	}
	all = all || n.DenyInternet
	if !all && denied == nil {
		return nil, nil
	}
	rule := Rule{
		Name: NetworkRule, Kind: Egress, Decision: Deny, Except: except,
		Reason: "the network settings of the sandbox do not allow it",
	}
	if !all {
		rule.Match = []Match{{Address: denied}}
	}
	if err := rule.Check(); err != nil {
		return nil, err
	}
	return []Rule{rule}, nil
}

// deniedOut returns what is denied, and whether that is everything.
func deniedOut(entries []string) (denied []string, all bool, err error) {
	if len(entries) > maxNetwork {
		return nil, false, fmt.Errorf("deny out may have %d entries", maxNetwork)
	}
	for _, entry := range entries {
		if hasPort(entry) {
			return nil, false, fmt.Errorf("invalid deny out entry %.100q: port-specific rules are not supported for egress", entry)
		}
		prefix, err := lenientPrefix(entry)
		if err != nil {
			return nil, false, fmt.Errorf("invalid denied CIDR %.100s", entry)
		}
		all = all || prefix.String() == allTraffic
		denied = append(denied, prefix.String())
	}
	return denied, all, nil
}

// allowedOut returns the exceptions.
func allowedOut(entries []string, deniedAll bool) (except []Match, err error) {
	if len(entries) > maxNetwork {
		return nil, fmt.Errorf("allow out may have %d entries", maxNetwork)
	}
	var addresses, hosts []string
	for _, entry := range entries {
		if hasPort(entry) {
			return nil, fmt.Errorf("invalid allow out entry %.100q: port-specific rules are not supported for egress", entry)
		}
		if prefix, err := lenientPrefix(entry); err == nil {
			addresses = append(addresses, prefix.String())
			continue
		}
		host, err := checkHostPattern(entry)
		if err != nil {
			return nil, fmt.Errorf("invalid allow out entry: %w", err)
		}
		hosts = append(hosts, host)
	}
	if hosts != nil && !deniedAll {
		return nil, fmt.Errorf("%s", errDomainsNeedDenyAll)
	}
	if addresses != nil {
		except = append(except, Match{Address: addresses})
	}
	if hosts != nil {
		except = append(except, Match{Host: hosts, Port: []string{"80", "443"}, Protocol: []string{"tcp"}})
	}
	return except, nil
}

// lenientPrefix takes ranges that do not begin at their first address, as E2B does.
func lenientPrefix(entry string) (netip.Prefix, error) {
	prefix, err := ParsePrefix(entry)
	return prefix.Masked(), err
}

// hasPort tells whether an entry ends with a port, or what stands in its place.
func hasPort(entry string) bool {
	if _, err := netip.ParseAddr(entry); err == nil {
		return false
	}
	if _, err := netip.ParsePrefix(entry); err == nil {
		return false
	}
	host, _, err := net.SplitHostPort(entry)
	return err == nil && !strings.Contains(host, "://")
}
