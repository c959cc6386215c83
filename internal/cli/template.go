package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	"github.com/tombolo-dev/tombolo/internal/build"
	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

func newTemplate() *cobra.Command {
	return group(&cobra.Command{Use: "template", Short: "List, build and delete templates"},
		newTemplateList(), newTemplateBuild(), newTemplateRefresh(), newTemplateDelete())
}

func newTemplateList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the builds of templates, snapshots of sandboxes among them",
		Args:  cobra.NoArgs,
		RunE: withStore(func(cmd *cobra.Command, records *sqlite.Store, _ []string) error {
			templates, err := records.Templates(cmd.Context())
			if err != nil {
				return err
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			sizes := sandbox.TemplateSizes(c.Data, templates)
			if asJSON {
				type row struct {
					store.Template
					sandbox.TemplateSize
				}
				all := []row{}
				for i, t := range templates {
					all = append(all, row{t, sizes[i]})
				}
				return printJSON(all)
			}
			names, err := keyNames(cmd.Context(), records)
			if err != nil {
				return err
			}
			var rows [][]string
			for i, t := range templates {
				owner := cmp.Or(names[t.KeyID], t.KeyID, "-") // a deleted key has no name
				rows = append(rows, []string{cmp.Or(t.Name, "-"), strings.Join(t.Tags, ","), kind(t), owner, t.ID, fmt.Sprint(t.CPUs), mebibytes(t.MemoryBytes), mebibytes(sizes[i].Own), mebibytes(sizes[i].Shared), start(t), when(t.BuiltAt)})
			}
			return printTable([]string{"name", "tags", "kind", "key", "id", "cpus", "memory", "own", "shared", "start", "built"}, rows)
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// kind tells a snapshot of a sandbox from a template that was built.
func kind(t store.Template) string {
	if t.SourceSandbox != "" {
		return "snapshot"
	}
	return "template"
}

// start says what the sandboxes of a template start from.
func start(t store.Template) string {
	switch {
	case t.Snapshot == "":
		return "image"
	case t.DiskOnly:
		return "disk"
	}
	return "memory"
}

func newTemplateBuild() *cobra.Command {
	var as, folder string
	var cold bool
	var plan planFlags
	cmd := &cobra.Command{
		Use:   "build [RECIPE ...] | -f DOCKERFILE [CONTEXT] | --image REF | --archive FILE",
		Short: "Build templates from recipes, a Dockerfile or an image",
		Long: fmt.Sprintf(`Build templates: the root image and the memory snapshot that their sandboxes are
restored from. Recipes: %s; all of them when
nothing is named. What is there already is kept: a second build takes no time. With
--recipes they are yours: the folders in DIR, which may begin with the ones above.

With --file a template is built from a Dockerfile, which copies files from CONTEXT
(the current folder). FROM %sNAME begins with a template of this machine. No
Docker is needed. With --image or --archive a template is made of an image.`, strings.Join(image.Recipes(), ", "), build.TemplatePrefix),
		Example: `  tombolo template build base
  tombolo template build --recipes ./recipes analysis
  tombolo template build -f Dockerfile --name web .
  tombolo template build --image node:24 --name node --memory 2GiB`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			if plan.given() {
				cmd.MarkFlagsMutuallyExclusive("file", "image", "archive", "cold")
				cmd.MarkFlagsMutuallyExclusive("file", "image", "archive", "recipes")
				if err := cmd.ValidateFlagGroups(); err != nil {
					return err
				}
				return plan.build(cmd, as, names)
			}
			for _, flag := range planOnly {
				if cmd.Flags().Changed(flag) {
					return fmt.Errorf("--%s goes with --file, --image or --archive", flag)
				}
			}
			if as != "" && len(names) != 1 {
				return errors.New("--name goes with one recipe: name it")
			}
			recipes, err := loadRecipes(folder, names)
			if err != nil {
				return err
			}
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			core, err := openCore(cmd.Context(), c, false)
			if err != nil {
				return err
			}
			return errors.Join(core.buildRecipes(cmd.Context(), recipes, as, cold), core.Close())
		},
	}
	plan.add(cmd)
	cmd.Flags().StringVar(&folder, "recipes", "", "folder with recipes of your own, a folder each")
	cmd.Flags().StringVar(&as, "name", "", "NAME or NAME:TAG of the template (default: the recipe's)")
	cmd.Flags().BoolVar(&cold, "cold", false, "take no snapshot: every sandbox boots from the image")
	return cmd
}

// recipesAtOnce is how many recipes are built at the same time: while one waits for
// the network another has the processors.
const recipesAtOnce = 2

// buildRecipes builds the templates of recipes, the one named as where that says so.
// The first failure ends the others.
func (c *core) buildRecipes(ctx context.Context, recipes []image.Recipe, as string, cold bool) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(recipesAtOnce)
	for _, recipe := range recipes {
		group.Go(func() error {
			t, err := c.buildTemplate(ctx, recipe, cmp.Or(as, recipe.Name), cold, os.Stderr)
			if err != nil {
				return err
			}
			c.trail().changed("template build", t.KeyID, templateTarget(t))
			fmt.Printf("%s  %s  %s\n", t.Ref(), t.ID, mebibytes(t.SizeBytes))
			return nil
		})
	}
	return group.Wait()
}

func newTemplateDelete() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME[:TAG]|ID[:TAG] ...",
		Short: "Delete templates or snapshots, or single tags; sandboxes made from them live on",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			var errs []error
			for _, ref := range args {
				err := deleteTemplate(cmd.Context(), c, ref)
				switch {
				case errors.Is(err, sandbox.ErrTemplateNotFound) || errors.Is(err, store.ErrNotFound):
					err = fmt.Errorf("no template %q; `tombolo template list` shows what there is", ref)
				case err == nil:
					fmt.Printf("deleted %s\n", ref)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		},
	}
}

// deleteTemplate has the server delete a template, with its files. Without one
// only the record goes; a later server removes the files.
func deleteTemplate(ctx context.Context, c config, ref string) error {
	client, _, err := control.Dial(ctx, c.Data)
	if err == nil {
		return client.DeleteTemplate(ctx, ref)
	}
	if !errors.Is(err, control.ErrNoServer) {
		return err
	}
	records, err := openStore(ctx, c)
	if err != nil {
		return err
	}
	err = withTrail(c, func(t trail) error {
		_, err := records.DeleteTemplate(ctx, ref)
		if err == nil {
			t.changed("template delete", "", target{"template": ref})
		}
		return err
	})
	return errors.Join(err, records.Close())
}

// templateTarget is what is recorded of a build of a template.
func templateTarget(t store.Template) target {
	return target{"template": t.ID, "name": t.Ref(), "build": t.BuildID}
}
