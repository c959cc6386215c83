package mcpgateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxLine is how long one message of a server may be, bytes.
const maxLine = 16 << 20

// process is a server's process and the two ends of its streams: what it is sent
// is written, what it says is read. Much that calls itself a server prints other
// things on its stdout as well; only messages of the protocol are let through.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  *io.PipeReader

	once  sync.Once
	ended chan struct{} // closed when the process has ended
	err   error         // then, what cmd.Wait said
}

// startProcess starts the command. What it prints besides messages goes to noise,
// notices of progress go to progress: the library would handle them beside the
// answers that they come before.
func startProcess(cmd *exec.Cmd, noise io.Writer, progress func(*mcp.ProgressNotificationParams)) (*process, error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	said, says := io.Pipe()
	p := &process{cmd: cmd, stdin: stdin, said: said, ended: make(chan struct{})}
	go func() {
		says.CloseWithError(passMessages(says, stdout, noise, progress))
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// passMessages copies the lines that are messages until the end.
func passMessages(to io.Writer, from io.Reader, noise io.Writer, progress func(*mcp.ProgressNotificationParams)) error {
	lines := bufio.NewReaderSize(from, 64<<10)
	var line []byte
	for {
		part, err := lines.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return errors.New("it sent a message that is too long")
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		}
		message, ok := parseMessage(line)
		switch {
		case ok && message.Method == "notifications/progress":
			progress(&message.Params)
		case ok:
			if _, err := to.Write(line); err != nil {
				return err
			}
		case len(line) > 0:
			noise.Write(line)
		}
		line = line[:0]
		if err != nil {
			return err
		}
	}
}

// message is what of a message must be known here.
type message struct {
	Version string                         `json:"jsonrpc"`
	Method  string                         `json:"method"`
	Params  mcp.ProgressNotificationParams `json:"-"`
}

func parseMessage(line []byte) (m message, ok bool) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] != '{' || json.Unmarshal(line, &m) != nil || m.Version != "2.0" {
		return m, false
	}
	if m.Method == "notifications/progress" {
		return m, json.Unmarshal(line, &struct {
			Params *mcp.ProgressNotificationParams `json:"params"`
		}{&m.Params}) == nil
	}
	return m, true
}

func (p *process) Read(b []byte) (int, error)  { return p.said.Read(b) }
func (p *process) Write(b []byte) (int, error) { return p.stdin.Write(b) }

// Close ends the process as the protocol says, and all that it started: its
// stdin is closed, then come SIGTERM and SIGKILL.
func (p *process) Close() error {
	p.once.Do(func() {
		group := -p.cmd.Process.Pid
		p.stdin.Close()
		p.said.Close()
		if !p.endsWithin(stopPatience) {
			syscall.Kill(group, syscall.SIGTERM)
			if !p.endsWithin(stopPatience) {
				syscall.Kill(group, syscall.SIGKILL)
			}
		}
		<-p.ended
		syscall.Kill(group, syscall.SIGKILL)
	})
	return nil
}

// explain is why the connection of a process that has ended broke, as far as one
// can tell.
func (p *process) explain(err error) error {
	if p.err != nil {
		return fmt.Errorf("%w (%w)", err, p.err)
	}
	return err
}

func (p *process) endsWithin(d time.Duration) bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(d):
		return false
	}
}
