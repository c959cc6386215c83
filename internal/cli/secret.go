package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func newSecret() *cobra.Command {
	return group(&cobra.Command{
		Use:   "secret",
		Short: "Keep secrets that sandboxes use and never see",
		Long: `Keep secrets that sandboxes use and never see. Inside there is a placeholder; the value
takes its place in requests to the hosts that the secret is bound to. Values are kept
encrypted and never shown again. A running server follows a change within a second.`,
	}, newSecretSet(), newSecretBind(), newSecretList(), newSecretShow(), newSecretDelete())
}

// openVault opens the secrets of the data folder.
func openVault(ctx context.Context, c config, records *sqlite.Store, log *slog.Logger) (*secret.Vault, error) {
	vault, err := secret.Open(ctx, c.Data, records, log)
	if err != nil {
		return nil, fmt.Errorf("open the secrets: %w", err)
	}
	return vault, nil
}

// secretCommand is one command on the secrets of a key.
type secretCommand struct {
	ctx   context.Context
	vault *secret.Vault
	keyID string
	args  []string
	trail trail // of a command that changes something
}

// withSecrets opens the vault for a command of the key that the flag --key names.
func withSecrets(key *string, run func(c secretCommand) error) func(*cobra.Command, []string) error {
	return withStore(func(cmd *cobra.Command, records *sqlite.Store, args []string) error {
		return onSecrets(cmd, records, trail{}, *key, args, run)
	})
}

// changingSecrets is withSecrets for a command that changes something.
func changingSecrets(key *string, run func(c secretCommand) error) func(*cobra.Command, []string) error {
	return withChanges(func(cmd *cobra.Command, records *sqlite.Store, t trail, args []string) error {
		return onSecrets(cmd, records, t, *key, args, run)
	})
}

func onSecrets(cmd *cobra.Command, records *sqlite.Store, t trail, key string, args []string, run func(c secretCommand) error) error {
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	vault, err := openVault(cmd.Context(), c, records, nil)
	if err != nil {
		return err
	}
	owner, err := findKey(cmd.Context(), records, key)
	if err != nil {
		return err
	}
	err = run(secretCommand{cmd.Context(), vault, owner.ID, args, t})
	if errors.Is(err, secret.ErrNotFound) {
		return fmt.Errorf("the key %q has no secret %q; `tombolo secret list` shows what there is", owner.Name, args[0])
	}
	return err
}

// changed records what a secret is now; its value is in no record.
func (c secretCommand) changed(what string, s secret.Secret) {
	c.trail.changed(what, c.keyID, target{"secret": s.ID, "name": s.Name, "version": s.Version, "bindings": s.Bindings})
}

func addKeyFlag(cmd *cobra.Command, key *string) {
	cmd.Flags().StringVar(key, "key", "default", "name or id of the key that the secret belongs to")
}

// bindingFlags say where a value may go.
type bindingFlags struct{ hosts, methods, paths, in []string }

func (f *bindingFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.hosts, "host", nil, "host that the value may go to, e.g. api.example.com or *.example.com; may be repeated")
	flags.StringSliceVar(&f.methods, "method", nil, "method of requests that may hold it, e.g. POST (default: all)")
	flags.StringSliceVar(&f.paths, "path", nil, "path of requests that may hold it, e.g. /v1/** (default: all)")
	flags.StringSliceVar(&f.in, "in", nil, "where in a request: the name of a header, ?name for a parameter of the query, or body (default: any header)")
}

// bindings are what the flags say; nil when they say nothing.
func (f *bindingFlags) bindings() ([]secret.Binding, error) {
	if len(f.hosts)+len(f.methods)+len(f.paths)+len(f.in) == 0 {
		return nil, nil
	}
	if len(f.hosts) == 0 {
		return nil, errors.New("--host is missing: say which hosts the value may go to")
	}
	return []secret.Binding{{Host: f.hosts, Method: f.methods, Path: f.paths, In: f.in}}, nil
}

func newSecretSet() *cobra.Command {
	var asJSON bool
	var key, prefix string
	var metadata map[string]string
	var where bindingFlags
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Make a secret, or give one another value",
		Long: `Make a secret of this name, or give the one there is another value, which is its new
version. The value is read from a terminal without showing it, or from the standard
input, whose last line break does not count. Where the secret is there already, flags
that are not given leave what it has.`,
		Example: `  tombolo secret set openai --host api.openai.com --in authorization
  printf %s "$TOKEN" | tombolo secret set github --host api.github.com --host github.com --placeholder-prefix ghp_`,
		Args: cobra.ExactArgs(1),
	}
	cmd.RunE = changingSecrets(&key, func(c secretCommand) error {
		bindings, err := where.bindings()
		if err != nil {
			return err
		}
		n := secret.New{Name: c.args[0], Metadata: metadata, Bindings: bindings, PlaceholderPrefix: prefix}
		if n.Value, err = readValue(os.Stdin); err != nil {
			return err
		}
		defer n.Value.Wipe()
		s, err := setSecret(c, n, cmd.Flags().Changed("metadata"))
		if err != nil {
			return err
		}
		c.changed("secret set", s)
		if asJSON {
			return printJSON(s)
		}
		fmt.Printf("%s version %d, inside: %s\n", s.Name, s.Version, s.Placeholder)
		if len(s.Bindings) == 0 {
			fmt.Fprintln(os.Stderr, "it is bound to no host, so its placeholder becomes nothing anywhere; `tombolo secret bind` says where it may go")
		}
		return nil
	})
	addKeyFlag(cmd, &key)
	where.add(cmd)
	cmd.Flags().StringVar(&prefix, "placeholder-prefix", "", "what the placeholder begins with, for programs that look at it, e.g. ghp_; of a new secret only")
	cmd.Flags().Var(pairsFlag{pairs: &metadata}, "metadata", "notes of your own; may be repeated")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// setSecret makes a secret or changes the one of this name.
func setSecret(c secretCommand, n secret.New, metadata bool) (secret.Secret, error) {
	s, err := c.vault.Create(c.ctx, c.keyID, n)
	if !errors.Is(err, secret.ErrExists) {
		return s, err
	}
	if n.PlaceholderPrefix != "" {
		return s, fmt.Errorf("there is a secret %q already, and its placeholder stays what it is: leave out --placeholder-prefix, or delete the secret first", n.Name)
	}
	change := secret.Change{Value: n.Value}
	if metadata {
		change.Metadata = &n.Metadata
	}
	if n.Bindings != nil {
		change.Bindings = &n.Bindings
	}
	return c.vault.Update(c.ctx, c.keyID, n.Name, change)
}

// readValue reads a value from a terminal, without showing it, or to the end of a file.
func readValue(from *os.File) (secret.Value, error) {
	var text []byte
	var err error
	if term.IsTerminal(int(from.Fd())) {
		fmt.Fprint(os.Stderr, "value: ")
		text, err = term.ReadPassword(int(from.Fd()))
		fmt.Fprintln(os.Stderr)
	} else {
		text, err = io.ReadAll(io.LimitReader(from, secret.MaxValue+3)) // too much is refused as that
		text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
	}
	defer clear(text)
	if err != nil {
		return secret.Value{}, fmt.Errorf("read the value: %w", err)
	}
	return secret.NewValue(text), nil
}

func newSecretBind() *cobra.Command {
	var asJSON, also, nowhere bool
	var key string
	var where bindingFlags
	cmd := &cobra.Command{
		Use:   "bind NAME|ID",
		Short: "Say where the value of a secret may go",
		Long: `Say where the value of a secret may go, in place of what was said before; --also adds
to it. Sandboxes that run have it so from then on.`,
		Example: `  tombolo secret bind openai --host api.openai.com --method POST --path '/v1/**'
  tombolo secret bind openai --nowhere`,
		Args: cobra.ExactArgs(1),
	}
	cmd.RunE = changingSecrets(&key, func(c secretCommand) error {
		bindings, err := where.bindings()
		switch {
		case err != nil:
			return err
		case nowhere == (bindings != nil):
			return errors.New("give --host, or --nowhere alone")
		}
		if also {
			old, err := c.vault.Get(c.ctx, c.keyID, c.args[0])
			if err != nil {
				return err
			}
			bindings = append(old.Bindings, bindings...)
		}
		s, err := c.vault.Update(c.ctx, c.keyID, c.args[0], secret.Change{Bindings: &bindings})
		if err != nil {
			return err
		}
		c.changed("secret bind", s)
		if asJSON {
			return printJSON(s)
		}
		fmt.Printf("%s: %s\n", s.Name, whereTo(s))
		return nil
	})
	addKeyFlag(cmd, &key)
	where.add(cmd)
	cmd.Flags().BoolVar(&also, "also", false, "keep what was said before")
	cmd.Flags().BoolVar(&nowhere, "nowhere", false, "let it go nowhere")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// whereTo says the bindings of a secret in a line.
func whereTo(s secret.Secret) string {
	var all []string
	for _, b := range s.Bindings {
		text := strings.Join(b.Host, ",")
		for _, part := range []struct {
			name string
			list []string
		}{{"method", b.Method}, {"path", b.Path}, {"in", b.In}} {
			if len(part.list) > 0 {
				text += " " + part.name + " " + strings.Join(part.list, ",")
			}
		}
		all = append(all, text)
	}
	if all == nil {
		return "nowhere"
	}
	return strings.Join(all, "; ")
}

func newSecretList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the secrets of all keys, without their values",
		Args:  cobra.NoArgs,
		RunE: withStore(func(cmd *cobra.Command, records *sqlite.Store, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			vault, err := openVault(cmd.Context(), c, records, nil)
			if err != nil {
				return err
			}
			list, err := vault.List(cmd.Context(), "")
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(list)
			}
			names, err := keyNames(cmd.Context(), records)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, s := range list {
				rows = append(rows, []string{s.Name, s.ID, names[s.KeyID], fmt.Sprint(s.Version), when(s.UpdatedAt), whereTo(s)})
			}
			return printTable([]string{"name", "id", "key", "version", "changed", "goes to"}, rows)
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newSecretShow() *cobra.Command {
	var asJSON bool
	var key string
	cmd := &cobra.Command{
		Use:   "show NAME|ID",
		Short: "Show a secret without its value",
		Args:  cobra.ExactArgs(1),
	}
	cmd.RunE = withSecrets(&key, func(c secretCommand) error {
		s, err := c.vault.Get(c.ctx, c.keyID, c.args[0])
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(s)
		}
		rows := [][]string{
			{"name", s.Name}, {"id", s.ID}, {"version", fmt.Sprint(s.Version)}, {"placeholder", s.Placeholder},
			{"created", when(s.CreatedAt)}, {"changed", when(s.UpdatedAt)}, {"goes to", whereTo(s)},
		}
		for _, name := range slices.Sorted(maps.Keys(s.Metadata)) {
			rows = append(rows, []string{"metadata " + name, s.Metadata[name]})
		}
		return printColumns(rows)
	})
	addKeyFlag(cmd, &key)
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newSecretDelete() *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use:   "delete NAME|ID",
		Short: "Delete a secret: placeholders of it, in sandboxes too, mean nothing from then on",
		Args:  cobra.ExactArgs(1),
	}
	cmd.RunE = changingSecrets(&key, func(c secretCommand) error {
		s, err := c.vault.Delete(c.ctx, c.keyID, c.args[0])
		if err != nil {
			return err
		}
		c.trail.changed("secret delete", c.keyID, target{"secret": s.ID, "name": s.Name})
		fmt.Printf("deleted %s\n", s.Name)
		return nil
	})
	addKeyFlag(cmd, &key)
	return cmd
}
