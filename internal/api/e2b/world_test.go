package e2b_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
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
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "tombolo.db"))
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	w := &world{store: s, core: &core{live: map[string]sandbox.Info{}}, secrets: map[string]string{}}

	ids := map[string]string{}
	for _, name := range []string{"alice", "bob"} {
		k, secret, err := store.NewKey(name, start)
		require.NoError(t, err)
		k.ID = "key-of-" + name
		if name == "bob" {
			k.MaxTimeout = 2 * time.Minute
			k.MaxSandboxes = 2
		}
		require.NoError(t, s.AddKey(t.Context(), k))
		ids[name], w.secrets[name] = k.ID, secret
	}
	for _, tpl := range []store.Template{
		{ID: baseID, Name: "base"},
		{ID: alicesID, Name: "alices", KeyID: ids["alice"]},
		{ID: bobsID, Name: "bobs", KeyID: ids["bob"]},
	} {
		tpl.BuildID, tpl.CreatedAt, tpl.BuiltAt = "00000000-0000-4000-8000-000000000001", start, start.Add(time.Hour)
		tpl.CPUs, tpl.MemoryBytes, tpl.DiskBytes = 2, 1<<30, 10<<30
		_, _, err := s.PutTemplate(t.Context(), tpl)
		require.NoError(t, err)
	}
	for i, key := range []string{"alice", "alice", "alice", "bob"} {
		w.core.add(sandbox.Info{
			ID: fmt.Sprintf("i%04d", i+1), KeyID: ids[key], TemplateID: baseID, TemplateName: "base",
			StartedAt: start.Add(time.Duration(i) * time.Minute), Metadata: map[string]string{"n": fmt.Sprint(i + 1), "a b/&=+ü": "ä &=+%"},
			DenyInternet: i == 1,
		})
	}
	for id, key := range map[string]string{"i0008": "alice", "i0009": "bob"} {
		require.NoError(t, s.PutSandbox(t.Context(), store.Sandbox{ID: id, KeyID: ids[key], State: "ended", Reason: "its timeout of 5m0s passed", EndedAt: start}))
	}
	w.Handler = e2b.New(e2b.Options{Sandboxes: w.core, Store: s, Log: slog.New(slog.DiscardHandler), Version: "0.1.0"})
	return w
}

// core stands in for the manager and notes what it was asked to change.
type core struct {
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
	info.State, info.EndAt = "running", info.StartedAt.Add(5*time.Minute)
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
		req.Template, req.KeyID, req.MaxSandboxes, req.Timeout, req.Metadata, req.EnvVars, req.DenyInternet)
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
	return c.add(sandbox.Info{ID: id, KeyID: req.KeyID, TemplateID: req.Template, TemplateName: "base", StartedAt: start, Metadata: req.Metadata, DenyInternet: req.DenyInternet}), nil
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

func (c *core) OnEnd(func(id string)) {}

var _ sandbox.Sandboxes = (*core)(nil)
