package kernel

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// maxContexts bounds the contexts of a sandbox. A Python kernel takes 40 MB or
// more, so memory is usually the nearer limit.
const maxContexts = 64

// homeDir is where contexts run that name no folder, as upstream.
const homeDir = "/home/user"

var errRemoved = errors.New("the context was removed")

// A codeContext is a kernel with an id that outlives it.
type codeContext struct {
	id       string
	language string
	dir      string

	// turn holds a value while a run, a start or a restart has the context.
	turn chan struct{}

	mu      sync.Mutex
	kernel  driver
	removed bool
}

// acquire waits for the context's turn; give it back with release.
func (c *codeContext) acquire(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for context %s: %w", c.id, ctx.Err())
	}
}

func (c *codeContext) release() { <-c.turn }

// live returns the kernel if there is one that has not ended.
func (c *codeContext) live() driver {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kernel == nil {
		return nil
	}
	select {
	case <-c.kernel.done():
		return nil
	default:
		return c.kernel
	}
}

// adopt makes k the context's kernel; false when the context was removed.
func (c *codeContext) adopt(k driver) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed {
		return false
	}
	c.kernel = k
	return true
}

// stop ends the kernel, whatever runs in it. The next run starts another.
func (c *codeContext) stop(reason string) {
	if k := c.live(); k != nil {
		k.kill(reason)
		<-k.done()
	}
}

// end stops the kernel for good.
func (c *codeContext) end(reason string) {
	c.mu.Lock()
	c.removed = true
	c.mu.Unlock()
	c.stop(reason)
}

func (c *codeContext) isRemoved() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.removed
}

// A userError is the caller's mistake, with the HTTP status that says so.
type userError struct {
	status  int
	message string
}

func (e *userError) Error() string { return e.message }

// contextByID returns the context, or a userError with 404.
func (s *Server) contextByID(id string) (*codeContext, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.contexts[id]
	if !ok {
		return nil, &userError{404, fmt.Sprintf("Context %s not found", id)}
	}
	return c, nil
}

// defaultContext returns the default context of a language and makes it, with
// no kernel yet, when there is none.
func (s *Server) defaultContext(language string) (*codeContext, error) {
	language, err := s.language(language)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.contexts[s.defaults[language]]; ok {
		return c, nil
	}
	c, err := s.addLocked(language, homeOrRoot())
	if err != nil {
		return nil, err
	}
	s.defaults[language] = c.id
	return c, nil
}

// createContext makes a context, with no kernel yet. An empty language is
// Python, an empty dir the home folder.
func (s *Server) createContext(language, dir string) (*codeContext, error) {
	language, err := s.language(language)
	if err != nil {
		return nil, err
	}
	if dir == "" {
		dir = homeOrRoot()
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(homeOrRoot(), dir)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, &userError{400, fmt.Sprintf("cwd %s is not a folder in this sandbox; make it first", dir)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addLocked(language, dir)
}

func (s *Server) addLocked(language, dir string) (*codeContext, error) {
	if s.closed {
		return nil, errors.New("the code interpreter is closed")
	}
	if len(s.contexts) >= maxContexts {
		return nil, &userError{429, fmt.Sprintf("this sandbox has %d contexts, the most it may have; remove some", maxContexts)}
	}
	c := &codeContext{id: newID(), language: language, dir: dir, turn: make(chan struct{}, 1)}
	s.contexts[c.id] = c
	s.order = append(s.order, c.id)
	return c, nil
}

// removeContext ends a context and returns when its processes have ended.
func (s *Server) removeContext(id string) error {
	s.mu.Lock()
	c, ok := s.contexts[id]
	delete(s.contexts, id)
	s.order = slices.DeleteFunc(s.order, func(other string) bool { return other == id })
	s.mu.Unlock()
	if !ok {
		return &userError{404, fmt.Sprintf("Context %s not found", id)}
	}
	c.end("its context was removed")
	return nil
}

// restartContext gives a context a new kernel. What runs in the old one ends
// with an error event; runs that wait go on in the new one.
func (s *Server) restartContext(ctx context.Context, id string) error {
	c, err := s.contextByID(id)
	if err != nil {
		return err
	}
	c.stop("its context was restarted")
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	_, err = s.kernel(ctx, c)
	return err
}

func (s *Server) listContexts() []*codeContext {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*codeContext, 0, len(s.order))
	for _, id := range s.order {
		list = append(list, s.contexts[id])
	}
	return list
}

// aliases are other names of languages: upstream's, and the name that Jupyter
// has for Python.
var aliases = map[string]string{"": "python", "python3": "python", "js": "javascript", "ts": "typescript"}

// language returns the name of a language this sandbox can run.
func (s *Server) language(name string) (string, error) {
	known := strings.ToLower(strings.TrimSpace(name))
	if full, ok := aliases[known]; ok {
		known = full
	}
	if _, ok := s.starters[known]; ok {
		return known, nil
	}
	env := s.opts.Env()
	if _, language, err, ok := s.findSpec(known, env); ok {
		if err != nil {
			return "", &userError{400, fmt.Sprintf("language %.40q is not available in this sandbox: %v", name, err)}
		}
		return language, nil
	}
	have := slices.Sorted(maps.Keys(s.starters))
	have = append(have, s.specLanguages(env)...)
	return "", &userError{400, fmt.Sprintf("language %.40q is not available in this sandbox; it has: %s. Any other needs a Jupyter kernel in the template, as code-interpreter-v1 has for r and java", name, strings.Join(have, ", "))}
}

// starter starts kernels of a language that [Server.language] has named. A
// language of our own drivers comes before Jupyter's kernels of that name.
func (s *Server) starter(language string) (starter, error) {
	if own, ok := s.starters[language]; ok {
		return own, nil
	}
	spec, _, err, ok := s.findSpec(language, s.opts.Env())
	if err != nil {
		return nil, fmt.Errorf("start the kernel %s: %w", language, err)
	}
	if !ok {
		return nil, fmt.Errorf("start the kernel %s: its kernel.json is no longer there", language)
	}
	return jupyter{spawner: s.opts.Spawner, spec: spec}, nil
}

func homeOrRoot() string {
	if info, err := os.Stat(homeDir); err == nil && info.IsDir() {
		return homeDir
	}
	return "/"
}

// newID returns a random UUID (version 4), as upstream's ids are.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
