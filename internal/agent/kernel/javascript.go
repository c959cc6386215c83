package kernel

import (
	"context"
	"embed"
	"errors"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

//go:embed javascript
var javascriptFiles embed.FS

// javascriptParts are the files of the program in their order.
var javascriptParts = []string{"start", "channel", "interrupt", "output", "results", "errors", "source", "modules", "typescript", "memory", "kernel"}

// javascriptBoot runs the program, which has no name that Node could look up.
// By --eval the modules of Node are globals too, as in upstream's kernel.
const javascriptBoot = `new (require("vm").Script)("(function (require, process) {" + require("fs").readFileSync("` + programPath + `", "utf8") + "\n})", ` +
	`{ filename: "tombolo-kernel.js" }).runInThisContext()(require, process)`

// javascript starts kernels of the template's own node.
type javascript struct {
	spawner  *spawn.Spawner
	language string // javascript, or typescript for one that transpiles all
}

func (j javascript) start(ctx context.Context, dir string, env []string) (driver, error) {
	path := findExecutable(env, "node", "nodejs")
	if path == "" {
		return nil, errors.New("the template has no node: add the package nodejs to it")
	}
	return program{
		spawner:  j.spawner,
		language: "JavaScript",
		path:     path,
		args: []string{
			"--input-type=commonjs", "--no-warnings",
			"--expose-internals", // for acorn, Node's own parser of JavaScript
			"--max-semi-space-size=8", "--v8-pool-size=2",
			"--eval", javascriptBoot, j.language,
		},
		text:       programText(javascriptFiles, "javascript", ".js", javascriptParts),
		interrupts: true,
	}.start(ctx, dir, env)
}
