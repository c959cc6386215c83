package tool

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// pgrep lists the processes whose name matches a pattern: -f takes the whole
// command line, -x wants all of it to match, -l and -a show names, -c counts, -i,
// -n, -o as usual. No match is exit code 1.
func pgrep(args []string, proc string, self int, out io.Writer) error {
	var full, exact, names, lines, count, newest, oldest, insensitive bool
	var patterns []string
	for i, arg := range args {
		if arg == "--" {
			patterns = append(patterns, args[i+1:]...)
			break
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			patterns = append(patterns, arg)
			continue
		}
		switch arg {
		case "--full":
			arg = "-f"
		case "--exact":
			arg = "-x"
		}
		for _, letter := range arg[1:] {
			switch letter {
			case 'f':
				full = true
			case 'x':
				exact = true
			case 'l':
				names = true
			case 'a':
				lines = true
			case 'c':
				count = true
			case 'n':
				newest = true
			case 'o':
				oldest = true
			case 'i':
				insensitive = true
			default:
				return unknown(Pgrep, 2, arg)
			}
		}
	}
	if len(patterns) != 1 {
		return exit{2, "give one pattern"}
	}
	pattern := patterns[0]
	if exact {
		pattern = "^(?:" + pattern + ")$"
	}
	if insensitive {
		pattern = "(?i)" + pattern
	}
	matcher, err := regexp.Compile(pattern)
	if err != nil {
		return exit{2, err.Error()}
	}
	found, err := processes(proc)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(p process) bool {
		text := p.name
		if full {
			text = p.line
		}
		return p.pid == self || !matcher.MatchString(text)
	})
	if newest && len(found) > 0 {
		found = found[len(found)-1:]
	}
	if oldest && len(found) > 0 {
		found = found[:1]
	}
	for _, p := range found {
		switch {
		case count:
		case lines:
			fmt.Fprintln(out, p.pid, p.line)
		case names:
			fmt.Fprintln(out, p.pid, p.name)
		default:
			fmt.Fprintln(out, p.pid)
		}
	}
	if count {
		fmt.Fprintln(out, len(found))
	}
	if len(found) == 0 {
		return exit{code: 1}
	}
	return nil
}

type process struct {
	pid        int
	name, line string
}

// processes lists those that run, by number.
func processes(proc string) ([]process, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, err := os.ReadFile(filepath.Join(proc, e.Name(), "comm"))
		if err != nil {
			continue // it is gone
		}
		p := process{pid: pid, name: strings.TrimSuffix(string(name), "\n")}
		p.line = p.name
		if line, err := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline")); err == nil && len(line) > 0 {
			p.line = string(bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte{' '}))
		}
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b process) int { return a.pid - b.pid })
	return found, nil
}
