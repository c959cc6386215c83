package cli

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// TestVolumesAreThoseOfTheKey has two keys with a volume of one name.
func TestVolumesAreThoseOfTheKey(t *testing.T) {
	c := config{Data: t.TempDir()}
	records, err := sqlite.Open(t.Context(), filepath.Join(c.Data, "tombolo.db"))
	require.NoError(t, err)
	t.Cleanup(func() { records.Close() })
	ids := map[string]string{}
	for _, name := range []string{"default", "ci"} {
		key, _, err := store.NewKey(name, time.Now())
		require.NoError(t, err)
		require.NoError(t, records.AddKey(t.Context(), key))
		ids[name] = key.ID
		require.NoError(t, records.AddVolume(t.Context(), store.Volume{ID: "vol-" + name, KeyID: key.ID, Name: "data", SizeBytes: 1 << 20, CreatedAt: time.Now()}, 10))
	}
	require.NoError(t, records.AddVolume(t.Context(), store.Volume{ID: "vol-only", KeyID: ids["ci"], Name: "only", SizeBytes: 1 << 20, CreatedAt: time.Now()}, 10))

	for _, test := range []struct{ key, name, want, fails string }{
		{key: "ci", name: "data", want: "vol-ci"},
		{key: "ci", name: "only", want: "vol-only"},
		{key: "ci", name: "vol-only", want: "vol-only"},
		{key: "ci", name: "vol-default", fails: "belongs to another key"},
		{key: "default", name: "data", want: "vol-default"},
		{key: "default", name: "only", fails: "--key says whose"},
		{name: "data", want: "vol-default"},
		{name: "vol-ci", want: "vol-ci"}, // the owner's, of any key
		{name: "only", fails: "--key says whose"},
	} {
		mounts, err := parseVolumes(t.Context(), c, ids[test.key], []string{test.name + ":/mnt/x"})
		if test.fails != "" {
			require.ErrorContains(t, err, test.fails, "%+v", test)
			continue
		}
		require.NoError(t, err, "%+v", test)
		require.Equal(t, test.want, mounts[0].Name, "%+v", test)
	}
}
