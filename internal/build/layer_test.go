package build

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestALayerInUseKeepsNobodyWaiting: others replace and remove it meanwhile, and who
// uses it has what it began with.
func TestALayerInUseKeepsNobodyWaiting(t *testing.T) {
	b := newBuilds(t, t.TempDir())
	r := &build{b: b}
	saves := func(text string) func(context.Context, string) error {
		return func(_ context.Context, to string) error {
			require.NoError(t, os.Mkdir(to, 0o700))
			for _, name := range []string{"disk.img", "pages.img"} {
				require.NoError(t, os.WriteFile(filepath.Join(to, name), []byte(text), 0o600))
			}
			return nil
		}
	}
	require.NoError(t, b.keepLayer(t.Context(), "key", saves("old")))
	own, err := r.hold(b.layer("key"))
	require.NoError(t, err)
	require.NoError(t, b.keepLayer(t.Context(), "key", saves("new")))
	after, err := r.hold(b.layer("key"))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(b.layer("key")))
	for dir, want := range map[string]string{own: "old", after: "new"} {
		for _, name := range []string{"disk.img", "pages.img"} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Equal(t, want, string(got))
		}
	}
	_, err = r.hold(filepath.Join(b.dir(layersDir), "key"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.RemoveAll(own))
	require.NoError(t, os.RemoveAll(after))
	left, err := os.ReadDir(b.dir(logsDir))
	require.NoError(t, err)
	require.Empty(t, left)
}
