package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/image"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

func newTemplateRefresh() *cobra.Command {
	return &cobra.Command{
		Use:   "refresh [NAME|ID ...]",
		Short: "Bring templates up to date with this version of tombolo",
		Long: `Take the memory snapshots of templates anew, with the agent and the engine of this
version of tombolo, from the images they have: seconds each. Without names all that
another version built. Templates work without it, as they were built, until then;
snapshots of sandboxes stay what they are.`,
		RunE: func(cmd *cobra.Command, refs []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			core, err := openCore(cmd.Context(), c, false)
			if err != nil {
				return err
			}
			return errors.Join(core.refresh(cmd.Context(), refs), core.Close())
		},
	}
}

// refresh builds the snapshots of templates anew; those that are outdated when no
// refs say which. One that fails does not keep the others from it.
func (c *core) refresh(ctx context.Context, refs []string) error {
	chosen, err := c.chooseTemplates(ctx, refs)
	if err != nil {
		return err
	}
	if len(chosen) == 0 {
		fmt.Println("every template is up to date")
	}
	var errs []error
	report := image.WriteProgress(os.Stderr)
	for _, t := range chosen {
		began := time.Now()
		made, err := c.manager.RefreshTemplate(ctx, t, func(step string) {
			report(image.Event{Template: t.Ref(), Elapsed: time.Since(began), Text: printable(step)})
		})
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, sandbox.ErrTemplateNotFound) {
			fmt.Printf("%s  was built anew or deleted meanwhile\n", t.Ref())
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.trail().changed("template refresh", made.KeyID, templateTarget(made))
		fmt.Printf("%s  %s  %s\n", made.Ref(), made.ID, mebibytes(made.SizeBytes))
	}
	return errors.Join(errs...)
}

func (c *core) chooseTemplates(ctx context.Context, refs []string) ([]store.Template, error) {
	if len(refs) == 0 {
		return c.outdated(ctx)
	}
	var chosen []store.Template
	for _, ref := range refs {
		t, err := c.store.Template(ctx, ref)
		if errors.Is(err, store.ErrNotFound) {
			return nil, fmt.Errorf("no template %q; `tombolo template list` shows what there is", ref)
		}
		if err != nil {
			return nil, err
		}
		if t.SourceSandbox != "" {
			return nil, fmt.Errorf("%s is a snapshot of a sandbox: it stays what it is", ref)
		}
		chosen = append(chosen, t)
	}
	return chosen, nil
}

// outdated are the templates that another version of tombolo built.
func (c *core) outdated(ctx context.Context) ([]store.Template, error) {
	templates, err := c.store.Templates(ctx)
	return slices.DeleteFunc(templates, func(t store.Template) bool { return t.SourceSandbox != "" || c.manager.Current(t) }), err
}
