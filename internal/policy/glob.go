package policy

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// textGlob is a pattern in which "*" is any run of characters. It is matched in
// time that grows with the text alone, since texts are hostile.
type textGlob struct {
	first, last string   // around the first and the last "*"
	middle      []string // between them, in this order
	exact       bool     // no "*": first is all of it
}

func newTextGlob(pattern string) textGlob {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return textGlob{first: pattern, exact: true}
	}
	g := textGlob{first: parts[0], last: parts[len(parts)-1]}
	for _, part := range parts[1 : len(parts)-1] {
		if part != "" {
			g.middle = append(g.middle, part)
		}
	}
	return g
}

func (g *textGlob) fits(text string) bool {
	if g.exact {
		return text == g.first
	}
	if len(text) < len(g.first)+len(g.last) || !strings.HasPrefix(text, g.first) || !strings.HasSuffix(text, g.last) {
		return false
	}
	text = text[len(g.first) : len(text)-len(g.last)]
	for _, part := range g.middle {
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return true
}

// pathGlob is a pattern of a path: "*" is what is within one element, the element
// "**" is any number of elements, none too.
type pathGlob struct {
	exact    string // the whole path, when it has no "*"
	elements []pathElement
}

type pathElement struct {
	deep bool // "**"
	text textGlob
}

var percentEncoded = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// newURLPathGlob is newPathGlob for paths of requests.
func newURLPathGlob(pattern string) (pathGlob, error) {
	switch {
	case strings.Contains(pattern, "?"):
		return pathGlob{}, fmt.Errorf("path %.80q: a path is matched without the query; leave out what is from '?' on", pattern)
	case percentEncoded.MatchString(pattern):
		return pathGlob{}, fmt.Errorf("path %.80q: write it decoded, without %%", pattern)
	}
	return newPathGlob(pattern)
}

func newPathGlob(pattern string) (pathGlob, error) {
	if err := checkPathPattern(pattern); err != nil {
		return pathGlob{}, fmt.Errorf("path %.80q: %w", pattern, err)
	}
	if !strings.Contains(pattern, "*") {
		return pathGlob{exact: withoutLastSlash(pattern)}, nil
	}
	var g pathGlob
	for element := range elementsOf(pattern) {
		g.elements = append(g.elements, pathElement{deep: element == "**", text: newTextGlob(element)})
	}
	return g, nil
}

func checkPathPattern(pattern string) error {
	if !strings.HasPrefix(pattern, "/") {
		return errors.New("it begins with /")
	}
	if clean := path.Clean(pattern); clean != withoutLastSlash(pattern) {
		return fmt.Errorf("write it as %.80q", clean)
	}
	for element := range elementsOf(pattern) {
		if element != "**" && strings.Contains(element, "**") {
			return errors.New("** is an element by itself, as in /a/**/b")
		}
	}
	return nil
}

// withoutLastSlash makes "/a/" and "/a" one path.
func withoutLastSlash(p string) string {
	if len(p) > 1 {
		return strings.TrimSuffix(p, "/")
	}
	return p
}

// elementsOf goes through the elements of a path; "/" has none.
func elementsOf(p string) func(func(string) bool) {
	return func(yield func(string) bool) {
		p = strings.TrimPrefix(withoutLastSlash(p), "/")
		if p == "" {
			return
		}
		for element := range strings.SplitSeq(p, "/") {
			if !yield(element) {
				return
			}
		}
	}
}

// fits matches element by element. When one does not fit it goes back to the last
// "**" only and lets that take one element more: what is before it fits already.
func (g *pathGlob) fits(p string) bool {
	if g.elements == nil {
		return withoutLastSlash(p) == g.exact
	}
	if !strings.HasPrefix(p, "/") {
		return false
	}
	rest := strings.TrimPrefix(withoutLastSlash(p), "/")
	more := rest != ""
	at, deep, resume := 0, -1, ""
	for more {
		element, after, moreAfter := strings.Cut(rest, "/")
		switch {
		case at < len(g.elements) && g.elements[at].deep:
			deep, resume = at, rest
			at++
		case at < len(g.elements) && g.elements[at].text.fits(element):
			at++
			rest, more = after, moreAfter
		case deep >= 0:
			_, resume, more = strings.Cut(resume, "/")
			at, rest = deep+1, resume
		default:
			return false
		}
	}
	for at < len(g.elements) && g.elements[at].deep {
		at++
	}
	return at == len(g.elements)
}
