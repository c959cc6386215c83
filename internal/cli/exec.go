package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"golang.org/x/term"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	processrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/process/processconnect"
)

// stdinChunk is how much of stdin goes into one message, bytes.
const stdinChunk = 32 << 10

// execution is one command to run inside a sandbox.
type execution struct {
	dial  func(ctx context.Context, port uint16) (net.Conn, error)
	token string // the agent's
	user  string // empty for the sandbox's default
	cwd   string
	argv  []string
}

// run runs the command with this process's stdin, stdout and stderr, on a
// terminal of its own when those are one. It returns exitCode when the command
// failed.
func (e execution) run(ctx context.Context) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return e.dial(ctx, hostapi.AgentPort)
	}}
	defer transport.CloseIdleConnections()
	client := processconnect.NewProcessClient(&http.Client{Transport: transport}, "http://agent")

	stdin := int(os.Stdin.Fd())
	interactive := term.IsTerminal(stdin) && term.IsTerminal(int(os.Stdout.Fd()))
	open := true
	request := &processrpc.StartRequest{
		Process: &processrpc.ProcessConfig{Cmd: e.argv[0], Args: e.argv[1:]},
		Stdin:   &open,
	}
	if e.cwd != "" {
		request.Process.Cwd = &e.cwd
	}
	if interactive {
		request.Pty = &processrpc.PTY{Size: terminalSize(stdin)}
	}
	stream, err := client.Start(ctx, authorize(e, connect.NewRequest(request)))
	if err != nil {
		return remoteText(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		return notStarted(stream.Err())
	}
	pid := stream.Msg().GetEvent().GetStart().GetPid()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if interactive {
		previous, err := term.MakeRaw(stdin)
		if err != nil {
			return err
		}
		defer term.Restore(stdin, previous)
		go e.followSize(ctx, client, pid, stdin)
	}
	go e.feed(ctx, client, pid, interactive)
	for stream.Receive() {
		event := stream.Msg().GetEvent()
		if data := event.GetData(); data != nil {
			os.Stdout.Write(data.GetStdout())
			os.Stdout.Write(data.GetPty())
			os.Stderr.Write(data.GetStderr())
		}
		if end := event.GetEnd(); end != nil {
			return exitOf(end)
		}
	}
	if err := stream.Err(); err != nil {
		return remoteText(err)
	}
	return errors.New("the sandbox ended before the command did")
}

// feed sends stdin until its end. A command that ends before makes the sending
// fail, which is no error.
func (e execution) feed(ctx context.Context, client processconnect.ProcessClient, pid uint32, pty bool) {
	selector := &processrpc.ProcessSelector{Selector: &processrpc.ProcessSelector_Pid{Pid: pid}}
	buffer := make([]byte, stdinChunk)
	for {
		n, err := os.Stdin.Read(buffer)
		if n > 0 {
			input := &processrpc.ProcessInput{Input: &processrpc.ProcessInput_Stdin{Stdin: buffer[:n]}}
			if pty {
				input = &processrpc.ProcessInput{Input: &processrpc.ProcessInput_Pty{Pty: buffer[:n]}}
			}
			message := connect.NewRequest(&processrpc.SendInputRequest{Process: selector, Input: input})
			if _, err := client.SendInput(ctx, authorize(e, message)); err != nil {
				return
			}
		}
		if err != nil {
			if err == io.EOF && !pty {
				client.CloseStdin(ctx, authorize(e, connect.NewRequest(&processrpc.CloseStdinRequest{Process: selector})))
			}
			return
		}
	}
}

// followSize passes on each new size of the terminal.
func (e execution) followSize(ctx context.Context, client processconnect.ProcessClient, pid uint32, terminal int) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	defer signal.Stop(changed)
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			client.Update(ctx, authorize(e, connect.NewRequest(&processrpc.UpdateRequest{
				Process: &processrpc.ProcessSelector{Selector: &processrpc.ProcessSelector_Pid{Pid: pid}},
				Pty:     &processrpc.PTY{Size: terminalSize(terminal)},
			})))
		}
	}
}

func terminalSize(terminal int) *processrpc.PTY_Size {
	cols, rows, err := term.GetSize(terminal)
	if err != nil {
		cols, rows = 80, 24
	}
	return &processrpc.PTY_Size{Cols: uint32(cols), Rows: uint32(rows)}
}

// authorize adds the agent's token and the user to a request.
func authorize[T any](e execution, request *connect.Request[T]) *connect.Request[T] {
	request.Header().Set("X-Access-Token", e.token)
	if e.user != "" {
		request.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(e.user+":")))
	}
	return request
}

// exitOf maps the end of a process to an exit code as a shell does: 128 and the
// signal's number when a signal ended it.
func exitOf(end *processrpc.ProcessEvent_EndEvent) error {
	if text := end.GetError(); text != "" && text != end.GetStatus() {
		fmt.Fprintln(os.Stderr, "tombolo:", text)
	}
	code := int(end.GetExitCode())
	switch {
	case code == 0 && end.GetExited():
		return nil
	case code > 0:
		return exitCode(code)
	default:
		return exitCode(128 + int(signalOf(end.GetStatus())))
	}
}

// signalOf finds the signal in a status such as "signal: segmentation fault (core
// dumped)". What is not known is taken for SIGKILL, which ends all.
func signalOf(status string) syscall.Signal {
	name, _, _ := strings.Cut(strings.TrimPrefix(status, "signal: "), " (")
	for signal := syscall.Signal(1); signal < 65; signal++ {
		if signal.String() == name {
			return signal
		}
	}
	return syscall.SIGKILL
}

// notStarted is the error of a command that could not be started, with a shell's
// exit codes: 127 for one that is not there, 126 for one that may not be run.
func notStarted(err error) error {
	var remote *connect.Error
	if !errors.As(err, &remote) {
		return remoteText(err)
	}
	code, ok := map[string]exitCode{hostapi.ExecNotFound: 127, hostapi.ExecNotPermitted: 126}[remote.Meta().Get(hostapi.ExecErrorHeader)]
	if !ok {
		return remoteText(err)
	}
	fmt.Fprintln(os.Stderr, "tombolo:", remoteText(err))
	return code
}

// remoteText keeps the words of an error from the agent without the protocol's.
func remoteText(err error) error {
	var remote *connect.Error
	if errors.As(err, &remote) && remote.Message() != "" {
		return errors.New(remote.Message())
	}
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}
