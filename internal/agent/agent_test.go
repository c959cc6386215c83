package agent_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent"
	"github.com/tombolo-dev/tombolo/internal/agent/host"
	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem/filesystemconnect"
	"github.com/tombolo-dev/tombolo/internal/agent/rpc/process/processconnect"
	"github.com/tombolo-dev/tombolo/internal/trust"
)

// sandbox is an agent that runs in the test, as an ordinary process.
type sandbox struct {
	t        *testing.T
	agent    *agent.Agent
	root     string // of the system files
	dir      string // for the test's own files
	client   *http.Client
	token    string
	username string
	journal  journal
}

// start runs an agent whose default user is root, which every machine has.
func start(t *testing.T) *sandbox {
	t.Helper()
	s := &sandbox{t: t, root: t.TempDir(), dir: t.TempDir(), username: "root"}
	a, err := agent.New(agent.Options{
		AgentAddr: "127.0.0.1:0", CodeAddr: "127.0.0.1:0", HostAddr: "127.0.0.1:0",
		Gateway: "127.0.0.1",
		System:  host.System{Root: s.root},
		Log:     slog.New(slog.NewTextHandler(io.Discard, nil)),
		Journal: slog.New(slog.NewTextHandler(&s.journal, nil)),
	})
	require.NoError(t, err)
	s.agent = a
	s.client = &http.Client{Transport: s}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- a.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	s.init(hostapi.Init{SandboxID: "isandbox", TemplateID: "template", DefaultUser: "root"})
	return s
}

// RoundTrip adds the credentials of the sandbox.
func (s *sandbox) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.token != "" {
		r.Header.Set("X-Access-Token", s.token)
	}
	if s.username != "" && r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(s.username+":")))
	}
	return http.DefaultTransport.RoundTrip(r)
}

func (s *sandbox) url(path string) string { return "http://" + s.agent.Addr("agent") + path }

func (s *sandbox) processes(options ...connect.ClientOption) processconnect.ProcessClient {
	return processconnect.NewProcessClient(s.client, s.url(""), options...)
}

func (s *sandbox) filesystem(options ...connect.ClientOption) filesystemconnect.FilesystemClient {
	return filesystemconnect.NewFilesystemClient(s.client, s.url(""), options...)
}

func (s *sandbox) host(path string, body any) (int, []byte) {
	s.t.Helper()
	encoded, err := json.Marshal(body)
	require.NoError(s.t, err)
	res, err := http.Post("http://"+s.agent.Addr("host")+path, "application/json", bytes.NewReader(encoded))
	require.NoError(s.t, err)
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return res.StatusCode, answer
}

func (s *sandbox) init(init hostapi.Init) {
	s.t.Helper()
	if init.Timestamp.IsZero() {
		init.Timestamp = time.Now()
	}
	status, answer := s.host("/init", init)
	require.Equal(s.t, http.StatusNoContent, status, string(answer))
}

// get answers status and body.
func (s *sandbox) do(method, path string, header http.Header, body io.Reader) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url(path), body)
	require.NoError(s.t, err)
	for name, values := range header {
		r.Header[name] = values
	}
	res, err := s.client.Do(r)
	require.NoError(s.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return res, string(text)
}

func TestInitTellsTheSandboxWhoItIs(t *testing.T) {
	s := start(t)
	s.init(hostapi.Init{
		SandboxID: "ione", TemplateID: "base", Hostname: "ione",
		EnvVars: map[string]string{"FRUIT": "fig"}, CABundle: []byte("certificates"), DefaultUser: "root",
	})
	for name, want := range map[string]string{
		"run/e2b/.E2B_SANDBOX": "true", "run/e2b/.E2B_SANDBOX_ID": "ione", "run/e2b/.E2B_TEMPLATE_ID": "base",
		trust.Bundle: "certificates", "etc/hostname": "ione\n",
		"etc/hosts": "127.0.0.1\tlocalhost\n127.0.1.1\tione\n",
	} {
		got, err := os.ReadFile(filepath.Join(s.root, name))
		require.NoError(t, err)
		require.Equal(t, want, string(got), name)
	}
	_, body := s.do("GET", "/envs", nil, nil)
	var vars map[string]string
	require.NoError(t, json.Unmarshal([]byte(body), &vars))
	require.Equal(t, "fig", vars["FRUIT"])
	require.Equal(t, "true", vars["E2B_SANDBOX"])
	require.Equal(t, "ione", vars["E2B_SANDBOX_ID"])
	require.Equal(t, "base", vars["E2B_TEMPLATE_ID"])
	require.Equal(t, filepath.Join(s.root, trust.Bundle), vars["SSL_CERT_FILE"])
}

func TestInitAgainReplacesWhatItSaid(t *testing.T) {
	s := start(t)
	s.init(hostapi.Init{SandboxID: "ione", Hostname: "ione", EnvVars: map[string]string{"A": "1"}})
	bundle := hostapi.Init{SandboxID: "itwo", Hostname: "itwo", CABundle: []byte("x")}
	s.init(bundle)
	before, err := os.Stat(filepath.Join(s.root, trust.Bundle))
	require.NoError(t, err)
	s.init(bundle)
	after, err := os.Stat(filepath.Join(s.root, trust.Bundle))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "an equal bundle must not be written again")
	hosts, err := os.ReadFile(filepath.Join(s.root, "etc/hosts"))
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1\tlocalhost\n127.0.1.1\titwo\n", string(hosts))
	_, body := s.do("GET", "/envs", nil, nil)
	require.NotContains(t, body, `"A"`)
}

func TestTokenGuardsEverythingButHealth(t *testing.T) {
	s := start(t)
	s.init(hostapi.Init{AccessToken: "secret"})
	for _, path := range []string{"/envs", "/metrics", "/files?path=/etc/passwd", "/process.Process/List"} {
		res, body := s.do("GET", path, nil, nil)
		require.Equal(t, http.StatusUnauthorized, res.StatusCode, "%s: %s", path, body)
	}
	res, _ := s.do("GET", "/health", nil, nil)
	require.Equal(t, http.StatusNoContent, res.StatusCode)
	_, err := list(s)
	require.Equal(t, connect.CodeUnauthenticated, connect.CodeOf(err))

	s.token = "secret"
	res, _ = s.do("GET", "/envs", nil, nil)
	require.Equal(t, http.StatusOK, res.StatusCode)
	_, err = list(s)
	require.NoError(t, err)
}

func TestMetricsTellTheMemoryLimit(t *testing.T) {
	s := start(t)
	s.init(hostapi.Init{MemoryLimit: 64 << 20})
	_, body := s.do("GET", "/metrics", nil, nil)
	var m map[string]float64
	require.NoError(t, json.Unmarshal([]byte(body), &m))
	require.EqualValues(t, 64, m["mem_total_mib"])
	require.Positive(t, m["cpu_count"])
	require.Positive(t, m["disk_total"])
	require.Contains(t, m, "cpu_used_pct")
}

func TestBrowsersMayCall(t *testing.T) {
	s := start(t)
	s.init(hostapi.Init{AccessToken: "secret"})
	res, _ := s.do("OPTIONS", "/files", http.Header{
		"Origin": {"https://page.example"}, "Access-Control-Request-Method": {"POST"},
		"Access-Control-Request-Headers": {"x-access-token"},
	}, nil)
	require.Equal(t, http.StatusNoContent, res.StatusCode)
	require.Equal(t, "*", res.Header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "x-access-token", res.Header.Get("Access-Control-Allow-Headers"))
}

func TestTunnelReachesTheLoopback(t *testing.T) {
	s := start(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		got, _ := io.ReadAll(conn) // the end of the caller's half comes through
		_, _ = conn.Write(bytes.ToUpper(got))
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	conn, err := net.Dial("tcp4", s.agent.Addr("host"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "CONNECT localhost:"+port+" HTTP/1.1\r\nHost: localhost\r\n\r\nearly ")
	require.NoError(t, err)
	_, err = io.WriteString(conn, "late")
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 200 Connection established\r\n\r\nEARLY LATE", string(answer))
}

func TestTunnelToAClosedPortIsBadGateway(t *testing.T) {
	s := start(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	conn, err := net.Dial("tcp4", s.agent.Addr("host"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "CONNECT "+addr+" HTTP/1.1\r\nHost: "+addr+"\r\n\r\n")
	require.NoError(t, err)
	head := make([]byte, len("HTTP/1.1 502"))
	_, err = io.ReadFull(conn, head)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 502", string(head))
}

func TestHostPortIsClosedToOthers(t *testing.T) {
	inner, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	l := host.Only(inner, "10.0.0.1")
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = conn.Write([]byte("welcome"))
		}
	}()
	conn, err := net.Dial("tcp4", inner.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Empty(t, got)
}

func TestTrustStoreThatProgramsAddedToStays(t *testing.T) {
	s := start(t)
	store := filepath.Join(s.root, trust.Bundle)
	give := func(bundle string) string {
		s.init(hostapi.Init{SandboxID: "ione", CABundle: []byte(bundle), DefaultUser: "root"})
		now, err := os.ReadFile(store)
		require.NoError(t, err)
		return string(now)
	}
	require.Equal(t, "first", give("first"))
	require.NoError(t, os.WriteFile(store, []byte("first and one more"), 0o644))
	require.Equal(t, "first and one more", give("first"), "the host's own has not changed")
	require.Equal(t, "second", give("second"))
}

func TestTrustStoresOfOtherFamiliesAreReplacedWhereTheyAre(t *testing.T) {
	s := start(t)
	store := filepath.Join(s.root, "etc/pki/ca-trust/pem")
	require.NoError(t, os.MkdirAll(filepath.Dir(store), 0o755))
	require.NoError(t, os.WriteFile(store, []byte("theirs"), 0o644))
	link := filepath.Join(s.root, "etc/pki/tls/certs/ca-bundle.crt")
	require.NoError(t, os.MkdirAll(filepath.Dir(link), 0o755))
	require.NoError(t, os.Symlink(store, link))
	s.init(hostapi.Init{SandboxID: "ione", CABundle: []byte("ours"), DefaultUser: "root"})
	for _, path := range []string{store, filepath.Join(s.root, trust.Bundle)} {
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "ours", string(got), path)
	}
	require.NoFileExists(t, filepath.Join(s.root, "etc/ssl/cert.pem"))
}

func TestInitEndsConnectionsOfBeforeAndNoProcess(t *testing.T) {
	s := start(t)
	followed := s.begin(t.Context(), shell("echo begun; exec sleep 1000"))
	require.NoError(t, followed.until(func() bool { return followed.stdout.Len() > 0 }))
	http.DefaultTransport.(*http.Transport).CloseIdleConnections() // or init comes by an older one
	s.init(hostapi.Init{SandboxID: "ione", DefaultUser: "root", Resumed: true})
	require.Error(t, followed.finish())
	require.Nil(t, followed.end)
	running, err := list(s)
	require.NoError(t, err)
	require.Len(t, running, 1)
	require.Equal(t, followed.pid, running[0].GetPid())
}
