package sandboxtest

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	processrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/process/processconnect"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// patience bounds every wait for something that should happen at once.
const patience = 30 * time.Second

// Program is one that runs in a sandbox.
type Program struct {
	t      *testing.T
	info   sandbox.Info
	client processconnect.ProcessClient
	stream *connect.ServerStreamForClient[processrpc.StartResponse]
	close  func()

	PID    uint32
	Stdout bytes.Buffer
	Stderr bytes.Buffer
}

// Start starts the probe with arguments in a sandbox, by its agent.
func (w *World) Start(t *testing.T, info sandbox.Info, args ...string) *Program {
	t.Helper()
	p, err := w.TryStart(t, info, args...)
	require.NoError(t, err)
	return p
}

// TryStart is Start for a program that may not start.
func (w *World) TryStart(t *testing.T, info sandbox.Info, args ...string) (*Program, error) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return w.Manager.Dial(ctx, info.ID, hostapi.AgentPort)
	}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	p := &Program{
		t:      t,
		info:   info,
		client: processconnect.NewProcessClient(&http.Client{Transport: transport}, "http://agent"),
		close:  func() { cancel(); transport.CloseIdleConnections() },
	}
	request := connect.NewRequest(&processrpc.StartRequest{Process: &processrpc.ProcessConfig{Cmd: "/bin/probe", Args: args}})
	request.Header().Set("X-Access-Token", info.AccessToken)
	var err error
	if p.stream, err = p.client.Start(ctx, request); err == nil && !p.stream.Receive() {
		err = p.stream.Err()
	}
	if err != nil {
		p.close()
		return nil, err
	}
	t.Cleanup(p.Close)
	p.PID = p.stream.Msg().GetEvent().GetStart().GetPid()
	return p, nil
}

// Close stops following the program, which goes on.
func (p *Program) Close() {
	p.stream.Close()
	p.close()
}

// next takes the next event; nil at the end of the stream.
func (p *Program) next() *processrpc.ProcessEvent {
	if !p.stream.Receive() {
		return nil
	}
	event := p.stream.Msg().GetEvent()
	p.Stdout.Write(event.GetData().GetStdout())
	p.Stderr.Write(event.GetData().GetStderr())
	return event
}

// Expect waits until the program has printed text.
func (p *Program) Expect(text string) {
	p.t.Helper()
	for !strings.Contains(p.Stdout.String(), text) {
		event := p.next()
		require.NotNil(p.t, event, "the stream ended before %q: %v", text, p.stream.Err())
		require.Nil(p.t, event.GetEnd(), "the program ended before it printed %q: %v %s", text, event, p.Stderr.String())
	}
}

// Wait waits for the program's end.
func (p *Program) Wait() *processrpc.ProcessEvent_EndEvent {
	p.t.Helper()
	for {
		event := p.next()
		require.NotNil(p.t, event, "the stream ended before the program: %v", p.stream.Err())
		if end := event.GetEnd(); end != nil {
			return end
		}
	}
}

// Kill ends the program and all it started.
func (p *Program) Kill() {
	p.t.Helper()
	request := connect.NewRequest(&processrpc.SendSignalRequest{
		Process: &processrpc.ProcessSelector{Selector: &processrpc.ProcessSelector_Pid{Pid: p.PID}},
		Signal:  processrpc.Signal_SIGNAL_SIGKILL,
	})
	request.Header().Set("X-Access-Token", p.info.AccessToken)
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	_, err := p.client.SendSignal(ctx, request)
	require.NoError(p.t, err)
}

// Run runs the probe to its end and returns what it printed. It must succeed.
func (w *World) Run(t *testing.T, info sandbox.Info, args ...string) string {
	t.Helper()
	p := w.Start(t, info, args...)
	defer p.Close()
	end := p.Wait()
	require.Zero(t, end.GetExitCode(), "probe %v: %v %s", args, end, p.Stderr.String())
	require.True(t, end.GetExited(), "probe %v: %v", args, end)
	return p.Stdout.String()
}

// Ask sends text to a port that the probe listens on, ends its half, and returns
// the answer.
func Ask(t *testing.T, conn net.Conn, text string) string {
	t.Helper()
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
	require.NoError(t, conn.(interface{ CloseWrite() error }).CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(answer)
}

// Child is a process with a core of its own.
type Child struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// StartChild starts this test program as one of the children given to [Main], on
// a data folder. It is killed at the end of the test at the latest.
func StartChild(t *testing.T, name, dir string) *Child {
	t.Helper()
	p, err := sharedParts()
	require.NoError(t, err)
	cmd := exec.Command("/proc/self/exe", dir)
	cmd.Args[0] = "child"
	cmd.Env = append(os.Environ(), childVariable+"="+name, partsVariable+"="+p.dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &Child{t: t, cmd: cmd, lines: bufio.NewScanner(out)}
	t.Cleanup(c.Kill)
	return c
}

// Line waits for the next line that the child prints.
func (c *Child) Line() string {
	c.t.Helper()
	require.True(c.t, c.lines.Scan(), "the child ended")
	return c.lines.Text()
}

// Wait waits until the child has ended.
func (c *Child) Wait() { c.cmd.Wait() }

// Kill ends the child as kill -9 does, and waits for its end.
func (c *Child) Kill() {
	c.cmd.Process.Signal(syscall.SIGKILL) // fails when it has ended already
	c.cmd.Wait()
}
