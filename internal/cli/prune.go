package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
)

func newPrune() *cobra.Command {
	var dryRun, asJSON bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove what nothing needs: images, snapshots, layers and uploads of builds, old agents and engines",
		Long: `Remove what nothing needs: images and snapshots that no template and no sandbox
was made from, layers and uploads of builds, and the programs of agents and
engines that are superseded. What was made or used a moment ago stays (images and
snapshots 10 minutes, layers and uploads an hour). Works beside a server.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			core, err := openCore(cmd.Context(), c, false)
			if err != nil {
				return err
			}
			gone, err := core.prune(cmd.Context(), dryRun)
			if err = errors.Join(err, core.Close()); err != nil {
				return err
			}
			return printPruned(gone, dryRun, asJSON)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// Kinds of what is pruned besides the manager's.
const (
	unneededImage = "image"
	unneededBuild = "build"
)

// prune removes what nothing needs, or with dryRun only tells.
func (c *core) prune(ctx context.Context, dryRun bool) ([]sandbox.Unneeded, error) {
	gone := []sandbox.Unneeded{}
	engines := filepath.Join(c.config.Data, "engines")
	sizes := map[string]int64{}
	if entries, err := os.ReadDir(engines); err == nil {
		for _, e := range entries {
			sizes[e.Name()] = onDisk(filepath.Join(engines, e.Name()))
		}
	}
	found, err := c.manager.Prune(ctx, dryRun)
	for _, u := range found {
		if u.Kind == sandbox.UnneededEngine {
			u.Bytes = sizes[u.Name]
		}
		gone = append(gone, u)
	}
	builds, buildsErr := c.openBuilds(ctx, nil)
	err = errors.Join(err, buildsErr)
	if buildsErr == nil {
		freed, pruneErr := builds.Prune(ctx, true, dryRun)
		builds.Close()
		err = errors.Join(err, pruneErr)
		if freed > 0 {
			gone = append(gone, sandbox.Unneeded{Kind: unneededBuild, Name: "layers and uploads", Bytes: freed})
		}
	}
	images, imagesErr := c.unneededImages(ctx)
	for _, image := range images {
		if !dryRun {
			if removeErr := c.images().Remove(image.Name); removeErr != nil {
				err = errors.Join(err, removeErr)
				continue
			}
		}
		gone = append(gone, image)
	}
	return gone, errors.Join(err, imagesErr)
}

// imageSpared is how long an image that nothing refers to stays: what it was made
// for may just be about to.
const imageSpared = 10 * time.Minute

// unneededImages are images that no template and no sandbox was made from. While
// builds run all are needed.
func (c *core) unneededImages(ctx context.Context) ([]sandbox.Unneeded, error) {
	running, err := c.store.Builds(ctx, store.BuildFilter{States: []store.BuildState{store.Building}, Most: 1})
	if err != nil || len(running) > 0 {
		return nil, err
	}
	templates, err := c.store.Templates(ctx)
	if err != nil {
		return nil, err
	}
	wanted, err := c.manager.ImagesInUse(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range templates {
		wanted[t.Image] = true
	}
	all, err := c.images().List()
	if err != nil {
		return nil, err
	}
	var found []sandbox.Unneeded
	for _, image := range all {
		name := filepath.Base(image.Path)
		info, err := os.Stat(image.Path)
		if err != nil || wanted[name] || time.Since(info.ModTime()) < imageSpared {
			continue
		}
		found = append(found, sandbox.Unneeded{Kind: unneededImage, Name: name, Bytes: onDisk(image.Path)})
	}
	return found, nil
}

func printPruned(gone []sandbox.Unneeded, dryRun, asJSON bool) error {
	if asJSON {
		return printJSON(gone)
	}
	var total int64
	var rows [][]string
	for _, u := range slices.SortedStableFunc(slices.Values(gone), func(a, b sandbox.Unneeded) int { return int(b.Bytes>>20) - int(a.Bytes>>20) }) {
		total += u.Bytes
		rows = append(rows, []string{u.Kind, u.Name, mebibytes(u.Bytes)})
	}
	if len(rows) > 0 {
		if err := printTable([]string{"kind", "name", "on disk"}, rows); err != nil {
			return err
		}
	}
	what := "removed"
	if dryRun {
		what = "would remove"
	}
	fmt.Printf("%s %s\n", what, mebibytes(total))
	return nil
}
