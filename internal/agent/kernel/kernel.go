// Package kernel is the code interpreter of a sandbox: contexts that keep the
// state of a language between runs, and the HTTP API of E2B's port 49999 that
// runs code in them (GET /health, POST /execute, /contexts).
//
// It owns the kernel processes, from start to the last process of their
// session, and nothing else: not the port, not the global environment, not the
// access token, which all come by [Options]. Kernels run as the agent's user
// and may send anything, so every size and count of theirs has a limit here.
//
// From the client to the kernel:
//
//	kernel.go        Server: the kernels of a sandbox as a whole
//	http*.go         requests, and the lines that answer /execute
//	context.go       contexts, and which languages there are
//	execute.go       one run: its turn, its stream, its client that goes away
//	driver.go        what any live kernel can do, and the events of a run
//	program*.go      the driver of our own programs, and its protocol
//	python, javascript, bash   a file that starts each, a folder with its program
//	jupyter*.go      the driver of any other Jupyter kernel; zmtp is its wire
//	descriptors.go, output_pipe.go, process.go   what both drivers are made of
package kernel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/spawn"
)

// warmImports are modules that a warm kernel has imported before the snapshot
// is taken. Every MB they add costs each sandbox 1 ms of restore and its memory
// (numpy 12, pandas 35, matplotlib 30 MB, on 34 MB of bare IPython), so by default
// there are none.
var warmImports = []string{}

// Options is what the agent lends the kernels.
type Options struct {
	Spawner *spawn.Spawner
	// Env returns the variables that all processes of the sandbox have now, as
	// "NAME=value". It must show a new Init before [Server.Init] is called.
	Env func() []string
	// Token returns the access token that /execute asks for; empty for none.
	Token func() string
	Log   *slog.Logger
	// Python is the interpreter to run; empty finds python3 in Env's PATH.
	Python string
	// Patience is how long code may ignore that it is interrupted until its kernel
	// is ended; zero means 5 s.
	Patience time.Duration
}

// Server keeps the contexts. Make one with [New]; all methods may be called
// at once from several goroutines.
type Server struct {
	opts     Options
	starters map[string]starter // by language

	mu         sync.Mutex
	contexts   map[string]*codeContext
	order      []string          // ids as they were made
	defaults   map[string]string // language to id
	generation int               // counts Init
	entropy    []byte            // of the last Init
	closed     bool
}

// New makes a server with no kernel running.
func New(opts Options) *Server {
	if opts.Patience == 0 {
		opts.Patience = 5 * time.Second
	}
	return &Server{
		opts: opts,
		starters: map[string]starter{
			"bash":       bash{spawner: opts.Spawner},
			"python":     python{spawner: opts.Spawner, path: opts.Python},
			"javascript": javascript{spawner: opts.Spawner, language: "javascript"},
			"typescript": javascript{spawner: opts.Spawner, language: "typescript"},
		},
		contexts: map[string]*codeContext{},
		defaults: map[string]string{},
	}
}

// Init gives live kernels the sandbox's environment and fresh randomness. It
// hands both over without waiting: they are in force before the next run, and
// a run that is going on while Init comes keeps what it has until it awaits or
// ends. The error names the kernels that could not be reached; they are ended.
func (s *Server) Init(_ context.Context, init hostapi.Init) error {
	s.mu.Lock()
	s.generation++
	s.entropy = slices.Clone(init.Entropy)
	contexts := slices.Collect(maps.Values(s.contexts))
	s.mu.Unlock()

	var failed []error
	for _, c := range contexts {
		k := c.live()
		if k == nil {
			continue
		}
		if err := s.introduce(c, k); err != nil {
			failed = append(failed, fmt.Errorf("context %s: %w", c.id, err))
		}
	}
	return errors.Join(failed...)
}

// Warm starts the default kernel of each language and returns when they are
// idle, with everything loaded that a first run needs and the rest given back.
func (s *Server) Warm(ctx context.Context, languages []string) error {
	for _, language := range languages {
		if err := s.warm(ctx, language); err != nil {
			return fmt.Errorf("warm the %s kernel: %w", language, err)
		}
	}
	return nil
}

func (s *Server) warm(ctx context.Context, language string) error {
	c, err := s.defaultContext(language)
	if err != nil {
		return err
	}
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	k, err := s.kernel(ctx, c)
	if err != nil {
		return err
	}
	return k.warm(ctx, warmImports)
}

// Close ends all kernels and returns when their processes have ended. Open
// runs end with an error event.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	contexts := slices.Collect(maps.Values(s.contexts))
	s.mu.Unlock()
	for _, c := range contexts {
		c.end("the sandbox's agent ends")
	}
}

// introduce tells a kernel the present environment, and mixes in randomness
// that no other kernel of any clone gets.
func (s *Server) introduce(c *codeContext, k driver) error {
	s.mu.Lock()
	entropy := s.entropy
	s.mu.Unlock()
	if err := k.setEnv(environment(s.opts.Env())); err != nil {
		return err
	}
	if len(entropy) == 0 {
		return nil
	}
	seed := sha256.Sum256(append([]byte("kernel "+c.id+"\x00"), entropy...))
	return k.reseed(seed[:])
}

// kernel returns the context's live kernel and starts one if there is none.
// The caller has the context's turn.
func (s *Server) kernel(ctx context.Context, c *codeContext) (driver, error) {
	if k := c.live(); k != nil {
		return k, nil
	}
	s.mu.Lock()
	before := s.generation
	s.mu.Unlock()
	language, err := s.starter(c.language)
	if err != nil {
		return nil, err
	}
	k, err := language.start(ctx, c.dir, s.opts.Env())
	if err != nil {
		return nil, err
	}
	if !c.adopt(k) {
		k.kill("its context was removed")
		<-k.done()
		return nil, errRemoved
	}
	s.mu.Lock()
	after := s.generation
	s.mu.Unlock()
	if before != after { // Init did not see this kernel
		return k, s.introduce(c, k)
	}
	return k, nil
}

// environment makes a map of "NAME=value" entries; the last of a name counts.
func environment(entries []string) map[string]string {
	env := make(map[string]string, len(entries))
	for _, entry := range entries {
		if name, value, ok := strings.Cut(entry, "="); ok && name != "" {
			env[name] = value
		}
	}
	return env
}
