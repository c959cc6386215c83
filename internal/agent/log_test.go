package agent_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent"
)

// TestLogOutlivesItsReader writes to a named pipe whose reader is slow, gone,
// and back, as the host's is when its server is killed.
func TestLogOutlivesItsReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	open := func() *os.File {
		reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		require.NoError(t, err)
		return reader
	}
	reader := open()
	pipe, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer pipe.Close()
	log, err := agent.LogTo(pipe)
	require.NoError(t, err)
	write := func(line string) {
		count, err := io.WriteString(log, line+"\n")
		require.NoError(t, err)
		require.Equal(t, len(line)+1, count)
	}
	read := func() string {
		line, err := bufio.NewReader(reader).ReadString('\n')
		require.NoError(t, err)
		return strings.TrimSuffix(line, "\n")
	}
	write("first")
	require.Equal(t, "first", read())

	for range 1000 { // more than a pipe holds, and nobody reads
		write(strings.Repeat("x", 1000))
	}
	require.NoError(t, reader.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	taken, err := io.Copy(io.Discard, reader)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Less(t, taken, int64(1000*1001))
	require.NoError(t, reader.Close())
	write("unheard")
	reader = open()
	defer reader.Close()
	write("heard")
	require.Equal(t, "heard", read())
}

func TestChildrenOfALoggingProgramEndByABrokenPipe(t *testing.T) {
	_, err := agent.LogTo(os.Stderr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.SetNonblock(int(os.Stderr.Fd()), false) })
	ignored, err := exec.Command("grep", "SigIgn", "/proc/self/status").Output()
	require.NoError(t, err)
	mask, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(string(ignored), "SigIgn:")), 16, 64)
	require.NoError(t, err)
	require.Zero(t, mask&(1<<(unix.SIGPIPE-1)), "%s", ignored)
}
