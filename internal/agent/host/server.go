// Package host serves the host-only port: it takes over the identity of the
// sandbox, ends processes when memory runs out, warms kernels, copies for builds
// and carries connections to the loopback. It alone changes files of the system (trust
// store, host name, /run/e2b) and the process limit.
package host

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/identity"
	"github.com/tombolo-dev/tombolo/internal/agent/peer"
	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// Kernels is the part of the code interpreter that the host drives.
type Kernels interface {
	Init(ctx context.Context, init hostapi.Init) error
	Warm(ctx context.Context, languages []string) error
}

// Watches are those of directories that callers have begun.
type Watches interface{ Close() }

// Options are what the server works with.
type Options struct {
	Identity *identity.State
	Kernels  Kernels
	Watches  Watches
	Peers    *peer.Set
	Spawner  *spawn.Spawner
	System   System
	// PidsMax is the cgroup file of the process limit; empty for none.
	PidsMax string
	Log     *slog.Logger
}

// Server answers the host.
type Server struct {
	opts     Options
	reliever *reliever
}

// New returns a server, with the memory it needs when there is none left.
func New(opts Options) *Server {
	return &Server{opts: opts, reliever: newReliever(opts.Spawner)}
}

// bodyLimit bounds a request of the host, bytes: a CA bundle is the largest
// part.
const bodyLimit = 8 << 20

// ServeHTTP routes by hand because CONNECT has no path.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodConnect {
		s.tunnel(w, r)
		return
	}
	if r.Method != http.MethodPost {
		http.Error(w, "the host port takes POST and CONNECT", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path == "/copy" {
		s.copy(w, r) // its body is as long as the disk has room
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, bodyLimit)
	switch r.URL.Path {
	case "/archive":
		s.archive(w, r)
	case "/init":
		s.init(w, r)
	case "/relieve":
		s.relieve(w, r)
	case "/warm":
		s.warm(w, r)
	default:
		http.NotFound(w, r)
	}
}

func decode[T any](w http.ResponseWriter, r *http.Request) (T, bool) {
	var v T
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		http.Error(w, "decode the body of "+r.URL.Path+": "+err.Error(), http.StatusBadRequest)
		return v, false
	}
	return v, true
}

func (s *Server) init(w http.ResponseWriter, r *http.Request) {
	init, ok := decode[hostapi.Init](w, r)
	if !ok {
		return
	}
	if err := s.opts.System.Apply(init, s.opts.PidsMax); err != nil {
		s.fail(w, "init", err)
		return
	}
	s.opts.Identity.Set(init)
	if !init.Resumed && s.opts.System.Own {
		if err := s.showVolumes(init); err != nil {
			s.refuse(w, err)
			return
		}
	}
	// Nobody who was connected before is there any more, and with the new token in
	// force nobody comes in by the old one.
	s.opts.Peers.EndOlder(r.Context())
	if !init.Resumed {
		s.opts.Watches.Close() // their callers have another sandbox
		if err := s.opts.Kernels.Init(r.Context(), init); err != nil {
			s.fail(w, "init the kernels", err)
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) showVolumes(init hostapi.Init) error {
	owner, err := s.opts.Identity.Account("")
	if err != nil {
		return err
	}
	return showVolumes(init.Volumes, owner)
}

// refuse answers 422 where the caller asked for what cannot be.
func (s *Server) refuse(w http.ResponseWriter, err error) {
	var path *VolumePathError
	if !errors.As(err, &path) {
		s.fail(w, "show the volumes", err)
		return
	}
	http.Error(w, err.Error(), http.StatusUnprocessableEntity)
}

func (s *Server) warm(w http.ResponseWriter, r *http.Request) {
	warm, ok := decode[hostapi.Warm](w, r)
	if !ok {
		return
	}
	if err := s.opts.Kernels.Warm(r.Context(), warm.Languages); err != nil {
		s.fail(w, "warm", err)
		return
	}
	debug.FreeOSMemory() // a snapshot follows, and would hold what is free
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) relieve(w http.ResponseWriter, r *http.Request) {
	req, ok := decode[hostapi.Relieve](w, r)
	if !ok {
		return
	}
	ended, err := s.reliever.relieve(req.LimitBytes)
	if err != nil {
		s.fail(w, "relieve", err)
		return
	}
	s.opts.Log.Warn("ended a process, the sandbox is out of memory", "pid", ended.PID, "name", ended.Name, "rss", ended.RSSBytes)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(ended)
}

func (s *Server) fail(w http.ResponseWriter, what string, err error) {
	s.opts.Log.Error(what, "error", err)
	http.Error(w, what+": "+err.Error(), http.StatusInternalServerError)
}

// Only returns a listener that passes on the connections of one remote IP and
// closes all others.
func Only(l net.Listener, ip string) net.Listener { return &onlyListener{l, net.ParseIP(ip)} }

type onlyListener struct {
	net.Listener
	ip net.IP
}

func (l *onlyListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if addr, ok := conn.RemoteAddr().(*net.TCPAddr); ok && addr.IP.Equal(l.ip) {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// dialTimeout is ample for a loopback.
const dialTimeout = 5 * time.Second
