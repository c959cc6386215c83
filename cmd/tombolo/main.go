// Tombolo is the whole product in one binary: the server, its command line, the
// engine (gVisor, under the name runsc) and the agent that runs inside sandboxes.
package main

import (
	"os"

	"github.com/tombolo-dev/tombolo/internal/cli"
	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
)

func main() {
	if gvisor.IsRunsc(os.Args[0]) {
		gvisor.Main()
		return
	}
	os.Exit(cli.Main())
}
