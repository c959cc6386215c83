package edge

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	processrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/process"
	"github.com/tombolo-dev/tombolo/internal/policy"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Guard decides about what a request does in a sandbox.
type Guard interface {
	// Admit returns when the action is decided, which may take as long as a person
	// does; a *sandbox.DeniedError when it is not to be.
	Admit(ctx context.Context, info sandbox.Info, a policy.Action) error
	// HasRules tells whether rules of this kind hold for the sandbox.
	HasRules(info sandbox.Info, kind policy.Kind) bool
}

// maxStart bounds a request that starts a process or runs code, bytes: what the
// agent takes.
const maxStart = 8 << 20

const (
	startPath   = "/process.Process/Start"
	executePath = "/execute"
	filesPath   = "/files"
	defaultUser = "user"
)

// admit asks the guard about what a request does. What the agent will refuse for
// want of a token is not asked about.
func (e *edge) admit(r *http.Request, body *requestBody, t target, info sandbox.Info) error {
	if e.guard == nil {
		return nil
	}
	if t.port != hostapi.AgentPort && t.port != hostapi.CodePort {
		return e.guard.Admit(r.Context(), info, policy.Action{Kind: policy.Port, Port: t.port})
	}
	var a policy.Action
	var err error
	switch {
	case t.port == hostapi.AgentPort && r.URL.Path == startPath && r.Method == http.MethodPost:
		a, err = started(r, body)
	case t.port == hostapi.CodePort && r.URL.Path == executePath && r.Method == http.MethodPost:
		a, err = executed(body)
	case t.port == hostapi.AgentPort && r.URL.Path == filesPath && (r.Method == http.MethodGet || r.Method == http.MethodHead):
		a = fileOut(r)
	default:
		return nil
	}
	if !hasToken(r, info) {
		return nil
	}
	if err == nil {
		return e.guard.Admit(r.Context(), info, a)
	}
	if r.Context().Err() == nil && e.guard.HasRules(info, policy.Exec) {
		return &refusal{SandboxID: t.id, Code: http.StatusBadRequest,
			Message: "There are rules on what may be started in this sandbox, and this request cannot be read: " + err.Error()}
	}
	return nil // the agent says what is wrong with it
}

func hasToken(r *http.Request, info sandbox.Info) bool {
	return info.AccessToken == "" || same(r.Header.Get(accessTokenHeader), info.AccessToken) ||
		signedBy(r, info.AccessToken, time.Now())
}

// started reads the one message of a request to start a process: an envelope of
// the Connect or gRPC protocol, a byte of flags, the length, the message.
func started(r *http.Request, body *requestBody) (policy.Action, error) {
	const prefix = 5
	complete := func(b []byte) bool {
		return len(b) >= prefix && uint64(len(b)) >= prefix+uint64(binary.BigEndian.Uint32(b[1:prefix]))
	}
	raw, err := body.peek(maxStart, complete)
	if err != nil {
		return policy.Action{}, err
	}
	if !complete(raw) {
		return policy.Action{}, errors.New("it ends before its message does")
	}
	message := raw[prefix : prefix+binary.BigEndian.Uint32(raw[1:prefix])]
	if raw[0]&1 != 0 {
		if message, err = unpacked(r, message); err != nil {
			return policy.Action{}, err
		}
	}
	var start processrpc.StartRequest
	if strings.HasSuffix(strings.ToLower(strings.TrimSpace(strings.Split(r.Header.Get("Content-Type"), ";")[0])), "json") {
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(message, &start)
	} else {
		err = proto.Unmarshal(message, &start)
	}
	if err != nil {
		return policy.Action{}, err
	}
	return policy.Action{Kind: policy.Exec, Command: commandLine(start.GetProcess()), Cwd: start.GetProcess().GetCwd(), User: userOf(r)}, nil
}

func unpacked(r *http.Request, message []byte) ([]byte, error) {
	encoding := r.Header.Get("Connect-Content-Encoding") + r.Header.Get("Grpc-Encoding")
	if encoding != "gzip" {
		return nil, fmt.Errorf("its encoding is %.32q", encoding)
	}
	z, err := gzip.NewReader(bytes.NewReader(message))
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(io.LimitReader(z, maxStart+1))
	if err == nil && len(plain) > maxStart {
		err = errTooLong
	}
	return plain, err
}

// commandLine is what is started as people write it: for a shell that is given a
// script, which is what clients send, the script.
func commandLine(p *processrpc.ProcessConfig) string {
	args := p.GetArgs()
	if shell := path.Base(p.GetCmd()); (shell == "bash" || shell == "sh") && len(args) == 3 && args[0] == "-l" && args[1] == "-c" {
		return args[2]
	}
	words := []string{quoted(p.GetCmd())}
	for _, arg := range args {
		words = append(words, quoted(arg))
	}
	return strings.Join(words, " ")
}

func quoted(word string) string {
	if word != "" && !strings.ContainsAny(word, " \t\n\"'\\$`!*?[]{}()<>|&;#~") {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// userOf is the account that a request to the agent names.
func userOf(r *http.Request) string {
	encoded, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Basic ")
	if !ok {
		return defaultUser
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	name, _, _ := strings.Cut(string(raw), ":")
	if err != nil || name == "" {
		return defaultUser
	}
	return name
}

func executed(body *requestBody) (policy.Action, error) {
	raw, err := body.peek(maxStart, func([]byte) bool { return false })
	if err != nil {
		return policy.Action{}, err
	}
	var run struct {
		Code      string `json:"code"`
		ContextID string `json:"context_id"`
		Language  string `json:"language"`
	}
	if err := json.Unmarshal(raw, &run); err != nil {
		return policy.Action{}, err
	}
	switch {
	case run.Language != "":
		run.Language = strings.ToLower(run.Language)
	case run.ContextID != "":
		run.Language = "context " + run.ContextID
	default:
		run.Language = "python"
	}
	return policy.Action{Kind: policy.Exec, Command: run.Code, Language: run.Language, User: "root"}, nil
}

// fileOut is the file a request asks for, by the name it uses.
func fileOut(r *http.Request) policy.Action {
	q := r.URL.Query()
	user := q.Get("username")
	if user == "" {
		user = userOf(r)
	}
	file := q.Get("path")
	if !path.IsAbs(file) {
		home := "/home/" + user
		if user == "root" {
			home = "/root"
		}
		file = path.Join(home, strings.TrimPrefix(file, "~/"))
	}
	return policy.Action{Kind: policy.FileOut, File: path.Clean(file), User: user}
}
