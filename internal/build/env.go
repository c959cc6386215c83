package build

import (
	"maps"
	"regexp"
	"slices"

	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// defaultPath is the PATH of a stage whose image says none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var variable = regexp.MustCompile(`\$(\w+|\{\w+\})`)

// expand puts the values of variables in the place of their names. With words, text
// is a word of a Dockerfile; without, a name that means nothing stays as it is.
func expand(text string, words bool, env map[string]string) (string, error) {
	if words {
		text, _, err := shell.NewLex('\\').ProcessWord(text, environment(env))
		return text, err
	}
	return variable.ReplaceAllStringFunc(text, func(found string) string {
		name := found[1:]
		if name[0] == '{' {
			name = name[1 : len(name)-1]
		}
		if value, ok := env[name]; ok {
			return value
		}
		return found
	}), nil
}

// environment are variables as buildkit's lexer wants them.
type environment map[string]string

func (e environment) Get(name string) (string, bool) {
	value, ok := e[name]
	return value, ok
}

func (e environment) Keys() []string { return slices.Sorted(maps.Keys(e)) }
