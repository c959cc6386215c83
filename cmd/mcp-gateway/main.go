// Command mcp-gateway runs MCP servers inside a sandbox and serves them as one at
// port 50005. The E2B clients start it when Sandbox.create is given `mcp`; the
// template builders call its `pull`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/tombolo-dev/tombolo/internal/mcpgateway"
)

const usage = `mcp-gateway runs MCP servers and serves them as one at http://0.0.0.0:50005/mcp

  mcp-gateway --config JSON    start the servers of the configuration, return when they are ready
  mcp-gateway pull NAME ...    install servers of the catalogue, so that they start at once
  mcp-gateway list             the catalogue

The configuration is an object with a field for each server:

  {"time": {},                                              a name of the catalogue with its keys
   "github/OWNER/REPO": {"runCmd": "…", "installCmd": "…"}, a repository
   "mine": {"command": ["python3", "server.py"]}}           any program that speaks MCP on stdio

Requests need the header Authorization: Bearer TOKEN. The token is the value of
GATEWAY_ACCESS_TOKEN, or a random one without it; it is kept in ` + mcpgateway.TokenFile + `.
`

// pullPatience is how long installing may take in all.
const pullPatience = 20 * time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mcp-gateway:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("mcp-gateway", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	config := flags.String("config", "", "")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Print(usage)
		return nil
	} else if err != nil {
		return fmt.Errorf("%w; see mcp-gateway --help", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch command := flags.Arg(0); {
	case command == "" && *config != "":
		return mcpgateway.Launch(ctx, *config)
	case command == "serve" && flags.NArg() == 1: // what Launch starts
		return mcpgateway.ServeLaunched(ctx)
	case command == "pull" && flags.NArg() > 1:
		ctx, cancel := context.WithTimeout(ctx, pullPatience)
		defer cancel()
		return mcpgateway.Pull(ctx, flags.Args()[1:], func(line string) { fmt.Println(line) })
	case command == "list" && flags.NArg() == 1:
		fmt.Println(strings.Join(mcpgateway.Describe(), "\n"))
		return nil
	default:
		fmt.Fprint(os.Stderr, usage)
		return errors.New("nothing of this was asked for")
	}
}
