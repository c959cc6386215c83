package e2b_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/api/record"
	"github.com/tombolo-dev/tombolo/internal/audit"
)

// kept is an audit log in memory.
type kept struct {
	mu      sync.Mutex
	records []audit.Record
}

func (k *kept) Append(r audit.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.records = append(k.records, r)
}

// last is what was recorded since it was asked, one at most.
func (k *kept) last(t *testing.T) (r audit.Record, detail map[string]any) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	require.LessOrEqual(t, len(k.records), 1)
	if len(k.records) == 0 {
		return audit.Record{}, nil
	}
	r = k.records[0]
	k.records = nil
	require.NoError(t, json.Unmarshal(r.Detail, &detail))
	return r, detail
}

func TestRequestsAreRecorded(t *testing.T) {
	w, _ := newFolder(t)
	log := &kept{}
	w.Handler = record.Requests{Log: log, API: "e2b"}.Wrap(w.Handler)
	tests := []struct {
		key, request, body string
		want               string // actor, what, sandbox, decision
		status             int
		target             map[string]any
	}{
		{key: "alice", request: "POST /v2/sandboxes", body: `{"templateID":"base","envVars":{"A":"hidden-value"}}`, want: "key:key-of-alice|POST /v2/sandboxes|new1|", status: 201, target: map[string]any{"template": baseID}},
		{key: "alice", request: "POST /sandboxes/i0001/pause", want: "key:key-of-alice|POST /sandboxes/{id}/pause|i0001|", status: 204},
		{key: "alice", request: "POST /sandboxes/i0004/pause", want: "key:key-of-alice|POST /sandboxes/{id}/pause|i0004|", status: 404},
		{key: "alice", request: "POST /v2/sandboxes", body: `{"templateID":hidden-value`, want: "key:key-of-alice|POST /v2/sandboxes||", status: 400},
		{key: "alice", request: "DELETE /sandboxes/i0002", want: "key:key-of-alice|DELETE /sandboxes/{id}|i0002|", status: 204},
		{key: "alice", request: "DELETE /templates/" + alicesID, want: "key:key-of-alice|DELETE /templates/{id}||", status: 204, target: map[string]any{"id": alicesID}},
		{key: "alice", request: "GET /sandboxes", status: 200},
		{key: "alice", request: "GET /sandboxes/none", status: 404},
		{key: "none", request: "GET /sandboxes", want: "nobody|GET /sandboxes||deny", status: 401},
		{key: "none", request: "POST /sandboxes/i0001/pause", want: "nobody|POST /sandboxes/{id}/pause|i0001|deny", status: 401},
		{key: "none", request: "GET /etc/passwd?hidden-value", want: "nobody|GET (no such endpoint)||deny", status: 401},
		{key: "alice", request: "POST /etc/passwd?hidden-value", want: "key:key-of-alice|POST (no such endpoint)||", status: 404},
		{key: "alice", request: "PUT /uploads/key-of-alice/hash?until=1&signature=hidden-value", body: "hidden-value", want: "nobody|PUT /uploads/{key}/{hash}||deny", status: 403},
		{key: "alice", request: "GET /health", status: 200},
		{request: "PUT /volumecontent/vol/file?path=/b.txt", body: "hidden-value", want: "volume:vol|PUT /volumecontent/{id}/file||", status: 201, target: map[string]any{"id": "vol", "path": "b.txt"}},
	}
	for _, tt := range tests {
		method, path, _ := strings.Cut(tt.request, " ")
		headers := []string{"X-Forwarded-For", "203.0.113.9"}
		if tt.key == "" {
			headers = append(headers, "Authorization", "Bearer token")
		}
		answer := w.do(tt.key, method, path, tt.body, headers...)
		require.Equal(t, tt.status, answer.Code, "%s: %s", tt.request, answer.Body)
		r, detail := log.last(t)
		if tt.want == "" {
			require.Empty(t, r.What, tt.request)
			continue
		}
		got := strings.Join([]string{r.Actor, r.What, r.SandboxID, r.Decision}, "|")
		require.Equal(t, tt.want, strings.Replace(got, newest(r), "new1", 1))
		require.Equal(t, audit.API, r.Kind)
		require.EqualValues(t, tt.status, detail["status"], tt.request)
		require.Equal(t, "192.0.2.1:1234", detail["client"])
		require.Equal(t, "203.0.113.9", detail["forwardedFor"])
		if tt.target != nil {
			require.Equal(t, tt.target, detail["target"], tt.request)
		}
		require.NotContains(t, string(r.Detail)+r.What+r.Reason, "hidden-value", tt.request)
	}
}

// newest is the id of a sandbox that a create made.
func newest(r audit.Record) string {
	if r.What == "POST /v2/sandboxes" && r.SandboxID != "" {
		return r.SandboxID
	}
	return "\x00"
}
