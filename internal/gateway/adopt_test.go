package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/gateway"
)

// TestMain lets the test binary play a daemon that dies with a network open.
func TestMain(m *testing.M) {
	if dir := os.Getenv("GATEWAY_TEST_DIE_IN"); dir != "" {
		if err := playDaemon(dir); err != nil {
			os.Stderr.WriteString(err.Error())
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// playDaemon makes a network and dials each port that is asked for, until it is
// killed.
func playDaemon(dir string) error {
	n, err := gateway.New(context.Background(), gateway.Config{Dir: dir, Policy: loopback{}})
	if err != nil {
		return err
	}
	kept := map[net.Conn]bool{} // open until this process is killed
	for {
		fmt.Println("done")
		var port uint16
		if _, err := fmt.Scan(&port); err != nil {
			return err
		}
		conn, err := n.DialContext(context.Background(), port)
		if err != nil {
			return err
		}
		kept[conn] = true
	}
}

// daemon is a process that has the network in dir.
type daemon struct {
	t     *testing.T
	dir   string
	cmd   *exec.Cmd
	asks  io.Writer
	lines *bufio.Scanner
}

func startDaemon(t *testing.T) *daemon {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	d := &daemon{t: t, dir: t.TempDir(), cmd: exec.Command(os.Args[0])}
	t.Cleanup(func() { _ = gateway.Sweep(d.dir) })
	d.cmd.Env = append(os.Environ(), "GATEWAY_TEST_DIE_IN="+d.dir)
	d.cmd.Stderr = os.Stderr
	output, err := d.cmd.StdoutPipe()
	require.NoError(t, err)
	d.lines = bufio.NewScanner(output)
	d.asks, err = d.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, d.cmd.Start())
	t.Cleanup(d.kill)
	d.expectDone()
	return d
}

func (d *daemon) expectDone() {
	d.t.Helper()
	require.True(d.t, d.lines.Scan(), "the daemon ended")
}

// dial connects to a port inside and keeps the connection.
func (d *daemon) dial(port int) {
	d.t.Helper()
	_, err := fmt.Fprintln(d.asks, port)
	require.NoError(d.t, err)
	d.expectDone()
}

func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // fails when it is dead already
	_ = d.cmd.Wait()
}

// leftBehind returns a folder with the network of a daemon killed by SIGKILL.
func leftBehind(t *testing.T) string {
	t.Helper()
	d := startDaemon(t)
	d.kill()
	return d.dir
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

func TestDetachedNetworkIsAdopted(t *testing.T) {
	dir := t.TempDir()
	n := newNetwork(t, func(c *gateway.Config) { c.Dir = dir })
	inside, outside := pair(t, n)
	listener := listenInside(t, n)
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	in, err := n.DialContext(context.Background(), port)
	require.NoError(t, err)
	peer, err := listener.Accept()
	require.NoError(t, err)
	defer peer.Close()
	require.NoError(t, n.Detach())
	_, err = in.Read(make([]byte, 1))
	require.ErrorIs(t, err, gateway.ErrClosed)
	expectEnd(t, outside)

	n, err = gateway.Adopt(context.Background(), gateway.Config{Dir: dir, Policy: loopback{}})
	require.NoError(t, err)
	defer n.Close()
	expectEnd(t, inside)
	expectEnd(t, peer)
	conn, err := n.DialContext(context.Background(), port)
	require.NoError(t, err)
	conn.Close()
	inside, outside = pair(t, n)
	send(t, inside, "new")
	expect(t, outside, "new")
	require.NoError(t, n.Close())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// expectEnd waits for the end of a connection, polite or not.
func expectEnd(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, err := io.Copy(io.Discard, conn)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection should have ended")
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

// only allows one address.
type only struct{ address string }

func (o only) Decide(_ context.Context, r gateway.Request) gateway.Decision {
	if r.Destination.String() != o.address {
		return gateway.Decision{Reason: "test"}
	}
	return gateway.Decision{Verdict: gateway.Allow, Reason: "test"}
}

// insideAdopted runs in the sandbox whose network is adopted. It has a server
// that echoes, one connection out that waits, one that sends all the time, and
// tells on port 8001 how they are; port 8002 takes the address to connect to.
const insideAdopted = `import os, signal, socket, threading, time
states, lock = {}, threading.Lock()
def run(name, work):
    def body():
        try: work(); end = 'ended'
        except Exception as e: end = type(e).__name__
        with lock: states[name] = end
    with lock: states[name] = 'open'
    threading.Thread(target=body, daemon=True).start()
def echo(c):
    with c:
        while d := c.recv(100): c.sendall(d)
def serve(port, handle):
    l = socket.create_server(('0.0.0.0', port), backlog=200)
    def accept():
        while True:
            c, _ = l.accept()
            handle(c)
    threading.Thread(target=accept, daemon=True).start()
def tell(c):
    with lock: text = ' '.join(f'{k}={v}' for k, v in sorted(states.items()))
    c.sendall(text.encode()); c.close()
def connect(c):
    host, port = c.recv(100).decode().split(':')
    try: text = socket.create_connection((host, int(port)), 5).recv(100)
    except Exception as e: text = type(e).__name__.encode()
    c.sendall(text); c.close()
def send(c):
    while True: c.sendall(b'x'); time.sleep(0.02)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
numbers = iter(range(1000))
def echoed(c): run(f'in-{next(numbers)}', lambda: echo(c))
serve(49983, lambda c: run('agent', lambda: echo(c)))
serve(8000, echoed); serve(8001, tell); serve(8002, connect)
idle, busy = socket.create_connection(ADDRESS), socket.create_connection(ADDRESS)
run('idle-out', lambda: echo(idle)); run('busy-out', lambda: send(busy))
time.sleep(1000)`

// talk sends a text to a port inside, ends its half and returns the answer.
func talk(t *testing.T, n *gateway.Network, port uint16, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := n.DialContext(ctx, port)
	require.NoError(t, err)
	defer conn.Close()
	send(t, conn, text)
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(answer)
}

func TestRunningSandboxKeepsItsNetworkWhenTheDaemonIsKilled(t *testing.T) {
	listener, err := net.Listen("tcp4", hostAddress(t)+":0")
	require.NoError(t, err)
	defer listener.Close()
	address := listener.Addr().(*net.TCPAddr)
	var outside []net.Conn
	accepted := make(chan net.Conn, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	d := startDaemon(t)
	program := strings.ReplaceAll(insideAdopted, "ADDRESS", fmt.Sprintf("(%q, %d)", address.IP, address.Port))
	startInEngine(t, filepath.Join(d.dir, "netns"), program)
	for range 2 {
		select {
		case conn := <-accepted:
			outside = append(outside, conn)
		case <-time.After(time.Minute):
			require.FailNow(t, "the sandbox did not connect")
		}
	}
	const idle = 20
	for range idle {
		d.dial(8000)
	}
	d.dial(hostapi.AgentPort)
	d.kill()
	for _, conn := range outside { // the kernel ends those of the dead
		expectEnd(t, conn)
	}

	began := time.Now()
	n, err := gateway.Adopt(context.Background(), gateway.Config{Dir: d.dir, Policy: only{address.String()}})
	require.NoError(t, err)
	defer n.Close()
	require.Equal(t, "hello", talk(t, n, 8000, "hello"))
	go func() {
		conn := <-accepted
		_, _ = conn.Write([]byte("from outside"))
		conn.Close()
	}()
	require.Equal(t, "from outside", talk(t, n, 8002, address.String()))
	require.Less(t, time.Since(began), 20*time.Second) // a tenth of a second on a machine at rest
	require.Equal(t, "ConnectionRefusedError", talk(t, n, 8002, hostAddress(t)+":1"), "the policy applies")

	var left string // how the connections inside are
	open := func() int {
		left = talk(t, n, 8001, "")
		return strings.Count(left, "open")
	}
	for deadline := time.Now().Add(20 * time.Second); open() > 1; time.Sleep(20 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "connections to the dead should end inside, idle ones too: %s", left)
	}
	if time.Since(began) < 5*time.Second { // which it has to hear of it
		require.Contains(t, left, "agent=open")
	}
	for deadline := time.Now().Add(20 * time.Second); open() > 0; time.Sleep(50 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "that to the agent should end: %s", left)
	}
	require.Equal(t, idle+3, strings.Count(talk(t, n, 8001, ""), "ConnectionResetError"))
}
