package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func newSandbox() *cobra.Command {
	return group(&cobra.Command{Use: "sandbox", Short: "List, create, use, pause, copy and kill sandboxes of the running server"},
		newSandboxList(), newSandboxCreate(), newSandboxExec(), newSandboxLogs(), newSandboxMetrics(), newSandboxNetwork(),
		newSandboxPause(), newSandboxResume(), newSandboxTimeout(), newSandboxFork(), newSandboxSnapshot(), newSandboxKill())
}

// shownSandbox is a sandbox as it is printed.
type shownSandbox struct {
	sandbox.Info
	DenyInternet bool `json:"denyInternet,omitempty"` // where scripts look for it since before there was network
}

// show leaves out the tokens, and what may be one: what is printed may be kept in logs.
func show(info sandbox.Info) shownSandbox {
	info.AccessToken, info.TrafficToken = "", ""
	info.Network = withoutSecrets(info.Network)
	return shownSandbox{Info: info, DenyInternet: info.Network.DenyInternet}
}

// hidden stands for a value that is not printed.
const hidden = "…"

// withoutSecrets are options without the password of the proxy and the values of headers
// but those that only name a secret.
func withoutSecrets(o sandbox.NetworkOptions) sandbox.NetworkOptions {
	if o.Proxy != nil {
		proxy := *o.Proxy
		proxy.Password = ""
		o.Proxy = &proxy
	}
	headers := make([]sandbox.HostHeaders, len(o.Headers))
	for i, of := range o.Headers {
		headers[i] = sandbox.HostHeaders{Host: of.Host, Headers: map[string]string{}}
		for name, value := range of.Headers {
			if !secret.Refers(value) {
				value = hidden
			}
			headers[i].Headers[name] = value
		}
	}
	o.Headers = headers
	return o
}

func showAll(infos []sandbox.Info) []shownSandbox {
	shown := make([]shownSandbox, len(infos)) // an empty list is [], not null
	for i, info := range infos {
		shown[i] = show(info)
	}
	return shown
}

func newSandboxList() *cobra.Command {
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the sandboxes of all keys, running and paused",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all {
				return withStore(func(cmd *cobra.Command, records *sqlite.Store, _ []string) error {
					return listRecords(cmd.Context(), records, asJSON)
				})(cmd, args)
			}
			return withServer(func(ctx context.Context, client *control.Client, _ []string) error {
				infos, err := client.List(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(showAll(infos))
				}
				var rows [][]string
				for _, s := range infos {
					ends, note := when(s.EndAt), s.Reason
					if s.State == sandbox.Paused {
						ends, note = "-", strings.TrimSuffix("since "+when(s.EndAt)+": "+s.Reason, ": ")
					}
					rows = append(rows, []string{s.ID, s.TemplateName, string(s.State), when(s.StartedAt), ends, note})
				}
				return printTable([]string{"id", "template", "state", "started", "ends", "note"}, rows)
			})(cmd, args)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that ended in the last day, and why (needs no server)")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// listRecords prints what the store has of sandboxes, living and ended.
func listRecords(ctx context.Context, records *sqlite.Store, asJSON bool) error {
	ended, err := records.Sandboxes(ctx, true)
	if err != nil {
		return err
	}
	live, err := records.Sandboxes(ctx, false)
	if err != nil {
		return err
	}
	type row struct {
		ID        string    `json:"id"`
		Template  string    `json:"template"`
		State     string    `json:"state"`
		Reason    string    `json:"reason,omitempty"`
		StartedAt time.Time `json:"startedAt"`
		EndedAt   time.Time `json:"endedAt,omitzero"`
	}
	list := []row{}
	for _, s := range append(ended, live...) {
		list = append(list, row{s.ID, s.TemplateName, s.State, s.Reason, s.StartedAt, s.EndedAt})
	}
	if asJSON {
		return printJSON(list)
	}
	var rows [][]string
	for _, s := range list {
		rows = append(rows, []string{s.ID, s.Template, s.State, when(s.StartedAt), when(s.EndedAt), s.Reason})
	}
	return printTable([]string{"id", "template", "state", "started", "ended", "reason"}, rows)
}

func newSandboxCreate() *cobra.Command {
	var asJSON, autoResume, private bool
	var network networkFlags
	var template, onTimeout, key string
	var timeout time.Duration
	var env, metadata map[string]string
	var mounts []string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a sandbox and print its id",
		Long: `Create a sandbox of a key, with its rules, limits and secrets, and print its id.

A --private sandbox answers on its ports only to requests that have its traffic
token in the header E2B-Traffic-Access-Token. --json prints it, now and never again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			lifecycle, err := parseLifecycle(onTimeout, autoResume)
			if err != nil {
				return err
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			owner, err := defaultKeyID(cmd.Context(), c)
			if cmd.Flags().Changed("key") {
				owner, err = ownerOf(cmd.Context(), c, key, nil)
			}
			if err != nil {
				return err
			}
			volumes, err := parseVolumes(cmd.Context(), c, owner, mounts)
			if err != nil {
				return err
			}
			options, err := network.options()
			if err != nil {
				return err
			}
			rules, err := network.table()
			if err != nil {
				return err
			}
			options.PrivateTraffic = private
			return withServer(func(ctx context.Context, client *control.Client, _ []string) error {
				info, err := client.Create(ctx, sandbox.CreateRequest{
					Template:  template,
					KeyID:     owner,
					Timeout:   timeout,
					EnvVars:   env,
					Metadata:  metadata,
					Lifecycle: lifecycle,
					Network:   options,
					Volumes:   volumes,
					Rules:     rules,
				})
				if err != nil {
					return templateError(err)
				}
				if asJSON {
					shown := show(info)
					shown.TrafficToken = info.TrafficToken
					return printJSON(shown)
				}
				fmt.Println(info.ID)
				return nil
			})(cmd, args)
		},
	}
	cmd.Flags().StringVarP(&template, "template", "t", "base", "template to start from")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "the sandbox ends, or is paused, after this time")
	addEnvVarFlag(cmd, &env)
	cmd.Flags().VarP(pairsFlag{pairs: &metadata}, "metadata", "m", "metadata; may be repeated")
	addVolumeFlag(cmd, &mounts)
	cmd.Flags().StringVar(&onTimeout, "on-timeout", "kill", "what happens after --timeout: kill, or pause, which keeps memory and files")
	cmd.Flags().BoolVar(&autoResume, "auto-resume", false, "let a request to the paused sandbox resume it; needs --on-timeout pause")
	network.add(cmd)
	cmd.Flags().StringVar(&key, "key", "default", "name or id of the key that the sandbox belongs to")
	cmd.Flags().BoolVar(&private, "private", false, "close its ports to requests without its traffic token")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// templateError says what to do when there is no such template.
func templateError(err error) error {
	if errors.Is(err, sandbox.ErrTemplateNotFound) {
		return fmt.Errorf("%w; `tombolo template list` shows what there is, `tombolo template build` makes the default ones", err)
	}
	return err
}

func parseLifecycle(onTimeout string, autoResume bool) (sandbox.Lifecycle, error) {
	pause := onTimeout == "pause"
	if !pause && onTimeout != "kill" {
		return sandbox.Lifecycle{}, fmt.Errorf("--on-timeout %q: use kill or pause", onTimeout)
	}
	if autoResume && !pause {
		return sandbox.Lifecycle{}, errors.New("--auto-resume needs --on-timeout pause: what is killed cannot be resumed")
	}
	return sandbox.Lifecycle{PauseOnTimeout: pause, AutoResume: autoResume}, nil
}

// defaultKeyID is the id of the key that "tombolo env" gives out, so that what
// the command line creates is seen by the clients of that key.
func defaultKeyID(ctx context.Context, c config) (string, error) {
	records, err := openStore(ctx, c)
	if err != nil {
		return "", err
	}
	defer records.Close()
	keys, err := records.Keys(ctx)
	if err != nil {
		return "", err
	}
	for _, k := range keys {
		if k.Name == "default" {
			return k.ID, nil
		}
	}
	return "", nil
}

func newSandboxExec() *cobra.Command {
	var user, cwd string
	cmd := &cobra.Command{
		Use:   "exec [flags] ID -- COMMAND [ARG ...]",
		Short: "Run a command in a sandbox; streams and exit code are the command's",
		Long: `Run a command in a sandbox; streams and exit code are the command's. As the owner of
the machine you start what you like: rules for commands, files and ports are for callers
with keys. The command is in the audit log.`,
		Args: cobra.MinimumNArgs(2),
	}
	cmd.RunE = withServer(func(ctx context.Context, client *control.Client, args []string) error {
		c, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		info, err := client.Get(ctx, args[0])
		if err != nil {
			return err
		}
		if info.State == sandbox.Paused {
			return pausedError(info.ID, fmt.Errorf("%s: %w", info.ID, sandbox.ErrPaused))
		}
		e := execution{
			dial:  func(ctx context.Context, port uint16) (net.Conn, error) { return client.Dial(ctx, info.ID, port) },
			token: info.AccessToken,
			user:  user,
			cwd:   cwd,
			argv:  args[1:],
		}
		if err := withTrail(c, func(t trail) error { t.started(info, e); return nil }); err != nil {
			return err
		}
		w := newWaiting(c, info.KeyID)
		w.is(info.ID)
		defer w.follow(ctx, watchServer(client))()
		return e.run(ctx)
	})
	cmd.Flags().StringVarP(&user, "user", "u", "", "user inside (default: the sandbox's)")
	cmd.Flags().StringVarP(&cwd, "workdir", "w", "", "working directory inside (default: the sandbox's)")
	return cmd
}

func newSandboxLogs() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Print the log of a sandbox: its life, its agent, processes, connections refused",
		Args:  cobra.ExactArgs(1),
		RunE: withServer(func(ctx context.Context, client *control.Client, args []string) error {
			lines, err := client.Logs(ctx, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(lines)
			}
			for _, line := range lines {
				fmt.Printf("%s  %-5s  %-9s  %s\n", line.Time.Format("15:04:05.000"), line.Level, line.Source, printable(line.Text))
			}
			return nil
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newSandboxKill() *cobra.Command {
	var all, yes bool
	cmd := &cobra.Command{
		Use:   "kill ID ...",
		Short: "Kill sandboxes, running or paused; what was saved of a paused one goes too",
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("name the sandboxes to kill, or use --all")
			}
			return nil
		},
		RunE: withServer(func(ctx context.Context, client *control.Client, ids []string) error {
			if all {
				infos, err := client.List(ctx)
				if err != nil {
					return err
				}
				if len(infos) > 0 && !yes {
					if err := confirm(fmt.Sprintf("Kill %s?", count(infos))); err != nil {
						return err
					}
				}
				for _, info := range infos {
					ids = append(ids, info.ID)
				}
			}
			return each(ids, func(id string) error {
				err := client.Kill(ctx, id)
				if all && errors.Is(err, sandbox.ErrNotFound) { // it ended meanwhile
					return nil
				}
				return err
			})
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "kill every sandbox of every key")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask before --all")
	return cmd
}

// count says how many sandboxes there are, and how many of them hold what nobody
// else has.
func count(infos []sandbox.Info) string {
	paused := 0
	for _, info := range infos {
		if info.State == sandbox.Paused {
			paused++
		}
	}
	return fmt.Sprintf("all sandboxes, %d running and %d paused", len(infos)-paused, paused)
}

// each does something to each sandbox, prints the ids of those it was done to and
// returns what went wrong with the others.
func each(ids []string, do func(id string) error) error {
	var errs []error
	for _, id := range ids {
		if err := do(id); err != nil {
			if !strings.Contains(err.Error(), id) {
				err = fmt.Errorf("%s: %w", id, err)
			}
			errs = append(errs, err)
			continue
		}
		fmt.Println(id)
	}
	return errors.Join(errs...)
}

// withServer connects a command to the running server.
func withServer(run func(ctx context.Context, client *control.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		client, _, err := dialServer(cmd.Context(), c)
		if err != nil {
			return err
		}
		err = run(cmd.Context(), client, args)
		if errors.Is(err, sandbox.ErrNotFound) {
			return fmt.Errorf("%w; `tombolo sandbox list --all` shows those there are and were", err)
		}
		return err
	}
}

var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// printable keeps what a sandbox wrote from steering the terminal, and takes the
// colours out of it.
func printable(text string) string {
	clean := []rune(colours.ReplaceAllString(text, ""))
	for i, r := range clean {
		if r != '\t' && (r < 0x20 || r == 0x7f || (r >= 0x80 && r < 0xa0)) {
			clean[i] = '?'
		}
	}
	return string(clean)
}
