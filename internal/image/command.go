package image

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

//go:embed enter.sh
var enterScript string

//go:embed outside.sh
var outsideScript string

// passedOn are the variables of this process that a build sees: how to reach
// the network, nothing else.
var passedOn = []string{
	"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
	"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "NPM_CONFIG_REGISTRY",
}

// outside runs a program of this machine, with the machine's files.
func (b *build) outside(ctx context.Context, step string, argv ...string) error {
	return b.command(ctx, step, append([]string{"-euc", outsideScript, "outside"}, argv...))
}

// inside runs a shell command as root in the tree.
func (b *build) inside(ctx context.Context, step, command string) error {
	return b.command(ctx, step, []string{"-euc", enterScript, "inside", b.root, command})
}

// command runs sh as the first process of its own namespaces: when it ends, or
// is killed, or this process dies, everything it started dies and its mounts go.
func (b *build) command(ctx context.Context, step string, args []string) error {
	b.tell(b.recipe, time.Since(b.began), step)
	fmt.Fprintf(b.log, "\n### %s (%.1fs)\n", step, time.Since(b.began).Seconds())

	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	cmd.Env = environment()
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{b.held}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Unshareflags: syscall.CLONE_NEWNS,
		Setpgid:      true,
		Pdeathsig:    syscall.SIGKILL,
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout

	// Pdeathsig fires when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return b.failed(step, nil, err)
	}
	tail := b.follow(output)
	err = cmd.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("build template %s: %s: %w", b.recipe.Name, step, context.Cause(ctx))
	}
	if err != nil {
		return b.failed(step, tail, err)
	}
	return nil
}

func environment() []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
		"SSL_CERT_FILE=" + DefaultCABundle, "NODE_EXTRA_CA_CERTS=" + DefaultCABundle,
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", Epoch),
	}
	for _, name := range passedOn {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func (b *build) failed(step string, tail []string, err error) error {
	return &BuildError{
		Template: b.recipe.Name, Step: step, Err: err,
		LogPath: b.log.Name(), Tail: strings.Join(tail, "\n"),
	}
}

// tailLines is how many last lines an error shows; maxLine how much of each, bytes.
const (
	tailLines = 15
	maxLine   = 2000
)

// follow copies the output of a step to the log, tells the lines worth it and
// returns the last ones. It returns when the output ends.
func (b *build) follow(output io.Reader) []string {
	var tail []string
	var told string
	lines := bufio.NewReaderSize(output, maxLine)
	for {
		line, long, err := lines.ReadLine()
		if err != nil {
			return tail
		}
		b.log.Write(line)
		if long {
			continue
		}
		b.log.Write([]byte{'\n'})
		text := string(bytes.TrimRight(line, "\r "))
		if text == "" {
			continue
		}
		tail = append(tail, text)
		if len(tail) > tailLines {
			tail = tail[1:]
		}
		if note := condense(text); note != "" && note != told {
			told = note
			b.tell(b.recipe, time.Since(b.began), "  "+note)
		}
	}
}
