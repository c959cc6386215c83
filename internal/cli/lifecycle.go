package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/api/control"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

func newSandboxPause() *cobra.Command {
	var diskOnly bool
	cmd := &cobra.Command{
		Use:   "pause ID ...",
		Short: "Save sandboxes and end their processes, until they are resumed",
		Long: `Save sandboxes to disk and end their processes. A paused sandbox takes no memory
and no processor time, and keeps its id, tokens and settings. "tombolo sandbox
resume" brings it back with every process as it was; with --disk-only it boots
afresh from its files. Connections out are closed by a pause.`,
		Args: cobra.MinimumNArgs(1),
		RunE: withServer(func(ctx context.Context, client *control.Client, ids []string) error {
			return each(ids, func(id string) error {
				err := client.Pause(ctx, id, control.PauseRequest{DiskOnly: diskOnly})
				if errors.Is(err, sandbox.ErrPaused) {
					return fmt.Errorf("sandbox %s is paused already", id)
				}
				return err
			})
		}),
	}
	cmd.Flags().BoolVar(&diskOnly, "disk-only", false, "save the files alone: a resume boots the sandbox afresh")
	return cmd
}

func newSandboxResume() *cobra.Command {
	req := sandbox.ResumeRequest{}
	cmd := &cobra.Command{
		Use:   "resume ID ...",
		Short: "Bring paused sandboxes back; running ones get more time, never less",
		Args:  cobra.MinimumNArgs(1),
		RunE: withServer(func(ctx context.Context, client *control.Client, ids []string) error {
			return each(ids, func(id string) error {
				_, err := client.Resume(ctx, id, req)
				return err
			})
		}),
	}
	cmd.Flags().DurationVar(&req.Timeout, "timeout", 5*time.Minute, "the sandbox ends, or is paused again, after this time")
	cmd.Flags().BoolVar(&req.Reboot, "reboot", false, "drop the saved memory and boot afresh from the files")
	return cmd
}

func newSandboxTimeout() *cobra.Command {
	return &cobra.Command{
		Use:     "timeout ID DURATION",
		Short:   "Have a running sandbox end, or be paused, so long from now: sooner or later than it would",
		Example: `  tombolo sandbox timeout ID 2h`,
		Args:    cobra.ExactArgs(2),
		RunE: withServer(func(ctx context.Context, client *control.Client, args []string) error {
			d, err := parseAge(args[1])
			if err != nil || d <= 0 {
				return fmt.Errorf("%q is not a time like 90s, 2h or 1d", args[1])
			}
			info, err := client.SetTimeout(ctx, args[0], d)
			if err != nil {
				return pausedError(args[0], err)
			}
			fmt.Printf("%s  %s\n", info.ID, when(info.EndAt))
			return nil
		}),
	}
}

func newSandboxFork() *cobra.Command {
	var asJSON bool
	req := sandbox.ForkRequest{}
	cmd := &cobra.Command{
		Use:   "fork ID",
		Short: "Copy a running sandbox, memory and files, and print the ids of the copies",
		Long: `Copy a running sandbox with its memory and files. It stands still for a moment
and goes on. Each copy is a sandbox of its own with an id, tokens and randomness
of its own; connections out are not copied. The exit code is 1 when a copy could
not be made; the others are there.`,
		Args: cobra.ExactArgs(1),
		RunE: withServer(func(ctx context.Context, client *control.Client, args []string) error {
			forks, err := client.Fork(ctx, args[0], req)
			if err != nil {
				return pausedError(args[0], err)
			}
			made := []sandbox.Info{}
			var errs []error
			for i, fork := range forks {
				if fork.Error != "" {
					errs = append(errs, fmt.Errorf("copy %d of %d: %s", i+1, len(forks), fork.Error))
					continue
				}
				made = append(made, fork.Info)
			}
			if asJSON {
				return errors.Join(printJSON(showAll(made)), errors.Join(errs...))
			}
			for _, info := range made {
				fmt.Println(info.ID)
			}
			return errors.Join(errs...)
		}),
	}
	cmd.Flags().IntVarP(&req.Count, "count", "n", 1, fmt.Sprintf("how many copies, 1 to %d", sandbox.MaxForks))
	cmd.Flags().DurationVar(&req.Timeout, "timeout", 5*time.Minute, "each copy ends, or is paused, after this time")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newSandboxSnapshot() *cobra.Command {
	var asJSON bool
	req := sandbox.SnapshotRequest{}
	cmd := &cobra.Command{
		Use:   "snapshot ID",
		Short: "Save a running sandbox as a template and print what to create from",
		Long: `Save a running sandbox, memory and files, as a template that belongs to the owner
of the sandbox. It stands still for a moment and goes on. The template outlives it:

  tombolo sandbox snapshot ID --name ready
  tombolo sandbox create --template ready

"tombolo template list" shows it, "tombolo template delete" deletes it.`,
		Args: cobra.ExactArgs(1),
		RunE: withServer(func(ctx context.Context, client *control.Client, args []string) error {
			t, err := client.Snapshot(ctx, args[0], req)
			if err != nil {
				return pausedError(args[0], err)
			}
			if asJSON {
				return printJSON(t)
			}
			fmt.Println(t.Ref())
			return nil
		}),
	}
	cmd.Flags().StringVar(&req.Name, "name", "", "NAME or NAME:TAG of the template, in place of a snapshot that has it (default: known by its id only)")
	cmd.Flags().BoolVar(&req.DiskOnly, "disk-only", false, "save the files alone: what is created from it boots afresh")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newSandboxMetrics() *cobra.Command {
	var asJSON bool
	var since time.Duration
	cmd := &cobra.Command{
		Use:   "metrics ID",
		Short: "Print what a sandbox used of processors, memory and disk, each 5 seconds",
		Args:  cobra.ExactArgs(1),
		RunE: withServer(func(ctx context.Context, client *control.Client, args []string) error {
			if since < 0 {
				return errors.New("--since must not be negative")
			}
			from := time.Time{}
			if since > 0 {
				from = time.Now().Add(-since)
			}
			points, err := client.Metrics(ctx, args[0], from)
			if err != nil {
				return err
			}
			if asJSON {
				if points == nil {
					points = []sandbox.Metric{}
				}
				return printJSON(points)
			}
			var rows [][]string
			for _, p := range points {
				rows = append(rows, []string{
					when(p.Time),
					fmt.Sprintf("%.1f%% of %d", p.CPUPercent, p.CPUs),
					fmt.Sprintf("%d of %s", p.MemoryBytes>>20, mebibytes(p.MemoryTotalBytes)),
					mebibytes(p.MemoryCacheBytes),
					fmt.Sprintf("%d of %s", p.DiskBytes>>20, mebibytes(p.DiskTotalBytes)),
				})
			}
			return printTable([]string{"time", "processors", "memory", "file cache", "disk"}, rows)
		}),
	}
	cmd.Flags().DurationVar(&since, "since", 5*time.Minute, "how far back; 0 is all that is kept, a day")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

// pausedError says what to do when a sandbox would have to run.
func pausedError(id string, err error) error {
	if errors.Is(err, sandbox.ErrPaused) {
		return fmt.Errorf("%w; `tombolo sandbox resume %s` brings it back", err, id)
	}
	return err
}
