package edge_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	filesystemrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
	processrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
	"github.com/tombolo-dev/tombolo/internal/edge"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// asked notes what the edge asks about, and lets it pass.
type asked struct {
	actions []policy.Action
	noRules bool
}

func (a *asked) Admit(_ context.Context, _ sandbox.Info, action policy.Action) error {
	a.actions = append(a.actions, action)
	return nil
}

func (a *asked) HasRules(sandbox.Info, policy.Kind) bool { return !a.noRules }

// startAsked serves an edge with a guard to a sandbox whose servers answer all with 200.
func startAsked(t *testing.T) (addr string, a *asked, s *sandboxes) {
	s, a = newSandboxes(), &asked{}
	for _, port := range []uint16{49983, 49999} {
		s.serve(t, "iaaa", port, names("inside"))
	}
	return serve(t, edge.New(edge.Options{Sandboxes: s, Control: http.NotFoundHandler(), Guard: a}), nil), a, s
}

// toAgent sends a request with the sandbox's token to a port of its agent.
func toAgent(t *testing.T, addr, port, method, uri string, content []byte, headers ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+addr+uri, bytes.NewReader(content))
	require.NoError(t, err)
	headers = append([]string{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", port, "X-Access-Token", "token-of-iaaa"}, headers...)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		}
	}
	return do(t, r)
}

func framed(flags byte, message []byte) []byte {
	head := append([]byte{flags}, binary.BigEndian.AppendUint32(nil, uint32(len(message)))...)
	return append(head, message...)
}

func gzipped(t *testing.T, b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(b)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return out.Bytes()
}

func startOf(cmd string, args ...string) *processrpc.StartRequest {
	return &processrpc.StartRequest{Process: &processrpc.ProcessConfig{Cmd: cmd, Args: args}}
}

// Whoever starts a program is judged as the account that the agent will take, and by the
// program that it will start.
func TestStartsAreJudgedAsTheAgentReadsThem(t *testing.T) {
	basic := func(scheme, who string) string { return scheme + base64.StdEncoding.EncodeToString([]byte(who)) }
	elsewhere := startOf("bash", "-l", "-c", "ls")
	elsewhere.Process.Envs = map[string]string{"PATH": "/tmp/mine"}
	for _, test := range []struct {
		why           string
		start         *processrpc.StartRequest
		authorization string
		user, command string
		env           string
	}{
		{"what clients send", startOf("/bin/bash", "-l", "-c", "ls"), "", "user", "ls", ""},
		{"a user by name", startOf("id"), basic("Basic ", "root:"), "root", "id", ""},
		{"the scheme has no case", startOf("id"), basic("basic ", "root:"), "root", "id", ""},
		{"without a colon it is no name", startOf("id"), basic("Basic ", "root"), "user", "id", ""},
		{"root has a number", startOf("id"), basic("Basic ", "0:"), "root", "id", ""},
		{"with more zeros too", startOf("id"), basic("Basic ", "000:"), "root", "id", ""},
		{"a shell elsewhere may be any program", startOf("/tmp/mine/bash", "-l", "-c", "ls"), "", "user", "/tmp/mine/bash -l -c ls", ""},
		{"a variable before a command is none in a script, and a program's name in an argument", startOf("A=/tmp/x/y", "z"), "", "user", "'A=/tmp/x/y' z", ""},
		{"what does not show is quoted", startOf("a\x1bb", "\r"), "", "user", "'a\x1bb' '\r'", ""},
		{"and so in another PATH", elsewhere, "", "user", "bash -l -c ls", "PATH #ffb02bef471f85714aecccb94ff71b13"},
	} {
		t.Run(test.why, func(t *testing.T) {
			addr, a, _ := startAsked(t)
			message, err := proto.Marshal(test.start)
			require.NoError(t, err)
			inJSON, err := protojson.Marshal(test.start)
			require.NoError(t, err)
			for _, sent := range []struct {
				contentType, encoding string
				content               []byte
			}{
				{"application/connect+proto", "", framed(0, message)},
				{"application/connect+json", "", framed(0, inJSON)},
				{"application/connect+json; charset=utf-8", "", framed(0, inJSON)},
				{"application/connect+proto", "gzip", framed(1, gzipped(t, message))},
				{"application/grpc-web+proto", "", framed(0, message)},
			} {
				a.actions = nil
				res := toAgent(t, addr, "49983", "POST", "/process.Process/Start", sent.content,
					"Content-Type", sent.contentType, "Connect-Content-Encoding", sent.encoding, "Authorization", test.authorization)
				require.Equal(t, 200, res.StatusCode)
				require.Equal(t, []policy.Action{{Kind: policy.Exec, User: test.user, Command: test.command, Env: test.env, Input: "stdin"}}, a.actions, sent.contentType)
			}
		})
	}
}

func TestStartsActAsTheTemplatesUserWhenTheyNameNone(t *testing.T) {
	addr, a, s := startAsked(t)
	s.set("iaaa", func(b *box) { b.info.User = "root" })
	message, err := proto.Marshal(startOf("id"))
	require.NoError(t, err)
	toAgent(t, addr, "49983", "POST", "/process.Process/Start", framed(0, message), "Content-Type", "application/connect+proto")
	require.Equal(t, []policy.Action{{Kind: policy.Exec, User: "root", Command: "id", Input: "stdin"}}, a.actions)
}

func TestCodeIsJudgedAsTheAgentReadsIt(t *testing.T) {
	for _, test := range []struct {
		why, body, language, code string
		unknown                   policy.Fields
	}{
		{"no language is Python", `{"code":"1"}`, "python", "1", 0},
		{"names of a language are one", `{"code":"1","language":" JS"}`, "javascript", "1", 0},
		{"names of a language are one", `{"code":"1","language":"python3"}`, "python", "1", 0},
		{"the last of two counts, as in the agent", `{"code":"good","code":"bad"}`, "python", "bad", 0},
		{"in any case", `{"code":"good","Code":"bad"}`, "python", "bad", 0},
		{"what follows is ignored there too", `{"code":"1"}{"code":"2"}`, "python", "1", 0},
		{"a context may have any language", `{"code":"1","context_id":"c1"}`, "context c1", "1", policy.LanguageField},
	} {
		t.Run(test.why, func(t *testing.T) {
			addr, a, _ := startAsked(t)
			require.Equal(t, 200, toAgent(t, addr, "49999", "POST", "/execute", []byte(test.body)).StatusCode)
			require.Equal(t, []policy.Action{{
				Kind: policy.Exec, User: "root", Command: test.code, Language: test.language, Unknown: test.unknown,
			}}, a.actions)
		})
	}
}

// signedQuery is a file URL's, signed as the owner of the token may.
func signedQuery(file, user, expiration string) string {
	text := file + ":read:" + user + ":token-of-iaaa"
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	q := url.Values{"path": {file}, "signature": {"v1_" + base64.RawStdEncoding.EncodeToString(sum[:])}}
	if user != "" {
		q.Set("username", user)
	}
	if expiration != "" {
		q.Set("signature_expiration", expiration)
	}
	return q.Encode()
}

// A request for a file that the agent would answer must be asked about, however it is
// signed.
func TestEverySignatureThatTheAgentTakesIsAskedAbout(t *testing.T) {
	soon := fmt.Sprint(time.Now().Add(time.Hour).Unix())
	for why, query := range map[string]string{
		"without an end":                 signedQuery("/etc/x", "", ""),
		"with an end":                    signedQuery("/etc/x", "", soon),
		"with an end in many digits":     signedQuery("/etc/x", "", strings.Repeat("0", 40)+soon),
		"over a moment ago":              signedQuery("/etc/x", "", fmt.Sprint(time.Now().Add(-2*time.Second).Unix())),
		"with a path of the longest":     signedQuery("/etc/"+strings.Repeat("./", 2000)+"x", "", soon),
		"with a query longer than paths": signedQuery("/etc/x", strings.Repeat("0", 9000), soon),
	} {
		addr, a, _ := startAsked(t)
		toAgent(t, addr, "49983", "GET", "/files?"+query, nil, "X-Access-Token", "")
		require.Len(t, a.actions, 1, why)
		require.Equal(t, "/etc/x", a.actions[0].File, why)
	}
	addr, a, _ := startAsked(t)
	for _, query := range []string{"path=/etc/x", "path=/etc/x&signature=v1_x", strings.Replace(signedQuery("/etc/x", "", soon), "signature=v1_", "signature=v1_A", 1)} {
		toAgent(t, addr, "49983", "GET", "/files?"+query, nil, "X-Access-Token", "")
	}
	require.Empty(t, a.actions, "strangers ask nobody anything")
}

func TestFilesAreJudgedByTheirOwnNames(t *testing.T) {
	for _, test := range []struct{ query, file, user string }{
		{"path=/srv/x", "/srv/x", "user"},
		{"path=/srv/x&path=/srv/y", "/srv/x", "user"},
		{"path=/srv//./a/../x", "/srv/x", "user"},
		{"path=x", "/home/user/x", "user"},
		{"path=~/x&username=0", "/root/x", "root"},
		{"path=/srv/x&username=postgres", "/srv/x", "postgres"},
		{"path=/proc/cpuinfo", "/proc/cpuinfo", "user"},
	} {
		addr, a, _ := startAsked(t)
		require.Equal(t, 200, toAgent(t, addr, "49983", "GET", "/files?"+test.query, nil).StatusCode)
		require.Equal(t, []policy.Action{{Kind: policy.FileOut, File: test.file, User: test.user}}, a.actions, test.query)
	}
	for why, query := range map[string]string{
		"the root of a process is the root":          "path=/proc/self/root/home/user/.ssh/id",
		"of a thread too":                            "path=/proc/1/task/1/root/srv/x",
		"the folder of a process may be any":         "path=/proc/1/cwd/x",
		"an open file has a name of its own":         "path=/proc/self/fd/3",
		"under /dev too":                             "path=/dev/fd/3",
		"the agent alone knows where a home is":      "path=id_rsa&username=postgres",
		"and what a name leads to after it is clean": "path=/srv/../proc/self/./root/etc/x",
	} {
		addr, a, _ := startAsked(t)
		res := toAgent(t, addr, "49983", "GET", "/files?"+query, nil)
		require.Equal(t, http.StatusBadRequest, res.StatusCode, why)
		require.Contains(t, body(t, res), "rules on which files may be read", why)
		require.Empty(t, a.actions, why)

		a.noRules = true
		require.Equal(t, 200, toAgent(t, addr, "49983", "GET", "/files?"+query, nil).StatusCode, "without rules nothing is refused")
		require.Len(t, a.actions, 1, "and it is written down")
	}
}

// A file that may not be read may not be given another name either.
func TestFilesThatAreRenamedAreJudgedAsRead(t *testing.T) {
	move := &filesystemrpc.MoveRequest{Source: "/home/user/.ssh/id", Destination: "/tmp/x"}
	message, err := proto.Marshal(move)
	require.NoError(t, err)
	inJSON, err := protojson.Marshal(move)
	require.NoError(t, err)
	read := []policy.Action{{Kind: policy.FileOut, File: "/home/user/.ssh/id", User: "user"}}
	addr, a, _ := startAsked(t)
	for _, sent := range []struct {
		contentType, encoding string
		content               []byte
	}{
		{"application/proto", "", message},
		{"application/json", "", inJSON},
		{"application/proto", "gzip", gzipped(t, message)},
		{"application/grpc-web+proto", "", framed(0, message)},
	} {
		a.actions = nil
		toAgent(t, addr, "49983", "POST", "/filesystem.Filesystem/Move", sent.content, "Content-Type", sent.contentType, "Content-Encoding", sent.encoding)
		require.Equal(t, read, a.actions, sent.contentType)
	}
	a.actions = nil
	join := `{"source_paths":["/tmp/a",".ssh/id"],"destination":"/tmp/x"}`
	toAgent(t, addr, "49983", "POST", "/files/compose", []byte(join), "Content-Type", "application/json")
	require.Equal(t, append([]policy.Action{{Kind: policy.FileOut, File: "/tmp/a", User: "user"}}, read...), a.actions)

	a.actions, a.noRules = nil, true
	toAgent(t, addr, "49983", "POST", "/files/compose", []byte(join), "Content-Type", "application/json")
	require.Empty(t, a.actions, "it is no reading where no rule is about it")
}
