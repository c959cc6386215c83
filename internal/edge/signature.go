package edge

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"runtime"
	"strings"

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

// target compares the signature with the one each live sandbox would make:
// "v1_" and the unpadded standard base64 of SHA-256 over
// path:operation:user:token, with :expiration after it when the URL has one. The
// agent checks the signature again, and that it has not expired.
func (s *signatures) target(r *http.Request) (target, bool) {
	q := r.URL.Query()
	// A '+' that was not escaped has become a space.
	given := []byte(strings.ReplaceAll(q.Get("signature"), " ", "+"))
	before := q.Get("path") + ":" + operation(r.Method) + ":" + q.Get("username") + ":"
	after := ""
	if expiration := q.Get("signature_expiration"); expiration != "" {
		after = ":" + expiration
	}
	if len(before) > maxSignedLen || len(after) > maxExpirationLen {
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
		if info.AccessToken == "" {
			continue
		}
		if subtle.ConstantTimeCompare(given, sign(before, info.AccessToken, after)) == 1 {
			id = info.ID // no early end: the time must not tell which sandbox it was
		}
	}
	return target{id: id, port: hostapi.AgentPort, host: localHost(hostapi.AgentPort), ourOrigin: true}, id != ""
}

func sign(before, token, after string) []byte {
	sum := sha256.Sum256([]byte(before + token + after))
	return base64.RawStdEncoding.AppendEncode([]byte("v1_"), sum[:])
}
