package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox/sandboxtest"
)

// asTombolo makes the test program the product.
const asTombolo = "TEST_AS_TOMBOLO"

func TestMain(m *testing.M) {
	if os.Getenv(asTombolo) != "" && os.Args[0] == "tombolo" {
		os.Exit(Main())
	}
	sandboxtest.Main(m, nil)
}

// patience bounds every wait for something that should happen at once.
const patience = 60 * time.Second

// outcome is what a command did.
type outcome struct {
	stdout, stderr string
	code           int
}

// tombolo runs a command line to its end on a data folder.
func tombolo(t *testing.T, dir, stdin string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := command(ctx, dir, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	require.NoError(t, ctx.Err(), "tombolo %v hangs: %s", args, stderr.String())
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func command(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Args[0] = "tombolo"
	cmd.Env = append(os.Environ(), asTombolo+"=1", "TOMBOLO_DATA="+dir)
	return cmd
}

// server is `tombolo serve` in a process of its own.
type server struct {
	t     *testing.T
	cmd   *exec.Cmd
	ready string // the line it printed
}

func startServer(t *testing.T, dir string, flags ...string) *server {
	t.Helper()
	s := &server{t: t, cmd: command(context.Background(), dir, append([]string{"serve", "--listen", "127.0.0.1:0"}, flags...)...)}
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		kill := time.AfterFunc(patience, func() { s.cmd.Process.Kill() })
		defer kill.Stop()
		s.cmd.Process.Signal(syscall.SIGTERM) // fails when it was stopped
		s.cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan(), "the server printed nothing")
	s.ready = lines.Text()
	return s
}

// stop stops the server as a service manager does and expects it to end well.
func (s *server) stop() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(s.t, s.cmd.Wait())
}
