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
	cmd.Flags().StringArrayVar(&f.allow, "allow", nil, "reach this and nothing else: a name or *.name (ports 80 and 443), an address or a range; may be repeated")
	cmd.Flags().StringArrayVar(&f.deny, "deny", nil, "do not reach this address or range; may be repeated")
	cmd.MarkFlagsMutuallyExclusive("offline", "allow")
	cmd.MarkFlagsMutuallyExclusive("offline", "deny")
	cmd.MarkFlagsMutuallyExclusive("allow", "deny")
}

func (f *networkFlags) options() (sandbox.NetworkOptions, error) {
	options := sandbox.NetworkOptions{DenyInternet: f.offline || len(f.allow) > 0, AllowOut: f.allow, DenyOut: f.deny}
	for _, text := range f.deny {
		if _, err := policy.ParsePrefix(text); err != nil {
			return options, fmt.Errorf("--deny %q is no address or range such as 192.0.2.0/24; names are denied by rules, see `tombolo policy`", text)
		}
	}
	if _, err := policy.FromNetwork(options.Policy()); err != nil {
		return options, fmt.Errorf("--allow: %w", err)
	}
	return options, nil
}
