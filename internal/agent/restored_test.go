package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/kernel/kerneltest"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem/filesystemconnect"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/process/processconnect"
	"github.com/tombolo-dev/tombolo/internal/engine"
	"github.com/tombolo-dev/tombolo/internal/engine/gvisor"
	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/image/erofs"
)

// The tests that use a machine run the agent as PID 1 in the real engine, with
// the host's programs, and save and restore it.

// TestMain makes the test program gVisor when it is started under gVisor's name,
// as the product is.
func TestMain(m *testing.M) {
	if gvisor.IsRunsc(os.Args[0]) {
		gvisor.Main()
		return
	}
	code := m.Run()
	if p, err := machineParts(); err == nil {
		p.engine.RemoveScope()
		os.RemoveAll(p.dir)
	}
	os.Exit(code)
}

var errNoMachine = errors.New("machines need root and a host whose /bin is /usr/bin")

var machineParts = sync.OnceValues(func() (p *parts, err error) {
	if link, err := os.Readlink("/bin"); os.Getuid() != 0 || err != nil || strings.Trim(link, "/") != "usr/bin" {
		return nil, errNoMachine
	}
	p = &parts{}
	if p.python, err = kerneltest.Python(); err != nil {
		return nil, err
	}
	if p.dir, err = os.MkdirTemp("", "agent-test-"); err != nil {
		return nil, err
	}
	p.engine, err = gvisor.New(gvisor.Config{Scope: fmt.Sprintf("agent%d", os.Getpid())})
	if err == nil {
		err = p.make()
	}
	if err != nil {
		os.RemoveAll(p.dir)
		return nil, err
	}
	return p, nil
})

// parts are what all machines are made from.
type parts struct {
	dir    string
	engine *gvisor.Engine
	python string
	mounts []engine.Mount
}

func (p *parts) image() string { return filepath.Join(p.dir, "root.erofs") }

func (p *parts) make() error {
	agent := filepath.Join(p.dir, "agent")
	root := filepath.Join(p.dir, "root")
	for _, dir := range []string{"usr", "etc", "root", "home/user", "run", "var", "proc", "dev", "sys"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	tmp := filepath.Join(root, "tmp")
	if err := errors.Join(os.Mkdir(tmp, 0o777), os.Chmod(tmp, 0o777|fs.ModeSticky)); err != nil {
		return err
	}
	for name, content := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
		"group":  "root:x:0:\nuser:x:1000:\n",
		"hosts":  "127.0.0.1 localhost\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	base, err := exec.Command(p.python, "-c", "import sys; print(sys.base_prefix)").Output()
	if err != nil {
		return err
	}
	p.mounts = []engine.Mount{{Source: agent, Target: "/.tombolo", ReadOnly: true}, {Source: "/usr", Target: "/usr", ReadOnly: true}}
	for _, dir := range []string{strings.TrimSpace(string(base)), filepath.Dir(filepath.Dir(p.python))} {
		if !strings.HasPrefix(dir, "/usr/") && dir != "/usr" {
			p.mounts = append(p.mounts, engine.Mount{Source: dir, Target: dir, ReadOnly: true})
		}
	}
	command := exec.Command("go", "build", "-o", filepath.Join(agent, "agent"), "github.com/tombolo-dev/tombolo/cmd/tombolo-agent")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", command.Args, err, out)
	}
	return erofs.WriteFolder(context.Background(), root, p.image())
}

// patience bounds a wait for something that should happen soon.
const patience = 30 * time.Second

// machine is a sandbox whose PID 1 is the agent.
type machine struct {
	t        *testing.T
	parts    *parts
	init     hostapi.Init
	place    gateway.Config
	network  *gateway.Network
	instance engine.Instance
	http     *http.Client
}

// newMachine boots one and tells the agent init.
func newMachine(t *testing.T, init hostapi.Init) *machine {
	t.Helper()
	parts, err := machineParts()
	if errors.Is(err, errNoMachine) {
		t.Skip(err)
	}
	require.NoError(t, err)
	m := prepareMachine(t, parts, init)
	m.instance, err = parts.engine.Start(t.Context(), m.spec())
	require.NoError(t, err)
	t.Cleanup(m.stop)
	m.introduce()
	return m
}

func prepareMachine(t *testing.T, parts *parts, init hostapi.Init) *machine {
	t.Helper()
	m := &machine{t: t, parts: parts, init: init, place: gateway.Config{Dir: t.TempDir(), Policy: gateway.DenyAll{}}}
	var err error
	m.network, err = gateway.New(t.Context(), m.place)
	require.NoError(t, err)
	m.http = &http.Client{Transport: m}
	return m
}

func (m *machine) spec() engine.Spec {
	dir := m.t.TempDir()
	return engine.Spec{
		ID:               strings.ToLower(rand.Text())[:20],
		Dir:              dir,
		Image:            m.parts.image(),
		Mounts:           m.parts.mounts,
		NetworkNamespace: m.network.NamespacePath(),
		Args:             []string{"/.tombolo/agent"},
		Env:              []string{"PATH=" + filepath.Dir(m.parts.python) + ":/usr/bin:/bin", "HOME=/root"},
		Hostname:         "sandbox",
		Limits:           engine.Limits{CPUs: 2, MemoryBytes: 512 << 20, DiskBytes: 256 << 20, Processes: 200},
		Output:           testOutput{m.t},
	}
}

// testOutput shows what the agent writes when the test fails.
type testOutput struct{ t *testing.T }

func (o testOutput) Write(p []byte) (int, error) {
	if o.t.Context().Err() == nil {
		o.t.Logf("agent: %s", bytes.TrimSpace(p))
	}
	return len(p), nil
}

// save writes a checkpoint and ends the machine, as a pause does.
func (m *machine) save() (checkpoint string) {
	m.t.Helper()
	checkpoint = filepath.Join(m.t.TempDir(), "memory")
	m.network.Hold()
	require.NoError(m.t, m.instance.Checkpoint(m.t.Context(), checkpoint))
	m.stop()
	return checkpoint
}

func (m *machine) stop() {
	require.NoError(m.t, m.instance.Stop(context.Background()))
	require.NoError(m.t, m.network.Close())
	m.http.CloseIdleConnections()
}

// restore goes on from a checkpoint, whose agent has not been told anything.
func (m *machine) restore(checkpoint string, init hostapi.Init) *machine {
	m.t.Helper()
	restored := prepareMachine(m.t, m.parts, init)
	var err error
	restored.instance, err = m.parts.engine.Restore(m.t.Context(), restored.spec(), checkpoint)
	require.NoError(m.t, err)
	m.t.Cleanup(restored.stop)
	return restored
}

// adopt gives the machine's network to another process, so to speak.
func (m *machine) adopt() {
	m.t.Helper()
	require.NoError(m.t, m.network.Detach())
	var err error
	m.network, err = gateway.Adopt(m.t.Context(), m.place)
	require.NoError(m.t, err)
	m.init.Resumed, m.init.Entropy = true, nil
	m.introduce()
}

// introduce tells the agent who it is, as soon as it listens.
func (m *machine) introduce() {
	m.t.Helper()
	m.init.Timestamp = time.Now()
	body, err := json.Marshal(m.init)
	require.NoError(m.t, err)
	deadline := time.Now().Add(patience)
	for {
		res, err := m.http.Post(fmt.Sprintf("http://machine:%d/init", hostapi.HostPort), "application/json", bytes.NewReader(body))
		if errors.Is(err, syscall.ECONNREFUSED) && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		require.NoError(m.t, err)
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		require.NoError(m.t, err)
		require.Equal(m.t, http.StatusNoContent, res.StatusCode, string(answer))
		return
	}
}

// RoundTrip adds the credentials and dials by the gateway. Each request has a
// connection of its own.
func (m *machine) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("X-Access-Token") == "" {
		r.Header.Set("X-Access-Token", m.init.AccessToken)
	}
	r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("root:")))
	return (&http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			var number uint16
			if _, err := fmt.Sscan(port, &number); err != nil {
				return nil, err
			}
			return m.network.DialContext(ctx, number)
		},
	}).RoundTrip(r)
}

func (m *machine) url(port int) string { return fmt.Sprintf("http://machine:%d", port) }

func (m *machine) processes() processconnect.ProcessClient {
	return processconnect.NewProcessClient(m.http, m.url(hostapi.AgentPort))
}

func (m *machine) filesystem() filesystemconnect.FilesystemClient {
	return filesystemconnect.NewFilesystemClient(m.http, m.url(hostapi.AgentPort))
}

// sh runs a script to its end and returns what it printed.
func (m *machine) sh(script string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	st, err := m.processes().Start(ctx, connect.NewRequest(shell(script)))
	require.NoError(m.t, err)
	got := &stream{ServerStreamForClient: st}
	require.NoError(m.t, got.finish(), script)
	require.NotNil(m.t, got.end, script)
	require.Zero(m.t, got.end.GetExitCode(), "%s: %s%s", script, got.stdout.String(), got.stderr.String())
	return strings.TrimSpace(got.stdout.String())
}

// execute runs code in the default context.
func (m *machine) execute(code string) (*http.Response, error) {
	body, err := json.Marshal(map[string]string{"code": code})
	require.NoError(m.t, err)
	return m.http.Post(m.url(hostapi.CodePort)+"/execute", "application/json", bytes.NewReader(body))
}

// python runs code in the default context and returns what it printed.
func (m *machine) python(code string) string {
	m.t.Helper()
	res, err := m.execute(code)
	require.NoError(m.t, err)
	defer res.Body.Close()
	require.Equal(m.t, http.StatusOK, res.StatusCode)
	var printed strings.Builder
	lines := json.NewDecoder(res.Body)
	for {
		var line struct{ Type, Text, Name, Value string }
		if err := lines.Decode(&line); err == io.EOF {
			return strings.TrimSpace(printed.String())
		} else {
			require.NoError(m.t, err)
		}
		require.NotEqual(m.t, "error", line.Type, "%s: %s", line.Name, line.Value)
		if line.Type == "stdout" {
			printed.WriteString(line.Text)
		}
	}
}

func entropy() []byte {
	b := make([]byte, 64)
	_, _ = rand.Read(b)
	return b
}
