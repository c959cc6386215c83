package edge

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	filesystemrpc "github.com/tombolo-dev/tombolo/internal/agent/rpc/filesystem"
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
	composePath = "/files/compose"
	movePath    = "/filesystem.Filesystem/Move"
	defaultUser = "user"
	rootUser    = "root"
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
	kind, read := readerOf(r, t)
	if kind == "" || !hasToken(r, info) {
		return nil
	}
	hasRules := e.guard.HasRules(info, kind)
	if !hasRules && kind == policy.FileOut && r.URL.Path != filesPath {
		return nil // moved or joined, which is no reading
	}
	actions, err := read(r, body, info)
	if err != nil && hasRules && r.Context().Err() == nil {
		return &refusal{SandboxID: t.id, Code: http.StatusBadRequest,
			Message: unreadable[kind] + ", and this request cannot be judged by them: " + err.Error()}
	}
	// Without rules the agent says what is wrong, and what is known is written down.
	for _, a := range actions {
		if err := e.guard.Admit(r.Context(), info, a); err != nil {
			return err
		}
	}
	return nil
}

var unreadable = map[policy.Kind]string{
	policy.Exec:    "There are rules on what may be started in this sandbox",
	policy.FileOut: "There are rules on which files may be read in this sandbox",
}

// reader tells what a request does.
type reader func(*http.Request, *requestBody, sandbox.Info) ([]policy.Action, error)

// readerOf is how a request is read that does something which rules are about. Files that
// are moved or joined are read, as far as rules go: under another name they would be free.
func readerOf(r *http.Request, t target) (policy.Kind, reader) {
	path, post := r.URL.Path, r.Method == http.MethodPost
	switch {
	case t.port == hostapi.AgentPort && post && path == startPath:
		return policy.Exec, started
	case t.port == hostapi.CodePort && post && path == executePath:
		return policy.Exec, executed
	case t.port == hostapi.AgentPort && path == filesPath && operation(r.Method) == "read":
		return policy.FileOut, fileOut
	case t.port == hostapi.AgentPort && post && path == composePath:
		return policy.FileOut, filesJoined
	case t.port == hostapi.AgentPort && post && path == movePath:
		return policy.FileOut, fileMoved
	}
	return "", nil
}

// clockSkew is how much the clock of a sandbox may be behind, which judges signatures again.
const clockSkew = time.Minute

// hasToken tells whether the agent may take a request: never false where it would.
func hasToken(r *http.Request, info sandbox.Info) bool {
	return info.AccessToken == "" || same(r.Header.Get(accessTokenHeader), info.AccessToken) ||
		signedBy(r, info.AccessToken, time.Now().Add(-clockSkew))
}

// started reads the one message of a request to start a process: an envelope of
// the Connect or gRPC protocol, a byte of flags, the length, the message.
func started(r *http.Request, body *requestBody, info sandbox.Info) ([]policy.Action, error) {
	var start processrpc.StartRequest
	if err := enveloped(r, body, &start); err != nil {
		return nil, err
	}
	return []policy.Action{{
		Kind: policy.Exec, Command: commandLine(start.GetProcess()), Cwd: start.GetProcess().GetCwd(), User: userOf(r, info),
		Env: variables(start.GetProcess().GetEnvs()), Input: inputOf(&start),
	}}, nil
}

// inputOf is how a command can be told more once it runs. Standard input is open where a
// request does not say, as in the agent.
func inputOf(start *processrpc.StartRequest) string {
	switch {
	case start.GetPty() != nil:
		return "pty"
	case start.Stdin == nil || start.GetStdin():
		return "stdin"
	}
	return ""
}

// enveloped reads the first message of a stream.
func enveloped(r *http.Request, body *requestBody, into proto.Message) error {
	const prefix = 5
	complete := func(b []byte) bool {
		return len(b) >= prefix && uint64(len(b)) >= prefix+uint64(binary.BigEndian.Uint32(b[1:prefix]))
	}
	raw, err := body.peek(maxStart, complete)
	if err != nil {
		return err
	}
	if !complete(raw) {
		return errors.New("it ends before its message does")
	}
	message := raw[prefix : prefix+binary.BigEndian.Uint32(raw[1:prefix])]
	if raw[0]&1 != 0 {
		if message, err = unpacked(r.Header.Get("Connect-Content-Encoding")+r.Header.Get("Grpc-Encoding"), message); err != nil {
			return err
		}
	}
	return unmarshal(r, message, into)
}

// whole reads a request of one message, which Connect sends without an envelope.
func whole(r *http.Request, body *requestBody, into proto.Message) error {
	if strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "application/grpc") {
		return enveloped(r, body, into)
	}
	message, err := body.peek(maxStart, func([]byte) bool { return false })
	if err != nil {
		return err
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		if message, err = unpacked(encoding, message); err != nil {
			return err
		}
	}
	return unmarshal(r, message, into)
}

func unmarshal(r *http.Request, message []byte, into proto.Message) error {
	contentType, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if strings.HasSuffix(strings.ToLower(strings.TrimSpace(contentType)), "json") {
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(message, into)
	}
	return proto.Unmarshal(message, into)
}

func unpacked(encoding string, message []byte) ([]byte, error) {
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

// shells are those that a template has. One at another place may be any program, and so
// may one that is looked for in another PATH.
var shells = []string{"bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash", "/usr/bin/sh"}

// commandLine is what is started as people write it: for a shell that is given a
// script, which is what clients send, the script.
func commandLine(p *processrpc.ProcessConfig) string {
	args := p.GetArgs()
	_, elsewhere := p.GetEnvs()["PATH"]
	if slices.Contains(shells, p.GetCmd()) && !elsewhere && len(args) == 3 && args[0] == "-l" && args[1] == "-c" {
		return args[2]
	}
	program := quoted(p.GetCmd())
	if strings.Contains(program, "=") && !strings.HasPrefix(program, "'") { // a shell takes it for a variable
		program = "'" + program + "'"
	}
	words := []string{program}
	for _, arg := range args {
		words = append(words, quoted(arg))
	}
	return strings.Join(words, " ")
}

// variablesDigest is how many bytes of the digest of variables are kept: two sets that
// share them must not be found by whoever chooses both.
const variablesDigest = 16

// variables names what a command is given, so that one which was approved cannot be
// run with others: they may change all that it does.
func variables(vars map[string]string) string {
	if len(vars) == 0 {
		return ""
	}
	names := slices.Sorted(maps.Keys(vars))
	digest := sha256.New()
	for i, name := range names {
		fmt.Fprintf(digest, "%q=%q\n", name, vars[name])
		names[i] = quoted(name)
	}
	return strings.Join(names, " ") + " #" + hex.EncodeToString(digest.Sum(nil)[:variablesDigest])
}

func quoted(word string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(" \"'\\$`!*?[]{}()<>|&;#~", r) }
	if word != "" && !strings.ContainsFunc(word, odd) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// userOf is the account that a request to the agent names.
func userOf(r *http.Request, info sandbox.Info) string {
	name, _, _ := r.BasicAuth()
	return account(name, info)
}

// account is who an account is that a request names. Root has a number too.
func account(name string, info sandbox.Info) string {
	if name == "" {
		name = cmp.Or(info.User, defaultUser)
	}
	if uid, err := strconv.ParseUint(name, 10, 32); err == nil {
		name = strconv.FormatUint(uid, 10)
	}
	if name == "0" {
		return rootUser
	}
	return name
}

// languages are the names of one language, as the agent takes them.
var languages = map[string]string{"": "python", "python3": "python", "js": "javascript", "ts": "typescript"}

// ownLanguages are those that the agent has drivers for: nothing in a sandbox gives their
// names to another.
var ownLanguages = []string{"python", "javascript", "typescript", "bash"}

func executed(_ *http.Request, body *requestBody, _ sandbox.Info) ([]policy.Action, error) {
	raw, err := body.peek(maxStart, func([]byte) bool { return false })
	if err != nil {
		return nil, err
	}
	var run struct {
		Code      string            `json:"code"`
		ContextID string            `json:"context_id"`
		EnvVars   map[string]string `json:"env_vars"`
		Language  string            `json:"language"`
	}
	if err := firstJSON(raw, &run); err != nil {
		return nil, err
	}
	a := policy.Action{Kind: policy.Exec, Command: run.Code, User: rootUser, Env: variables(run.EnvVars)}
	if run.ContextID != "" {
		// Only the agent knows the language of a context.
		a.Language, a.Unknown = "context "+run.ContextID, policy.LanguageField
		return []policy.Action{a}, nil
	}
	a.Language = strings.ToLower(strings.TrimSpace(run.Language))
	if full, ok := languages[a.Language]; ok {
		a.Language = full
	}
	if !slices.Contains(ownLanguages, a.Language) {
		// It may be the name of a kernel, of any language.
		a.Unknown = policy.LanguageField
	}
	return []policy.Action{a}, nil
}

// firstJSON reads the first value, as the agent does. What comes after it is ignored there too.
func firstJSON(raw []byte, into any) error {
	return json.NewDecoder(bytes.NewReader(raw)).Decode(into)
}

// fileOut is the file a request asks for, by the name it uses.
func fileOut(r *http.Request, _ *requestBody, info sandbox.Info) ([]policy.Action, error) {
	q := r.URL.Query()
	user := userOf(r, info)
	if name := q.Get("username"); name != "" {
		user = account(name, info)
	}
	return filesOf(user, q.Get("path"))
}

func filesJoined(r *http.Request, body *requestBody, info sandbox.Info) ([]policy.Action, error) {
	raw, err := body.peek(maxStart, func([]byte) bool { return false })
	if err != nil {
		return nil, err
	}
	var join struct {
		SourcePaths []string `json:"source_paths"`
		Username    string   `json:"username"`
	}
	if err := firstJSON(raw, &join); err != nil {
		return nil, err
	}
	if len(join.SourcePaths) > maxJoined {
		return nil, fmt.Errorf("it joins more than %d files", maxJoined)
	}
	user := userOf(r, info)
	if join.Username != "" {
		user = account(join.Username, info)
	}
	return filesOf(user, join.SourcePaths...)
}

// maxJoined is how many files may be joined, as in the agent.
const maxJoined = 10_000

func fileMoved(r *http.Request, body *requestBody, info sandbox.Info) ([]policy.Action, error) {
	var move filesystemrpc.MoveRequest
	if err := whole(r, body, &move); err != nil {
		return nil, err
	}
	return filesOf(userOf(r, info), move.GetSource())
}

func filesOf(user string, names ...string) (actions []policy.Action, err error) {
	for _, name := range names {
		file, failed := fileOf(user, name)
		if failed != nil {
			err = failed
		}
		actions = append(actions, policy.Action{Kind: policy.FileOut, File: file, User: user})
	}
	return actions, err
}

// fileOf is the absolute name of a file. The error says that the name may lead to another one.
func fileOf(user, name string) (file string, err error) {
	if !path.IsAbs(name) {
		home := "/home/" + user
		switch user {
		case rootUser:
			home = "/root"
		case defaultUser:
		default:
			err = fmt.Errorf("the home of %.40q is not known outside: give an absolute path", user)
		}
		name = path.Join(home, strings.TrimPrefix(name, "~/"))
	}
	name = path.Clean(name)
	if isLink(name) {
		err = fmt.Errorf("%.100q is another name for something: give the file's own", name)
	}
	return name, err
}

// isLink tells whether a name leads elsewhere by what the kernel provides: the root, the
// folder and the open files of a process.
func isLink(name string) bool {
	words := strings.Split(strings.TrimPrefix(name, "/"), "/")
	if words[0] == "dev" && len(words) > 1 {
		return slices.Contains([]string{"fd", "stdin", "stdout", "stderr"}, words[1])
	}
	if words[0] != "proc" || len(words) < 3 {
		return false
	}
	return slices.ContainsFunc(words[2:], func(word string) bool {
		return slices.Contains([]string{"root", "cwd", "exe", "fd", "map_files"}, word)
	})
}
