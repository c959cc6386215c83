package intercept

import (
	"errors"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxDecodings is how often a path is decoded to look for what hides in it. One that
// is still encoded then is refused.
const maxDecodings = 4

var (
	errPathForm    = errors.New("the path does not begin with a slash")
	errPathDots    = errors.New("the path has a dot segment, which servers read in different ways: send it resolved")
	errPathSlash   = errors.New("the path has a backslash, which servers read in different ways")
	errPathControl = errors.New("the path has a control character")
	errPathText    = errors.New("the path is not UTF-8")
	errPathDepth   = errors.New("the path is percent-encoded many times over")
)

// judgedPath is the path that a request is judged by: decoded once and cleaned. It is
// an error when servers may take the path for another one than that.
func judgedPath(u *url.URL) (string, error) {
	if u.Path == "*" {
		return "*", nil // of OPTIONS
	}
	if u.Path == "" {
		return "/", nil
	}
	if u.Path[0] != '/' {
		return "", errPathForm
	}
	decoded := u.Path
	for range maxDecodings {
		if err := checkPath(decoded); err != nil {
			return "", err
		}
		// Some servers decode again.
		again, err := url.PathUnescape(decoded)
		if err != nil || again == decoded {
			return path.Clean(u.Path), nil
		}
		decoded = again
	}
	return "", errPathDepth
}

// sentPath is the path of a request as it is sent: as it came, also where net/url would
// write it in another way, and then decode what is encoded in it.
func sentPath(r *http.Request) string {
	came, _, _ := strings.Cut(r.RequestURI, "?")
	if strings.HasPrefix(came, "/") && !strings.HasPrefix(came, "//") {
		return came
	}
	return r.URL.EscapedPath()
}

// otherPaths are the paths besides judged that servers may take a checked one for. raw is
// what they are sent, decoded is it once decoded.
func otherPaths(raw, decoded, judged string) (others []string) {
	add := func(p string) {
		if p = path.Clean(p); p != judged && !slices.Contains(others, p) {
			others = append(others, p)
		}
	}
	if !strings.Contains(raw, "%") || judged == "*" {
		return nil
	}
	letters := strings.NewReplacer("%2f", "%252F", "%2F", "%252F").Replace(raw)
	if p, err := url.PathUnescape(letters); err == nil {
		add(p)
	}
	for {
		again, err := url.PathUnescape(decoded)
		if err != nil || again == decoded {
			return others
		}
		add(again)
		decoded = again
	}
}

func checkPath(p string) error {
	if !utf8.ValidString(p) {
		return errPathText
	}
	if strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errPathControl
	}
	if strings.ContainsRune(p, '\\') {
		return errPathSlash
	}
	for segment := range strings.SplitSeq(p, "/") {
		// Some servers cut parameters off before they look at the segment.
		segment, _, _ = strings.Cut(segment, ";")
		if segment == "." || segment == ".." {
			return errPathDots
		}
	}
	return nil
}
