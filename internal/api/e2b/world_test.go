package e2b_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/e2b"
	"github.com/tombolo-dev/tombolo/internal/build"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
	"github.com/tombolo-dev/tombolo/internal/secret"
	"github.com/tombolo-dev/tombolo/internal/store"
	"github.com/tombolo-dev/tombolo/internal/store/sqlite"
)

// world is a server with two keys, some templates and some sandboxes:
//
//	templates  base (of the machine), alices, bobs (of that key), shared (bob's,
//	           public). alices has another build with the tags stable and v1, and one
//	           that failed. The first build of fresh (alice) and hidden (bob) is under
//	           way, that of broken (alice) failed.
//	snapshots  snap and snap:v2 of i0001, one without a name of i0005, all of
//	           alice; theirs of i0004 of bob
//	sandboxes  i0001 … i0003 of alice, i0004 of bob, all running; i0005 of alice,
//	           paused
//	ended      i0008 of alice, i0009 of bob
//	events     of i0001 of alice and i0004 of bob
//	webhooks   one each of alice and bob; hers was disabled
//	secrets    openai and github of alice, openai of bob
//
// bob has every limit a key can have.
type world struct {
	http.Handler
	store   store.Store
	core    *core
	secrets map[string]string // by name of key
	vault   *secret.Vault
	data    string // the folder that builds work in
}

var start = time.Date(2026, 3, 4, 5, 6, 7, 890123000, time.UTC)

const (
	baseID, alicesID, bobsID, sharedID = "basebasebasebasebase", "alicesalicesalicesal", "bobsbobsbobsbobsbobs", "sharedsharedsharedsh"
	freshID, hiddenID, brokenID        = "freshfreshfreshfresh", "hiddenhiddenhiddenhi", "brokenbrokenbrokenbr"
	// of snapshots
	snapID, unnamedID, theirsID = "snapsnapsnapsnapsnap", "unnamedunnamedunname", "theirstheirstheirsth"
)

// buildID is the id of the nth build.
func buildID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func newWorld(t testing.TB) *world {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tombolo.db")
	require.NoError(t, os.WriteFile(path, records.file, 0o600))
	s, err := sqlite.Open(t.Context(), path)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	w := &world{store: s, core: &core{store: s, live: map[string]sandbox.Info{}}, secrets: records.secrets}
	for i, key := range []string{"alice", "alice", "alice", "bob"} {
		w.core.add(sandbox.Info{
			ID: fmt.Sprintf("i%04d", i+1), KeyID: "key-of-" + key, TemplateID: baseID, TemplateName: "base",
			StartedAt: start.Add(time.Duration(i) * time.Minute), Metadata: map[string]string{"n": fmt.Sprint(i + 1), "a b/&=+ü": "ä &=+%"},
			Network: []sandbox.NetworkOptions{1: {DenyInternet: true}, 2: limited, 3: {}}[i],
		})
	}
	w.core.add(sandbox.Info{
		ID: "i0005", KeyID: "key-of-alice", TemplateID: snapID, TemplateName: "snap", BuildID: buildID(7), StartedAt: start.Add(5 * time.Minute),
		State: sandbox.Paused, Lifecycle: sandbox.Lifecycle{PauseOnTimeout: true, AutoResume: true},
		Network: sandbox.NetworkOptions{PrivateTraffic: true, MaskRequestHost: "localhost:${PORT}"}, TrafficToken: "traffic-of-i0005",
	})
	log := slog.New(slog.DiscardHandler)
	w.data = t.TempDir()
	builds, err := build.New(t.Context(), build.Config{DataDir: w.data, Store: s, Log: log})
	require.NoError(t, err)
	t.Cleanup(builds.Close)
	addBuilds(t, s)
	w.vault = newVault(t, s)
	w.Handler = e2b.New(e2b.Options{Secrets: w.vault, AdmitVolume: w.core.admitVolume, Sandboxes: w.core, Store: s, Webhooks: newWebhooks(s), Builds: builds, Volumes: w.core, Log: log, Version: "0.1.0"})
	return w
}

// limited are options of which E2B has only some.
var limited = sandbox.NetworkOptions{
	AllowOut: []string{"1.1.1.1"}, HTTPSPorts: []uint16{8443}, BandwidthOut: 1 << 20, BandwidthIn: 2 << 20, Connections: 10,
	Proxy: &sandbox.EgressProxy{Address: "proxy.example.com:3128", Kind: "http"}, OwnProxy: true,
}

// addBuilds adds what would be ended if it were there when a server starts.
func addBuilds(t testing.TB, s store.Store) {
	for i, b := range []store.Build{
		{TemplateID: alicesID, KeyID: "key-of-alice", Alias: "alices", State: store.BuildError, Reason: "exit status 1", FinishedAt: start.Add(3 * time.Hour)},
		{TemplateID: freshID, KeyID: "key-of-alice", Alias: "fresh", State: store.Building},
		{TemplateID: hiddenID, KeyID: "key-of-bob", Alias: "hidden", State: store.BuildWaiting},
		{TemplateID: brokenID, KeyID: "key-of-alice", Alias: "broken", State: store.BuildError, Reason: "exit status 1", FinishedAt: start.Add(3 * time.Hour)},
	} {
		b.ID, b.CreatedAt, b.CPUs, b.MemoryBytes = buildID(101+i), start.Add(2*time.Hour), 4, 2<<30
		_, err := s.AddBuild(t.Context(), b)
		require.NoError(t, err)
	}
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
	if err := errors.Join(addKeys(s), addTemplates(s), addEnded(s), addEvents(s), addSecrets(s), s.Close()); err != nil {
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
			k.MaxCreateRate, k.MaxCPUs, k.MaxMemory, k.MaxDisk, k.MaxSnapshots = 0.5, 4, 8<<30, 20<<30, 3
		}
		records.secrets[name] = secret
		if err := s.AddKey(context.Background(), k); err != nil {
			return err
		}
	}
	return nil
}

func addTemplates(s store.Store) error {
	for i, t := range []store.Template{
		{ID: baseID, Name: "base"},
		{ID: alicesID, Name: "alices", KeyID: "key-of-alice"},
		{ID: alicesID, Name: "alices", KeyID: "key-of-alice", Tags: []string{"stable", "v1"}},
		{ID: bobsID, Name: "bobs", KeyID: "key-of-bob"},
		{ID: sharedID, Name: "shared", KeyID: "key-of-bob", Public: true},
		{ID: snapID, Name: "snap", KeyID: "key-of-alice", SourceSandbox: "i0001"},
		{ID: snapID, Name: "snap", Tags: []string{"v2"}, KeyID: "key-of-alice", SourceSandbox: "i0001"},
		{ID: unnamedID, KeyID: "key-of-alice", SourceSandbox: "i0005"},
		{ID: theirsID, Name: "theirs", KeyID: "key-of-bob", SourceSandbox: "i0004"},
	} {
		t.BuildID, t.CreatedAt = buildID(i+1), start
		t.BuiltAt = start.Add(time.Hour + time.Duration(i)*time.Minute)
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
	sandbox.Volumes

	store   store.Store
	mu      sync.Mutex
	live    map[string]sandbox.Info
	calls   []string
	created int
	fail    error         // of what makes or changes something
	busy    int           // how many calls find the sandbox busy
	hold    chan struct{} // Create waits for it when set
	agent   func() (net.Conn, error)
	points  int // of Metrics, 3 at least
}

func (c *core) add(info sandbox.Info) sandbox.Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	if info.State == "" {
		info.State = sandbox.Running
	}
	info.EndAt = info.StartedAt.Add(5 * time.Minute)
	if info.State == sandbox.Paused {
		info.EndAt = info.StartedAt.Add(10 * time.Second)
	}
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

// short is what is set of a struct.
func short(v any) string {
	text, _ := json.Marshal(v)
	return strings.ReplaceAll(string(text), `"`, "")
}

// set changes the state of a sandbox that is in one of the others.
func (c *core) set(id string, to sandbox.State) sandbox.Info {
	c.mu.Lock()
	defer c.mu.Unlock()
	info := c.live[id]
	info.State = to
	c.live[id] = info
	return info
}

// may finds a sandbox and tells why a change to it fails.
func (c *core) may(id string, needs sandbox.State) (sandbox.Info, error) {
	info, err := c.Get(id)
	switch {
	case err != nil:
		return info, err
	case c.fail != nil:
		return info, c.fail
	case c.busy > 0:
		c.busy--
		return info, sandbox.ErrBusy
	case info.State != needs && needs != "":
		return info, fmt.Errorf("wrapped: %w", sandbox.ErrPaused)
	}
	return info, nil
}

func (c *core) Create(ctx context.Context, req sandbox.CreateRequest) (sandbox.Info, error) {
	c.note("Create %s for %s, quota %s, timeout %s, metadata %v, env %v, lifecycle %s, network %s",
		req.Template, req.KeyID, short(req.Quota), req.Timeout, req.Metadata, req.EnvVars, short(req.Lifecycle), short(req.Network))
	if len(req.Rules.Rules)+len(req.Rules.Default) > 0 {
		c.note("with rules %s", short(req.Rules))
	}
	for _, v := range req.Volumes {
		c.note("with volume %s at %s", v.Name, v.Path)
	}
	if c.hold != nil {
		<-c.hold
	}
	if c.fail != nil {
		return sandbox.Info{}, c.fail
	}
	t, err := c.store.Template(ctx, req.Template)
	if err != nil {
		return sandbox.Info{}, err
	}
	info := sandbox.Info{
		ID: c.newID(), KeyID: req.KeyID, TemplateID: t.ID, TemplateName: t.Name, BuildID: t.BuildID, StartedAt: start,
		Metadata: req.Metadata, Network: req.Network, Lifecycle: req.Lifecycle,
	}
	info.TrafficToken = "traffic-of-" + info.ID
	return c.add(info), nil
}

func (c *core) newID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.created++
	return fmt.Sprintf("inew%d", c.created)
}

func (c *core) Pause(_ context.Context, id string, diskOnly bool) error {
	c.note("Pause %s, disk only %t", id, diskOnly)
	if _, err := c.may(id, sandbox.Running); err != nil {
		return err
	}
	c.set(id, sandbox.Paused)
	return nil
}

func (c *core) Resume(_ context.Context, id string, req sandbox.ResumeRequest) (sandbox.Info, bool, error) {
	c.note("Resume %s for %s, quota %s, reboot %t", id, req.Timeout, short(req.Quota), req.Reboot)
	info, err := c.may(id, "")
	if err != nil {
		return info, false, err
	}
	return c.set(id, sandbox.Running), info.State != sandbox.Running, nil
}

// Fork fails to make the third copy.
func (c *core) Fork(_ context.Context, id string, req sandbox.ForkRequest) ([]sandbox.Fork, error) {
	c.note("Fork %s, %d for %s, quota %s", id, req.Count, req.Timeout, short(req.Quota))
	info, err := c.may(id, sandbox.Running)
	if err != nil {
		return nil, err
	}
	forks := make([]sandbox.Fork, req.Count)
	for i := range forks {
		if i == 2 {
			forks[i].Err = fmt.Errorf("wrapped: %w", &sandbox.LimitError{What: "sandboxes at once", Limit: "2", Flag: "max-sandboxes"})
			continue
		}
		info.ID = c.newID()
		forks[i].Info = c.add(info)
	}
	return forks, nil
}

func (c *core) Snapshot(_ context.Context, id string, req sandbox.SnapshotRequest) (store.Template, error) {
	kind := ""
	if req.DiskOnly {
		kind = " of the disk alone"
	}
	c.note("Snapshot%s %s as %q, quota %s", kind, id, req.Name, short(req.Quota))
	info, err := c.may(id, sandbox.Running)
	name := store.SplitName(req.Name)
	return store.Template{ID: "newsnapnewsnapnewsna", Name: name.Alias, Tags: []string{name.Tag}, KeyID: info.KeyID, SourceSandbox: id}, err
}

func (c *core) DeleteTemplate(ctx context.Context, ref string) error {
	c.note("DeleteTemplate %s", ref)
	_, err := c.store.DeleteTemplate(ctx, ref)
	return err
}

func (c *core) TagTemplate(ctx context.Context, ref string, tags []string) (store.Template, error) {
	c.note("TagTemplate %s as %s", ref, tags)
	t, _, err := c.store.TagTemplate(ctx, ref, tags)
	if errors.Is(err, store.ErrNotFound) {
		err = sandbox.ErrTemplateNotFound
	}
	return t, err
}

func (c *core) UntagTemplate(ctx context.Context, idOrAlias string, tags []string) error {
	c.note("UntagTemplate %s of %s", idOrAlias, tags)
	_, err := c.store.UntagTemplate(ctx, idOrAlias, tags)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return sandbox.ErrTemplateNotFound
	case errors.Is(err, store.ErrDefaultTag):
		return &sandbox.InvalidError{Message: "not that one"}
	}
	return err
}

// Metrics has points of the beginning of a run, 5 s apart.
func (c *core) Metrics(id string, from, to time.Time) ([]sandbox.Metric, error) {
	info, err := c.Get(id)
	if err != nil {
		return nil, err
	}
	var points []sandbox.Metric
	for i := range max(3, c.points) {
		at := info.StartedAt.Add(time.Duration(i) * 5 * time.Second)
		if at.Before(from) || !to.IsZero() && at.After(to) {
			continue
		}
		points = append(points, sandbox.Metric{
			Time: at, CPUs: 2, CPUPercent: 12.3456 * float64(i), MemoryBytes: 100 << 20, MemoryCacheBytes: 20 << 20,
			MemoryTotalBytes: 1 << 30, DiskBytes: int64(i) << 20, DiskTotalBytes: 10 << 30,
		})
	}
	return points, nil
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
			(f.Template == "" || f.Template == info.TemplateID || f.Template == info.TemplateName || f.Template == info.BuildID)
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

func (c *core) SetTimeout(_ context.Context, id string, d time.Duration, extendOnly bool) (sandbox.Info, error) {
	c.note("SetTimeout %s %s, extend only %t", id, d, extendOnly)
	return c.may(id, sandbox.Running)
}

func (c *core) SetNetwork(_ context.Context, id string, change func(*sandbox.NetworkOptions)) (sandbox.Info, error) {
	info, err := c.Get(id)
	if err != nil {
		return info, err
	}
	change(&info.Network)
	said, err := json.Marshal(info.Network)
	c.note("SetNetwork %s %s", id, said)
	return info, err
}

func (c *core) Dial(context.Context, string, uint16) (net.Conn, error) {
	if c.agent != nil {
		return c.agent()
	}
	return nil, sandbox.ErrPortClosed
}

func (c *core) Logs(id string) ([]sandbox.LogLine, error) {
	if _, err := c.Get(id); err != nil {
		return nil, err
	}
	lines := []sandbox.LogLine{
		{Time: start, Source: "lifecycle", Level: "info", Text: "started"},
		{Time: start.Add(time.Second), Source: "agent", Level: "info", Text: `ready, "quoted"`},
		{Time: start.Add(2 * time.Second), Source: "network", Level: "warn", Text: "refused 10.0.0.1:80"},
	}
	return lines, nil
}

func (c *core) OnStop(func(id string)) {}

var _ sandbox.Sandboxes = (*core)(nil)

// admitVolume forbids what is named so.
func (c *core) admitVolume(_ context.Context, volumeID, keyID, file string) error {
	c.note("AdmitVolume %s of %s: %s", volumeID, keyID, file)
	if strings.HasPrefix(file, "/forbidden") {
		return &sandbox.DeniedError{What: "file-out " + file, Rule: "no-files"}
	}
	return nil
}
