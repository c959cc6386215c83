package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
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
			if len(gone) > 0 && !dryRun {
				core.trail().changed("prune", "", prunedTarget(gone))
			}
			if err = errors.Join(err, core.Close()); err != nil {
				return err
			}
			if dryRun && !asJSON {
				fmt.Println(occupied(c.Data))
			}
			return printPruned(gone, dryRun, asJSON)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// prune removes what nothing needs, or with dryRun only tells.
func (c *core) prune(ctx context.Context, dryRun bool) ([]sandbox.Unneeded, error) {
	gone := []sandbox.Unneeded{}
	engines := filepath.Join(c.config.Data, "engines")
	sizes := map[string]int64{}
	if entries, err := os.ReadDir(engines); err == nil {
		for _, e := range entries {
			sizes[e.Name()] = sandbox.DiskBytes(filepath.Join(engines, e.Name()))
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
		made, pruneErr := builds.Prune(ctx, true, dryRun)
		builds.Close()
		gone, err = append(gone, made...), errors.Join(err, pruneErr)
	}
	return gone, err
}

// occupied says what the kinds of files take on the disk that builds and templates have.
func occupied(data string) string {
	images := map[string]int64{}
	paths, _ := filepath.Glob(filepath.Join(data, "images", "*"))
	for _, path := range paths {
		kind := "recipes' images"
		switch name := filepath.Base(path); {
		case strings.HasPrefix(name, sandbox.BuiltPrefix):
			kind = "images of builds"
		case strings.HasPrefix(name, sandbox.ImportedPrefix):
			kind = "imported images"
		}
		images[kind] += sandbox.DiskBytes(path)
	}
	text := "on disk:"
	for _, kind := range []string{"recipes' images", "imported images", "images of builds"} {
		text += fmt.Sprintf(" %s %s,", kind, mebibytes(images[kind]))
	}
	return text + fmt.Sprintf(" snapshots %s, layers %s, uploads %s", mebibytes(sandbox.DiskBytes(filepath.Join(data, "snapshots"))),
		mebibytes(sandbox.DiskBytes(filepath.Join(data, "builds", "layers"))), mebibytes(sandbox.DiskBytes(sandbox.UploadsDir(data, ""))))
}

// prunedTarget is what is recorded of what was removed: how many of each kind.
func prunedTarget(gone []sandbox.Unneeded) target {
	kinds, total := map[string]int{}, int64(0)
	for _, u := range gone {
		kinds[u.Kind]++
		total += u.Bytes
	}
	return target{"removed": kinds, "bytes": total}
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
