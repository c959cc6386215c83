package cli

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// pairsFlag is a map that is given one NAME=VALUE at a time. A value is all that
// follows the first "=", whatever is in it.
type pairsFlag struct {
	pairs *map[string]string
	// environment lets NAME alone stand for the variable of this process.
	environment bool
}

var _ pflag.Value = pairsFlag{}

// Set adds one entry.
func (f pairsFlag) Set(text string) error {
	name, value, given := strings.Cut(text, "=")
	if !given && f.environment && name != "" {
		if value, given = os.LookupEnv(name); !given {
			return fmt.Errorf("there is no variable %s in the environment of this command; write %s=VALUE", name, name)
		}
	}
	if !given || name == "" {
		return errors.New("use NAME=VALUE")
	}
	if *f.pairs == nil {
		*f.pairs = map[string]string{}
	}
	(*f.pairs)[name] = value
	return nil
}

func (f pairsFlag) String() string {
	if f.pairs == nil {
		return ""
	}
	return strings.Join(slices.Sorted(maps.Keys(*f.pairs)), ",")
}

// Type is what the help calls the value.
func (f pairsFlag) Type() string { return "NAME=VALUE" }

func addEnvVarFlag(cmd *cobra.Command, env *map[string]string) {
	cmd.Flags().VarP(pairsFlag{pairs: env, environment: true}, "env", "e", "environment variable inside; NAME alone takes it from here; may be repeated")
}
