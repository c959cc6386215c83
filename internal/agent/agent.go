// Package agent is the daemon inside a sandbox, its PID 1. It joins the parts
// in the folders below: processes and files for callers, kernels for code, and
// the host-only port. It owns the listeners and who may pass them.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	"github.com/tombolo-dev/tombolo/internal/agent/awake"
	"github.com/tombolo-dev/tombolo/internal/agent/files"
	"github.com/tombolo-dev/tombolo/internal/agent/filesystem"
	"github.com/tombolo-dev/tombolo/internal/agent/host"
	"github.com/tombolo-dev/tombolo/internal/agent/identity"
	"github.com/tombolo-dev/tombolo/internal/agent/kernel"
	"github.com/tombolo-dev/tombolo/internal/agent/peer"
	"github.com/tombolo-dev/tombolo/internal/agent/process"
	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// Options are what an agent works with.
type Options struct {
	// Addresses to listen on.
	AgentAddr, CodeAddr, HostAddr string
	// Gateway is the only IP that the host port answers.
	Gateway string
	// System is the part of the sandbox that Init changes.
	System host.System
	// Init tells that the agent is PID 1: it reaps every orphan.
	Init bool
	// CgroupRoot is where process limits are set; empty for none.
	CgroupRoot string
	Log        *slog.Logger
	// Journal is told of the processes that callers start; nil for nobody.
	Journal *slog.Logger
}

// Agent is a daemon that listens and does not serve yet.
type Agent struct {
	log       *slog.Logger
	spawner   *spawn.Spawner
	clock     *awake.Clock
	groups    processGroups
	processes *process.Service
	watches   *filesystem.Service
	kernels   *kernel.Server
	peers     peer.Set
	servers   []server
}

type server struct {
	name     string
	listener net.Listener
	http     *http.Server
}

// Limits on what a caller can make the agent hold.
const (
	headerLimit   = 64 << 10
	headerTimeout = 10 * time.Second
	idleTimeout   = 5 * time.Minute
	messageLimit  = 16 << 20 // one RPC message, bytes
)

// New starts the spawner and opens the ports. Serve goes on from there.
func New(opts Options) (*Agent, error) {
	groups := makeProcessGroups(opts.CgroupRoot, opts.Log)
	spawner, err := spawn.New(groups.tasks, opts.Init)
	if err != nil {
		opts.Log.Warn("there will be no process limit", "error", err)
		groups = processGroups{}
		if spawner, err = spawn.New(nil, opts.Init); err != nil {
			return nil, fmt.Errorf("start the spawner: %w", err)
		}
	}
	accounts := account.Open("/etc/passwd", "/etc/group")
	clock := awake.New(time.Now)
	who := identity.New(accounts, opts.System.Bundle())
	a := &Agent{
		log:       opts.Log,
		spawner:   spawner,
		clock:     clock,
		groups:    groups,
		processes: process.New(process.Options{Spawner: spawner, Identity: who, Clock: clock, Journal: opts.Journal}),
		watches:   filesystem.New(filesystem.Options{Identity: who, Log: opts.Log}),
		kernels: kernel.New(kernel.Options{
			Spawner: spawner, Env: who.RootEnv, Token: who.Token, Log: opts.Log,
		}),
	}
	hostServer := host.New(host.Options{
		Identity: who, Kernels: a.kernels, Watches: a.watches, Peers: &a.peers, Spawner: spawner,
		System: opts.System, PidsMax: groups.max, Log: opts.Log,
	})
	err = errors.Join(
		a.listen("agent", opts.AgentAddr, timed(cors(authorize(who, a.callerMux(who))))),
		a.listen("code", opts.CodeAddr, timed(cors(a.kernels.Handler()))),
		a.listen("host", opts.HostAddr, hostServer),
	)
	if err != nil {
		a.closeListeners()
		return nil, err
	}
	last := &a.servers[len(a.servers)-1]
	last.listener = host.Only(last.listener, opts.Gateway)
	return a, nil
}

func (a *Agent) callerMux(who *identity.State) http.Handler {
	// Answers are not compressed: they travel inside one machine, and a
	// compressor costs memory in every snapshot.
	const never = 1 << 30
	rpc := []connect.HandlerOption{
		connect.WithReadMaxBytes(messageLimit),
		connect.WithCompressMinBytes(never),
	}
	mux := http.NewServeMux()
	mux.Handle(a.processes.Handler(rpc...))
	mux.Handle(a.watches.Handler(rpc...))
	files.New(who, a.log).Register(mux)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /envs", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, who.Vars()) })
	mux.Handle("GET /metrics", newMeter(who))
	return mux
}

func (a *Agent) listen(name, addr string, handler http.Handler) error {
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		return fmt.Errorf("listen for the %s port: %w", name, err)
	}
	s := server{name, a.peers.Listen(l), &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerLimit,
		ErrorLog:          slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
	}}
	peer.Attach(s.http)
	a.servers = append(a.servers, s)
	return nil
}

// Addr is where a port ("agent", "code" or "host") listens.
func (a *Agent) Addr(name string) string {
	for _, s := range a.servers {
		if s.name == name {
			return s.listener.Addr().String()
		}
	}
	return ""
}

// Serve answers until ctx ends, then ends what it started and returns nil. It
// returns early, with the error, when a listener fails.
func (a *Agent) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var serving sync.WaitGroup
	for _, s := range a.servers {
		serving.Go(func() {
			if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("serve the %s port: %w", s.name, err))
			}
		})
	}
	serving.Go(func() { a.clock.Run(ctx) })
	serving.Go(func() { watchCrowd(ctx, a.groups, a.spawner, a.log) })
	<-ctx.Done()
	for _, s := range a.servers {
		_ = s.http.Close()
	}
	serving.Wait()
	a.processes.Close()
	a.watches.Close()
	a.kernels.Close()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

func (a *Agent) closeListeners() {
	for _, s := range a.servers {
		_ = s.listener.Close()
	}
}
