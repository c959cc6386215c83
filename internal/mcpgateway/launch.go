package mcpgateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// TokenFile is where the E2B clients read the token of a gateway that another
// client started.
const TokenFile = "/etc/mcp-gateway/.token"

// logDir has a file for the gateway and one for each server.
const logDir = "/var/log/mcp-gateway"

// launchPatience is how long a start may take. The clients end the command after
// 60 s and tell nothing then, so the gateway gives up before them.
const launchPatience = 55 * time.Second

// launch is what Launch hands to the process that serves, on its stdin: arguments
// and environment of a process are seen by others.
type launch struct {
	Config string `json:"config"`
	Token  string `json:"token"`
}

// Launch starts a gateway of its own process, which goes on when the caller's
// process ends, and returns when all its servers are ready. The error has what to
// say to who asked for the servers.
func Launch(ctx context.Context, config string) error {
	if _, err := ParseConfig([]byte(config)); err != nil {
		return err
	}
	l := launch{Config: config, Token: os.Getenv(TokenVariable)}
	if l.Token == "" {
		l.Token = rand.Text()
	}
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The other process says on the pipe what went wrong, or closes it; it ends
	// when this one is gone before that.
	told, tells, err := os.Pipe()
	if err != nil {
		return err
	}
	defer told.Close()
	cmd := exec.Command(self, "serve")
	cmd.Stdin = bytes.NewReader(text)
	cmd.ExtraFiles = []*os.File{tells}
	cmd.Dir = "/"
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, TokenVariable+"=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	tells.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { cmd.Process.Signal(syscall.SIGTERM) })()
	answer, err := io.ReadAll(io.LimitReader(told, 64<<10))
	switch {
	case err != nil:
		return err
	case string(answer) == ready:
		return cmd.Process.Release()
	case len(answer) == 0:
		return fmt.Errorf("the gateway ended before it was ready: %v", cmd.Wait())
	default:
		cmd.Wait()
		return errors.New(string(answer))
	}
}

// ready is what ServeLaunched says when it serves.
const ready = "ready\n"

// ServeLaunched is the other process of Launch.
func ServeLaunched(ctx context.Context) error {
	tells := os.NewFile(3, "launch")
	syscall.CloseOnExec(3)
	serve, err := prepare(ctx, tells)
	if err != nil {
		io.WriteString(tells, err.Error())
		return err
	}
	if _, err := io.WriteString(tells, ready); err != nil {
		return fmt.Errorf("who started the gateway is gone: %w", err)
	}
	tells.Close()
	return serve()
}

// prepare starts the servers and returns what serves them.
func prepare(ctx context.Context, tells *os.File) (serve func() error, err error) {
	var l launch
	if err := json.NewDecoder(io.LimitReader(os.Stdin, 2*maxConfig)).Decode(&l); err != nil {
		return nil, fmt.Errorf("`serve` is for mcp-gateway itself; use --config: %w", err)
	}
	servers, err := ParseConfig([]byte(l.Config))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", Port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d is in use; if a gateway runs already, end it with `pkill mcp-gateway`", Port)
	}
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(logDir, 0o700); err != nil {
		return nil, err
	}
	output, err := OpenLog(filepath.Join(logDir, "gateway.log"))
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(output, nil))

	starting, cancel := context.WithTimeout(ctx, launchPatience)
	defer cancel()
	stopWatching := watch(tells, cancel)
	defer stopWatching()
	g, err := Start(starting, Options{
		Servers: servers, Token: l.Token, Log: log,
		Output: func(server string) io.Writer {
			file, err := OpenLog(filepath.Join(logDir, notInNames.ReplaceAllString(server, "_")+".log"))
			if err != nil {
				return output
			}
			return file
		},
	})
	if err != nil {
		return nil, err
	}
	if err := keepToken(l.Token); err != nil {
		g.Close()
		return nil, err
	}
	log.Info("gateway serves", "servers", len(servers), "address", listener.Addr().String())
	return func() error {
		defer g.Close()
		return g.Serve(ctx, listener)
	}, nil
}

// watch calls gone when nobody reads the pipe any more.
func watch(pipe *os.File, gone func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(200 * time.Millisecond):
			}
			if broken(pipe) {
				gone()
				return
			}
		}
	}()
	return func() { close(done) }
}

// keepToken writes the token file for root, in one step.
func keepToken(token string) error {
	dir := filepath.Dir(TokenFile)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(dir, ".token-") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = file.WriteString(token)
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), TokenFile)
}
