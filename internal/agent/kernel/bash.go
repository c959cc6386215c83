package kernel

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

//go:embed bash/kernel.sh
var bashProgram []byte

// bash starts kernels of the template's own bash. Jupyter's kernel for it is a
// Python process that reads a terminal: it mixes stdout and stderr, and what it
// starts outlives it.
type bash struct {
	spawner *spawn.Spawner
}

func (b bash) start(ctx context.Context, dir string, env []string) (driver, error) {
	path := findExecutable(env, "bash")
	if path == "" {
		return nil, errors.New("the template has no bash: add the package bash to it")
	}
	return program{
		spawner:  b.spawner,
		language: "Bash",
		path:     path,
		args:     []string{"--noprofile", "--rcfile", programPath, "--noediting", "-i"},
		text:     bashProgram,
		encode:   new(bashRequests).encode,
		group:    true,
	}.start(ctx, dir, env)
}

// bashRequests writes requests as commands. Each is a line of its own, because an
// interrupt ends the line.
type bashRequests struct {
	runs int
}

func (b *bashRequests) encode(r request) ([]byte, error) {
	// "|| :" keeps `set -e` of users' code out of ours, and "2>" their `set -x`.
	const end = "{ __tombolo_end %d %s || :; } 2>/dev/null"
	var lines bytes.Buffer
	switch r.Op {
	case "run":
		b.runs++
		fmt.Fprintf(&lines, "{ __tombolo_begin%s || :; } 2>/dev/null\n", bashEntries(r.Env))
		fmt.Fprintf(&lines, "eval %s </dev/null 3>&- 4<&-\n", shellQuote(r.Code))
		fmt.Fprintf(&lines, end, b.runs, "$?")
	case "interrupted":
		fmt.Fprintf(&lines, end, b.runs, "130") // 128 and SIGINT
	case "env":
		fmt.Fprintf(&lines, "{ __tombolo_env%s || :; set +f; } 2>/dev/null", bashEntries(r.Env))
	case "seed":
		seed, err := base64.StdEncoding.DecodeString(r.Seed)
		if err != nil {
			return nil, err
		}
		return []byte(strings.TrimSpace(bashSeed(seed))), nil
	case "warm":
		lines.WriteString(`__tombolo_send '{"t":"warmed"}'`)
	}
	return lines.Bytes(), nil
}

// bashOwn are variables that the shell itself keeps.
var bashOwn = []string{"PWD", "OLDPWD", "SHLVL", "_"}

func bashEntries(env map[string]string) string {
	var entries strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if shellName.MatchString(name) && !slices.Contains(bashOwn, name) {
			entries.WriteString(" " + shellQuote(name+"="+env[name]))
		}
	}
	return entries.String()
}
