package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	"github.com/tombolo-dev/tombolo/internal/agent/awake"
	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/identity"
	pb "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
)

// tagLimit bounds the name of a process, bytes.
const tagLimit = 4096

// start runs the process of a request. Its output goes to the subscriber from
// the first byte on.
func (s *Service) start(ctx context.Context, req *connect.Request[pb.StartRequest]) (*process, *subscriber, error) {
	who, err := s.opts.Identity.RequestAccount(req.Header())
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeUnauthenticated, err)
	}
	config := req.Msg.GetProcess()
	if config.GetCmd() == "" {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the command is empty"))
	}
	if len(req.Msg.GetTag()) > tagLimit {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the tag is longer than %d bytes", tagLimit))
	}
	dir, err := s.directory(config, who)
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	env, err := s.environment(req.Msg, who)
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	cmd, err := shellThere(config.GetCmd())
	if err != nil {
		return nil, nil, programError(err, hostapi.ExecNotFound)
	}
	path, err := lookPath(cmd, env["PATH"])
	if err != nil {
		return nil, nil, programError(err, hostapi.ExecNotFound)
	}
	files, err := openFiles(req.Msg, who)
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeInternal, err)
	}
	defer files.closeChild()

	if err := s.table.reserve(); err != nil {
		files.closeParent()
		return nil, nil, err
	}
	child, err := s.opts.Spawner.Start(path, append([]string{cmd}, config.GetArgs()...), &syscall.ProcAttr{
		Dir:   dir,
		Env:   identity.List(env),
		Files: files.child,
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Setctty:    files.tty != nil,
			Credential: credential(who),
		},
	})
	if err != nil {
		s.table.release()
		files.closeParent()
		return nil, nil, forkError(cmd, err)
	}

	p := newProcess(s.opts.Spawner, child, req.Msg, files, s.opts.Stall)
	p.orphans, _ = time.ParseDuration(req.Header().Get(hostapi.OrphansHeader))
	s.table.add(p)
	output, err := p.subscribe(cutter(ctx))
	if err != nil {
		return nil, nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		p.killAt(deadline, s.opts.Clock)
	}
	s.opts.Journal.Info("process started", "pid", child.PID, "user", who.Name, "command", commandLine(config))
	go p.run(func() {
		s.table.remove(p)
		s.opts.Journal.Info("process ended", "pid", child.PID, "status", p.end.GetEnd().GetStatus(),
			"after", time.Since(p.started).Round(time.Millisecond))
	})
	return p, output, nil
}

// commandLimit is how much of a command the journal tells, bytes.
const commandLimit = 200

// commandLine is the command for people.
func commandLine(config *pb.ProcessConfig) string {
	text := config.GetCmd()
	for _, arg := range config.GetArgs() {
		if len(text) > commandLimit {
			break
		}
		text += " " + arg
	}
	if len(text) > commandLimit {
		text = strings.ToValidUTF8(text[:commandLimit], "") + "…"
	}
	return text
}

// directory is where the process starts. Only a directory that the caller named
// has to exist.
func (s *Service) directory(config *pb.ProcessConfig, who account.Account) (string, error) {
	if config.GetCwd() == "" {
		dir := s.opts.Identity.Workdir(who)
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return "/", nil
		}
		return dir, nil
	}
	dir, err := s.opts.Identity.Resolve(config.GetCwd(), who)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("cwd '%s' does not exist", dir)
	}
	if err != nil {
		return "", fmt.Errorf("cwd '%s' cannot be used: %w", dir, err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("cwd '%s' is not a directory", dir)
	}
	return dir, nil
}

func (s *Service) environment(req *pb.StartRequest, who account.Account) (map[string]string, error) {
	env := s.opts.Identity.AccountVars(who)
	if req.GetPty() != nil {
		env["TERM"] = "xterm-256color"
	}
	for name, value := range req.GetProcess().GetEnvs() {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("the environment variable %q cannot be set: names must not be empty or contain '=', names and values no NUL byte", name)
		}
	}
	maps.Copy(env, req.GetProcess().GetEnvs())
	return env, nil
}

// E2B's clients run each command by bash; an image without it has at least the
// shell of POSIX, which takes the same options.
const (
	bash       = "/bin/bash"
	posixShell = "/bin/sh"
)

// shellThere is the program itself, or the other shell when bash is asked for and
// missing.
func shellThere(cmd string) (string, error) {
	if cmd != bash {
		return cmd, nil
	}
	if _, err := os.Stat(bash); err == nil || !errors.Is(err, os.ErrNotExist) {
		return cmd, nil
	}
	if _, err := os.Stat(posixShell); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("the template has no shell: neither %s nor %s is there", bash, posixShell)
	}
	return posixShell, nil
}

// lookPath finds the program that a name without a slash means.
func lookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for dir := range strings.SplitSeq(path, ":") {
		candidate := filepath.Join("/", dir, name)
		info, err := os.Stat(candidate)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("there is no program %q in the PATH %q", name, path)
}

// credential is nil when the agent cannot become somebody else.
func credential(who account.Account) *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: who.UID, Gid: who.GID, Groups: who.Groups}
}

// forkError tells a caller why a process did not start.
func forkError(cmd string, err error) error {
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("cannot start %q: process limit of the sandbox reached; end some processes first", cmd))
	case errors.Is(err, syscall.ENOMEM):
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("cannot start %q: the sandbox has no memory left", cmd))
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("cannot start %q: too many open files", cmd))
	}
	what := ""
	switch {
	case errors.Is(err, syscall.ENOENT):
		what = hostapi.ExecNotFound
	case errors.Is(err, syscall.EACCES):
		what = hostapi.ExecNotPermitted
	}
	return programError(fmt.Errorf("cannot start %q: %w", cmd, err), what)
}

// killAt ends the process, and what it leads, when the time is over. Time awake
// counts, so a paused sandbox does not use it up.
func (p *process) killAt(deadline time.Time, clock *awake.Clock) {
	p.timeout = clock.AfterFunc(time.Until(deadline), p.kill)
}

// programError is invalid_argument, as E2B's clients expect, and says to our own
// command line what was the matter with the program.
func programError(err error, what string) error {
	answer := connect.NewError(connect.CodeInvalidArgument, err)
	if what != "" {
		answer.Meta().Set(hostapi.ExecErrorHeader, what)
	}
	return answer
}
