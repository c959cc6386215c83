package cli

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func newKey() *cobra.Command {
	return group(&cobra.Command{Use: "key", Short: "Create, list, change and delete API keys"},
		newKeyCreate(), newKeyList(), newKeyUpdate(), newKeyDelete())
}

// quotaFlags are the flags that set a key's limits.
type quotaFlags struct {
	sandboxes, cpus, snapshots int
	timeout                    time.Duration
	createRate                 float64
	memory, disk               sizeFlag
}

func (f *quotaFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&f.sandboxes, "max-sandboxes", store.DefaultMaxSandboxes, "sandboxes that may run at once")
	flags.DurationVar(&f.timeout, "max-timeout", 0, "how long one run of a sandbox may be, e.g. 1h; 0 is no limit")
	flags.Float64Var(&f.createRate, "max-create-rate", 0, "creates, forks and resumes a second, e.g. 0.5; 0 is no limit")
	flags.IntVar(&f.cpus, "max-cpus", 0, "processors of the sandboxes that run; 0 is no limit")
	flags.Var(&f.memory, "max-memory", "memory of the sandboxes that run, e.g. 8GiB; 0 is no limit")
	flags.Var(&f.disk, "max-disk", "disk that running sandboxes may write and paused ones hold, and as much each for volumes and for templates, snapshots and uploads, e.g. 100GiB; 0 is no limit")
	flags.IntVar(&f.snapshots, "max-snapshots", 0, "snapshots it may have; 0 is no limit")
}

// set puts the limits into a key whose flags were given, or all where all is set.
func (f *quotaFlags) set(cmd *cobra.Command, k *store.Key, all bool) error {
	if err := f.check(); err != nil {
		return err
	}
	for name, set := range map[string]func(){
		"max-sandboxes":   func() { k.MaxSandboxes = f.sandboxes },
		"max-timeout":     func() { k.MaxTimeout = f.timeout },
		"max-create-rate": func() { k.MaxCreateRate = f.createRate },
		"max-cpus":        func() { k.MaxCPUs = f.cpus },
		"max-memory":      func() { k.MaxMemory = int64(f.memory) },
		"max-disk":        func() { k.MaxDisk = int64(f.disk) },
		"max-snapshots":   func() { k.MaxSnapshots = f.snapshots },
	} {
		if all || cmd.Flags().Changed(name) {
			set()
		}
	}
	return nil
}

func (f *quotaFlags) check() error {
	switch {
	case f.sandboxes < 1:
		return errors.New("--max-sandboxes must be at least 1")
	case f.timeout < 0:
		return errors.New("--max-timeout must not be negative")
	case f.createRate < 0 || math.IsNaN(f.createRate) || math.IsInf(f.createRate, 0):
		return errors.New("--max-create-rate must be 0 or more")
	case f.cpus < 0:
		return errors.New("--max-cpus must not be negative")
	case f.snapshots < 0:
		return errors.New("--max-snapshots must not be negative")
	}
	return nil
}

// sizeFlag is a number of bytes, written with a unit.
type sizeFlag image.Size

var _ pflag.Value = new(sizeFlag)

// Set reads a size; 0 needs no unit.
func (f *sizeFlag) Set(text string) error {
	if text == "0" {
		*f = 0
		return nil
	}
	size, err := image.ParseSize(text)
	*f = sizeFlag(size)
	return err
}

func (f *sizeFlag) String() string {
	if *f == 0 {
		return "0"
	}
	return image.Size(*f).String()
}

// Type is what the help calls the value.
func (f *sizeFlag) Type() string { return "size" }

func newKeyCreate() *cobra.Command {
	var asJSON bool
	var quota quotaFlags
	var role roleFlags
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a key and print its secret, which is shown only now",
		Long: `Create a key and print its secret, which is shown only now.

What a key is good for are its roles. A key that makes sandboxes is not one that
approves what they ask for, unless you say --allow-self-approval: give the first to
programs and the second to people.

  tombolo key create agents
  tombolo key create alice --role approve,audit --approves agents`,
		Args: cobra.ExactArgs(1),
		RunE: withChanges(func(cmd *cobra.Command, records *sqlite.Store, t trail, args []string) error {
			key, secret, err := store.NewKey(args[0], time.Now())
			if err != nil {
				return err
			}
			if err := quota.set(cmd, &key, true); err != nil {
				return err
			}
			if err := role.resolve(cmd, records); err != nil {
				return err
			}
			if err := role.set(cmd, &key, true); err != nil {
				return err
			}
			if err := records.AddKey(cmd.Context(), key); err != nil {
				if errors.Is(err, store.ErrExists) {
					return fmt.Errorf("there is a key named %q already; `tombolo key update` changes its limits", args[0])
				}
				return err
			}
			t.changed("key create", key.ID, keyTarget(key))
			if asJSON {
				return printJSON(struct {
					store.Key
					Secret string `json:"key"`
				}{key, secret})
			}
			fmt.Println(secret)
			return nil
		}),
	}
	quota.add(cmd)
	role.add(cmd)
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newKeyUpdate() *cobra.Command {
	var asJSON bool
	var quota quotaFlags
	var role roleFlags
	cmd := &cobra.Command{
		Use:   "update NAME|ID",
		Short: "Change the limits and roles of a key, from its next request on",
		Long: `Change the limits and roles of a key. A running server keeps them from the next
request on; what a key has already stays, even beyond a new limit.`,
		Args: cobra.ExactArgs(1),
		RunE: withChanges(func(cmd *cobra.Command, records *sqlite.Store, t trail, args []string) error {
			if !anyChanged(cmd, "max-") && !role.given(cmd) {
				return errors.New("give one limit or role at least to change, such as --max-sandboxes 20")
			}
			if err := role.resolve(cmd, records); err != nil {
				return err
			}
			key, err := records.UpdateKey(cmd.Context(), args[0], func(k *store.Key) error {
				return errors.Join(quota.set(cmd, k, false), role.set(cmd, k, false))
			})
			if errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("no key %q; `tombolo key list` shows what there is", args[0])
			}
			if err != nil {
				return err
			}
			t.changed("key update", key.ID, keyTarget(key))
			if asJSON {
				return printJSON(key)
			}
			names, err := keyNames(cmd.Context(), records)
			if err != nil {
				return err
			}
			fmt.Printf("changed %s: %s; %s\n", key.Name, roles(key, names), limits(key))
			return nil
		}),
	}
	quota.add(cmd)
	role.add(cmd)
	keepByDefault(cmd)
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// keyTarget is what is recorded of a key: what it may do, and how much.
func keyTarget(k store.Key) target {
	return target{"key": k.ID, "name": k.Name, "roles": k.Roles, "approves": k.Approves, "selfApproval": k.SelfApproval, "limits": limits(k)}
}

// keepByDefault has the help of a command that changes only what is given name no
// defaults.
func keepByDefault(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "int":
			f.DefValue = "0"
		case "string":
			f.DefValue = ""
		case "stringSlice":
			f.DefValue = "[]"
		case "bool":
			f.DefValue = "false"
		}
	})
}

// anyChanged tells whether a flag with this beginning was given.
func anyChanged(cmd *cobra.Command, prefix string) (changed bool) {
	cmd.Flags().Visit(func(f *pflag.Flag) { changed = changed || strings.HasPrefix(f.Name, prefix) })
	return changed
}

func newKeyList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List keys, without their secrets",
		Long: `List keys, without their secrets. "on disk" is what the templates, snapshots and
uploads of a key take, which --max-disk limits; images of recipes are everybody's.`,
		Args: cobra.NoArgs,
		RunE: withStore(func(cmd *cobra.Command, records *sqlite.Store, _ []string) error {
			keys, err := records.Keys(cmd.Context())
			if err != nil {
				return err
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			templates, err := records.Templates(cmd.Context())
			if err != nil {
				return err
			}
			type row struct {
				store.Key
				DiskBytes int64 `json:"diskBytes"`
			}
			all := []row{}
			for _, k := range keys {
				all = append(all, row{k, sandbox.KeptBytes(c.Data, k.ID, templates)})
			}
			if asJSON {
				return printJSON(all)
			}
			names := map[string]string{}
			for _, k := range keys {
				names[k.ID] = k.Name
			}
			var rows [][]string
			for _, k := range all {
				rows = append(rows, []string{k.Name, k.ID, k.Prefix + "…", when(k.CreatedAt), when(k.LastUsed), mebibytes(k.DiskBytes), roles(k.Key, names), limits(k.Key)})
			}
			return printTable([]string{"name", "id", "secret", "created", "last used", "on disk", "roles", "limits"}, rows)
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// limits says what a key may have, leaving out what is without a limit.
func limits(k store.Key) string {
	words := []string{fmt.Sprintf("%d sandboxes", k.MaxSandboxes)}
	for _, limit := range []struct {
		set  bool
		text string
	}{
		{k.MaxTimeout > 0, "timeout " + k.MaxTimeout.String()},
		{k.MaxCreateRate > 0, fmt.Sprintf("%g creates a second", k.MaxCreateRate)},
		{k.MaxCPUs > 0, fmt.Sprintf("%d CPUs", k.MaxCPUs)},
		{k.MaxMemory > 0, image.Size(k.MaxMemory).String() + " memory"},
		{k.MaxDisk > 0, image.Size(k.MaxDisk).String() + " disk"},
		{k.MaxSnapshots > 0, fmt.Sprintf("%d snapshots", k.MaxSnapshots)},
	} {
		if limit.set {
			words = append(words, limit.text)
		}
	}
	return strings.Join(words, ", ")
}

func newKeyDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME|ID",
		Short: "Delete a key, its webhooks and secrets: it is refused from now on; its sandboxes and snapshots stay",
		Args:  cobra.ExactArgs(1),
		RunE: withChanges(func(cmd *cobra.Command, records *sqlite.Store, t trail, args []string) error {
			key, err := findKey(cmd.Context(), records, args[0])
			if err != nil {
				return err
			}
			if err := records.DeleteKey(cmd.Context(), key.ID); err != nil {
				return err
			}
			t.changed("key delete", key.ID, target{"key": key.ID, "name": key.Name})
			fmt.Printf("deleted %s\n", args[0])
			return nil
		}),
	}
}

// withStore opens the records of the data folder for a command.
func withStore(run func(cmd *cobra.Command, records *sqlite.Store, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		records, err := openStore(cmd.Context(), c)
		if err != nil {
			return err
		}
		return errors.Join(run(cmd, records, args), records.Close())
	}
}
