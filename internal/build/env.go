package build

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// defaultPath is the PATH of a stage whose image says none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// defaultShell runs commands in the shell form unless the image or SHELL says another.
var defaultShell = []string{"/bin/sh", "-c"}

// contentLex puts variables into the contents of files, where quotes mean nothing.
func contentLex() *shell.Lex {
	lex := shell.NewLex('\\')
	lex.SkipProcessQuotes = true
	return lex
}

// Limits on variables, for a value may name others, and itself, many times.
const (
	// valueBytes bounds one value: it is what Linux takes as one string of a program.
	valueBytes = 128<<10 - 1
	// envBytes and envNames bound the variables in force at one step, ARG and ENV.
	envBytes = 512 << 10
	envNames = 2048
	// seenMost bounds what all steps of a build see together: their variables are kept
	// until they run. nameBytes is what a name takes besides its bytes.
	seenMost  = 64 << 20
	nameBytes = 64
	// dollarsMost is how often a word may have "${", which may stand in one another.
	dollarsMost = 4096
	// patternBytes bounds a word that has patterns, with the values that are put into
	// it: replacing multiplies one by the other.
	patternBytes = 8 << 10
)

var variable = regexp.MustCompile(`\$(\w+|\{\w+\})`)

// expand puts the values of variables in the place of their names. With words, text
// is a word of a Dockerfile; without, a name that means nothing stays as it is.
// Earlier maps win over later ones.
func expand(text string, words bool, env ...map[string]string) (string, error) {
	if words {
		result, err := expandWord(shell.NewLex('\\'), text, valueBytes, env...)
		return result.Result, err
	}
	known := &environment{vars: env, left: valueBytes}
	expanded := variable.ReplaceAllStringFunc(text, func(found string) string {
		name := found[1:]
		if name[0] == '{' {
			name = name[1 : len(name)-1]
		}
		if value, ok := known.Get(name); ok {
			return value
		}
		return found
	})
	if known.left < 0 {
		return "", fmt.Errorf("with its variables %.60q is longer than %d KiB", text, valueBytes>>10)
	}
	return expanded, nil
}

// expandWord puts variables into a word of a Dockerfile: at most so many bytes.
func expandWord(lex *shell.Lex, word string, most int, env ...map[string]string) (shell.ProcessWordResult, error) {
	if strings.Count(word, "${") > dollarsMost {
		return shell.ProcessWordResult{}, fmt.Errorf("%.60q has more than %d variables", word, dollarsMost)
	}
	known, tooLong := &environment{vars: env, left: most}, fmt.Errorf("with its variables %.60q is longer than %d KiB", word, most>>10)
	if patterned.MatchString(word) {
		if err := checkReplacements(word); err != nil {
			return shell.ProcessWordResult{}, err
		}
		known.left = patternBytes - len(word)
		tooLong = fmt.Errorf("with its variables %.60q, some of which have patterns, is longer than %d KiB", word, patternBytes>>10)
	}
	if known.left < 0 {
		return shell.ProcessWordResult{}, tooLong
	}
	result, err := lex.ProcessWordWithMatches(word, known)
	if err == nil && (known.left < 0 || len(result.Result) > most) {
		err = tooLong
	}
	return result, err
}

// What patterns in variables look like; there may be more of it than the lexer sees.
var (
	patterned   = regexp.MustCompile(`(?s)\$\{(?:.|[\p{L}\p{Nd}_]+)[#%/]`)
	replacement = regexp.MustCompile(`(?s)\$\{(?:.|[\p{L}\p{Nd}_]+)/`)
)

// checkReplacements refuses a word in which one ${NAME/pattern/text} may stand in
// another, for then their results multiply.
func checkReplacements(word string) error {
	found := replacement.FindAllStringIndex(word, -1)
	if len(found) < 2 {
		return nil
	}
	for _, one := range found {
		// Without these the "}" that comes next is its end.
		inside, _, _ := strings.Cut(word[one[1]:], "}")
		if strings.ContainsAny(inside, `'"`) || strings.Contains(inside, "${") || strings.HasSuffix(inside, `\`) {
			return fmt.Errorf("%.60q has several ${NAME/pattern/text}, of which one may be in another: set a variable for each", word)
		}
	}
	return nil
}

// environment are variables as buildkit's lexer wants them: what the first map says
// counts. It hands out at most left bytes; it is below zero when more were wanted.
type environment struct {
	vars []map[string]string
	left int
}

func (e *environment) Get(name string) (string, bool) {
	for _, vars := range e.vars {
		value, ok := vars[name]
		if !ok {
			continue
		}
		if e.left -= len(value); e.left < 0 {
			return "", true
		}
		return value, true
	}
	return "", false
}

func (e *environment) Keys() []string {
	var names []string
	for _, vars := range e.vars {
		names = slices.AppendSeq(names, maps.Keys(vars))
	}
	return names
}

// checkEnv refuses more variables than a build keeps.
func checkEnv(env ...map[string]string) error {
	names, bytes := 0, 0
	for _, vars := range env {
		names += len(vars)
		for name, value := range vars {
			bytes += len(name) + len(value)
			if len(value) > valueBytes {
				return fmt.Errorf("the value of %.60s is longer than %d KiB", name, valueBytes>>10)
			}
		}
	}
	if names > envNames || bytes > envBytes {
		return errTooManyVars
	}
	return nil
}

var errTooManyVars = fmt.Errorf("there are too many variables: at most %d, of %d KiB together", envNames, envBytes>>10)
