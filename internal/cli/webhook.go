package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/api/e2b"
	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// drainWebhooks is how long the end of the server waits for receivers.
const drainWebhooks = 3 * time.Second

func addWebhookFlag(cmd *cobra.Command) {
	cmd.Flags().Bool("webhook-allow-private", false, "let webhooks reach private addresses and this machine, not public ones only; what serve and webhook commands must agree on")
}

// newWebhookSender makes what sends to webhooks: to the addresses that sandboxes
// may reach, and in-house where the owner says so.
func newWebhookSender(c config) *event.Sender {
	refuse := gateway.NewPublic().Refuses
	if c.WebhookAllowPrivate {
		refuse = event.AllowPrivate(refuse)
	}
	return event.NewSender(event.SenderConfig{Format: e2b.FormatDelivery, Refuse: refuse, UserAgent: "tombolo/" + version()})
}

// closeDeliverer sends what is due before the server ends, if it goes quickly.
func closeDeliverer(ctx context.Context, d *event.Deliverer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWebhooks)
	defer cancel()
	d.Close(ctx)
}

func newWebhook() *cobra.Command {
	return group(&cobra.Command{
		Use:   "webhook",
		Short: "Have events of sandboxes sent to a URL",
		Long: `Have events of a key's sandboxes sent to a URL: created, updated, paused, resumed,
checkpointed, ended, and what waits for an approval or was refused. The server sends
them; a webhook may be made while it runs or
not. Deliveries are signed, tried 8 times within about 8 hours, and survive the
server.`,
	}, newWebhookList(), newWebhookCreate(), newWebhookUpdate(), newWebhookDelete(), newWebhookDeliveries(), newWebhookTest())
}

// withWebhooks opens the rules for webhooks over the records of the data folder.
func withWebhooks(run func(cmd *cobra.Command, records *sqlite.Store, hooks *event.Webhooks, args []string) error) func(*cobra.Command, []string) error {
	return withStore(func(cmd *cobra.Command, records *sqlite.Store, args []string) error {
		return onWebhooks(cmd, args, records, func(hooks *event.Webhooks) error { return run(cmd, records, hooks, args) })
	})
}

// changingWebhooks is withWebhooks for a command that changes something.
func changingWebhooks(run func(cmd *cobra.Command, records *sqlite.Store, hooks *event.Webhooks, t trail, args []string) error) func(*cobra.Command, []string) error {
	return withChanges(func(cmd *cobra.Command, records *sqlite.Store, t trail, args []string) error {
		return onWebhooks(cmd, args, records, func(hooks *event.Webhooks) error { return run(cmd, records, hooks, t, args) })
	})
}

func onWebhooks(cmd *cobra.Command, args []string, records *sqlite.Store, run func(hooks *event.Webhooks) error) error {
	c, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	sender := newWebhookSender(c)
	defer sender.Close()
	err = run(event.NewWebhooks(records, sender))
	if errors.Is(err, event.ErrNotFound) {
		return fmt.Errorf("no webhook %q; `tombolo webhook list` shows what there is", args[0])
	}
	return err
}

// webhookTarget is what is recorded of a webhook. Of its URL only the host: the rest may be
// what its receiver knows it by.
func webhookTarget(w store.Webhook) target {
	of := target{"webhook": w.ID, "name": w.Name, "events": w.Kinds, "enabled": w.Enabled}
	if u, err := url.Parse(w.URL); err == nil {
		of["host"] = u.Host
	}
	return of
}

func newWebhookList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the webhooks of all keys",
		Args:  cobra.NoArgs,
		RunE: withWebhooks(func(cmd *cobra.Command, records *sqlite.Store, hooks *event.Webhooks, _ []string) error {
			list, err := hooks.List(cmd.Context(), "")
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(append([]store.Webhook{}, list...))
			}
			names, err := keyNames(cmd.Context(), records)
			if err != nil {
				return err
			}
			var rows [][]string
			for _, w := range list {
				rows = append(rows, []string{w.ID, w.Name, cmp.Or(names[w.KeyID], "(all)"), w.URL, strings.Join(w.Kinds, ","), health(w)})
			}
			return printTable([]string{"id", "name", "key", "url", "events", "state"}, rows)
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// health says whether a webhook is used and how it does.
func health(w store.Webhook) string {
	switch {
	case w.DisabledReason != "":
		return "disabled: " + w.DisabledReason
	case !w.Enabled:
		return "disabled"
	case w.Failures > 0:
		return fmt.Sprintf("fails since %s (%d attempts)", when(w.FailingSince), w.Failures)
	}
	return "enabled"
}

func keyNames(ctx context.Context, records *sqlite.Store) (map[string]string, error) {
	keys, err := records.Keys(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, k := range keys {
		names[k.ID] = k.Name
	}
	return names, nil
}

// specFlags are the flags that say what a webhook is.
type specFlags struct {
	name, url, secret string
	events            []string
	enabled           bool
}

func (f *specFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "name", "webhook", "name, for people")
	cmd.Flags().StringVar(&f.secret, "secret", "", "what deliveries are signed with, 8 bytes at least")
	cmd.Flags().StringSliceVar(&f.events, "events", event.Lifecycle, "events it gets, joined by commas: "+strings.Join(event.Kinds, ", "))
	addWebhookFlag(cmd)
}

// spec is what those flags say that were given.
func (f *specFlags) spec(cmd *cobra.Command) event.Spec {
	given := cmd.Flags().Changed
	var spec event.Spec
	if given("name") {
		spec.Name = &f.name
	}
	if given("url") {
		spec.URL = &f.url
	}
	if given("secret") {
		spec.Secret = &f.secret
	}
	if given("events") {
		spec.Kinds = &f.events
	}
	if given("enabled") {
		spec.Enabled = &f.enabled
	}
	return spec
}

func newWebhookCreate() *cobra.Command {
	var asJSON bool
	var flags specFlags
	var key string
	var allKeys bool
	cmd := &cobra.Command{
		Use:   "create URL",
		Short: "Create a webhook and print its id",
		Long: `Create a webhook and print its id, and its secret where you gave none: it is shown
only now. With --all-keys it is told of the sandboxes of all keys, which is for the
owner of the server only: a chat bridge for approvals, for instance.`,
		Args: cobra.ExactArgs(1),
		RunE: changingWebhooks(func(cmd *cobra.Command, records *sqlite.Store, hooks *event.Webhooks, t trail, args []string) error {
			var owner store.Key // of none: of all
			if !allKeys {
				var err error
				if owner, err = findKey(cmd.Context(), records, key); err != nil {
					return err
				}
			}
			if flags.secret == "" {
				flags.secret = newWebhookSecret()
			}
			spec := event.Spec{Name: &flags.name, URL: &args[0], Kinds: &flags.events, Secret: &flags.secret}
			w, err := hooks.Create(cmd.Context(), owner.ID, spec)
			if err != nil {
				return err
			}
			t.changed("webhook create", w.KeyID, webhookTarget(w))
			if asJSON {
				return printJSON(struct {
					store.Webhook
					Secret string `json:"secret"`
				}{w, flags.secret})
			}
			fmt.Println(w.ID)
			if !cmd.Flags().Changed("secret") {
				fmt.Printf("secret: %s\n", flags.secret)
			}
			return nil
		}),
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&key, "key", "default", "name or id of the key whose sandboxes it is told of")
	cmd.Flags().BoolVar(&allKeys, "all-keys", false, "tell it of the sandboxes of all keys")
	cmd.MarkFlagsMutuallyExclusive("key", "all-keys")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newWebhookSecret() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b)
}

// findKey finds a key by id or name.
func findKey(ctx context.Context, records *sqlite.Store, idOrName string) (store.Key, error) {
	keys, err := records.Keys(ctx)
	if err != nil {
		return store.Key{}, err
	}
	for _, is := range []func(store.Key) bool{
		func(k store.Key) bool { return k.ID == idOrName },
		func(k store.Key) bool { return k.Name == idOrName },
	} {
		if i := slices.IndexFunc(keys, is); i >= 0 {
			return keys[i], nil
		}
	}
	return store.Key{}, fmt.Errorf("no key %q; `tombolo key list` shows what there is, `tombolo serve` makes the key default", idOrName)
}

func newWebhookUpdate() *cobra.Command {
	var asJSON bool
	var flags specFlags
	cmd := &cobra.Command{
		Use:   "update ID",
		Short: "Change a webhook, or enable it again",
		Args:  cobra.ExactArgs(1),
		RunE: changingWebhooks(func(cmd *cobra.Command, _ *sqlite.Store, hooks *event.Webhooks, t trail, args []string) error {
			w, err := hooks.Update(cmd.Context(), "", args[0], flags.spec(cmd))
			if err != nil {
				return err
			}
			t.changed("webhook update", w.KeyID, webhookTarget(w))
			if asJSON {
				return printJSON(w)
			}
			fmt.Printf("changed %s\n", w.ID)
			return nil
		}),
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&flags.url, "url", "", "where to send events")
	cmd.Flags().BoolVar(&flags.enabled, "enabled", true, "send events; --enabled=false stops it")
	keepByDefault(cmd)
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newWebhookDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete ID",
		Short: "Delete a webhook, what waits for it and its log",
		Args:  cobra.ExactArgs(1),
		RunE: changingWebhooks(func(cmd *cobra.Command, _ *sqlite.Store, hooks *event.Webhooks, t trail, args []string) error {
			if err := hooks.Delete(cmd.Context(), "", args[0]); err != nil {
				return err
			}
			t.changed("webhook delete", "", target{"webhook": args[0]})
			fmt.Printf("deleted %s\n", args[0])
			return nil
		}),
	}
}

func newWebhookDeliveries() *cobra.Command {
	var asJSON bool
	var limit int
	var state string
	cmd := &cobra.Command{
		Use:   "deliveries ID",
		Short: "Show what was sent to a webhook, and what waits, newest first",
		Args:  cobra.ExactArgs(1),
		RunE: withWebhooks(func(cmd *cobra.Command, _ *sqlite.Store, hooks *event.Webhooks, args []string) error {
			if limit < 1 {
				return errors.New("--limit must be at least 1")
			}
			f := store.DeliveryFilter{WebhookID: args[0], Most: limit}
			if state != "" {
				f.States = []store.DeliveryState{store.DeliveryState(state)}
				if !slices.Contains([]store.DeliveryState{store.Pending, store.Delivered, store.Failed, store.Dropped}, f.States[0]) {
					return fmt.Errorf("--state %q: use pending, delivered, failed or dropped", state)
				}
			}
			list, err := hooks.Deliveries(cmd.Context(), "", f)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(append([]store.Delivery{}, list...))
			}
			var rows [][]string
			for _, d := range list {
				rows = append(rows, []string{when(d.CreatedAt), d.EventKind, d.SandboxID, string(d.State), fmt.Sprint(len(d.Attempts)), when(d.NextAt), lastWord(d)})
			}
			return printTable([]string{"queued", "event", "sandbox", "state", "attempts", "next", "last error"}, rows)
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "how many")
	cmd.Flags().StringVar(&state, "state", "", "only those that are pending, delivered, failed or dropped")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// lastWord says what went wrong with a delivery last.
func lastWord(d store.Delivery) string {
	switch {
	case d.Reason != "":
		return d.Reason
	case len(d.Attempts) > 0 && d.Attempts[len(d.Attempts)-1].Error != "":
		return d.Attempts[len(d.Attempts)-1].Error
	}
	return "-"
}

func newWebhookTest() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "test ID",
		Short: "Send a webhook one test event now, and tell what the receiver answers",
		Args:  cobra.ExactArgs(1),
		RunE: withWebhooks(func(cmd *cobra.Command, _ *sqlite.Store, hooks *event.Webhooks, args []string) error {
			attempt, err := hooks.Test(cmd.Context(), "", args[0])
			if err != nil {
				return err
			}
			if asJSON {
				if err := printJSON(attempt); err != nil || attempt.Error == "" {
					return err
				}
				return exitCode(1)
			}
			if attempt.Error != "" {
				return errors.New(attempt.Error)
			}
			fmt.Printf("the receiver answered %d after %s\n", attempt.StatusCode, attempt.Duration.Round(time.Millisecond))
			return nil
		}),
	}
	addWebhookFlag(cmd)
	addJSONFlag(cmd, &asJSON)
	return cmd
}
