package sandbox_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

func TestMemoryLimitEndsTheProcessAndNotTheSandbox(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	other := w.Start(t, info, "sleep")
	other.Expect("asleep")
	for range 3 { // whoever comes next is not ended for what the last one had
		end := w.Start(t, info, "eat").Wait()
		require.Contains(t, end.GetError(), "memory", "the caller is not told why its process ended: %v", end)
		require.NotEqual(t, int32(0), end.GetExitCode())
	}

	require.Equal(t, "hello\n", w.Run(t, info, "echo", "hello"))
	conn, err := w.Manager.Dial(t.Context(), info.ID, 8000)
	require.NoError(t, err, "what ran before lives on")
	require.Equal(t, "HI", sandboxtest.Ask(t, conn, "hi"))
	other.Kill()
	require.Eventually(t, func() bool { return strings.Contains(logText(t, w, info.ID), "out of memory: ended probe") },
		patience, tick, "the log does not say so")
	_, err = w.Manager.Get(info.ID)
	require.NoError(t, err)
}

func TestForkBombEndsAndNotTheSandbox(t *testing.T) {
	w := sandboxtest.New(t)
	roomy := sandboxtest.Template("roomy") // a process takes memory of the engine, too
	roomy.MemoryBytes = 4 << 30
	_, err := w.Manager.BuildTemplate(t.Context(), roomy, true, func(string) {})
	require.NoError(t, err)
	info := w.Create(t, "roomy")
	bomb := w.Start(t, info, "fork")
	require.Equal(t, "hello\n", w.Run(t, info, "echo", "hello"), "nothing starts beside a fork bomb")
	end := bomb.Wait()
	require.Contains(t, end.GetError(), "process limit", "the caller is not told why its program ended: %v", end)
	require.Equal(t, "hello\n", w.Run(t, info, "echo", "hello"), "nothing starts after a fork bomb")
}

func TestDiskLimitIsAnErrorInside(t *testing.T) {
	w := sandboxtest.New(t)
	for _, template := range []string{sandboxtest.Cold, sandboxtest.Warm} {
		info := w.Create(t, template)
		found := regexp.MustCompile(`^filled (\d+) (.*)\n`).FindStringSubmatch(w.Run(t, info, "fill", "/home/user/big"))
		require.NotNil(t, found)
		require.Contains(t, found[2], "no space left on device")
		size, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		require.InDelta(t, 60, size, 8, "MiB fit on a disk of 64")
		require.Equal(t, "hello\n", w.Run(t, info, "echo", "hello"), "a full disk stops no process")
	}
}

func TestRefusedConnectionsAreInTheLog(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	end := w.Start(t, info, "dial", "192.0.2.1:80").Wait()
	require.NotZero(t, end.GetExitCode())
	require.Eventually(t, func() bool {
		return strings.Contains(logText(t, w, info.ID), "network: refused 192.0.2.1:80")
	}, patience, tick)
}

func TestLogsOfASandboxThatIsGone(t *testing.T) {
	w := sandboxtest.New(t)
	info := w.Create(t, sandboxtest.Warm)
	require.Contains(t, logText(t, w, info.ID), "lifecycle: running")
	require.NoError(t, w.Manager.Kill(t.Context(), info.ID, "killed"))
	_, err := w.Manager.Logs(info.ID)
	require.ErrorIs(t, err, sandbox.ErrNotFound)
}

func logText(t *testing.T, w *sandboxtest.World, id string) string {
	t.Helper()
	lines, err := w.Manager.Logs(id)
	require.NoError(t, err)
	var text strings.Builder
	for _, line := range lines {
		fmt.Fprintf(&text, "%s: %s\n", line.Source, line.Text)
	}
	return text.String()
}
