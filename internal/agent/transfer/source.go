package transfer

import (
	"fmt"
	"path"
	"strings"
)

// source tells which entries of an archive are things of their own, which get a
// place by the destination, and which are content of a folder.
type source struct {
	asked string // what the caller asked to be copied
	name  string // the same, cleaned; "." for the whole archive
	fixed string // the part of name before its first element with a pattern
	each  bool   // every first element of the archive is a thing of its own

	entries int
	bytes   int64
	literal bool            // name is an entry, or entries are below it
	outside string          // an entry that is not below fixed
	things  map[string]bool // by name in the archive; whether it is a folder
}

// patternMarks begin what a pattern is to E2B's clients.
const patternMarks = "*?[{("

// thingsLimit bounds the things of their own of an archive.
const thingsLimit = 10_000

func newSource(asked string) *source {
	name := strings.TrimPrefix(path.Clean("/"+asked), "/")
	if name == "" {
		name = "."
	}
	s := &source{asked: asked, name: name, each: asked == "", fixed: ".", things: map[string]bool{}}
	elements := strings.Split(name, "/")
	for i, element := range elements {
		if strings.ContainsAny(element, patternMarks) {
			break
		}
		s.fixed = path.Join(elements[:i+1]...)
	}
	return s
}

// see takes note of an entry, in the first pass over the archive.
func (s *source) see(name string, folder bool) error {
	if s.each && name == "." {
		s.each, s.things = false, map[string]bool{} // the whole of a file system
	}
	if s.each {
		first, rest, _ := strings.Cut(name, "/")
		s.things[first] = s.things[first] || folder || rest != ""
		if len(s.things) > thingsLimit {
			return fmt.Errorf("the archive holds more than %d things", thingsLimit)
		}
		return nil
	}
	if below, rest := under(name, s.name); below {
		s.literal = true
		s.things[s.name] = s.things[s.name] || folder || rest != "" || s.name == "."
	}
	if below, _ := under(name, s.fixed); !below && s.outside == "" {
		s.outside = name
	}
	return nil
}

// decide closes the first pass.
func (s *source) decide() error {
	switch {
	case s.entries == 0:
		return fmt.Errorf("the archive for %q is empty", s.asked)
	case s.each, s.literal:
		return nil
	case s.fixed == s.name:
		return fmt.Errorf("the archive holds nothing named %q", s.asked)
	case s.outside != "":
		return fmt.Errorf("the archive holds %q, which is not what %q names", s.outside, s.asked)
	}
	// What a pattern names keeps its place below the fixed part, as in E2B.
	s.name = s.fixed
	s.things[s.name] = true
	return nil
}

// split takes the name of an entry apart: the thing it is or belongs to, and the
// path within. ok is false for what the caller did not ask for.
func (s *source) split(name string) (thing, rest string, ok bool) {
	if s.each {
		thing, rest, _ = strings.Cut(name, "/")
		return thing, rest, true
	}
	below, rest := under(name, s.name)
	return s.name, rest, below
}

// under tells whether a path is dir or lies below it, and where.
func under(name, dir string) (below bool, rest string) {
	switch {
	case name == dir:
		return true, ""
	case dir == ".":
		return true, name
	}
	rest, below = strings.CutPrefix(name, dir+"/")
	return below, rest
}
