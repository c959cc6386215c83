package gateway_test

import (
	"context"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// TestMain lets the test binary play a daemon that dies with a network open.
func TestMain(m *testing.M) {
	if dir := os.Getenv("GATEWAY_TEST_DIE_IN"); dir != "" {
		if _, err := gateway.New(context.Background(), gateway.Config{Dir: dir}); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Stdout.WriteString("up\n")
		select {}
	}
	os.Exit(m.Run())
}

// leftBehind returns a folder with the network of a daemon killed by SIGKILL.
func leftBehind(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	dir := t.TempDir()
	t.Cleanup(func() { _ = gateway.Sweep(dir) })
	daemon := exec.Command(os.Args[0])
	daemon.Env = append(os.Environ(), "GATEWAY_TEST_DIE_IN="+dir)
	daemon.Stderr = os.Stderr
	output, err := daemon.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, daemon.Start())
	up := make([]byte, 3)
	_, err = io.ReadFull(output, up)
	require.NoError(t, err)
	require.NoError(t, daemon.Process.Kill())
	_ = daemon.Wait()
	return dir
}

func TestNetworkOfADeadDaemonIsAdopted(t *testing.T) {
	dir := leftBehind(t)
	n, err := gateway.Adopt(context.Background(), gateway.Config{Dir: dir, Policy: loopback{}})
	require.NoError(t, err)
	listener := listenInside(t, n)
	conn, err := n.DialContext(context.Background(), uint16(listener.Addr().(*net.TCPAddr).Port))
	require.NoError(t, err)
	conn.Close()
	require.NoError(t, n.Close())
	require.NoFileExists(t, filepath.Join(dir, "netns"))
}

func TestNetworkOfADeadDaemonIsSwept(t *testing.T) {
	dir := leftBehind(t)
	_, err := gateway.New(context.Background(), gateway.Config{Dir: dir})
	require.Error(t, err, "a network is there already")
	require.NoError(t, gateway.Sweep(dir))
	require.NoFileExists(t, filepath.Join(dir, "netns"))
	require.NoError(t, gateway.Sweep(dir), "sweeping what is swept")
	_, err = gateway.Adopt(context.Background(), gateway.Config{Dir: dir})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestMountPointWithoutMountIsNotAdopted(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "netns"), nil, 0o400))
	_, err := gateway.Adopt(context.Background(), gateway.Config{Dir: dir})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, gateway.Sweep(dir))
}
