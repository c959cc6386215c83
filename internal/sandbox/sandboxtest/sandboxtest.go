// Package sandboxtest gives tests a real core: a manager with the real engine,
// gateway, store and agent on a data folder of its own, and a root image small
// enough to start in a tenth of a second. It owns what it makes for a test
// program and removes it with the program.
package sandboxtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// Names of the templates in each world. Both have 1 processor, 256 MiB of memory
// and 64 MiB of disk.
const (
	Cold = "cold" // boots from the image
	Warm = "warm" // restored; a program that was in the snapshot listens on port 8000
)

const imageName = "probe.erofs"

// childVariable selects what a test program started by [World.Child] does.
const childVariable = "TOMBOLO_TEST_CHILD"

// Main is the TestMain of a package that uses worlds. The test program is gVisor
// when it is started under gVisor's name, as the product is, and children[name]
// when a test has started it as that.
func Main(m *testing.M, children map[string]func(ctx context.Context, dir string) error) {
	if gvisor.IsRunsc(os.Args[0]) {
		gvisor.Main()
		return
	}
	if name := os.Getenv(childVariable); name != "" {
		if err := children[name](context.Background(), os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make network namespaces and control groups and need root")
		os.Exit(1)
	}
	code := m.Run()
	if p, err := sharedParts(); err == nil {
		os.RemoveAll(p.dir)
	}
	os.Exit(code)
}

// World is a data folder and the core on it.
type World struct {
	Dir     string
	Engine  *gvisor.Engine
	Store   *sqlite.Store
	Manager *sandbox.Manager

	log *diary
}

// diary keeps what the core logs, for tests that fail.
type diary struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (d *diary) Write(line []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.Write(line)
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.String()
}

// Option changes what the manager works with.
type Option func(*sandbox.Config)

// New makes a world with the templates Cold and Warm. It ends with the test,
// which fails when something of it is left on the machine then.
func New(t *testing.T, options ...Option) *World {
	t.Helper()
	dir := NewDir(t)
	w, err := Open(t.Context(), dir, options...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, w.Close(context.Background()))
		require.Empty(t, w.Leftovers(), "left behind when the manager was closed")
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("what the core logged:\n" + w.log.String())
		}
	})
	return w
}

// NewDir makes a data folder with the templates Cold and Warm. Its path is short
// enough for a Unix socket in it.
func NewDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tombolo-world-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o711))
	p, err := sharedParts()
	require.NoError(t, err)
	require.NoError(t, prepare(dir))
	records, err := sqlite.Open(t.Context(), filepath.Join(dir, "tombolo.db"))
	require.NoError(t, err)
	require.NoError(t, p.install(t.Context(), &World{Dir: dir, Store: records}))
	require.NoError(t, records.Close())
	return dir
}

// Open opens the core on a data folder. The caller closes it.
func Open(ctx context.Context, dir string, options ...Option) (*World, error) {
	p, err := sharedParts()
	if err != nil {
		return nil, err
	}
	agent, err := os.ReadFile(p.agent())
	if err != nil {
		return nil, err
	}
	engine, err := gvisor.New(gvisor.Config{Scope: gvisor.Scope(dir), Executable: os.Getenv("TOMBOLO_TEST_RUNSC"), Programs: os.Getenv("TOMBOLO_TEST_PROGRAMS")})
	if err != nil {
		return nil, err
	}
	records, err := sqlite.Open(ctx, filepath.Join(dir, "tombolo.db"))
	if err != nil {
		return nil, err
	}
	log := &diary{}
	config := sandbox.Config{
		DataDir:      dir,
		Engine:       engine,
		Store:        records,
		Network:      Network,
		SweepNetwork: gateway.Sweep,
		Agent:        agent,
		Log:          slog.New(slog.NewTextHandler(log, nil)),
	}
	for _, option := range options {
		option(&config)
	}
	manager, err := sandbox.NewManager(ctx, config)
	if err != nil {
		return nil, errors.Join(err, records.Close())
	}
	return &World{Dir: dir, Engine: engine, Store: records, Manager: manager, log: log}, nil
}

// Close ends the core and every sandbox in it.
func (w *World) Close(ctx context.Context) error {
	err := w.Manager.Close(ctx)
	w.Engine.RemoveScope()
	return errors.Join(err, w.Store.Close())
}

// Network makes a gateway that lets nothing out.
func Network(ctx context.Context, c sandbox.NetworkConfig) (sandbox.Network, error) {
	open := gateway.New
	if c.Adopt {
		open = gateway.Adopt
	}
	network, err := open(ctx, gateway.Config{
		Dir:    c.Dir,
		Policy: gateway.DenyAll{},
		Log:    slog.New(slog.DiscardHandler),
		OnDecision: func(e gateway.Event) {
			if o := c.Owner(); o != nil {
				o.Log(true, fmt.Sprintf("refused %s: %s", e.Request.Destination, e.Decision.Reason))
			}
		},
	})
	if err != nil {
		return nil, err // not the typed nil
	}
	return closed{network}, nil
}

// closed is a network that is closed to any owner.
type closed struct{ *gateway.Network }

func (closed) OwnerChanged() {}

// Template is a template's record before it is built.
func Template(name string) store.Template {
	return store.Template{
		Name: name, CPUs: 1, MemoryBytes: 256 << 20, DiskBytes: 64 << 20, Image: imageName, User: "user",
	}
}

func withIDs(t store.Template) store.Template {
	t.ID = strings.ToLower(rand.Text())[:20]
	t.BuildID = uuid.NewString()
	t.CreatedAt = time.Now().UTC()
	t.BuiltAt = t.CreatedAt
	return t
}

// BrokenAgent is an option: the program that runs as PID 1 "exits" at once or
// listens and is "mute".
func BrokenAgent(how string) Option {
	return func(c *sandbox.Config) {
		p, err := sharedParts()
		if err == nil {
			c.Agent, err = os.ReadFile(p.probe())
		}
		if err != nil {
			panic(err)
		}
		c.Agent = append(c.Agent, how...)
	}
}

// Keep is an option: sandboxes outlive the manager.
func Keep(c *sandbox.Config) { c.Keep = true }

// Create makes a sandbox that lives for a minute.
func (w *World) Create(t *testing.T, template string) sandbox.Info {
	t.Helper()
	info, err := w.Manager.Create(t.Context(), sandbox.CreateRequest{Template: template, Timeout: time.Minute})
	require.NoError(t, err)
	return info
}
