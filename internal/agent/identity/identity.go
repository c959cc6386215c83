// Package identity holds who this sandbox is: what the host told with Init, the
// variables that follow from it, the token that guards it, and the account each
// request acts as. It keeps state in memory and touches no file but the account
// database.
package identity

import (
	"crypto/subtle"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"

	"github.com/tombolo-dev/tombolo/internal/agent/account"
	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// fallbackUser is E2B's default user, and rootUser who acts where there is no
// such account.
const (
	fallbackUser = "user"
	rootUser     = "root"
)

// bareRoot acts in an image without any account database.
var bareRoot = account.Account{Name: rootUser, Home: "/root", Shell: "/bin/sh"}

// DefaultPath is the PATH of processes when the agent itself has none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// State is the identity now. Safe for concurrent use.
type State struct {
	accounts *account.Database
	bundle   string // path of the trust store
	path     string // PATH

	mu   sync.RWMutex
	init hostapi.Init
}

// New returns the identity of a sandbox that nobody has told who it is. bundle
// is the path of the file of trusted CA certificates; the variables that name it
// are set as long as it exists.
func New(accounts *account.Database, bundle string) *State {
	path := os.Getenv("PATH")
	if path == "" {
		path = DefaultPath
	}
	return &State{accounts: accounts, bundle: bundle, path: path}
}

// Accounts is the database of users.
func (s *State) Accounts() *account.Database { return s.accounts }

// Set takes over what the host told.
func (s *State) Set(init hostapi.Init) {
	init.EnvVars = maps.Clone(init.EnvVars)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.init = init
}

func (s *State) get() hostapi.Init {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.init
}

// MemoryLimit is the memory the sandbox may use, bytes; 0 when not told.
func (s *State) MemoryLimit() int64 { return s.get().MemoryLimit }

// Token is the access token; empty while the sandbox is open.
func (s *State) Token() string { return s.get().AccessToken }

// Authorized compares a token in constant time. Every token is right while the
// sandbox is open.
func (s *State) Authorized(token string) bool {
	want := s.Token()
	return want == "" || subtle.ConstantTimeCompare([]byte(token), []byte(want)) == 1
}

// UnknownUserError names the user that a request wanted to act as. The text is
// E2B's, whose clients show it.
type UnknownUserError struct{ Name string }

func (e *UnknownUserError) Error() string { return fmt.Sprintf("invalid username: '%s'", e.Name) }

// Account finds the account a request acts as: the named one, the default for
// an empty name. The error is an *UnknownUserError.
func (s *State) Account(name string) (account.Account, error) {
	if name != "" {
		a, err := s.lookup(name)
		if err != nil {
			return account.Account{}, &UnknownUserError{name}
		}
		return a, nil
	}
	for _, candidate := range []string{s.get().DefaultUser, fallbackUser, rootUser} {
		if candidate == "" {
			continue
		}
		if a, err := s.lookup(candidate); err == nil {
			return a, nil
		}
	}
	return bareRoot, nil
}

// lookup finds an account. A number that none has is a user all the same, in the
// group of root, as in Docker: images say so for programs that need no name.
func (s *State) lookup(name string) (account.Account, error) {
	a, err := s.accounts.Lookup(name)
	if err == nil {
		return a, nil
	}
	uid, numErr := strconv.ParseUint(name, 10, 31)
	if numErr != nil {
		return account.Account{}, err
	}
	return account.Account{Name: name, UID: uint32(uid), Home: "/", Shell: "/bin/sh"}, nil
}

// RequestAccount is Account for the user of HTTP Basic credentials; the
// password means nothing.
func (s *State) RequestAccount(h http.Header) (account.Account, error) {
	name, _, _ := (&http.Request{Header: h}).BasicAuth()
	return s.Account(name)
}

// Workdir is where processes of a start that names no directory.
func (s *State) Workdir(a account.Account) string {
	if dir := s.get().DefaultWorkdir; dir != "" {
		return dir
	}
	return a.Home
}

// Resolve makes a path of a request absolute. The error is an
// *account.PathError.
func (s *State) Resolve(path string, a account.Account) (string, error) {
	return account.Resolve(path, a.Home, s.Workdir(a))
}

// caVariables make the usual tools and languages trust the bundle.
var caVariables = [...]string{
	"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
	"CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO",
}

// Vars are the variables that every process of the sandbox has, whoever runs it.
func (s *State) Vars() map[string]string {
	init := s.get()
	vars := map[string]string{"PATH": s.path, "E2B_SANDBOX": "true"}
	if init.SandboxID != "" {
		vars["E2B_SANDBOX_ID"] = init.SandboxID
	}
	if init.TemplateID != "" {
		vars["E2B_TEMPLATE_ID"] = init.TemplateID
	}
	if _, err := os.Stat(s.bundle); err == nil {
		for _, name := range caVariables {
			vars[name] = s.bundle
		}
	}
	maps.Copy(vars, init.EnvVars)
	return vars
}

// RootEnv are the AccountVars of root, whose kernels are, as sorted "NAME=value".
func (s *State) RootEnv() []string {
	root, err := s.accounts.Lookup(rootUser)
	if err != nil {
		root = bareRoot
	}
	return List(s.AccountVars(root))
}

// AccountVars are Vars and those that tell a process whose it is.
func (s *State) AccountVars(a account.Account) map[string]string {
	vars := map[string]string{
		"HOME": a.Home, "USER": a.Name, "LOGNAME": a.Name, "SHELL": a.Shell,
	}
	maps.Copy(vars, s.Vars())
	return vars
}

// List writes variables as sorted "NAME=value".
func List(vars map[string]string) []string {
	list := make([]string, 0, len(vars))
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		list = append(list, name+"="+vars[name])
	}
	return list
}
