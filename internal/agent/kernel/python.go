package kernel

import (
	"context"
	"embed"
	"errors"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

//go:embed python
var pythonFiles embed.FS

// pythonParts are the files of the program in their order.
var pythonParts = []string{"start", "output", "results", "chart", "memory", "shell", "kernel"}

// Figures become results of the run, unless the sandbox's environment says
// otherwise.
const (
	plotVariable = "MPLBACKEND"
	plotBackend  = "module://matplotlib_inline.backend_inline"
)

// python starts kernels of the template's own python3.
type python struct {
	spawner *spawn.Spawner
	path    string // of the interpreter; empty finds python3 in PATH
}

func (p python) start(ctx context.Context, dir string, env []string) (driver, error) {
	path := p.path
	if path == "" {
		path = findExecutable(env, "python3")
	}
	if path == "" {
		return nil, errors.New("the template has no python3: add the packages python3, ipython and matplotlib-inline to it")
	}
	return program{
		spawner:  p.spawner,
		language: "Python",
		path:     path,
		args:     []string{programPath},
		text:     programText(pythonFiles, "python", ".py", pythonParts),
		defaults: map[string]string{plotVariable: plotBackend},
	}.start(ctx, dir, env)
}
