package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// settings loads what `tombolo serve` with these arguments would.
func settings(t *testing.T, args ...string) (config, error) {
	t.Helper()
	serve, _, err := newRoot().Find([]string{"serve"})
	require.NoError(t, err)
	require.NoError(t, serve.ParseFlags(args))
	return loadConfig(serve)
}

// emptySurroundings runs the test in a folder without tombolo.yaml and without
// variables of the product.
func emptySurroundings(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for _, name := range []string{"DATA", "LISTEN", "CA_BUNDLE", "MIRROR", "PLATFORM", "LOG_LEVEL"} {
		t.Setenv("TOMBOLO_"+name, "") // restores it after the test
		require.NoError(t, os.Unsetenv("TOMBOLO_"+name))
	}
	if _, err := os.Stat("/etc/tombolo/tombolo.yaml"); err == nil {
		t.Skip("this machine has settings of its own in /etc/tombolo")
	}
}

func TestSettingsComeFromFlagsThenVariablesThenTheFile(t *testing.T) {
	emptySurroundings(t)
	c, err := settings(t)
	require.NoError(t, err)
	require.Equal(t, "/var/lib/tombolo", c.Data)
	require.Equal(t, "127.0.0.1:3000", c.Listen)
	require.Equal(t, "systrap", c.Platform)
	require.Equal(t, "warn", c.LogLevel)

	require.NoError(t, os.WriteFile("tombolo.yaml", []byte("data: /file\nlisten: 127.0.0.1:1\nlog-level: info\nplatform: kvm\n"), 0o600))
	t.Setenv("TOMBOLO_LISTEN", "127.0.0.1:2")
	t.Setenv("TOMBOLO_LOG_LEVEL", "debug")
	c, err = settings(t, "--log-level", "error")
	require.NoError(t, err)
	require.Equal(t, "/file", c.Data, "from the file")
	require.Equal(t, "kvm", c.Platform, "from the file")
	require.Equal(t, "127.0.0.1:2", c.Listen, "from the variable, before the file")
	require.Equal(t, "error", c.LogLevel, "from the flag, before the variable")

	c, err = settings(t, "--listen=127.0.0.1:3000")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:3000", c.Listen, "a flag that is given its default counts")
}

func TestDataFolderIsAbsolute(t *testing.T) {
	emptySurroundings(t)
	here, err := os.Getwd()
	require.NoError(t, err)
	c, err := settings(t, "--data", "some/../where")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(here, "where"), c.Data)
	_, err = settings(t, "--data", "")
	require.ErrorContains(t, err, "data folder")
}

func TestCABundle(t *testing.T) {
	emptySurroundings(t)
	missing := filepath.Join(t.TempDir(), "none.crt")
	c, err := settings(t, "--ca-bundle", missing)
	require.NoError(t, err)
	require.Equal(t, missing, c.CABundle, "one that is asked for and missing is an error later, not silence")
	c, err = settings(t, "--ca-bundle", "")
	require.NoError(t, err)
	require.Empty(t, c.CABundle)
}

func TestSettingsFileThatIsWrong(t *testing.T) {
	emptySurroundings(t)
	require.NoError(t, os.WriteFile("tombolo.yaml", []byte("data: [unclosed"), 0o600))
	_, err := settings(t)
	require.ErrorContains(t, err, "tombolo.yaml")
}

func TestVariablesThatAreNoSettings(t *testing.T) {
	var told strings.Builder
	warnOfVariables([]string{"TOMBOLO_AUDIT_PROCESES=false", "TOMBOLO_AUDIT_PROCESSES=false", "TOMBOLO_API_KEY=k", "TOMBOLOX=1", "PATH=/bin"}, &told)
	require.Equal(t, "tombolo: there is no setting for the variable TOMBOLO_AUDIT_PROCESES, so it does nothing\n", told.String())

	cmd := command(t.Context(), t.TempDir(), "version")
	cmd.Env = append(cmd.Env, "TOMBOLO_LISTENN=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "TOMBOLO_LISTENN")
}
