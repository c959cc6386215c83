package e2b_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/e2b"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// world is a server with two keys, three templates and some sandboxes:
//
//	templates  base (of the machine), alices, bobs (of that key)
//	sandboxes  i0001 … i0003 of alice, i0004 of bob, all running
//	ended      i0008 of alice, i0009 of bob
type world struct {
	http.Handler
	store   store.Store
	core    *core
	secrets map[string]string // by name of key
}

var start = time.Date(2026, 3, 4, 5, 6, 7, 890123000, time.UTC)

const baseID, alicesID, bobsID = "basebasebasebasebase", "alicesalicesalicesal", "bobsbobsbobsbobsbobs"

func newWorld(t testing.TB) *world {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tombolo.db")
	require.NoError(t, os.WriteFile(path, records.file, 0o600))
	s, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	w := &world{store: s, core: &core{live: map[string]sandbox.Info{}}, secrets: records.secrets}
	for i, key := range []string{"alice", "alice", "alice", "bob"} {
		w.core.add(sandbox.Info{
			ID: fmt.Sprintf("i%04d", i+1), KeyID: "key-of-" + key, TemplateID: baseID, TemplateName: "base",
			StartedAt: start.Add(time.Duration(i) * time.Minute), Metadata: map[string]string{"n": fmt.Sprint(i + 1), "a b/&=+ü": "ä &=+%"},
			Network: sandbox.NetworkOptions{DenyInternet: i == 1},
		})
	}
	w.Handler = e2b.New(e2b.Options{Sandboxes: w.core, Store: s, Log: slog.New(slog.DiscardHandler), Version: "0.1.0"})
	return w
}

// records are the keys, templates and ended sandboxes of every world: a database
// file, made once, and the secrets of its keys.
var records struct {
	file    []byte
	secrets map[string]string
}

func TestMain(m *testing.M) {
	if err := makeRecords(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func makeRecords() error {
	dir, err := os.MkdirTemp("", "e2b")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "tombolo.db")
	s, err := sqlite.Open(context.Background(), path)
	if err != nil {
		return err
	}
	records.secrets = map[string]string{}
	if err := errors.Join(addKeys(s), addTemplates(s), addEnded(s), s.Close()); err != nil {
		return err
	}
	records.file, err = os.ReadFile(path)
	return err
}

func addKeys(s store.Store) error {
	for _, name := range []string{"alice", "bob"} {
		k, secret, err := store.NewKey(name, start)
		if err != nil {
			return err
		}
		k.ID = "key-of-" + name
		if name == "bob" {
			k.MaxTimeout, k.MaxSandboxes = 2*time.Minute, 2
		}
		records.secrets[name] = secret
		if err := s.AddKey(context.Background(), k); err != nil {
			return err
		}
	}
	return nil
}

func addTemplates(s store.Store) error {
	for _, t := range []store.Template{
		{ID: baseID, Name: "base"},
		{ID: alicesID, Name: "alices", KeyID: "key-of-alice"},
		{ID: bobsID, Name: "bobs", KeyID: "key-of-bob"},
	} {
		t.BuildID, t.CreatedAt, t.BuiltAt = "00000000-0000-4000-8000-000000000001", start, start.Add(time.Hour)
		t.CPUs, t.MemoryBytes, t.DiskBytes = 2, 1<<30, 10<<30
		if _, _, err := s.PutTemplate(context.Background(), t); err != nil {
			return err
		}
	}
	return nil
}

func addEnded(s store.Store) error {
	for id, name := range map[string]string{"i0008": "alice", "i0009": "bob"} {
		sb := store.Sandbox{ID: id, KeyID: "key-of-" + name, State: "ended", Reason: "its timeout of 5m0s passed", EndedAt: start}
		if err := s.PutSandbox(context.Background(), sb); err != nil {
			return err
		}
	}
	return nil
}

// core stands in for the manager and notes what it was asked to change.
type core struct {
	sandbox.Sandboxes // what the dialect must not call panics

	mu      sync.Mutex
	live    map[string]sandbox.Info
	calls   []string
	created int
	fail    error         // of Create
	hold    chan struct{} // Create waits for it when set
}

func (c *core) add(info sandbox.Info) sandbox.Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	info.State, info.EndAt = sandbox.Running, info.StartedAt.Add(5*time.Minute)
	info.CPUs, info.MemoryBytes, info.DiskBytes = 2, 1<<30, 10<<30
	info.AccessToken = "token-of-" + info.ID
	c.live[info.ID] = info
	return info
}

func (c *core) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, fmt.Sprintf(format, args...))
}

func (c *core) Create(ctx context.Context, req sandbox.CreateRequest) (sandbox.Info, error) {
	c.note("Create %s for %s, at most %d, timeout %s, metadata %v, env %v, deny internet %t",
		req.Template, req.KeyID, req.Quota.Sandboxes, req.Timeout, req.Metadata, req.EnvVars, req.Network.DenyInternet)
	if c.hold != nil {
		<-c.hold
	}
	if c.fail != nil {
		return sandbox.Info{}, c.fail
	}
	c.mu.Lock()
	c.created++
	id := fmt.Sprintf("inew%d", c.created)
	c.mu.Unlock()
	return c.add(sandbox.Info{ID: id, KeyID: req.KeyID, TemplateID: req.Template, TemplateName: "base", StartedAt: start, Metadata: req.Metadata, Network: req.Network}), nil
}

func (c *core) Get(id string) (sandbox.Info, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if info, ok := c.live[id]; ok {
		return info, nil
	}
	return sandbox.Info{}, &sandbox.GoneError{ID: id, Reason: "not for everyone"}
}

func (c *core) List(f sandbox.Filter) []sandbox.Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []sandbox.Info
	for _, info := range c.live {
		matches := info.KeyID == f.KeyID && (len(f.States) == 0 || slices.Contains(f.States, info.State)) &&
			(f.Template == "" || f.Template == info.TemplateID || f.Template == info.TemplateName)
		for k, v := range f.Metadata {
			matches = matches && info.Metadata[k] == v
		}
		if matches {
			all = append(all, info)
		}
	}
	return all
}

func (c *core) Kill(_ context.Context, id, reason string) error {
	c.note("Kill %s: %s", id, reason)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.live[id]; !ok {
		return sandbox.ErrNotFound
	}
	delete(c.live, id)
	return nil
}

func (c *core) SetTimeout(id string, d time.Duration, extendOnly bool) (sandbox.Info, error) {
	c.note("SetTimeout %s %s, extend only %t", id, d, extendOnly)
	return c.Get(id)
}

func (c *core) Dial(context.Context, string, uint16) (net.Conn, error) {
	return nil, sandbox.ErrPortClosed
}

func (c *core) Logs(id string) ([]sandbox.LogLine, error) {
	if _, err := c.Get(id); err != nil {
		return nil, err
	}
	lines := []sandbox.LogLine{
		{Time: start, Source: "lifecycle", Text: "started"},
		{Time: start.Add(time.Second), Source: "agent", Text: `ready, "quoted"`},
		{Time: start.Add(2 * time.Second), Source: "network", Text: "refused 10.0.0.1:80"},
	}
	return lines, nil
}

func (c *core) OnStop(func(id string)) {}

var _ sandbox.Sandboxes = (*core)(nil)
