package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// ParseAction reads an action in the words that people use:
//
//	egress https://api.example.com/v1/x POST    a request; GET where no method is given
//	egress api.example.com:8443 POST /v1/x      the same on another port
//	egress github.com:22                        a connection, of which no request is known yet
//	egress tcp github.com:22                    one of which no request is seen: TLS that passes unseen, or neither TLS nor HTTP
//	egress udp 1.1.1.1:53                       datagrams
//	egress api.example.com                      a name, whatever comes of it
//	egress ?:443 at 192.0.2.7                   a connection to an address whose name is not known yet
//	secret github https://api.github.com/user Authorization
//	exec "rm -rf /"                             also: exec user=root cwd=/srv language=python "…"
//	file-out /home/user/x                       also: file-out volume=ID /x, of a volume by its token
//	port 8080
//	lifetime 2h
//	resources 4 8GiB
//	snapshot fork                               also: snapshot fork 3, snapshot snapshot my-name
//
// Of a connection or request by name, "at ADDRESS" tells the address; without it that is
// unknown. One argument is taken apart at spaces, with quotes as in a shell or in Go;
// several are taken as they are.
func ParseAction(words ...string) (Action, error) {
	said, err := strings.Join(words, " "), error(nil)
	if len(words) == 1 {
		words, err = split(words[0])
	}
	var a Action
	if err == nil {
		a, err = parseWords(words)
	}
	if err != nil {
		return Action{}, fmt.Errorf("action %.100q: %w", said, err)
	}
	return a, nil
}

func parseWords(words []string) (Action, error) {
	if len(words) == 0 {
		return Action{}, errors.New("say what it is: " + join(Kinds) + ", and of what")
	}
	parse, ok := parsers[Kind(words[0])]
	if !ok {
		return Action{}, fmt.Errorf("there is no kind %.40q; use %s", words[0], join(Kinds))
	}
	a := Action{Kind: Kind(words[0])}
	return a, parse(&a, words[1:])
}

var parsers = map[Kind]func(*Action, []string) error{
	Egress: parseEgress, Secret: parseSecret, Exec: parseExec, FileOut: parseFileOut, Port: parsePortAction,
	Lifetime: parseLifetime, Resources: parseResources, Snapshot: parseSnapshot,
}

func parseEgress(a *Action, words []string) error {
	rest, err := parseTarget(a, words)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%.40q is one word too many", rest[0])
	}
	return err
}

func parseSecret(a *Action, words []string) error {
	if len(words) < 3 {
		return errors.New("say the name of the secret, where it goes and the header, as in: secret github https://api.github.com/user Authorization")
	}
	header, at := words[len(words)-1], words[:0:0]
	if n := len(words) - 2; words[n] == "at" && n > 2 {
		header, at = words[n-1], words[n:]
		words = words[:n]
	}
	rest, err := parseTarget(a, append(append(at[:0:0], words[1:len(words)-1]...), at...))
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%.40q is one word too many", rest[0])
	}
	if a.Secret = words[0]; a.Secret == "" {
		return errors.New("the name of the secret is empty")
	}
	if header == "" {
		return nil
	}
	a.Header, err = headerTarget(header)
	return err
}

// parseTarget reads where a connection or request goes, and returns the words after it.
func parseTarget(a *Action, words []string) (rest []string, err error) {
	protocol := ""
	if len(words) > 0 && (words[0] == "tcp" || words[0] == "udp") {
		protocol, words = words[0], words[1:]
	}
	if len(words) == 0 {
		return nil, errors.New("say where to: a URL, a name or an address, with :PORT")
	}
	if n := len(words) - 2; n > 0 && words[n] == "at" {
		if a.Address, err = ParseAddress(words[n+1]); err != nil {
			return nil, err
		}
		words = words[:n]
	}
	target, rest := words[0], words[1:]
	if strings.Contains(target, "://") {
		if protocol != "" {
			return nil, errors.New("a URL is without tcp or udp before it")
		}
		return parseURL(a, target, rest)
	}
	if err := parseHostPort(a, target, protocol); err != nil {
		return nil, err
	}
	return parseRequest(a, rest)
}

func parseURL(a *Action, raw string, rest []string) ([]string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Opaque != "" || u.User != nil {
		return nil, fmt.Errorf("%.80q is not a URL such as https://api.example.com/v1/x", raw)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	if err := parseHost(a, strings.TrimSuffix(strings.TrimPrefix(u.Hostname(), "["), "]")); err != nil {
		return nil, err
	}
	a.Protocol, a.Method = "tcp", "GET"
	if a.Port, err = parsePort(port); err != nil {
		return nil, err
	}
	a.Path = path.Clean("/" + u.Path)
	if len(rest) > 0 {
		if !isToken(rest[0]) {
			return nil, fmt.Errorf("method %.40q: use the name of a method, such as POST", rest[0])
		}
		a.Method, rest = strings.ToUpper(rest[0]), rest[1:]
	}
	return rest, nil
}

// parseHostPort reads "name", "name:port", "address:port", "[address]:port" and what
// has "?" in place of the name.
func parseHostPort(a *Action, target, protocol string) error {
	host, port := target, ""
	if _, err := netip.ParseAddr(target); err != nil {
		if i := strings.LastIndexByte(target, ':'); i >= 0 && !strings.HasSuffix(target, "]") {
			host, port = target[:i], target[i+1:]
			if port == "" {
				return fmt.Errorf("%.80q: the port is missing", target)
			}
		}
	}
	if err := parseHost(a, strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err != nil {
		return err
	}
	a.Unknown |= RequestField
	if port == "" {
		if protocol != "" {
			return fmt.Errorf("%.80q: say the port, as in %s %s:443", target, protocol, host)
		}
		a.Unknown |= PortField
		return nil
	}
	a.Protocol = protocol
	if protocol == "" {
		a.Protocol = "tcp"
	}
	if protocol != "" {
		a.Unknown &^= RequestField
	}
	var err error
	a.Port, err = parsePort(port)
	return err
}

// parseHost reads a name, an address, or "?" for a name not known yet.
func parseHost(a *Action, host string) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		if a.Address.IsValid() {
			return errors.New("there are two addresses")
		}
		a.Address, err = ParseAddress(addr.String())
		return err
	}
	if !a.Address.IsValid() {
		a.Unknown |= AddressField
	}
	if host == "?" {
		a.Unknown |= HostField
		return nil
	}
	var err error
	a.Host, err = NormalHost(host)
	return err
}

// parseRequest reads "METHOD /path", where it is there.
func parseRequest(a *Action, rest []string) ([]string, error) {
	switch {
	case len(rest) == 0:
		return nil, nil
	case a.Unknown&PortField != 0:
		return nil, fmt.Errorf("say the port, as in %s:443", rest[0])
	case len(rest) > 1 && a.Protocol == "tcp" && isToken(rest[0]) && strings.HasPrefix(rest[1], "/"):
		a.Unknown &^= RequestField
		a.Method, a.Path = strings.ToUpper(rest[0]), path.Clean(rest[1])
		return rest[2:], nil
	}
	return rest, nil
}

func parseExec(a *Action, words []string) error {
	options := map[string]*string{"user": &a.User, "cwd": &a.Cwd, "language": &a.Language, "env": &a.Env, "input": &a.Input}
	for len(words) > 1 {
		name, value, ok := strings.Cut(words[0], "=")
		option := options[name]
		if !ok || option == nil {
			break
		}
		if *option != "" || value == "" {
			return fmt.Errorf("%s= is given twice, or is empty", name)
		}
		*option, words = value, words[1:]
	}
	if len(words) == 0 {
		return errors.New("say the command, in quotes")
	}
	a.Command = strings.Join(words, " ")
	return nil
}

func parseFileOut(a *Action, words []string) error {
	if len(words) > 1 {
		if id, is := strings.CutPrefix(words[0], "volume="); is && id != "" {
			a.Name, words = id, words[1:]
		}
	}
	file, err := single(words, "the file")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(file, "/") || strings.ContainsRune(file, 0) {
		return fmt.Errorf("file %.80q: use an absolute path", file)
	}
	a.File = path.Clean(file)
	return nil
}

func parsePortAction(a *Action, words []string) error {
	port, err := single(words, "the port")
	if err == nil {
		a.Port, err = parsePort(port)
	}
	return err
}

func parseLifetime(a *Action, words []string) error {
	text, err := single(words, "the duration")
	if err != nil {
		return err
	}
	if a.Timeout, err = time.ParseDuration(text); err != nil || a.Timeout <= 0 {
		return fmt.Errorf("duration %.40q: use one such as 90m or 2h", text)
	}
	return nil
}

func parseResources(a *Action, words []string) (err error) {
	if len(words) != 2 {
		return errors.New("say the processors and the memory, as in: resources 4 8GiB")
	}
	if a.CPUs, err = strconv.Atoi(words[0]); err != nil || a.CPUs < 1 {
		return fmt.Errorf("processors %.40q: use a whole number", words[0])
	}
	a.MemoryBytes, err = parseAnySize(words[1])
	return err
}

// parseAnySize also reads the bytes that formatSize writes.
func parseAnySize(text string) (int64, error) {
	if digits, ok := strings.CutSuffix(text, "B"); ok && strings.Trim(digits, "0123456789") == "" {
		return strconv.ParseInt(digits, 10, 64)
	}
	return parseSize(text)
}

func parseSnapshot(a *Action, words []string) (err error) {
	if len(words) == 0 || len(words) > 2 {
		return errors.New("say snapshot or fork, and at most the name of the snapshot or how many copies")
	}
	if _, err = oneOf("copy", words[:1], "snapshot", "fork"); err != nil {
		return err
	}
	a.Copy = words[0]
	switch {
	case len(words) == 1:
	case a.Copy == "snapshot":
		if a.Name = words[1]; a.Name == "" {
			err = errors.New("the name of the snapshot is empty")
		}
	default:
		if a.Count, err = strconv.Atoi(words[1]); err != nil || a.Count < 1 {
			return fmt.Errorf("copies %.40q: use a whole number", words[1])
		}
	}
	return err
}

func single(words []string, what string) (string, error) {
	if len(words) != 1 {
		return "", fmt.Errorf("say %s, and nothing after it", what)
	}
	return words[0], nil
}

// split takes words apart at spaces. What is in single quotes is taken as it is, in
// double quotes it is read as Go reads it.
func split(text string) (words []string, err error) {
	for {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
		if text == "" {
			return words, nil
		}
		word, rest := text, ""
		switch text[0] {
		case '\'':
			end := strings.IndexByte(text[1:], '\'')
			if end < 0 {
				return nil, errors.New("a quote is not closed")
			}
			word, rest = text[1:1+end], text[end+2:]
		case '"':
			quoted, err := strconv.QuotedPrefix(text)
			if err != nil {
				return nil, errors.New("a quote is not closed, or has an escape that is none")
			}
			rest = text[len(quoted):]
			if word, err = strconv.Unquote(quoted); err != nil {
				return nil, err
			}
		default:
			if end := strings.IndexFunc(text, unicode.IsSpace); end >= 0 {
				word, rest = text[:end], text[end:]
			}
		}
		words, text = append(words, word), rest
	}
}

// String writes the action in words that [ParseAction] reads as the same action, but for
// the digest of a query.
func (a Action) String() string {
	words := []string{string(a.Kind)}
	switch a.Kind {
	case Egress:
		words = append(words, a.targetWords()...)
		words = append(words, a.atWords()...)
	case Secret:
		words = append(append(words, quote(a.Secret)), a.targetWords()...)
		words = append(append(words, quote(a.Header)), a.atWords()...)
	case Exec:
		words = append(words, a.execWords()...)
	case FileOut:
		if a.Name != "" {
			words = append(words, quote("volume="+a.Name))
		}
		words = append(words, quote(a.File))
	case Port:
		words = append(words, strconv.Itoa(int(a.Port)))
	case Lifetime:
		words = append(words, a.Timeout.String())
	case Resources:
		words = append(words, strconv.Itoa(a.CPUs), formatSize(a.MemoryBytes))
	case Snapshot:
		words = append(words, a.Copy)
		if a.Count != 0 {
			words = append(words, strconv.Itoa(a.Count))
		}
		if a.Name != "" {
			words = append(words, quote(a.Name))
		}
	}
	return strings.Join(words, " ")
}

// named tells whether there is something to write in the place of a name other
// than the address.
func (a Action) named() bool { return a.Host != "" || a.Unknown&HostField != 0 }

func (a Action) atWords() []string {
	if !a.named() || a.Unknown&AddressField != 0 || !a.Address.IsValid() {
		return nil
	}
	return []string{"at", a.Address.String()}
}

func (a Action) targetWords() []string {
	host := a.hostWord()
	if a.Unknown&PortField != 0 {
		return []string{strings.Trim(host, "[]")}
	}
	target := host + ":" + strconv.Itoa(int(a.Port))
	switch {
	case a.Protocol == "udp":
		return []string{"udp", target}
	case a.Unknown&RequestField != 0:
		return []string{target}
	case a.Method == "":
		return []string{"tcp", target}
	case a.Unknown&HostField == 0 && (a.Port == 443 || a.Port == 80):
		u := url.URL{Scheme: "https", Host: host, Path: a.Path}
		if a.Port == 80 {
			u.Scheme = "http"
		}
		return []string{quote(u.String()), a.Method}
	}
	return []string{target, a.Method, quote(a.Path)}
}

// hostWord is the name, "?" or the address, in brackets where a port could follow it.
func (a Action) hostWord() string {
	switch {
	case a.Unknown&HostField != 0:
		return "?"
	case a.Host != "":
		return a.Host
	case a.Address.Is6():
		return "[" + a.Address.String() + "]"
	case !a.Address.IsValid():
		return "?"
	}
	return a.Address.String()
}

func (a Action) execWords() (words []string) {
	for _, option := range []struct{ name, value string }{{"user", a.User}, {"cwd", a.Cwd}, {"language", a.Language}, {"env", a.Env}, {"input", a.Input}} {
		if option.value != "" {
			words = append(words, quote(option.name+"="+option.value))
		}
	}
	return append(words, quote(a.Command))
}

// quote puts a word in quotes where split would not read it as one.
func quote(word string) string {
	plain := func(r rune) bool {
		return unicode.IsPrint(r) && r != ' ' && r != '"' && r != '\'' && r != unicode.ReplacementChar
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return strconv.Quote(word)
}
