package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/idna"
)

// ErrIsAddress says that what was given as a name is an address, or one of the
// spellings that some programs take for one.
var ErrIsAddress = errors.New("is an address and not a name")

// Limits on names: those of DNS (RFC 1035), and what is looked at at all.
const (
	maxHost    = 253  // characters in ASCII, without the last dot
	maxLabel   = 63   // characters
	maxRawHost = 1024 // bytes before they are normalised
)

// names maps names to ASCII as browsers do (UTS 46, not transitional), but takes
// what DNS has and host names should not: underscores, and hyphens anywhere. What
// else may be in a name is checked after it.
var names = idna.New(
	idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false),
	idna.CheckHyphens(false), idna.CheckJoiners(true), idna.BidiRule(),
)

// NormalHost returns the one form of a host name that rules and actions have: in
// lower case and ASCII, without a last dot. Underscores are taken, since DNS is asked
// for names such as _dmarc.example.com. It refuses what cannot be a name of DNS, and
// spellings of addresses with [ErrIsAddress].
func NormalHost(raw string) (string, error) {
	host, err := normalHost(raw)
	if err != nil {
		return "", fmt.Errorf("host %.80q: %w", raw, err)
	}
	return host, nil
}

func normalHost(raw string) (string, error) {
	switch {
	case raw == "":
		return "", errors.New("is empty")
	case len(raw) > maxRawHost:
		return "", fmt.Errorf("is longer than %d bytes", maxRawHost)
	case strings.ContainsAny(raw, ":[]"):
		return "", notWithColon(raw)
	}
	host := lowerASCII(raw)
	if !isASCII(host) || hasPunycode(host) {
		var err error
		if host, err = names.ToASCII(host); err != nil {
			return "", errors.New("is not a valid international name")
		}
	}
	host = strings.TrimSuffix(host, ".")
	if len(host) > maxHost {
		return "", fmt.Errorf("is longer than %d characters", maxHost)
	}
	last := ""
	for label := range strings.SplitSeq(host, ".") {
		if err := checkLabel(label); err != nil {
			return "", err
		}
		last = label
	}
	if numeric(last) {
		return "", ErrIsAddress
	}
	return host, nil
}

// notWithColon says what is wrong with a name that has a colon or brackets.
func notWithColon(raw string) error {
	inner := strings.TrimSuffix(strings.TrimPrefix(raw, "["), "]")
	if _, err := netip.ParseAddr(inner); err == nil {
		return ErrIsAddress
	}
	return errors.New("has a colon or a bracket; a name is without scheme and port")
}

func checkLabel(label string) error {
	switch {
	case label == "":
		return errors.New("has an empty part: a dot too many, or nothing")
	case len(label) > maxLabel:
		return fmt.Errorf("has a part longer than %d characters", maxLabel)
	}
	for _, c := range []byte(label) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return fmt.Errorf("has %q in it; a name has letters, digits, '-', '_' and dots", c)
		}
	}
	return nil
}

// numeric tells whether a name with this last part is a number to those that read
// IPv4 addresses as C's inet_aton does: 127.1, 0x7f.1, 2130706433, 017700000001.
// No top-level domain is one.
func numeric(label string) bool {
	digits := "0123456789"
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		label, digits = hex, "0123456789abcdef"
	}
	return strings.Trim(label, digits) == ""
}

func hasPunycode(host string) bool {
	return strings.HasPrefix(host, "xn--") || strings.Contains(host, ".xn--")
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}

// lowerASCII leaves all but A to Z as it is.
func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// ParseAddress reads an IP address, strictly: no port, brackets, zone, leading zeros
// or short forms. An IPv4 address within an IPv6 one is returned as IPv4.
func ParseAddress(raw string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(raw)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%.80q is not an IP address", raw)
	}
	if addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("address %.80q has a zone; leave it out", raw)
	}
	return addr.Unmap(), nil
}

// ParsePrefix reads an address or a range of them, strictly. Bits beyond the range stay.
func ParsePrefix(raw string) (netip.Prefix, error) {
	if !strings.Contains(raw, "/") {
		addr, err := ParseAddress(raw)
		if err != nil {
			return netip.Prefix{}, err
		}
		return addr.Prefix(addr.BitLen())
	}
	prefix, err := netip.ParsePrefix(raw)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%.80q is not a range of addresses, such as 192.0.2.0/24", raw)
	}
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("range %q holds all IPv4 addresses and more; write them as IPv4", raw)
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	return prefix, nil
}

// few is up to how many entries a list is gone through one by one.
const few = 8

// hostSet is the names that a match is about.
type hostSet struct {
	any    bool
	list   []hostPattern       // when they are few
	exact  map[string]struct{} // else
	suffix map[string]struct{} // "example.com" for "*.example.com"
}

type hostPattern struct {
	name  string // or, when below is set, with the dot before it
	below bool
}

// checkHostPattern returns the normal form of a pattern of names.
func checkHostPattern(raw string) (string, error) {
	if raw == "*" {
		return raw, nil
	}
	name, below := strings.CutPrefix(raw, "*.")
	if strings.Contains(name, "*") {
		return "", fmt.Errorf("host %.80q: '*' stands at the beginning and before a dot only, as in *.example.com", raw)
	}
	host, err := NormalHost(name)
	if errors.Is(err, ErrIsAddress) {
		return "", fmt.Errorf("%w; write it under address", err)
	}
	if err != nil || !below {
		return host, err
	}
	return "*." + host, nil
}

func newHostSet(patterns []string) (*hostSet, error) {
	s := &hostSet{}
	for _, raw := range patterns {
		pattern, err := checkHostPattern(raw)
		if err != nil {
			return nil, err
		}
		if pattern == "*" {
			s.any = true
			continue
		}
		name, below := strings.CutPrefix(pattern, "*")
		s.list = append(s.list, hostPattern{name, below})
	}
	if len(s.list) > few {
		s.index()
	}
	return s, nil
}

func (s *hostSet) index() {
	s.exact, s.suffix = map[string]struct{}{}, map[string]struct{}{}
	for _, p := range s.list {
		if p.below {
			s.suffix[p.name[1:]] = struct{}{}
		} else {
			s.exact[p.name] = struct{}{}
		}
	}
	s.list = nil
}

func (s *hostSet) has(host string) bool {
	if host == "" {
		return false
	}
	if s.any {
		return true
	}
	for i := range s.list {
		p := &s.list[i]
		if p.below && len(host) > len(p.name) && strings.HasSuffix(host, p.name) || !p.below && host == p.name {
			return true
		}
	}
	if s.exact == nil {
		return false
	}
	if _, ok := s.exact[host]; ok {
		return true
	}
	for rest := host; ; {
		dot := strings.IndexByte(rest, '.')
		if dot < 0 {
			return false
		}
		rest = rest[dot+1:]
		if _, ok := s.suffix[rest]; ok {
			return true
		}
	}
}

// addressSet is the addresses that a match is about.
type addressSet struct {
	list    []netip.Prefix            // when they are few
	all     map[netip.Prefix]struct{} // else
	lengths [2][]int                  // of those in all, of IPv4 and IPv6
}

func newAddressSet(ranges []string) (*addressSet, error) {
	s := &addressSet{}
	for _, raw := range ranges {
		prefix, err := ParsePrefix(raw)
		if err != nil {
			return nil, err
		}
		if prefix != prefix.Masked() {
			return nil, fmt.Errorf("range %q begins at %s; write %s", raw, prefix.Masked().Addr(), prefix.Masked())
		}
		s.list = append(s.list, prefix)
	}
	if len(s.list) > few {
		s.index()
	}
	return s, nil
}

func (s *addressSet) index() {
	s.all = map[netip.Prefix]struct{}{}
	for _, p := range s.list {
		s.all[p] = struct{}{}
		lengths := &s.lengths[family(p.Addr())]
		if !slices.Contains(*lengths, p.Bits()) {
			*lengths = append(*lengths, p.Bits())
		}
	}
	s.list = nil
}

func family(addr netip.Addr) int {
	if addr.Is4() {
		return 0
	}
	return 1
}

func (s *addressSet) has(addr netip.Addr) bool {
	if !addr.IsValid() {
		return false
	}
	for i := range s.list {
		if s.list[i].Contains(addr) {
			return true
		}
	}
	if s.all == nil {
		return false
	}
	for _, bits := range s.lengths[family(addr)] {
		prefix, err := addr.Prefix(bits)
		if err != nil {
			return false // it has a zone
		}
		if _, ok := s.all[prefix]; ok {
			return true
		}
	}
	return false
}
