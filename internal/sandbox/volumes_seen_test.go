package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestManyVolumesSeen: the folder in which volumes are mounted has room for all that a
// snapshot may have seen.
func TestManyVolumesSeen(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, volumesDirOptions))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	for i := range seenMost + 16 {
		require.NoError(t, os.Mkdir(filepath.Join(dir, fmt.Sprintf("v%019d", i)), 0o700))
	}
}
