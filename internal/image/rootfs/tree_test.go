package rootfs_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func diskBytes(t *testing.T, f *os.File) int64 {
	t.Helper()
	info, err := f.Stat()
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}
