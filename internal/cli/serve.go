package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	"github.com/tombolo-dev/tombolo/internal/api/e2b"
	api "github.com/tombolo-dev/tombolo/internal/api/tombolo"
	"github.com/tombolo-dev/tombolo/internal/edge"
	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/store"
)

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Start the server",
		Long: `Start the server and print one line with its address when it serves. The first
start makes an API key, kept in keys/default.key of the data folder; "tombolo env"
prints the variables that point the E2B clients to the server.

With a certificate the server speaks https as well, on the same port, and takes plain
http from its own machine only. The certificate comes from --tls-cert, from ACME by
--acme-email, or from the authority that "tombolo tls init" made.

The server ends on SIGINT or SIGTERM. Its sandboxes run on and the next start takes
them over, as it does after a crash; --on-stop=end ends those that run. Paused ones
stay in any case.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), c)
		},
	}
	cmd.Flags().String("listen", "127.0.0.1:3000", "address to listen on; port 0 takes a free one")
	addTLSFlags(cmd)
	addWebhookFlag(cmd)
	addApprovalFlags(cmd)
	cmd.Flags().Int("pool", 1, "engines kept ready for each kind of sandbox in use, some 30 MiB of memory each; 0 for none")
	cmd.Flags().String("on-stop", onStopKeep, "what becomes of the sandboxes that run when the server is stopped: keep or end")
	addAuditFlag(cmd)
	cmd.Flags().String("metrics-listen", "", "address that Prometheus collects from, GET /metrics, e.g. 127.0.0.1:9464 (default: none)")
	cmd.Flags().String("otlp-endpoint", "", "OpenTelemetry collector to send traces to, e.g. http://127.0.0.1:4318 (default: what OTEL_EXPORTER_OTLP_ENDPOINT says, or none)")
	return cmd
}

// What --on-stop may say.
const (
	onStopKeep = "keep"
	onStopEnd  = "end"
)

func serve(ctx context.Context, c config) (err error) {
	if c.OnStop != onStopKeep && c.OnStop != onStopEnd {
		return fmt.Errorf("--on-stop %q: use %s or %s", c.OnStop, onStopKeep, onStopEnd)
	}
	if c.Pool < 0 {
		return fmt.Errorf("--pool must be 0 or more, not %d", c.Pool)
	}
	if err := needRoot(); err != nil {
		return err
	}
	lock, err := lockServer(c.Data)
	if err != nil {
		return err
	}
	defer lock.Close()
	measure, err := newTelemetry(ctx, c)
	if err != nil {
		return err
	}
	defer measure.Close() // last: what ends is measured too
	core, err := openMeasuredCore(ctx, c, true, measure)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, core.Close()) }()
	if _, err := defaultKey(ctx, core.store, c.Data); err != nil {
		return err
	}
	front, err := openTLS(ctx, c, core.log)
	if err != nil {
		return err
	}
	defer front.close()
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w (--listen takes another address)", c.Listen, err)
	}
	sender := newWebhookSender(c)
	deliverer := event.NewDeliverer(event.DelivererConfig{Store: core.store, Sender: sender, Recorder: core.events, Log: core.log, OnAttempt: measure.Attempt})
	defer closeDeliverer(ctx, deliverer)
	hooks := event.NewWebhooks(core.store, sender)
	if err := keepApprovalHook(ctx, c, hooks); err != nil {
		return err
	}
	builds, err := core.openBuilds(ctx, nil)
	if err != nil {
		return err
	}
	defer builds.Close()
	builds.KeepPruned()
	domain := front.clientDomain(listener.Addr())
	sandboxes := core.gate.guard.Sandboxes(measure.Sandboxes(core.manager))
	dialect := e2b.New(e2b.Options{Sandboxes: sandboxes, Store: core.store, Webhooks: hooks, Builds: builds, Volumes: core.manager, Secrets: core.gate.secrets, AdmitVolume: core.gate.guard.AdmitVolume, Log: core.log, Version: version(), Domain: domain})
	ours := core.openAPI(sandboxes)
	defer ours.Close()
	server := edge.Server(front.handler(measure.Requests(edge.New(edge.Options{
		Sandboxes: sandboxes, Control: api.Split(core.recorded("tombolo", "", ours.ForKeys()), measure.Control(core.recorded("e2b", "", dialect))), Inside: measure.Inside, Guard: core.gate.guard, Log: core.log,
	}))))
	if measure != nil {
		server.ConnState = measure.ConnState
	}
	address := "http://" + listener.Addr().String()
	socket, err := control.Listen(c.Data)
	if err != nil {
		return err
	}
	owner := &http.Server{
		Handler: api.Split(core.recorded("tombolo", "owner", ours.ForOwner()), core.recorded("owner", "owner", asOwner(
			control.New(sandboxes, control.Server{Address: address, Domain: domain, CAFile: front.caFile, PID: os.Getpid(), Version: version()}, core.log)))),
		ReadHeaderTimeout: 10 * time.Second,
	}
	defer owner.Close()
	go owner.Serve(socket)
	served := make(chan error, 1)
	go func() { served <- server.Serve(edge.Listener(listener, front.config())) }()
	core.recordServer("start", map[string]any{"address": address, "version": version(), "pid": os.Getpid()})
	defer core.recordServer("stop", map[string]any{"pid": os.Getpid()})
	fmt.Printf("tombolo serves on %s\n", address)
	if domain != "" {
		fmt.Fprintf(os.Stderr, "sandboxes have the names https://<port>-<id>.%s\n", domain)
	}
	if addr := measure.Addr(); addr != "" {
		fmt.Fprintf(os.Stderr, "Prometheus is served on http://%s/metrics\n", addr)
	}
	core.adviseOnTemplates(ctx)
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ours.Close()           // its streams have no end
	core.gate.desk.Close() // whoever waits for a person waits no more
	builds.Close()         // they use what the manager has
	// Sandboxes first: that is what ends the streams into them.
	stop := core.manager.Leave
	if c.OnStop == onStopEnd {
		stop = core.manager.Close
	}
	if err := stop(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(shutdown); err != nil {
		return server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// adviseOnTemplates says on stderr when templates are missing or old.
func (c *core) adviseOnTemplates(ctx context.Context) {
	templates, err := c.store.Templates(ctx)
	if err == nil && len(templates) == 0 {
		fmt.Fprintln(os.Stderr, "there are no templates yet; `tombolo template build` makes the default ones, also while the server runs")
	}
	outdated, err2 := c.outdated(ctx)
	if err := errors.Join(err, err2); err != nil {
		c.log.Error("templates cannot be read", "error", err)
		return
	}
	var recipes, others []string
	for _, t := range outdated {
		if slices.Contains(image.Recipes(), t.Ref()) && t.KeyID == "" {
			recipes = append(recipes, t.Ref())
		} else {
			others = append(others, t.Ref())
		}
	}
	const advice = "%s: built by another version of tombolo; `tombolo template %s` brings this up to date, also while the server runs\n"
	if len(recipes) > 0 {
		names := strings.Join(recipes, " ")
		fmt.Fprintf(os.Stderr, advice, names, "build "+names)
	}
	if len(others) > 0 {
		fmt.Fprintf(os.Stderr, advice, strings.Join(others, " "), "refresh")
	}
}

// lockServer makes sure that one server at a time has the data folder.
func lockServer(data string) (*os.File, error) {
	if err := os.MkdirAll(data, 0o711); err != nil {
		return nil, fmt.Errorf("make data folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(data, "server.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("another server has the data folder %s; stop it, or give this one another with --data", data)
	}
	return file, nil
}

func defaultKeyFile(data string) string { return filepath.Join(data, "keys", "default.key") }

// defaultKey returns the secret of the key this machine's own tools use, making
// the key at the first time and again when it was deleted.
func defaultKey(ctx context.Context, keys store.Keys, data string) (string, error) {
	file := defaultKeyFile(data)
	raw, err := os.ReadFile(file)
	if err == nil {
		secret := strings.TrimSpace(string(raw))
		hash, err := store.HashSecret(secret)
		if err == nil {
			_, err = keys.KeyByHash(ctx, hash)
		}
		if err == nil {
			return secret, nil
		}
		if !errors.Is(err, store.ErrNotFound) {
			return "", fmt.Errorf("key in %s: %w", file, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	key, secret, err := store.NewKey("default", time.Now())
	if err != nil {
		return "", err
	}
	if err := keys.DeleteKey(ctx, key.Name); err != nil && !errors.Is(err, store.ErrNotFound) {
		return "", err
	}
	if err := keys.AddKey(ctx, key); err != nil {
		return "", fmt.Errorf("make the default key: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", err
	}
	return secret, os.WriteFile(file, []byte(secret+"\n"), 0o600)
}
