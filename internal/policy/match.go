package policy

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Fit says whether a match or a rule fits an action.
type Fit int

// The fits.
const (
	No Fit = iota
	Maybe
	Yes
)

// String is the fit in a word.
func (f Fit) String() string { return [...]string{"no", "maybe", "yes"}[f] }

// Limits on one match.
const (
	maxPattern = 4096 // bytes
	maxEntries = 10_000
)

// Matcher is a [Match] made ready, for actions of one kind. It is safe for
// concurrent use.
type Matcher struct {
	kind  Kind
	needs Fields // what must be known of an action, of what may be unknown

	host       *hostSet
	address    *addressSet
	ports      []portRange
	protocols  []string
	methods    []string
	paths      []pathGlob
	secrets    []textGlob
	headers    []string
	commands   []textGlob
	languages  []string
	users      []string
	files      []pathGlob
	copies     []string
	longerThan time.Duration // 0 is none, as below
	cpusOver   int
	memoryOver int64
}

// portRange holds both its ends.
type portRange struct{ first, last uint16 }

// field is one field of a Match.
type field struct {
	name    string
	kinds   []Kind // that have it
	entries []string
}

var network = []Kind{Egress, Secret}

// fields lists what there is in a Match. A value that is no list is one of one entry.
func (m Match) fields() []field {
	single := func(set bool, value string) []string {
		if !set {
			return nil
		}
		return []string{value}
	}
	return []field{
		{"host", network, m.Host},
		{"address", network, m.Address},
		{"port", []Kind{Egress, Secret, Port}, m.Port},
		{"protocol", network, m.Protocol},
		{"method", network, m.Method},
		{"path", network, m.Path},
		{"secret", []Kind{Secret}, m.Secret},
		{"header", []Kind{Secret}, m.Header},
		{"command", []Kind{Exec}, m.Command},
		{"language", []Kind{Exec}, m.Language},
		{"user", []Kind{Exec}, m.User},
		{"file", []Kind{FileOut}, m.File},
		{"longer-than", []Kind{Lifetime}, single(m.LongerThan != "", m.LongerThan)},
		{"cpus-over", []Kind{Resources}, single(m.CPUsOver != 0, strconv.Itoa(m.CPUsOver))},
		{"memory-over", []Kind{Resources}, single(m.MemoryOver != "", m.MemoryOver)},
		{"copy", []Kind{Snapshot}, m.Copy},
	}
}

// empty tells whether a match says nothing.
func (m Match) empty() bool {
	return !slices.ContainsFunc(m.fields(), func(f field) bool { return f.entries != nil })
}

// Check returns an error unless m can be the match of a rule of that kind.
func (m Match) Check(kind Kind) error {
	_, err := m.Compile(kind)
	return err
}

// Fits tells whether m fits an action as part of a rule of that kind: Maybe when that
// depends on what is unknown. A match that [Match.Check] refuses fits nothing. Who asks
// often keeps what [Match.Compile] returns.
func (m Match) Fits(kind Kind, a Action) Fit {
	matcher, err := m.Compile(kind)
	if err != nil {
		return No
	}
	return matcher.Fits(a)
}

// Compile checks m and makes it ready for rules of a kind.
func (m Match) Compile(kind Kind) (*Matcher, error) {
	if !slices.Contains(Kinds, kind) {
		return nil, fmt.Errorf("kind %.40q: use %s", kind, join(Kinds))
	}
	if err := m.checkFields(kind); err != nil {
		return nil, err
	}
	c := &Matcher{kind: kind}
	for _, add := range []func(Match) error{c.addNetwork, c.addRest, c.addLimits} {
		if err := add(m); err != nil {
			return nil, err
		}
	}
	for _, needed := range []struct {
		by    bool
		field Fields
	}{
		{c.host != nil, HostField},
		{c.address != nil, AddressField},
		{kind != Port && (c.ports != nil || c.protocols != nil), PortField},
		{c.methods != nil || c.paths != nil, RequestField},
		{slices.ContainsFunc(c.languages, isLanguage), LanguageField},
	} {
		if needed.by {
			c.needs |= needed.field
		}
	}
	return c, nil
}

// checkFields refuses what is wrong with any field in the same way.
func (m Match) checkFields(kind Kind) error {
	total := 0
	for _, f := range m.fields() {
		if f.entries == nil {
			continue
		}
		if !slices.Contains(f.kinds, kind) {
			return fmt.Errorf("%s: rules of kind %s have no such matcher; those of kind %s do", f.name, kind, join(f.kinds))
		}
		if len(f.entries) == 0 {
			return fmt.Errorf("%s: the list is empty; name what it is about, or leave it out for all", f.name)
		}
		if total += len(f.entries); total > maxEntries {
			return fmt.Errorf("a match may have %d entries", maxEntries)
		}
		for _, entry := range f.entries {
			if err := checkText(entry, maxPattern); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return nil
}

// checkText refuses what no entry of a list may be.
func checkText(s string, most int) error {
	switch {
	case s == "":
		return errors.New("an entry is empty")
	case len(s) > most:
		return fmt.Errorf("%.20q… is longer than %d bytes", s, most)
	case !utf8.ValidString(s):
		return fmt.Errorf("%.40q is not UTF-8", s)
	case strings.ContainsRune(s, 0):
		return fmt.Errorf("%.40q has a NUL in it", s)
	}
	return nil
}

func (c *Matcher) addNetwork(m Match) (err error) {
	if m.Host != nil {
		if c.host, err = newHostSet(m.Host); err != nil {
			return err
		}
	}
	if m.Address != nil {
		if c.address, err = newAddressSet(m.Address); err != nil {
			return err
		}
	}
	for _, text := range m.Port {
		r, err := parsePorts(text)
		if err != nil {
			return err
		}
		c.ports = append(c.ports, r)
	}
	for _, method := range m.Method {
		if !isToken(method) {
			return fmt.Errorf("method %.40q: use the name of a method, such as POST", method)
		}
		c.methods = append(c.methods, strings.ToUpper(method))
	}
	for _, pattern := range m.Path {
		g, err := newURLPathGlob(pattern)
		if err != nil {
			return err
		}
		c.paths = append(c.paths, g)
	}
	c.protocols, err = oneOf("protocol", m.Protocol, "tcp", "udp")
	return err
}

func (c *Matcher) addRest(m Match) (err error) {
	for _, pattern := range m.Secret {
		c.secrets = append(c.secrets, newTextGlob(pattern))
	}
	for _, name := range m.Header {
		target, err := headerTarget(name)
		if err != nil {
			return err
		}
		c.headers = append(c.headers, target)
	}
	for _, pattern := range m.Command {
		c.commands = append(c.commands, newTextGlob(pattern))
	}
	for _, pattern := range m.File {
		g, err := newPathGlob(pattern)
		if err != nil {
			return err
		}
		c.files = append(c.files, g)
	}
	c.languages, c.users = m.Language, m.User
	c.copies, err = oneOf("copy", m.Copy, "snapshot", "fork")
	return err
}

func (c *Matcher) addLimits(m Match) (err error) {
	if m.LongerThan != "" {
		if c.longerThan, err = time.ParseDuration(m.LongerThan); err != nil || c.longerThan <= 0 {
			return fmt.Errorf("longer-than %.40q: use a duration such as 90m or 2h", m.LongerThan)
		}
	}
	if m.MemoryOver != "" {
		if c.memoryOver, err = parseSize(m.MemoryOver); err != nil || c.memoryOver == 0 {
			return fmt.Errorf("memory-over %.40q: use a size such as 512MiB or 2GiB", m.MemoryOver)
		}
	}
	if m.CPUsOver < 0 {
		return fmt.Errorf("cpus-over %d: use a number from 1 on", m.CPUsOver)
	}
	c.cpusOver = m.CPUsOver
	return nil
}

// oneOf checks that all entries are among what there is.
func oneOf(name string, entries []string, there ...string) ([]string, error) {
	for _, entry := range entries {
		if !slices.Contains(there, entry) {
			return nil, fmt.Errorf("%s %.40q: use %s", name, entry, join(there))
		}
	}
	return entries, nil
}

// join lists words for a message: "a, b and c".
func join[T ~string](words []T) string {
	texts := make([]string, len(words))
	for i, word := range words {
		texts[i] = string(word)
	}
	if len(texts) < 2 {
		return strings.Join(texts, "")
	}
	last := len(texts) - 1
	return strings.Join(texts[:last], ", ") + " or " + texts[last]
}

func parsePorts(text string) (portRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	from, err := parsePort(first)
	to, errTo := parsePort(last)
	if err != nil || errTo != nil || from > to {
		return portRange{}, fmt.Errorf("port %.40q: use a port from 1 to 65535, or a range such as 8000-8099", text)
	}
	return portRange{from, to}, nil
}

// parsePort reads a port without a sign or leading zeros.
func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("port %.40q: use a number from 1 to 65535", text)
	}
	return uint16(n), nil
}

// headerTarget is the normal form of what a secret goes into: the name of a header,
// "?name" for a parameter of the query, or "body".
func headerTarget(name string) (string, error) {
	if parameter, ok := strings.CutPrefix(name, "?"); ok && parameter != "" || name == "body" {
		return name, nil
	}
	if !isToken(name) {
		return "", fmt.Errorf("header %.40q: use the name of a header, ?name for a parameter of the query, or body", name)
	}
	return http.CanonicalHeaderKey(name), nil
}

// isToken tells whether s is a token of HTTP (RFC 9110).
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// Fits tells whether the match fits an action.
func (c *Matcher) Fits(a Action) Fit {
	fit, _ := c.fits(&a, false)
	return fit
}

// fits also tells what must be known when it is Maybe. For the question for a name
// what is said of addresses alone does not fit: see [Set.JudgeName].
func (c *Matcher) fits(a *Action, question bool) (Fit, Fields) {
	unknown := c.needs & a.Unknown
	if a.Kind != c.kind || !c.fitsConnection(a, unknown) || question && c.address != nil && c.host == nil {
		return No, 0
	}
	if unknown&RequestField == 0 && (c.methods != nil && !fitsMethod(c.methods, a.Method) || c.paths != nil && !fitsPath(c.paths, a.Path)) {
		return No, 0
	}
	if slices.Contains(c.languages, a.Language) {
		unknown &^= LanguageField // the context is named
	}
	if a.Kind != Egress && !c.fitsRest(a, unknown) {
		return No, 0
	}
	if unknown != 0 {
		return Maybe, unknown
	}
	return Yes, 0
}

func (c *Matcher) fitsConnection(a *Action, unknown Fields) bool {
	return (c.host == nil || unknown&HostField != 0 || c.host.has(a.Host)) &&
		(c.address == nil || unknown&AddressField != 0 || c.address.has(a.Address.Unmap())) &&
		(unknown&PortField != 0 ||
			(c.ports == nil || slices.ContainsFunc(c.ports, func(r portRange) bool { return r.first <= a.Port && a.Port <= r.last })) &&
				(c.protocols == nil || slices.Contains(c.protocols, a.Protocol)))
}

func (c *Matcher) fitsRest(a *Action, unknown Fields) bool {
	return (c.secrets == nil || fitsText(c.secrets, a.Secret)) &&
		(c.headers == nil || slices.Contains(c.headers, a.Header)) &&
		(c.commands == nil || fitsText(c.commands, a.Command)) &&
		(c.languages == nil || unknown&LanguageField != 0 || slices.Contains(c.languages, a.Language)) &&
		(c.users == nil || slices.Contains(c.users, a.User)) &&
		(c.files == nil || fitsPath(c.files, a.File)) &&
		(c.copies == nil || slices.Contains(c.copies, a.Copy)) &&
		(c.longerThan == 0 || a.Timeout > c.longerThan) &&
		(c.cpusOver == 0 || a.CPUs > c.cpusOver) &&
		(c.memoryOver == 0 || a.MemoryBytes > c.memoryOver)
}

// isLanguage tells a language from a context of code, "context ID", whose language is not
// known.
func isLanguage(word string) bool { return !strings.HasPrefix(word, "context ") }

// fitsMethod takes "post" for POST, since servers do.
func fitsMethod(methods []string, method string) bool {
	return slices.ContainsFunc(methods, func(m string) bool { return strings.EqualFold(m, method) })
}

func fitsText(globs []textGlob, text string) bool {
	return slices.ContainsFunc(globs, func(g textGlob) bool { return g.fits(text) })
}

func fitsPath(globs []pathGlob, p string) bool {
	for i := range globs {
		if globs[i].fits(p) {
			return true
		}
	}
	return false
}
