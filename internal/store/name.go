package store

import (
	"fmt"
	"regexp"
	"strings"
)

// DefaultTag is the tag of a name that has none.
const DefaultTag = "default"

const maxNamePart = 128 // bytes of an alias, and of a tag

var (
	aliasPattern = regexp.MustCompile(`^[a-z0-9_-]+$`)
	tagPattern   = regexp.MustCompile(`^[a-z0-9_.-]+$`)
	uuidPattern  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// TemplateName is the name of a template, taken apart. What people write as
// "alias" and as "alias:default" is the same name.
type TemplateName struct {
	Alias string
	Tag   string // never empty
}

// SplitName takes alias[:tag] apart, in lower case. It checks nothing: the alias
// it returns may be an id.
func SplitName(name string) TemplateName {
	alias, tag, _ := strings.Cut(strings.ToLower(name), ":")
	if tag == "" {
		tag = DefaultTag
	}
	return TemplateName{alias, tag}
}

// String is the shortest form: the alias alone with the default tag, else
// alias:tag.
func (n TemplateName) String() string {
	if n.Tag == DefaultTag {
		return n.Alias
	}
	return n.Full()
}

// Full is alias:tag, whatever the tag.
func (n TemplateName) Full() string { return n.Alias + ":" + n.Tag }

// Check returns an error unless a template may be given this name. The rules are
// E2B's. An alias that is a UUID could be taken for a build.
func (n TemplateName) Check() error {
	switch {
	case !aliasPattern.MatchString(n.Alias):
		return fmt.Errorf("name %.140q: use letters, digits, '-' and '_', and after a ':' a tag if you like", n.Alias)
	case uuidPattern.MatchString(n.Alias):
		return fmt.Errorf("name %q: a UUID cannot be a name", n.Alias)
	case len(n.Alias) > maxNamePart:
		return fmt.Errorf("name %.20s…: it may have %d characters", n.Alias, maxNamePart)
	}
	return CheckTag(n.Tag)
}

// CheckTag returns an error unless a template may have this tag. The rules are
// E2B's; a tag that is a UUID could be taken for a build.
func CheckTag(tag string) error {
	switch {
	case !tagPattern.MatchString(tag):
		return fmt.Errorf("tag %.140q: use small letters, digits, '-', '_' and '.'", tag)
	case uuidPattern.MatchString(tag):
		return fmt.Errorf("tag %q: a UUID cannot be a tag", tag)
	case len(tag) > maxNamePart:
		return fmt.Errorf("tag %.20s…: it may have %d characters", tag, maxNamePart)
	}
	return nil
}
