package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store"
)

func newRun() *cobra.Command {
	var template, user, cwd string
	var timeout time.Duration
	var env map[string]string
	var network networkFlags
	var mounts []string
	var key string
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG ...]",
		Short: "Run one command in a throw-away sandbox",
		Long: `Run one command in a sandbox of its own, which ends with it. Stdin, stdout and
stderr are passed through and the exit code is the command's. A server need not
run: without one the sandbox is started by this process, and a template that is
missing is built first.

  tombolo run -- python3 -c 'print(42)'
  tar c . | tombolo run -- sh -c 'tar x && make test'
  tombolo run --allow pypi.org --allow files.pythonhosted.org -- pip download six
  tombolo run --key default -e GITHUB_TOKEN='${e2b.secrets.github}' -- ./work

With --key the sandbox belongs to that key: it is held to its rules on what is reached,
may use its secrets and volumes, and counts for its limits, which do not hold it up.
Without, it belongs to none. The command itself is yours, so no rule is asked about it;
it is in the audit log.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if timeout <= 0 {
				return errors.New("--timeout must be greater than zero")
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			owner, err := ownerOf(cmd.Context(), c, key, env)
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
			host, err := openHost(cmd.Context(), c, template)
			if err != nil {
				return err
			}
			err = host.runOnce(cmd.Context(), newWaiting(c, owner), sandbox.CreateRequest{
				Template: template,
				KeyID:    owner,
				Timeout:  timeout,
				EnvVars:  env,
				Network:  options,
				Volumes:  volumes,
				Rules:    rules,
			}, execution{user: user, cwd: cwd, argv: argv})
			return errors.Join(err, host.close())
		},
	}
	cmd.Flags().StringVarP(&template, "template", "t", "base", "template to start from")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Hour, "the sandbox ends after this time")
	addEnvVarFlag(cmd, &env)
	addVolumeFlag(cmd, &mounts)
	cmd.Flags().StringVarP(&user, "user", "u", "", "user inside (default: the template's)")
	cmd.Flags().StringVarP(&cwd, "workdir", "w", "", "working directory inside (default: the template's)")
	network.add(cmd)
	cmd.Flags().StringVar(&key, "key", "", "name or id of the key that the sandbox belongs to (default: none)")
	return cmd
}

// ownerOf is the id of the key that a sandbox is to belong to; no key has no secrets.
func ownerOf(ctx context.Context, c config, key string, env map[string]string) (string, error) {
	if key == "" {
		for name, value := range env {
			if secret.Refers(value) {
				return "", fmt.Errorf("--env %s names a secret, and secrets belong to keys: say whose, as in --key default", name)
			}
		}
		return "", nil
	}
	records, err := openStore(ctx, c)
	if err != nil {
		return "", err
	}
	defer records.Close()
	found, err := findKey(ctx, records, key)
	return found.ID, err
}

// host is who makes sandboxes for this command: the server, or this process.
type host struct {
	create func(ctx context.Context, req sandbox.CreateRequest) (sandbox.Info, error)
	kill   func(ctx context.Context, id string) error
	dial   func(ctx context.Context, id string, port uint16) (net.Conn, error)
	gone   func(ctx context.Context, id string) error         // why it is not live
	watch  func(ctx context.Context, see func(approval.Hold)) // what waits for people
	trail  func(write func(t trail) error) error
	close  func() error
}

// openHost takes the server of the data folder when one runs; else it opens the
// core here and builds the template when it is missing or of another version.
func openHost(ctx context.Context, c config, template string) (host, error) {
	client, _, err := control.Dial(ctx, c.Data)
	if err == nil {
		return host{
			create: client.Create,
			kill:   client.Kill,
			dial:   client.Dial,
			gone:   func(ctx context.Context, id string) error { _, err := client.Get(ctx, id); return err },
			watch:  watchServer(client),
			trail:  func(write func(t trail) error) error { return withTrail(c, write) },
			close:  func() error { return nil },
		}, nil
	}
	if !errors.Is(err, control.ErrNoServer) {
		return host{}, err
	}
	core, err := openCore(ctx, c, false)
	if err != nil {
		return host{}, err
	}
	if err := core.ensureTemplate(ctx, template); err != nil {
		return host{}, errors.Join(err, core.Close())
	}
	return host{
		create: core.gate.guard.Sandboxes(core.manager).Create,
		kill:   func(ctx context.Context, id string) error { return core.manager.Kill(ctx, id, "its command ended") },
		dial:   core.manager.Dial,
		gone:   func(_ context.Context, id string) error { _, err := core.manager.Get(id); return err },
		watch: func(ctx context.Context, see func(approval.Hold)) {
			for h := range core.gate.desk.Watch(ctx, approval.Filter{States: []approval.State{approval.Pending}}) {
				see(h)
			}
		},
		trail: func(write func(t trail) error) error { return write(core.trail()) },
		close: core.Close,
	}, nil
}

// ensureTemplate builds a template that has a recipe and is not there, or was
// built for another version of this program.
func (c *core) ensureTemplate(ctx context.Context, name string) error {
	t, err := c.store.Template(ctx, name)
	if err == nil && c.manager.Current(t) {
		return nil
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if !slices.Contains(image.Recipes(), name) {
		if err == nil {
			return nil // a snapshot, or built under another name
		}
		return templateError(fmt.Errorf("%w: %q", sandbox.ErrTemplateNotFound, name))
	}
	recipe, err := image.Load(name)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "template %s has to be built first, which takes a few minutes\n", name)
	_, err = c.buildTemplate(ctx, recipe, name, false, os.Stderr)
	return err
}

// runOnce runs one command in a sandbox of its own.
func (h host) runOnce(ctx context.Context, w *waiting, req sandbox.CreateRequest, e execution) error {
	stop := w.follow(ctx, h.watch)
	defer stop()
	info, err := h.create(ctx, req)
	if err != nil {
		return templateError(err)
	}
	w.is(info.ID)
	e.token = info.AccessToken
	e.dial = func(ctx context.Context, port uint16) (net.Conn, error) { return h.dial(ctx, info.ID, port) }
	err = h.trail(func(t trail) error { t.started(info, e); return nil })
	if err == nil {
		err = e.run(ctx)
	}
	var code exitCode
	if err != nil && !errors.As(err, &code) {
		if ctx.Err() != nil {
			err = exitCode(130) // interrupted
		} else if gone := h.gone(ctx, info.ID); gone != nil {
			return gone
		}
	}
	if killed := h.kill(context.WithoutCancel(ctx), info.ID); killed != nil && !errors.Is(killed, sandbox.ErrNotFound) {
		return errors.Join(err, killed)
	}
	return err
}
