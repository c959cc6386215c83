package spawn_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// reaper is the spawner of all tests: only one may reap every child.
var reaper = sync.OnceValues(func() (*spawn.Spawner, error) { return spawn.New(nil, true) })

func shell(t *testing.T, s *spawn.Spawner, script string) *spawn.Process {
	t.Helper()
	p, err := s.Start("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{Env: os.Environ()})
	require.NoError(t, err)
	return p
}

func TestEveryProcessGetsItsOwnStatus(t *testing.T) {
	s, err := reaper()
	require.NoError(t, err)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			p, err := s.Start("/bin/sh", []string{"sh", "-c", fmt.Sprintf("exit %d", i)}, &syscall.ProcAttr{})
			if err != nil {
				t.Errorf("start %d: %v", i, err)
				return
			}
			if status, _ := p.Status(); status.ExitStatus() != i {
				t.Errorf("process %d ended with %d", i, status.ExitStatus())
			}
		})
	}
	all.Wait()
}

func TestEndedProcessIsNotFound(t *testing.T) {
	s, err := reaper()
	require.NoError(t, err)
	p := shell(t, s, "sleep 100")
	found, ok := s.Find(p.PID)
	require.True(t, ok)
	require.Same(t, p, found)
	require.NoError(t, p.Signal(syscall.SIGKILL))
	status, _ := p.Status()
	require.Equal(t, syscall.SIGKILL, status.Signal())
	_, ok = s.Find(p.PID)
	require.False(t, ok)
	require.ErrorIs(t, p.Signal(syscall.SIGKILL), os.ErrProcessDone)
}

func TestFailedStartLeavesNothing(t *testing.T) {
	s, err := reaper()
	require.NoError(t, err)
	_, err = s.Start("/no/such/program", []string{"x"}, &syscall.ProcAttr{})
	require.ErrorIs(t, err, syscall.ENOENT)
	require.Eventually(t, func() bool { return zombies(t) == 0 }, 20*time.Second, 5*time.Millisecond)
}

// zombies counts the ended children that nobody has waited for.
func zombies(t *testing.T) int {
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	n := 0
	for _, task := range tasks {
		children, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		for pid := range strings.FieldsSeq(string(children)) {
			stat, _ := os.ReadFile("/proc/" + pid + "/stat")
			if strings.Contains(string(stat), ") Z ") {
				n++
			}
		}
	}
	return n
}

func TestSpawnerWithoutReapingGivesStatus(t *testing.T) {
	if os.Getenv("SPAWN_ALONE") == "" {
		s, err := reaper()
		require.NoError(t, err)
		p, err := s.Start("/proc/self/exe", []string{"test", "-test.run", "^" + t.Name() + "$"}, &syscall.ProcAttr{
			Env: append(os.Environ(), "SPAWN_ALONE=1"), Files: []uintptr{0, 1, 2},
		})
		require.NoError(t, err)
		status, _ := p.Status()
		require.Zero(t, status.ExitStatus())
		return
	}
	s, err := spawn.New(nil, false)
	require.NoError(t, err)
	status, _ := shell(t, s, "exit 9").Status()
	require.Equal(t, 9, status.ExitStatus())
}
