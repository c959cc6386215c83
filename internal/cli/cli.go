// Package cli is the command line. It wires the packages together, prints, and
// maps errors to exit codes; what the product does is elsewhere.
package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// exitCode is an error that only carries the exit code of a command that ran in a
// sandbox.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Main runs the command line and returns the exit code: that of the command run
// inside where there is one, 1 for an error, 0 else.
func Main() int {
	// Whatever descriptors the parent left open are not for our children.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tombolo:", err)
		return 1
	}
	return 0
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "tombolo",
		Short: "A sandbox cloud on your own machine",
		Long: `Tombolo runs code that AI agents write in sandboxes on this machine: isolated by
gVisor, limited, watched and disposable. It speaks E2B's protocol, so the official
E2B clients work against it unchanged.

  tombolo serve &                         start the server
  eval "$(tombolo env)"                   point the E2B clients to it
  tombolo run -- python3 -c 'print(42)'   one command in a throw-away sandbox

Settings come from flags, then from TOMBOLO_* variables (TOMBOLO_DATA for --data),
then from tombolo.yaml in the current folder or in /etc/tombolo.`,
		PersistentPreRun: func(*cobra.Command, []string) { warnOfVariables(os.Environ(), os.Stderr) },

		SilenceErrors: true,
		SilenceUsage:  true,
	}
	addConfigFlags(root)
	root.SetFlagErrorFunc(seeHelp)
	root.AddCommand(
		newServe(), newEnv(), newRun(), newSandbox(), newTemplate(), newPrune(), newVolume(), newSecret(), newKey(), newPolicy(), newApprovals(), newWebhook(), newAudit(), newTLS(), newDoctor(), newVersion(),
	)
	explainArgs(root)
	return root
}

// explainArgs has the commands below cmd say where to look when they are given the
// wrong number of arguments.
func explainArgs(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		explainArgs(below)
		if check := below.Args; check != nil {
			below.Args = func(cmd *cobra.Command, args []string) error { return seeHelp(cmd, check(cmd, args)) }
		}
	}
}

// seeHelp adds the way to the help to an error about a command's use.
func seeHelp(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())
}

// group is a command that only has commands below it. Without one it prints its
// help; a wrong one is an error.
func group(cmd *cobra.Command, below ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(below...)
	return cmd
}
