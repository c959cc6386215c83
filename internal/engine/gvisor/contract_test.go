package gvisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/engine/enginetest"
	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
)

// The test program is gVisor when it is started under gVisor's name, as the
// product is.
func TestMain(m *testing.M) {
	if gvisor.IsRunsc(os.Args[0]) {
		gvisor.Main()
		return
	}
	os.Exit(m.Run())
}

func TestContract(t *testing.T) {
	scope := fmt.Sprintf("test%d", os.Getpid())
	e, err := gvisor.New(gvisor.Config{Scope: scope, Processes: true})
	require.NoError(t, err)
	t.Cleanup(e.RemoveScope)
	enginetest.Suite{
		Engine:    e,
		Namespace: namespace,
		Leftovers: func(t *testing.T, id string) []string {
			groups, err := filepath.Glob("/sys/fs/cgroup/*/tombolo-" + scope + "/" + id)
			require.NoError(t, err)
			unified, err := filepath.Glob("/sys/fs/cgroup/tombolo-" + scope + "/" + id)
			require.NoError(t, err)
			return append(append(enginetest.ProcessesNaming(id), groups...), unified...)
		},
		TaskLimit: func(t *testing.T, id string) string {
			group := "/tombolo-" + scope + "/" + id + "/pids.max"
			limit, err := os.ReadFile("/sys/fs/cgroup" + group)
			if os.IsNotExist(err) {
				limit, err = os.ReadFile("/sys/fs/cgroup/pids" + group)
			}
			require.NoError(t, err)
			return strings.TrimSpace(string(limit))
		},
	}.Run(t)
}

// namespace makes an empty network namespace that lasts as long as the test.
func namespace(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
		}
		made <- err
	}()
	require.NoError(t, <-made)
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	return path
}
