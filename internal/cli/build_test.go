package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/image"
)

func TestPrivateRegistriesComeFromEverywhere(t *testing.T) {
	emptySurroundings(t)
	c, err := settings(t)
	require.NoError(t, err)
	require.Empty(t, c.PrivateRegistries)
	require.NoError(t, os.WriteFile("tombolo.yaml", []byte("private-registry: [\"file:1\", \"file:2\"]\n"), 0o600))
	c, err = settings(t)
	require.NoError(t, err)
	require.Equal(t, []string{"file:1", "file:2"}, c.PrivateRegistries)
	t.Setenv("TOMBOLO_PRIVATE_REGISTRY", "variable:1,variable:2")
	c, err = settings(t)
	require.NoError(t, err)
	require.Equal(t, []string{"variable:1", "variable:2"}, c.PrivateRegistries)
	c, err = settings(t, "--private-registry", "flag:1", "--private-registry", "flag:2")
	require.NoError(t, err)
	require.Equal(t, []string{"flag:1", "flag:2"}, c.PrivateRegistries)
}

// A login goes to the registry it is for and to no other.
func TestLoginsAreForTheirRegistry(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	stored := `{"auths": {"stored.example:5000": {"auth": "dXNlcjpzZWNyZXQ="}, "https://index.docker.io/v1/": {"auth": "aHViOmh1Yg=="}}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(stored), 0o600))
	login, err := (&planFlags{}).logins()
	require.NoError(t, err)
	for reference, want := range map[string]*image.Login{
		"stored.example:5000/some/thing:1": {User: "user", Password: "secret"},
		"alpine":                           {User: "hub", Password: "hub"},
		"other.example/alpine":             nil,
		"NOT a reference":                  nil,
	} {
		got, err := login(reference)
		require.NoError(t, err)
		require.Equal(t, want, got, reference)
	}

	password := filepath.Join(dir, "password")
	require.NoError(t, os.WriteFile(password, []byte("given\n"), 0o600))
	stdin, err := os.Open(password)
	require.NoError(t, err)
	defer stdin.Close()
	before := os.Stdin
	os.Stdin = stdin
	defer func() { os.Stdin = before }()
	login, err = (&planFlags{image: "given.example/x/y", user: "me", passwordStdin: true}).logins()
	require.NoError(t, err)
	for reference, want := range map[string]*image.Login{
		"given.example/other:2":            {User: "me", Password: "given"},
		"stored.example:5000/some/thing:1": {User: "user", Password: "secret"},
		"other.example/alpine":             nil,
	} {
		got, err := login(reference)
		require.NoError(t, err)
		require.Equal(t, want, got, reference)
	}

	for message, flags := range map[string]planFlags{
		"go together":           {user: "me"},
		"say by --registry":     {file: "Dockerfile", user: "me", passwordStdin: true},
		"cannot both come from": {file: "-", user: "me", passwordStdin: true, registry: "x"},
	} {
		_, err := flags.logins()
		require.ErrorContains(t, err, message)
	}
}

func TestPlansNeedANameThatIsOne(t *testing.T) {
	flags := &planFlags{image: "alpine", memory: "2GiB", cpus: 4}
	request, err := flags.request("web:v1")
	require.NoError(t, err)
	require.Equal(t, "web", request.Alias)
	require.Equal(t, []string{"v1"}, request.Tags)
	require.EqualValues(t, 2<<30, request.MemoryBytes)
	_, err = flags.request("")
	require.ErrorContains(t, err, "--name")
	_, err = flags.request("No Name")
	require.Error(t, err)
	flags.disk = "much"
	_, err = flags.request("web")
	require.ErrorContains(t, err, "is not a size")
}
