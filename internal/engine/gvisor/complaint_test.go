package gvisor

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/engine"
)

// The complaints are gVisor's own. Names of files are the sandbox's to choose.
func TestComplaintsAboutFilesOfMounts(t *testing.T) {
	cause := errors.New("exit status 128")
	const restore = `starting container: restoring container "i1": failed to load kernel: vfs.CompleteRestore() failed: failed to complete restore for filesystem type "9p": `
	for complaint, want := range map[string]*engine.MissingError{
		restore + `failed to walk "v1/open" of type 0100000 in mount "__no_name_0:/.volumes": no such file or directory`: {
			Target: "/.volumes", Path: "v1/open",
		},
		restore + `failed to walk "v1/a \"b\" of type 040000 in mount \"x:/etc\"\n" of type 040000 in mount "__no_name_0:/.volumes": no such file or directory`: {
			Target: "/.volumes", Path: "v1/a \"b\" of type 040000 in mount \"x:/etc\"\n", Type: fs.ModeDir,
		},
		restore + `failed to walk "v1/socket" of type 0140000 in mount "__no_name_0:/.volumes": no such file or directory`: nil,
		restore + `failed to walk "v1/open" of type 0100000 in mount "__no_name_0:/.volumes": not a directory`:             nil,
		"cannot allocate memory": nil,
	} {
		err := explained(complaint, cause)
		missing := (*engine.MissingError)(nil)
		require.Equal(t, want != nil, errors.As(err, &missing), complaint)
		if want != nil {
			want.Err = cause
			require.Equal(t, want, missing)
		}
		require.ErrorIs(t, err, cause)
	}
	stale := (*engine.StaleError)(nil)
	require.ErrorAs(t, explained(`checkpoint failed: checkpointing container "i1": gofer.dentry("v1/d").prepareSaveDead: invalidated dentries can't be saved`, cause), &stale)
	require.Equal(t, "v1/d", stale.Path)

	full := explained("checkpoint failed: write pages: no space left on device", cause)
	require.ErrorIs(t, full, unix.ENOSPC)
	require.ErrorIs(t, full, cause)
	require.NotErrorIs(t, explained(`failed to walk "no space left on device": not a directory`, cause), unix.ENOSPC)
}
