package kernel

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A syntax writes code in one language for what a kernel is to be told between
// runs, which the Jupyter protocol has no message for.
type syntax struct {
	// variables returns code that sets and unsets environment variables.
	variables func(set map[string]string, unset []string) string
	// seed returns code that mixes in randomness; nil where there is nothing to do.
	seed func(entropy []byte) string
	// started says that a kernel's start gives its code the variables. Else it
	// is told them all before the first run.
	started bool
	// values says that a kernel displays the values of its code, so that the last
	// one is to be told from what code displays by itself.
	values bool
	// first is code that has what every run needs loaded.
	first string
}

// syntaxes are by the name of the language that a kernel says it has, in lower
// case. Kernels of other languages have the variables they were started with,
// and none for one run.
var syntaxes = map[string]syntax{
	"python": {variables: pythonVariables, seed: pythonSeed, started: true, first: "1"},
	"r":      {variables: rVariables, seed: rSeed, started: true, values: true, first: "1"},
	"bash":   {variables: bashVariables, seed: bashSeed, started: true, first: ":"},
	// A JVM cannot change its environment: as upstream, they are system properties.
	"java": {variables: javaVariables, first: "1"},
}

func pythonVariables(set map[string]string, unset []string) string {
	// Strings of JSON are strings of Python.
	values, _ := json.Marshal(set)
	names, _ := json.Marshal(append([]string{}, unset...))
	return fmt.Sprintf("__import__('os').environ.update(%s)\n[__import__('os').environ.pop(name, None) for name in %s]\n", values, names)
}

func pythonSeed(entropy []byte) string {
	seed := binary.LittleEndian.Uint64(entropy)
	return fmt.Sprintf("__import__('random').seed(%d)\n"+
		"if 'numpy' in __import__('sys').modules: __import__('numpy').random.seed(%d)\n", seed, uint32(seed))
}

func rVariables(set map[string]string, unset []string) string {
	var code strings.Builder
	if len(set) > 0 {
		code.WriteString("invisible(do.call(Sys.setenv, list(")
		for i, name := range slices.Sorted(maps.Keys(set)) {
			if i > 0 {
				code.WriteString(", ")
			}
			fmt.Fprintf(&code, "%s = %s", rString(name), rString(set[name]))
		}
		code.WriteString(")))\n")
	}
	for _, name := range unset {
		fmt.Fprintf(&code, "invisible(Sys.unsetenv(%s))\n", rString(name))
	}
	return code.String()
}

func rSeed(entropy []byte) string {
	return fmt.Sprintf("set.seed(%dL)\n", int32(binary.LittleEndian.Uint32(entropy)&0x7fffffff))
}

// rString quotes; all but the quote and the backslash stand for themselves.
func rString(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

func bashVariables(set map[string]string, unset []string) string {
	var code strings.Builder
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if shellName.MatchString(name) {
			fmt.Fprintf(&code, "export %s=%s\n", name, shellQuote(set[name]))
		}
	}
	for _, name := range unset {
		if shellName.MatchString(name) {
			fmt.Fprintf(&code, "unset %s\n", name)
		}
	}
	return code.String()
}

func bashSeed(entropy []byte) string {
	return fmt.Sprintf("RANDOM=%d\n", binary.LittleEndian.Uint32(entropy))
}

func javaVariables(set map[string]string, unset []string) string {
	var code strings.Builder
	code.WriteString("{\n")
	for _, name := range slices.Sorted(maps.Keys(set)) {
		fmt.Fprintf(&code, "System.setProperty(%s, %s);\n", javaString(name), javaString(set[name]))
	}
	for _, name := range unset {
		fmt.Fprintf(&code, "System.clearProperty(%s);\n", javaString(name))
	}
	code.WriteString("}\n")
	return code.String()
}

// javaPiece bounds a literal, in UTF-16 units: a class file holds at most 65535
// bytes of one, and each unit may take 3.
const javaPiece = 20000

// javaString quotes; what is not plain ASCII as escapes. Long ones are joined
// when the code runs.
func javaString(s string) string {
	var pieces []string
	var piece strings.Builder
	units := 0
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			piece.WriteByte('\\')
			piece.WriteRune(r)
		case r >= ' ' && r < 0x7f:
			piece.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&piece, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
			units++
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&piece, `\%03o`, r) // \u000a would be a line end in the source
		default:
			fmt.Fprintf(&piece, `\u%04x`, r)
		}
		if units++; units >= javaPiece {
			pieces = append(pieces, `"`+piece.String()+`"`)
			piece.Reset()
			units = 0
		}
	}
	pieces = append(pieces, `"`+piece.String()+`"`)
	if len(pieces) == 1 {
		return pieces[0]
	}
	return `String.join("", ` + strings.Join(pieces, ", ") + `)`
}

// shellName is what a shell can have as the name of a variable. Others reach
// programs only by the environment of a kernel's start.
var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
