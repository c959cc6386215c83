package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// networkFlags say what a sandbox made on the command line may reach.
type networkFlags struct {
	offline     bool
	allow, deny []string
}

func (f *networkFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.offline, "offline", false, "no connections out")
	cmd.Flags().StringArrayVar(&f.allow, "allow", nil, "the only destination to reach: a name (ports 80 and 443), *.name, an address or a range; may be repeated")
	cmd.Flags().StringArrayVar(&f.deny, "deny", nil, "address or range not to reach; may be repeated")
	cmd.MarkFlagsMutuallyExclusive("offline", "allow")
	cmd.MarkFlagsMutuallyExclusive("offline", "deny")
	cmd.MarkFlagsMutuallyExclusive("allow", "deny")
}

func (f *networkFlags) options() (sandbox.NetworkOptions, error) {
	options := sandbox.NetworkOptions{DenyInternet: f.offline || len(f.allow) > 0, AllowOut: f.allow, DenyOut: f.deny}
	if _, err := policy.FromNetwork(options.Policy()); err != nil {
		return options, fmt.Errorf("--allow or --deny: %w", err)
	}
	return options, nil
}
