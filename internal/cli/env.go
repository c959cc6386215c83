package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tombolo-dev/tombolo/internal/api/control"
)

func newEnv() *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print the variables that point the E2B clients to the server",
		Long: `Print export lines for a shell: the key "default", the server's address and, where
it has one, the domain that sandboxes have names below.

  eval "$(tombolo env)"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			_, server, err := dialServer(cmd.Context(), c)
			if err != nil {
				return err
			}
			secret, err := os.ReadFile(defaultKeyFile(c.Data))
			if err != nil {
				return fmt.Errorf("read the default key: %w", err)
			}
			fmt.Printf("export E2B_API_KEY=%s\nexport E2B_API_URL=%s\nexport E2B_SANDBOX_URL=%s\nexport E2B_VOLUME_API_URL=%s\n",
				strings.TrimSpace(string(secret)), server.Address, server.Address, server.Address)
			if server.Domain != "" {
				fmt.Printf("export E2B_DOMAIN=%s\n", server.Domain)
			}
			if server.CAFile != "" {
				fmt.Printf("export NODE_EXTRA_CA_CERTS=%s\n", shellQuote(server.CAFile))
			}
			return nil
		},
	}
}

// shellQuote makes one word of s for a shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// dialServer finds the server on the data folder, and says how to start one.
func dialServer(ctx context.Context, c config) (*control.Client, control.Server, error) {
	client, server, err := control.Dial(ctx, c.Data)
	if errors.Is(err, control.ErrNoServer) {
		return nil, server, fmt.Errorf("%w; start one with `tombolo serve --data %s`", err, c.Data)
	}
	return client, server, err
}
