package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	ownapi "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// networkFlags say what a sandbox made on the command line may reach.
type networkFlags struct {
	offline     bool
	allow, deny []string
	out, in     sizeFlag
	connections int
	rules       string
}

func (f *networkFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.offline, "offline", false, "no connections out")
	cmd.Flags().StringArrayVar(&f.allow, "allow", nil, "reach this and nothing else: a name or *.name (ports 80 and 443), an address or a range; may be repeated")
	cmd.Flags().StringArrayVar(&f.deny, "deny", nil, "do not reach this address or range; may be repeated")
	cmd.Flags().Var(&f.out, "bandwidth-out", "bytes a second that may go out, e.g. 10MiB (default: no limit)")
	cmd.Flags().Var(&f.in, "bandwidth-in", "bytes a second that may come in")
	cmd.Flags().IntVar(&f.connections, "connections", 0, fmt.Sprintf("TCP connections out that may be open at once (default: %d, the most)", sandbox.MaxConnections))
	cmd.Flags().StringVar(&f.rules, "rules", "", "file of rules of its own that hold from the start, in YAML: default and rules, as below server in a file for policy apply")
	cmd.MarkFlagsMutuallyExclusive("offline", "allow")
	cmd.MarkFlagsMutuallyExclusive("offline", "deny")
	cmd.MarkFlagsMutuallyExclusive("allow", "deny")
}

func (f *networkFlags) options() (sandbox.NetworkOptions, error) {
	options := sandbox.NetworkOptions{
		DenyInternet: f.offline || len(f.allow) > 0, AllowOut: f.allow, DenyOut: f.deny,
		BandwidthOut: int64(f.out), BandwidthIn: int64(f.in), Connections: f.connections,
	}
	if err := options.Check(); err != nil {
		return options, err
	}
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

// table is the table of rules that the sandbox begins with.
func (f *networkFlags) table() (policy.Table, error) {
	if f.rules == "" {
		return policy.Table{}, nil
	}
	data, err := readRules(f.rules)
	if err != nil {
		return policy.Table{}, err
	}
	t, err := policy.ParseTable(data)
	if err != nil {
		return policy.Table{}, fmt.Errorf("%s: %w", f.rules, err)
	}
	return policy.Table{Default: t.Default, Rules: t.Rules}, nil
}

func newSandboxNetwork() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "network ID",
		Short: "Show what a sandbox may reach, what it reached and how much went there, and what was refused",
		Args:  cobra.ExactArgs(1),
		RunE: withServer(func(ctx context.Context, client *control.Client, args []string) error {
			n, err := ownerAPI(client).Network(ctx, args[0])
			if ownapi.HasCode(err, ownapi.CodeNotFound) {
				return fmt.Errorf("%w; `tombolo sandbox list --all` shows those there are and were", err)
			}
			if err != nil {
				return err
			}
			if n.Options = withoutSecrets(n.Options); asJSON {
				return printJSON(n)
			}
			return printNetwork(n)
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func printNetwork(n ownapi.Network) error {
	limit := func(bytes int64) string {
		if bytes == 0 {
			return "no limit"
		}
		return inBytes(uint64(bytes)) + "/s"
	}
	rows := [][]string{
		{"out", limit(n.Options.BandwidthOut)}, {"in", limit(n.Options.BandwidthIn)},
		{"connections", fmt.Sprintf("%d at once", cmp.Or(n.Options.Connections, sandbox.MaxConnections))},
	}
	if p := n.Options.Proxy; p != nil {
		rows = append(rows, []string{"proxy", p.Kind + " " + p.Address})
	}
	for _, list := range []struct {
		name string
		of   []string
	}{{"allowed", n.Options.AllowOut}, {"denied", n.Options.DenyOut}} {
		if len(list.of) > 0 {
			rows = append(rows, []string{list.name, strings.Join(list.of, " ")})
		}
	}
	if n.Options.DenyInternet {
		rows = append(rows, []string{"else", "nothing goes out"})
	}
	if err := printColumns(rows); err != nil {
		return err
	}
	if len(n.Destinations) > 0 {
		var to [][]string
		for _, d := range n.Destinations {
			to = append(to, []string{place(d), d.Protocol, fmt.Sprint(d.Connections), fmt.Sprint(d.Denied), inBytes(d.BytesOut), inBytes(d.BytesIn)})
		}
		fmt.Println()
		if err := printTable([]string{"to", "by", "connections", "denied", "out", "in"}, to); err != nil {
			return err
		}
	}
	if len(n.Refusals) > 0 {
		var refused [][]string
		for _, r := range n.Refusals {
			refused = append(refused, []string{when(r.Time), visible(r.What), r.Rule, visible(r.Reason), r.ID})
		}
		fmt.Println()
		if err := printTable([]string{"refused at", "what", "rule", "why", "id"}, refused); err != nil {
			return err
		}
	}
	for _, h := range n.Holds {
		fmt.Printf("\nit waits for a person: %s (%s, until %s)\n", visible(h.Action.String()), h.ID, when(h.Deadline))
	}
	return nil
}

// place is where a destination is.
func place(d ownapi.Destination) string {
	switch {
	case d.Name != "":
		return fmt.Sprintf("%s:%d", visible(d.Name), d.Port)
	case d.Address.IsValid():
		return netip.AddrPortFrom(d.Address, d.Port).String()
	}
	return "(others)"
}

// inBytes writes a number of bytes as people read it.
func inBytes(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(n), 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}
