package edge

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// Limits of what is hashed once for every sandbox.
const (
	maxSignedLen     = 8 << 10
	maxExpirationLen = 20
)

// signatures finds the sandbox that signed a file URL. Such a URL names no
// sandbox: clients make it for curl and browsers, which send no headers.
type signatures struct {
	sandboxes sandbox.Sandboxes
	// turns bounds how many processors strangers can keep busy with hashing.
	turns chan struct{}
}

func newSignatures(s sandbox.Sandboxes) *signatures {
	return &signatures{sandboxes: s, turns: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

func isSignedFile(r *http.Request) bool {
	return r.URL.Path == "/files" && operation(r.Method) != "" && r.URL.Query().Get("signature") != ""
}

func operation(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return "read"
	case http.MethodPost:
		return "write"
	}
	return ""
}

// target compares the signature with the one each sandbox would make. The agent
// checks the signature again, and that it has not expired.
func (s *signatures) target(r *http.Request) (target, bool) {
	signed, ok := parseSigned(r)
	if !ok {
		return target{}, false
	}
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-r.Context().Done():
		return target{}, false
	}
	id := ""
	for _, info := range s.sandboxes.List(sandbox.Filter{}) {
		if signed.by(info.AccessToken) {
			id = info.ID // no early end: the time must not tell which sandbox it was
		}
	}
	return target{id: id, port: hostapi.AgentPort, host: localHost(hostapi.AgentPort), ourOrigin: true}, id != ""
}

// signedBy tells whether a request is a file URL that was signed with the token
// and has not expired.
func signedBy(r *http.Request, token string, now time.Time) bool {
	if !isSignedFile(r) {
		return false
	}
	signed := readSigned(r)
	return !signed.expired(now) && signed.by(token)
}

// signedURL is the part of a file URL that is signed: the signature is "v1_" and
// the unpadded standard base64 of SHA-256 over path:operation:user:token, with
// :expiration, a Unix time in seconds, after it when the URL has one.
type signedURL struct {
	given         []byte
	before, after string // what stands before and after the token
	expiration    string
}

// parseSigned returns false when the URL is larger than what is worth hashing for every
// sandbox.
func parseSigned(r *http.Request) (signedURL, bool) {
	s := readSigned(r)
	return s, len(s.before) <= maxSignedLen && len(s.expiration) <= maxExpirationLen
}

func readSigned(r *http.Request) signedURL {
	q := r.URL.Query()
	s := signedURL{
		// A '+' that was not escaped has become a space.
		given:      []byte(strings.ReplaceAll(q.Get("signature"), " ", "+")),
		before:     q.Get("path") + ":" + operation(r.Method) + ":" + q.Get("username") + ":",
		expiration: q.Get("signature_expiration"),
	}
	if s.expiration != "" {
		s.after = ":" + s.expiration
	}
	return s
}

// by tells in constant time whether the token made the signature.
func (s signedURL) by(token string) bool {
	if token == "" {
		return false
	}
	sum := sha256.Sum256([]byte(s.before + token + s.after))
	want := base64.RawStdEncoding.AppendEncode([]byte("v1_"), sum[:])
	return subtle.ConstantTimeCompare(s.given, want) == 1
}

func (s signedURL) expired(now time.Time) bool {
	if s.expiration == "" {
		return false
	}
	end, err := strconv.ParseInt(s.expiration, 10, 64)
	return err != nil || end < now.Unix()
}
