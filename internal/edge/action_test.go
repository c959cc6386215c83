package edge_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	processrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
	"github.com/tombolo-dev/tombolo/internal/edge"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// guard notes what it is asked and denies what it is told to.
type guard struct {
	mu    sync.Mutex
	asked []policy.Action
	deny  string // a part of the action in words
	rules bool
}

func (g *guard) Admit(_ context.Context, info sandbox.Info, a policy.Action) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, a)
	if g.deny != "" && strings.Contains(a.String(), g.deny) {
		return &sandbox.DeniedError{What: a.String(), Reason: "because", Rule: "test", ID: "req_1"}
	}
	return nil
}

func (g *guard) HasRules(sandbox.Info, policy.Kind) bool { return g.rules }

func startGuarded(t testing.TB, g *guard) string {
	s := newSandboxes()
	for _, port := range []uint16{userPort, 49983, 49999} {
		s.serve(t, "iaaa", port, echo())
	}
	return serve(t, edge.New(edge.Options{Sandboxes: s, Control: http.NotFoundHandler(), Guard: g}), nil)
}

func envelope(flags byte, message []byte) string {
	head := make([]byte, 5)
	head[0] = flags
	binary.BigEndian.PutUint32(head[1:], uint32(len(message)))
	return string(head) + string(message)
}

func zipped(message []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write(message)
	z.Close()
	return b.Bytes()
}

func TestGuardSeesWhatRequestsDo(t *testing.T) {
	start := &processrpc.StartRequest{Process: &processrpc.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", "rm -rf /"}}}
	binaryStart, err := proto.Marshal(start)
	require.NoError(t, err)
	jsonStart := []byte(`{"process":{"cmd":"/bin/bash","args":["-l","-c","rm -rf /"],"cwd":"/srv"},"newer":true}`)
	removes := policy.Action{Kind: policy.Exec, Command: "rm -rf /", User: "user", Input: "stdin"}
	typed := func(more string) string {
		return envelope(0, []byte(`{"process":{"cmd":"bash","args":["-i"]}`+more+`}`))
	}
	shell := func(input string) []policy.Action {
		return []policy.Action{{Kind: policy.Exec, Command: "bash -i", User: "user", Input: input}}
	}
	inSrv := removes
	inSrv.Cwd = "/srv"
	for _, row := range []struct {
		about, port, method, path, body string
		headers                         []string
		want                            []policy.Action
	}{
		{"a command of the Connect protocol, JSON", "49983", "POST", "/process.Process/Start", envelope(0, jsonStart), []string{"Content-Type", "application/connect+json"}, []policy.Action{inSrv}},
		{"compressed", "49983", "POST", "/process.Process/Start", envelope(1, zipped(jsonStart)), []string{"Content-Type", "application/connect+json; charset=utf-8", "Connect-Content-Encoding", "gzip"}, []policy.Action{inSrv}},
		{"in binary", "49983", "POST", "/process.Process/Start", envelope(0, binaryStart), []string{"Content-Type", "application/connect+proto"}, []policy.Action{removes}},
		{"by gRPC", "49983", "POST", "/process.Process/Start", envelope(0, binaryStart), []string{"Content-Type", "application/grpc"}, []policy.Action{removes}},
		{"as another user", "49983", "POST", "/process.Process/Start", envelope(0, binaryStart), []string{"Content-Type", "application/connect+proto", "Authorization", "Basic cm9vdDo="}, []policy.Action{{Kind: policy.Exec, Command: "rm -rf /", User: "root", Input: "stdin"}}},
		{"a command with a terminal", "49983", "POST", "/process.Process/Start", typed(`,"pty":{"size":{"cols":80,"rows":24}},"stdin":false`), []string{"Content-Type", "application/connect+json"}, shell("pty")},
		{"one that can be told more", "49983", "POST", "/process.Process/Start", typed(`,"stdin":true`), []string{"Content-Type", "application/connect+json"}, shell("stdin")},
		{"one of which that is not said, which can", "49983", "POST", "/process.Process/Start", typed(""), []string{"Content-Type", "application/connect+json"}, shell("stdin")},
		{"one that cannot", "49983", "POST", "/process.Process/Start", typed(`,"stdin":false`), []string{"Content-Type", "application/connect+json"}, shell("")},
		{"code", "49999", "POST", "/execute", `{"code":"import os","language":"Python"}`, nil, []policy.Action{{Kind: policy.Exec, Command: "import os", Language: "python", User: "root"}}},
		{"code without a language", "49999", "POST", "/execute", `{"code":"1"}`, nil, []policy.Action{{Kind: policy.Exec, Command: "1", Language: "python", User: "root"}}},
		{"code of a kernel by its own name, which may be of any language", "49999", "POST", "/execute", `{"code":"1","language":"IR"}`, nil, []policy.Action{{Kind: policy.Exec, Command: "1", Language: "ir", User: "root", Unknown: policy.LanguageField}}},
		{"a file", "49983", "GET", "/files?path=/etc/../etc/shadow&username=root", "", nil, []policy.Action{{Kind: policy.FileOut, File: "/etc/shadow", User: "root"}}},
		{"a file of the home", "49983", "GET", "/files?path=notes/x", "", nil, []policy.Action{{Kind: policy.FileOut, File: "/home/user/notes/x", User: "user"}}},
		{"a port", "8000", "GET", "/", "", nil, []policy.Action{{Kind: policy.Port, Port: 8000}}},
		{"what else the agent does", "49983", "GET", "/metrics", "", nil, nil},
	} {
		t.Run(row.about, func(t *testing.T) {
			g := &guard{}
			addr := startGuarded(t, g)
			send := func(token string) *http.Response {
				headers := append([]string{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", row.port, "X-Access-Token", token}, row.headers...)
				r := request(t, row.method, "http://"+addr+row.path, headers...)
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(row.body)), int64(len(row.body))
				return do(t, r)
			}
			res := send("token-of-iaaa")
			require.Equal(t, 200, res.StatusCode)
			require.Equal(t, row.body, body(t, res), "it comes in as it was sent")
			require.Equal(t, row.want, g.asked)
			if row.want == nil {
				return
			}
			g.asked, g.deny = nil, row.want[0].String()
			res = send("token-of-iaaa")
			require.Equal(t, http.StatusForbidden, res.StatusCode)
			require.Contains(t, body(t, res), "because")
			if row.port != "8000" {
				g.asked = nil
				require.Equal(t, 200, send("wrong").StatusCode, "the agent refuses who has no token; nobody is asked")
				require.Empty(t, g.asked)
			}
		})
	}
}

func TestVariablesOfACommandArePartOfIt(t *testing.T) {
	seen := map[string]bool{}
	for _, vars := range []string{`{}`, `{"A":"1"}`, `{"A":"2"}`, `{"B":"1"}`, `{"A":"1","B":"1"}`} {
		g := &guard{}
		addr := startGuarded(t, g)
		message := `{"process":{"cmd":"ls","envs":` + vars + `}}`
		r := request(t, "POST", "http://"+addr+"/process.Process/Start", "E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "49983",
			"X-Access-Token", "token-of-iaaa", "Content-Type", "application/connect+json")
		body := envelope(0, []byte(message))
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		require.Equal(t, 200, do(t, r).StatusCode)
		require.False(t, seen[g.asked[0].Hash()], "%s", vars)
		seen[g.asked[0].Hash()] = true
		require.NotRegexp(t, `[AB]=?[12]`, g.asked[0].Env, "values are not shown")
		again, err := policy.ParseAction(g.asked[0].String())
		require.NoError(t, err)
		require.Equal(t, g.asked[0], again)
	}
}

func TestWhatCannotBeReadIsRefusedUnderRules(t *testing.T) {
	for _, body := range []string{"", "\x00\x00\x00\x00\x09{}", envelope(0, []byte("not JSON")), envelope(1, []byte("no gzip"))} {
		for rules, want := range map[bool]int{true: http.StatusBadRequest, false: http.StatusOK} {
			addr := startGuarded(t, &guard{rules: rules})
			r := request(t, "POST", "http://"+addr+"/process.Process/Start", "E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "49983",
				"X-Access-Token", "token-of-iaaa", "Content-Type", "application/connect+json")
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
			require.Equal(t, want, do(t, r).StatusCode, "%q, rules %v", body, rules)
		}
	}
}

func TestPortsThatSpeakTLSThemselves(t *testing.T) {
	s := newSandboxes()
	server := httptest.NewTLSServer(names("secure"))
	t.Cleanup(server.Close)
	s.listen("iaaa", userPort, server.Listener.Addr().String())
	s.set("iaaa", func(b *box) { b.info.Network.HTTPSPorts = []uint16{userPort} })
	res := do(t, request(t, "GET", "http://"+start(t, s)+"/", toUser...))
	require.Equal(t, 200, res.StatusCode)
	require.Equal(t, "secure", res.Header.Get("X-From"))
}
