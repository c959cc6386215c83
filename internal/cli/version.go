package cli

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
)

// release is set by the build (-ldflags -X) for a released version.
var release = ""

// version names this build: the release, else the commit it was built from.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" && len(setting.Value) >= 12 {
				return "devel-" + setting.Value[:12]
			}
		}
	}
	return "devel"
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of tombolo and of its engine",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return printJSON(map[string]string{"version": version(), "engine": gvisor.Version()})
			}
			fmt.Printf("tombolo %s\nengine  %s\n", version(), gvisor.Version())
			return nil
		},
	}
	addJSONFlag(cmd, &asJSON)
	return cmd
}
