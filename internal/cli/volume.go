package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
	"github.com/tombolo-dev/tombolo/internal/volume"
)

func newVolume() *cobra.Command {
	return group(&cobra.Command{Use: "volume", Short: "List, create and delete volumes: folders that outlive sandboxes"},
		newVolumeList(), newVolumeCreate(), newVolumeDelete())
}

// shownVolume is a volume as it is printed.
type shownVolume struct {
	store.Volume
	Key       string `json:"key"`       // its name
	DiskBytes int64  `json:"diskBytes"` // on the host
}

func newVolumeList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the volumes of all keys",
		Args:  cobra.NoArgs,
		RunE: withStore(func(cmd *cobra.Command, records *sqlite.Store, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			shown, err := showVolumes(cmd.Context(), c, records)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(shown)
			}
			var rows [][]string
			for _, v := range shown {
				rows = append(rows, []string{v.Name, v.ID, v.Key, mebibytes(v.SizeBytes), mebibytes(v.DiskBytes), when(v.CreatedAt)})
			}
			return printTable([]string{"name", "id", "key", "size", "on disk", "created"}, rows)
		}),
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func showVolumes(ctx context.Context, c config, records *sqlite.Store) ([]shownVolume, error) {
	list, err := records.Volumes(ctx, "")
	if err != nil {
		return nil, err
	}
	names, err := keyNames(ctx, records)
	if err != nil {
		return nil, err
	}
	shown := make([]shownVolume, len(list)) // an empty list is [], not null
	for i, v := range list {
		shown[i] = shownVolume{Volume: v, Key: names[v.KeyID], DiskBytes: volume.DiskBytes(volumesDir(c), v.ID)}
	}
	return shown, nil
}

func volumesDir(c config) string { return filepath.Join(c.Data, "volumes") }

func newVolumeCreate() *cobra.Command {
	var asJSON bool
	var size sizeFlag
	var key string
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a volume of a key and print its id",
		Long: `Create a volume of a key and print its id. Sandboxes of that key can have it. It takes
on the disk what is in it; --size is what may be in it, and stays what it is.`,
		Args: cobra.ExactArgs(1),
		RunE: withCore(func(ctx context.Context, core *core, args []string) error {
			owner, err := findKey(ctx, core.store, key)
			if err != nil {
				return err
			}
			v, err := core.manager.CreateVolume(ctx, owner.ID, sandbox.Quota{DiskBytes: owner.MaxDisk}, args[0], int64(size))
			if err != nil {
				return err
			}
			core.trail().changed("volume create", owner.ID, target{"volume": v.ID, "name": v.Name, "sizeBytes": v.SizeBytes})
			if asJSON {
				return printJSON(shownVolume{Volume: v, Key: owner.Name, DiskBytes: core.manager.VolumeDiskBytes(v.ID)})
			}
			fmt.Println(v.ID)
			return nil
		}),
	}
	cmd.Flags().Var(&size, "size", "what may be in it, e.g. 20GiB (default: the setting volume-size)")
	cmd.Flags().StringVar(&key, "key", "default", "name or id of the key that the volume belongs to")
	addJSONFlag(cmd, &asJSON)
	return cmd
}

func newVolumeDelete() *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use:   "delete ID|NAME ...",
		Short: "Delete volumes and all that is in them",
		Long: `Delete volumes: of any key by their ids, of the one that --key names by their names.
One that a sandbox has, running or paused, is not deleted.`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.RunE = withCore(func(ctx context.Context, core *core, args []string) error {
		var owner store.Key
		if cmd.Flags().Changed("key") {
			var err error
			if owner, err = findKey(ctx, core.store, key); err != nil {
				return err
			}
		}
		var errs []error
		for _, name := range args {
			v, err := findVolume(ctx, core.config, owner.ID, name)
			if err == nil {
				err = core.manager.DeleteVolume(ctx, v.ID)
			}
			if err == nil {
				core.trail().changed("volume delete", v.KeyID, target{"volume": v.ID, "name": v.Name})
				fmt.Printf("deleted %s\n", name)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	cmd.Flags().StringVar(&key, "key", "default", "name or id of the key whose volumes are named")
	return cmd
}

// findVolume finds a volume of a key by its id or name. Without a key it finds one of
// the default key by its name, and of any key by its id.
func findVolume(ctx context.Context, c config, keyID, idOrName string) (store.Volume, error) {
	owner := keyID
	if owner == "" {
		var err error
		if owner, err = defaultKeyID(ctx, c); err != nil {
			return store.Volume{}, err
		}
	}
	records, err := openStore(ctx, c)
	if err != nil {
		return store.Volume{}, err
	}
	defer records.Close()
	v, err := records.Volume(ctx, owner, idOrName)
	if errors.Is(err, store.ErrNotFound) {
		v, err = records.VolumeByID(ctx, idOrName)
		if err == nil && keyID != "" {
			return store.Volume{}, fmt.Errorf("the volume %s belongs to another key; `tombolo volume list` shows to which, and --key says whose volumes are meant", idOrName)
		}
	}
	if errors.Is(err, store.ErrNotFound) {
		return store.Volume{}, fmt.Errorf("no volume %q of this key; `tombolo volume list` shows those of all keys, and --key says whose are meant", idOrName)
	}
	return v, err
}

// addVolumeFlag adds the flag that parseVolumes reads.
func addVolumeFlag(cmd *cobra.Command, mounts *[]string) {
	cmd.Flags().StringArrayVarP(mounts, "volume", "v", nil, "volume NAME:PATH (or ID:PATH) seen at PATH inside; may be repeated")
}

// parseVolumes finds the volumes of a key that flags NAME:PATH name; see findVolume.
func parseVolumes(ctx context.Context, c config, keyID string, flags []string) ([]sandbox.VolumeMount, error) {
	var mounts []sandbox.VolumeMount
	for _, flag := range flags {
		name, path, ok := strings.Cut(flag, ":")
		if !ok || name == "" || path == "" {
			return nil, fmt.Errorf("--volume %q: use NAME:PATH, such as data:/mnt/data", flag)
		}
		v, err := findVolume(ctx, c, keyID, name)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, sandbox.VolumeMount{Name: v.ID, Path: path})
	}
	return mounts, nil
}

// withCore runs a command on the core of the data folder, beside a server that may
// run there.
func withCore(run func(ctx context.Context, core *core, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		core, err := openCore(cmd.Context(), c, false)
		if err != nil {
			return err
		}
		return errors.Join(run(cmd.Context(), core, args), core.Close())
	}
}

// volumes tells whether volumes are possible.
func volumes() finding {
	f := finding{What: "volumes", OK: true, Found: "loop devices, ext4", Remedy: "see the message; without it sandboxes run, and volumes cannot be made"}
	if err := volume.Check(); err != nil {
		f.OK, f.Found = false, err.Error()
	}
	return f
}
