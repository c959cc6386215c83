package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/embedded"
	"github.com/tombolo-dev/tombolo/internal/build"
	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
	"github.com/tombolo-dev/tombolo/internal/event"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/guard"
	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
	"github.com/tombolo-dev/tombolo/internal/telemetry"
	"github.com/tombolo-dev/tombolo/internal/volume"
)

// core is the product without its network listener: what serve offers to others
// and what run and template build use in this process.
type core struct {
	config  config
	log     *slog.Logger
	store   *sqlite.Store
	events  *event.Recorder
	manager *sandbox.Manager
	engine  *gvisor.Engine
	gate    *gate
}

func newLogger(c config) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return nil, fmt.Errorf("--log-level %q: use debug, info, warn or error", c.LogLevel)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}

// openCore opens the data folder, making it when it is new. The caller closes it.
// With keep, which one process at a time may ask for, sandboxes outlive it.
func openCore(ctx context.Context, c config, keep bool) (*core, error) {
	return openMeasuredCore(ctx, c, keep, nil)
}

// openMeasuredCore is openCore with what measures it; nil is nothing.
func openMeasuredCore(ctx context.Context, c config, keep bool, t *telemetry.Telemetry) (_ *core, err error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	log, err := newLogger(c)
	if err != nil {
		return nil, err
	}
	volumeSize, err := image.ParseSize(c.VolumeSize)
	if err != nil || volumeSize < volume.MinSize || volumeSize > volume.MaxSize {
		return nil, fmt.Errorf("--volume-size %q: use a size of %s to %s", c.VolumeSize, image.Size(volume.MinSize), image.Size(volume.MaxSize))
	}
	agent, err := embedded.Agent()
	if err != nil {
		return nil, err
	}
	mcpGateway, err := embedded.MCPGateway()
	if err != nil {
		return nil, err
	}
	engine, err := gvisor.New(gvisor.Config{
		Scope: gvisor.Scope(c.Data), Platform: c.Platform, Programs: filepath.Join(c.Data, "engines"),
		Processes: c.AuditProcesses, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n`tombolo doctor` tells what this machine lacks", err)
	}
	records, err := openStore(ctx, c)
	if err != nil {
		return nil, err
	}
	if t != nil {
		records.Observe(t.Store) // before anything reads
	}
	events := event.NewRecorder(records, log)
	gate, err := openGate(ctx, c, records, events, keep, log)
	if err != nil {
		events.Close()
		return nil, errors.Join(err, records.Close())
	}
	parts := sandbox.Config{
		DataDir:      c.Data,
		Engine:       engine,
		Store:        records,
		Network:      makeNetwork(gate.guard, t),
		SweepNetwork: gateway.Sweep,
		Agent:        agent,
		Programs:     map[string][]byte{"mcp-gateway": mcpGateway},
		CABundle:     gate.bundle,
		Log:          log,
		Keep:         keep,
		Pool:         c.Pool,
		VolumeSize:   int64(volumeSize),
		OnProcess:    recordProcesses(gate.audit),
		OnEvent: func(e sandbox.Event) {
			events.Record(e)
			t.Event(e)
			gate.guard.OnEvent(e)
			if e.Kind == sandbox.EventEnded {
				gate.refusals.Forget(e.Info.ID)
			}
		},
	}
	parts.OnGone = func(id string) {
		gate.guard.Forget(id)
		gate.refusals.Forget(id)
	}
	if t != nil {
		parts.OnStep = t.Step
	}
	manager, err := sandbox.NewManager(ctx, parts)
	if err != nil {
		err = errors.Join(err, gate.Close())
		events.Close()
		return nil, errors.Join(err, records.Close())
	}
	watch(t, manager, records, gate.guard)
	return &core{config: c, log: log, store: records, events: events, manager: manager, engine: engine, gate: gate}, nil
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("tombolo makes network namespaces and control groups and needs root: run it with sudo")
	}
	return nil
}

// openStore opens the records alone, for commands that start no sandbox.
func openStore(ctx context.Context, c config) (*sqlite.Store, error) {
	if err := os.MkdirAll(c.Data, 0o711); err != nil {
		return nil, fmt.Errorf("make data folder: %w", err)
	}
	records, err := sqlite.Open(ctx, filepath.Join(c.Data, "tombolo.db"))
	if err != nil {
		return nil, fmt.Errorf("open the store of %s: %w", c.Data, err)
	}
	return records, nil
}

// Close ends every sandbox of this process.
func (c *core) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := c.manager.Close(ctx)
	c.engine.RemoveScope()
	err = errors.Join(err, c.gate.Close())
	c.events.Close()
	return errors.Join(err, c.store.Close())
}

// makeNetwork gives each sandbox a gateway whose policy is the guard's.
func makeNetwork(g *guard.Guard, t *telemetry.Telemetry) func(context.Context, sandbox.NetworkConfig) (sandbox.Network, error) {
	return func(ctx context.Context, c sandbox.NetworkConfig) (sandbox.Network, error) {
		network, err := g.OpenNetwork(ctx, c)
		if err != nil {
			return nil, err // not the typed nil
		}
		return t.Network(network), nil
	}
}

// openBuilds opens the builds of templates from plans; told hears their logs. The
// caller closes it before the core.
func (c *core) openBuilds(ctx context.Context, told func(build.Entry)) (*build.Builds, error) {
	return build.New(ctx, build.Config{
		DataDir: c.config.Data, Manager: c.manager, Store: c.store, Images: c.images(), Log: c.log, Told: told,
		Admit: c.admitBuild,
	})
}

// admitBuild has the rules of a key decide on what it builds.
func (c *core) admitBuild(ctx context.Context, b store.Build, commands []build.Command) error {
	if b.KeyID == "" {
		return nil // root's own
	}
	actions := []policy.Action{{Kind: policy.Resources, CPUs: b.CPUs, MemoryBytes: b.MemoryBytes}}
	for _, command := range commands {
		actions = append(actions, policy.Action{Kind: policy.Exec, Command: command.Text, User: command.User})
	}
	return c.gate.guard.AdmitBuild(ctx, policy.Subject{KeyID: b.KeyID, TemplateID: b.TemplateID, TemplateName: b.Alias}, actions)
}

// images makes root images in the data folder.
func (c *core) images() image.Builder {
	return image.Builder{
		Dir: filepath.Join(c.config.Data, "images"), CABundle: c.config.CABundle, Mirror: c.config.Mirror,
		Refuse: gateway.NewPublic().Refuses, PrivateRegistries: c.config.PrivateRegistries,
	}
}

// buildTemplate builds a template from a recipe, telling progress. as is the name it
// gets, alias[:tag].
func (c *core) buildTemplate(ctx context.Context, recipe image.Recipe, as string, cold bool, progress io.Writer) (store.Template, error) {
	name := store.SplitName(as)
	if err := name.Check(); err != nil {
		return store.Template{}, err
	}
	report := image.WriteProgress(progress)
	began := time.Now()
	images := c.images()
	images.Progress = report
	built, err := images.Build(ctx, recipe)
	if err != nil {
		return store.Template{}, err
	}
	t, err := c.manager.BuildTemplate(ctx, store.Template{
		Name:        name.Alias,
		Tags:        []string{name.Tag},
		CPUs:        recipe.CPUs,
		MemoryBytes: int64(recipe.Memory),
		DiskBytes:   int64(recipe.Disk),
		Image:       filepath.Base(built.Path),
		StartCmd:    recipe.Start,
		ReadyCmd:    recipe.Ready,
		EnvVars:     recipe.Env,
		User:        recipe.User,
		Workdir:     recipe.Workdir,
		Kernels:     recipe.Kernels,
		RecipeHash:  built.Hash,
	}, cold, func(step string) {
		report(image.Event{Template: as, Elapsed: time.Since(began), Text: printable(step)})
	})
	if err != nil {
		return store.Template{}, err
	}
	// The template is there, however the cleaning ends.
	if err := c.pruneImages(context.WithoutCancel(ctx), recipe.Name, filepath.Base(built.Path)); err != nil {
		c.log.Error("images nothing needs were not removed", "error", err)
	}
	return t, nil
}

// loadRecipes loads recipes by their names, from a folder of one's own or, where that is
// empty, from those of the program; all there are when none is named.
func loadRecipes(folder string, names []string) ([]image.Recipe, error) {
	load, all := image.Load, image.Recipes()
	if folder != "" {
		tree, own, err := image.Own(os.DirFS(folder))
		if err != nil {
			return nil, fmt.Errorf("--recipes %s: %w", folder, err)
		}
		load, all = func(name string) (image.Recipe, error) { return image.LoadFrom(tree, name) }, own
	}
	if len(names) == 0 {
		names = all
	}
	var recipes []image.Recipe
	for _, name := range names {
		recipe, err := load(name)
		if errors.Is(err, image.ErrNoRecipe) {
			err = fmt.Errorf("%w; there are %s", err, strings.Join(all, ", "))
		}
		if err != nil {
			return nil, err
		}
		recipes = append(recipes, recipe)
	}
	return recipes, nil
}

// pruneImages removes the images of earlier versions of a recipe that no template
// refers to, unless a build runs that may have begun with one. Sandboxes that run from
// one have it open and go on.
func (c *core) pruneImages(ctx context.Context, recipe, current string) error {
	running, err := c.store.Builds(ctx, store.BuildFilter{States: []store.BuildState{store.Building}, Most: 1})
	if err != nil || len(running) > 0 {
		return err
	}
	templates, err := c.store.Templates(ctx)
	if err != nil {
		return err
	}
	wanted, err := c.manager.ImagesInUse(ctx)
	if err != nil {
		return err
	}
	wanted[current] = true
	for _, t := range templates {
		wanted[t.Image] = true
	}
	dir := filepath.Join(c.config.Data, "images")
	found, err := filepath.Glob(filepath.Join(dir, recipe+"-"+strings.Repeat("[0-9a-f]", 32)+".erofs"))
	if err != nil {
		return err
	}
	for _, path := range found {
		if !wanted[filepath.Base(path)] {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("remove superseded image: %w", err)
			}
		}
	}
	return nil
}
