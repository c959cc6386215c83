package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func newKey() *cobra.Command {
	return group(&cobra.Command{Use: "key", Short: "Create, list and delete API keys"},
		newKeyCreate(), newKeyList(), newKeyDelete())
}

func newKeyCreate() *cobra.Command {
	var asJSON bool
	var maxSandboxes int
	var maxTimeout time.Duration
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a key and print its secret, which is shown only now",
		Args:  cobra.ExactArgs(1),
		RunE: withStore(func(cmd *cobra.Command, records *sqlite.Store, args []string) error {
			if maxSandboxes < 1 {
				return errors.New("--max-sandboxes must be at least 1")
			}
			if maxTimeout < 0 {
				return errors.New("--max-timeout must not be negative")
			}
			key, secret, err := store.NewKey(args[0], time.Now())
			if err != nil {
				return err
			}
			key.MaxSandboxes, key.MaxTimeout = maxSandboxes, maxTimeout
			if err := records.AddKey(cmd.Context(), key); err != nil {
				if errors.Is(err, store.ErrExists) {
					return fmt.Errorf("there is a key named %q already", args[0])
				}
				return err
			}
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
	cmd.Flags().IntVar(&maxSandboxes, "max-sandboxes", store.DefaultMaxSandboxes, "sandboxes the key may have at once")
	cmd.Flags().DurationVar(&maxTimeout, "max-timeout", 0, "longest lifetime of a sandbox; 0 is no limit")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newKeyList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List keys, without their secrets",
		Args:  cobra.NoArgs,
		RunE: withStore(func(cmd *cobra.Command, records *sqlite.Store, _ []string) error {
			keys, err := records.Keys(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if keys == nil {
					keys = []store.Key{}
				}
				return printJSON(keys)
			}
			var rows [][]string
			for _, k := range keys {
				rows = append(rows, []string{k.Name, k.ID, k.Prefix + "…", fmt.Sprint(k.MaxSandboxes), when(k.CreatedAt), when(k.LastUsed)})
			}
			return printTable([]string{"name", "id", "secret", "max sandboxes", "created", "last used"}, rows)
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newKeyDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME|ID",
		Short: "Delete a key: it is refused from now on; its sandboxes live until their timeout",
		Args:  cobra.ExactArgs(1),
		RunE: withStore(func(cmd *cobra.Command, records *sqlite.Store, args []string) error {
			err := records.DeleteKey(cmd.Context(), args[0])
			if errors.Is(err, store.ErrNotFound) {
				return fmt.Errorf("no key %q; `tombolo key list` shows what there is", args[0])
			}
			if err == nil {
				fmt.Printf("deleted %s\n", args[0])
			}
			return err
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
