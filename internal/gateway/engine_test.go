package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// The tests in this file put the real engine in the namespace: set
// TOMBOLO_TEST_RUNSC to a runsc binary. The sandbox sees the host's files, read
// only, and runs the host's python3.

func runscBinary(t testing.TB) string {
	t.Helper()
	binary := os.Getenv("TOMBOLO_TEST_RUNSC")
	if binary == "" {
		t.Skip("TOMBOLO_TEST_RUNSC is not set")
	}
	return binary
}

// runInEngine runs a Python program in a sandbox in n and returns its output.
func runInEngine(t testing.TB, n *gateway.Network, program string) string {
	t.Helper()
	command, output := engineCommand(t, n.NamespacePath(), program)
	require.NoError(t, command.Run(), "%s", output)
	return strings.TrimSpace(output.String())
}

// startInEngine is runInEngine for a program that runs until the test ends.
func startInEngine(t testing.TB, namespace, program string) {
	t.Helper()
	command, output := engineCommand(t, namespace, program)
	require.NoError(t, command.Start())
	ended := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = command.Process.Signal(unix.SIGTERM) // runsc hands it on
		<-ended
		if t.Failed() {
			t.Logf("the program wrote: %s", output)
		}
	})
}

// engineCommand is the command that runs a Python program in a sandbox in a
// network namespace, and what it writes.
func engineCommand(t testing.TB, namespace, program string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	binary, dir := runscBinary(t), t.TempDir()
	python, err := exec.LookPath("python3")
	require.NoError(t, err)
	spec := map[string]any{
		"ociVersion": "1.2.0",
		"process": map[string]any{
			"args": []string{python, "-c", program},
			"cwd":  "/",
			"env":  []string{"PATH=" + os.Getenv("PATH"), "HOME=/root"},
			"user": map[string]any{"uid": 0, "gid": 0},
		},
		"root":   map[string]any{"path": "/", "readonly": true},
		"mounts": []any{map[string]any{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": map[string]any{"namespaces": []any{
			map[string]any{"type": "network", "path": namespace},
			map[string]any{"type": "pid"}, map[string]any{"type": "mount"},
			map[string]any{"type": "ipc"}, map[string]any{"type": "uts"},
		}},
	}
	encoded, err := json.Marshal(spec)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), encoded, 0o600))
	id := fmt.Sprintf("gw%d", time.Now().UnixNano())
	t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, "state", "null-netns"), unix.MNT_DETACH) })
	command := exec.Command(binary, "--root", filepath.Join(dir, "state"), "--network=sandbox", "--gofer-network-namespace=new", "--ignore-cgroups", "run", "-bundle", dir, id)
	output := new(bytes.Buffer)
	command.Stdout, command.Stderr = output, output
	return command, output
}

func TestEngineReachesOutAndIsReset(t *testing.T) {
	n := newNetwork(t)
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("from outside"))
			conn.Close()
		}
	}()
	program := fmt.Sprintf(`import socket
print(socket.create_connection((%q, %d)).recv(100).decode())`, hostAddress(t), listener.Addr().(*net.TCPAddr).Port)
	for range 2 { // the second needs Reset
		require.Equal(t, "from outside", runInEngine(t, n, program))
		require.NoError(t, n.Reset())
	}
}

// TestEngineThroughput logs what a Python client in the engine reaches.
func TestEngineThroughput(t *testing.T) {
	n := newNetwork(t)
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				direction := make([]byte, 1)
				_, _ = io.ReadFull(conn, direction)
				if direction[0] == 'u' {
					_, _ = io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn})
					_, _ = conn.Write([]byte("x"))
					return
				}
				chunk := make([]byte, 1<<20)
				for range 1024 {
					if _, err := conn.Write(chunk); err != nil {
						return
					}
				}
			}()
		}
	}()
	program := fmt.Sprintf(`import socket, time
c = socket.create_connection((%q, %d)); c.send(b'u'); b = bytes(1<<20); t = time.time()
for i in range(1024): c.sendall(b)
c.shutdown(1); c.recv(1); print('out %%.2f Gbit/s' %% (8*1024*(1<<20)/1e9/(time.time()-t)))
c = socket.create_connection((%q, %d)); c.send(b'd'); t = time.time(); b = bytearray(1<<20); n = 0
while True:
    k = c.recv_into(b)
    if not k: break
    n += k
print('in %%.2f Gbit/s' %% (8*n/1e9/(time.time()-t)))`,
		hostAddress(t), listener.Addr().(*net.TCPAddr).Port, hostAddress(t), listener.Addr().(*net.TCPAddr).Port)
	t.Log(runInEngine(t, n, program))
}

// TestEngineAnswersDialling logs the time of a round trip into the engine.
func TestEngineAnswersDialling(t *testing.T) {
	runscBinary(t)
	n := newNetwork(t)
	done := make(chan string, 1)
	go func() {
		done <- runInEngine(t, n, `import socket
l = socket.create_server(('0.0.0.0', 8000)); c, _ = l.accept(); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while True:
    d = c.recv(100)
    if not d: break
    c.send(d)
print('ended')`)
	}()
	var conn net.Conn
	require.Eventually(t, func() bool {
		c, err := n.DialContext(context.Background(), 8000)
		conn = c
		return err == nil
	}, 20*time.Second, 20*time.Millisecond)
	one := make([]byte, 1)
	const rounds = 2000
	start := time.Now()
	for range rounds {
		_, err := conn.Write(one)
		require.NoError(t, err)
		_, err = io.ReadFull(conn, one)
		require.NoError(t, err)
	}
	t.Logf("round trip %s", time.Since(start)/rounds)
	conn.Close()
	require.Equal(t, "ended", <-done)
}
