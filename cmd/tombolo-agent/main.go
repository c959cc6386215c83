// Command tombolo-agent is the daemon inside each sandbox, its PID 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"

	"github.com/tombolo-dev/tombolo/internal/agent"
	"github.com/tombolo-dev/tombolo/internal/agent/host"
	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/tool"
)

// The agent's memory is part of every snapshot, so the heap is collected early.
// The soft limit makes a burst of large requests collect rather than grow.
const (
	gcPercent  = 40
	memoryGoal = 64 << 20 // bytes
)

func main() {
	// In images without them the agent is ss, pgrep and curl too.
	if name := filepath.Base(os.Args[0]); tool.Known(name) {
		os.Exit(tool.Run(tool.Name(name), os.Args[1:]))
	}
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(memoryGoal)
	syscall.Umask(0o022)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "tombolo-agent:", err)
		os.Exit(1)
	}
}

func run() error {
	pid1 := os.Getpid() == 1
	bind := flag.String("bind", "0.0.0.0", "address to listen on")
	agentPort := flag.Int("agent-port", hostapi.AgentPort, "port for processes and files")
	codePort := flag.Int("code-port", hostapi.CodePort, "port for the code interpreter")
	hostPort := flag.Int("host-port", hostapi.HostPort, "port for the host")
	gateway := flag.String("gateway", hostapi.GatewayAddr, "the only address the host port answers")
	root := flag.String("root", "/", "where the system files that init changes lie")
	cgroup := flag.String("cgroup", "/sys/fs/cgroup", "where the process limit is set as PID 1; empty for none")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if net.ParseIP(*gateway) == nil {
		return fmt.Errorf("--gateway %q is not an IP address", *gateway)
	}
	if !pid1 {
		*cgroup = "" // of the machine the agent is tried on
	}
	output, err := agent.LogTo(os.Stderr)
	if err != nil {
		return err
	}
	addr := func(port int) string { return net.JoinHostPort(*bind, strconv.Itoa(port)) }
	a, err := agent.New(agent.Options{
		AgentAddr:  addr(*agentPort),
		CodeAddr:   addr(*codePort),
		HostAddr:   addr(*hostPort),
		Gateway:    *gateway,
		System:     host.System{Root: *root, Own: pid1},
		Init:       pid1,
		CgroupRoot: *cgroup,
		Log:        logger(output),
		Journal:    logger(output),
	})
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(pid1)
	defer stop()
	return a.Serve(ctx)
}

// logger writes lines that the host takes apart; each one has limits of its own.
func logger(to io.Writer) *slog.Logger {
	return slog.New(agent.Sparing(slog.NewTextHandler(to, nil)))
}

// untilSignal ends the context when the agent is asked to end. As PID 1 it
// declines: a program inside must not end the sandbox that way, and the engine
// ends it with SIGKILL. Signals are taken rather than ignored, because children
// inherit ignoring.
func untilSignal(pid1 bool) (context.Context, context.CancelFunc) {
	if !pid1 {
		return signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	return context.WithCancel(context.Background())
}
