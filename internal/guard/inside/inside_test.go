package inside_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/approval"
	"github.com/tombolo-dev/tombolo/internal/guard/inside"
	"github.com/tombolo-dev/tombolo/internal/policy"
)

var start = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// box is a sandbox with something of everything.
type box struct {
	id       string
	refused  inside.Refusals
	holds    []approval.Hold
	tables   []policy.Table
	ca       string
	fail     error
	block    chan struct{}
	mu       sync.Mutex
	proposed []approval.Proposal
}

func (b *box) ID() string                 { return b.id }
func (b *box) Refusals() *inside.Refusals { return &b.refused }
func (b *box) Rules() []policy.Table      { return b.tables }
func (b *box) CA() []byte                 { return []byte(b.ca) }

func (b *box) Holds(ctx context.Context) ([]approval.Hold, error) {
	if b.block != nil {
		<-b.block
	}
	return b.holds, b.fail
}

func (b *box) Propose(_ context.Context, id string, p approval.Proposal) (approval.Hold, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range b.holds {
		if h.ID == id {
			if h.State != approval.Pending {
				return h, approval.ErrDecided
			}
			b.proposed = append(b.proposed, p)
			h.Proposed = &p
			return h, b.fail
		}
	}
	return approval.Hold{}, approval.ErrNotFound
}

func newBox() *box {
	b := &box{id: "i1", ca: "-----BEGIN CERTIFICATE-----\n"}
	hold := func(id, sandbox string, state approval.State, a policy.Action) approval.Hold {
		h := approval.Hold{
			ID: id, Subject: policy.Subject{SandboxID: sandbox, KeyID: "key-alice", TemplateID: "base"}, Action: a, Hash: "hash-of-" + id,
			Rule: "unlisted", Scope: policy.Scope{Kind: policy.KeyScope, ID: "key-alice"}, Reason: "not on the list", State: state, CreatedAt: start, Deadline: start.Add(time.Hour), Count: 3,
		}
		if state != approval.Pending {
			h.Answer = &approval.Answer{Approver: "key:key-of-ann", Reason: "use the mirror"}
		}
		return h
	}
	b.holds = []approval.Hold{
		hold("apr_1", "i1", approval.Pending, policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: "api.example", Port: 443}),
		hold("apr_2", "i1", approval.Denied, policy.Action{Kind: policy.Egress, Protocol: "tcp", Host: "old.example", Port: 443}),
		hold("apr_exec", "i1", approval.Pending, policy.Action{Kind: policy.Exec, Command: "deploy --token=outside"}),
		hold("apr_file", "i1", approval.Pending, policy.Action{Kind: policy.FileOut, File: "/outside"}),
		hold("apr_other", "i2", approval.Pending, policy.Action{Kind: policy.Egress, Host: "neighbour.example", Port: 443}),
	}
	b.tables = []policy.Table{
		{Scope: policy.Scope{Kind: policy.ServerScope}, Default: map[policy.Kind]policy.Decision{policy.Egress: policy.Ask, policy.Exec: policy.Ask}, Rules: []policy.Rule{
			{Name: "no-mail", Kind: policy.Egress, Decision: policy.Deny, Reason: "mail goes by the relay", Match: []policy.Match{{Host: []string{"internal-relay.corp"}}}},
			{Name: "exec-rule", Kind: policy.Exec, Decision: policy.Deny, Reason: "of those outside"},
		}},
		{Scope: policy.Scope{Kind: policy.KeyScope, ID: "key-alice"}, Rules: []policy.Rule{{Name: "ask-more", Kind: policy.Secret, Decision: policy.Ask}}},
		{Scope: policy.Scope{Kind: policy.SandboxScope, ID: "i1"}, Rules: []policy.Rule{
			{Name: "list", Kind: policy.Egress, Decision: policy.Allow, Match: []policy.Match{{Host: []string{"pypi.org"}}}},
		}},
	}
	b.refused.Add(inside.Refusal{ID: "req_1", Time: start, Kind: policy.Egress, What: "tcp evil.example:443", Rule: "no-mail", Scope: policy.Scope{Kind: policy.KeyScope, ID: "key-alice"}, Reason: "not here"})
	b.refused.Add(inside.Refusal{ID: "req_exec", Time: start, Kind: policy.Exec, What: "exec deploy --token=outside", Reason: "not here"})
	return b
}

type request struct {
	method, path, body string
	host               string
	json               bool
}

func (b *box) do(t *testing.T, q request) (int, string) {
	t.Helper()
	server := httptest.NewServer(inside.New(b))
	defer server.Close()
	return do(t, server, q)
}

func do(t *testing.T, server *httptest.Server, q request) (int, string) {
	t.Helper()
	if q.method == "" {
		q.method = "GET"
	}
	if q.host == "" {
		q.host = "tombolo.internal"
	}
	r, err := http.NewRequestWithContext(t.Context(), q.method, server.URL+q.path, strings.NewReader(q.body))
	require.NoError(t, err)
	r.Host = q.host
	if q.json {
		r.Header.Set("Accept", "application/json")
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(raw)
}

var paths = []string{"/", "/refusals", "/refusals/req_1", "/holds", "/holds/apr_1", "/holds/apr_2", "/rules", "/ca.pem"}

func TestEverythingIsThereAsTextAndAsJSON(t *testing.T) {
	b := newBox()
	for _, path := range paths {
		code, text := b.do(t, request{path: path})
		require.Equal(t, 200, code, path)
		require.NotEmpty(t, text, path)
		code, raw := b.do(t, request{path: path, json: true})
		require.Equal(t, 200, code, path)
		require.Equal(t, path != "/ca.pem", json.Valid([]byte(raw)), path)
	}
	_, page := b.do(t, request{path: "/"})
	for _, want := range []string{"sandbox i1", "tcp evil.example:443", "not here", "req_1", "no-mail", "api.example", "apr_1", "use the mirror", "/proposal", "ask-more"} {
		require.Contains(t, page, want)
	}
	_, ca := b.do(t, request{path: "/ca.pem"})
	require.Equal(t, b.ca, ca)
	b.ca = ""
	code, _ := b.do(t, request{path: "/ca.pem"})
	require.Equal(t, 404, code)
}

// TestNothingOfOthersIsShown: not of another sandbox, of who approves, of which key or
// whose rule it is, nor what callers outside do.
func TestNothingOfOthersIsShown(t *testing.T) {
	b := newBox()
	for _, path := range append(paths, "/holds/apr_other", "/holds/apr_exec", "/holds/apr_file", "/refusals/req_exec") {
		for _, asJSON := range []bool{false, true} {
			_, text := b.do(t, request{path: path, json: asJSON})
			for _, private := range []string{"neighbour", "apr_other", "i2", "outside", "key-alice", "key-of-ann", "internal-relay", "hash-of", "exec-rule"} {
				require.NotContains(t, text, private, "%s", path)
			}
		}
	}
	for _, id := range []string{"apr_other", "apr_exec", "apr_none", "..%2f..", strings.Repeat("a", 3000)} {
		code, _ := b.do(t, request{path: "/holds/" + id})
		require.Equal(t, 404, code, id)
		code, _ = b.do(t, request{method: "POST", path: "/holds/" + id + "/proposal", body: `{"match":{"host":["a"]},"reason":"b"}`})
		require.Equal(t, 404, code, id)
	}
	require.Empty(t, b.proposed)
	_, rules := b.do(t, request{path: "/rules", json: true})
	require.Contains(t, rules, "pypi.org", "what its own owner wrote for it is shown")
}

func TestProposal(t *testing.T) {
	b := newBox()
	for _, tt := range []struct {
		name, body string
		code       int
	}{
		{"nothing", "", 400},
		{"no JSON", "please", 400},
		{"an answer", `{"match":{"host":["api.example"]},"reason":"b","approve":true}`, 400},
		{"an unknown field", `{"match":{"hosts":["api.example"]},"reason":"b"}`, 400},
		{"two objects", `{"match":{"host":["api.example"]},"reason":"b"}{}`, 400},
		{"more than may be", `{"match":{"host":["api.example"]},"reason":"` + strings.Repeat("b", 20<<10) + `"}`, 413},
		{"a proposal", `{"match":{"host":["api.example"]},"reason":"the tests need it"}`, 200},
	} {
		code, text := b.do(t, request{method: "POST", path: "/holds/apr_1/proposal", body: tt.body})
		require.Equal(t, tt.code, code, "%s: %s", tt.name, text)
	}
	require.Equal(t, []approval.Proposal{{Match: policy.Match{Host: []string{"api.example"}}, Reason: "the tests need it"}}, b.proposed)
	code, _ := b.do(t, request{method: "POST", path: "/holds/apr_2/proposal", body: `{"match":{"host":["old.example"]},"reason":"b"}`})
	require.Equal(t, 409, code)
}

func TestNobodyApprovesFromInside(t *testing.T) {
	b := newBox()
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		for _, path := range append(paths, "/holds/apr_1/answer", "/approvals/apr_1/answer", "/tombolo/v1/approvals/apr_1/answer", "/grants", "//holds/apr_1/proposal") {
			code, _ := b.do(t, request{method: method, path: path, body: `{"approve":true,"hash":"hash-of-apr_1"}`})
			require.Contains(t, []int{404, 405}, code, "%s %s", method, path)
		}
	}
}

// TestOtherNamesAreRefused: a page of a browser inside may have any name lead here.
func TestOtherNamesAreRefused(t *testing.T) {
	b := newBox()
	for host, want := range map[string]int{
		"tombolo.internal": 200, "tombolo.internal:80": 200, "TOMBOLO.internal.": 200, "10.0.0.1": 200, "10.0.0.1:80": 200,
		"evil.example": 421, "tombolo.internal.evil.example": 421, "tombolo.internal:8080": 421, "127.0.0.1": 421, "10.0.0.2": 421, "xtombolo.internal": 421, "010.0.0.1": 421,
	} {
		code, _ := b.do(t, request{path: "/", host: host})
		require.Equal(t, want, code, host)
	}
}

func TestWhatFailedWithinIsNotTold(t *testing.T) {
	b := newBox()
	b.fail = errors.New("disk /var/lib/tombolo is full")
	code, text := b.do(t, request{path: "/holds"})
	require.Equal(t, 500, code)
	require.NotContains(t, text, "/var")
	b.fail, b.id = nil, ""
	code, _ = b.do(t, request{path: "/"})
	require.Equal(t, 503, code, "a network that waits for a sandbox")
}

func TestRequestsAtOnceAreLimited(t *testing.T) {
	b := newBox()
	b.block = make(chan struct{})
	server := httptest.NewServer(inside.New(b))
	defer server.Close()
	var wg sync.WaitGroup
	codes := make(chan int, 64)
	for range 32 {
		wg.Go(func() {
			code, _ := do(t, server, request{path: "/holds"})
			codes <- code
		})
	}
	for range 32 - 8 {
		require.Equal(t, 429, <-codes)
	}
	close(b.block)
	wg.Wait()
	for range 8 {
		require.Equal(t, 200, <-codes)
	}
}

func TestRequestsInALoopAreLimited(t *testing.T) {
	handler := inside.New(newBox())
	answered := 0
	for range 1000 {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest("GET", "http://tombolo.internal/", nil))
		if answer.Code == 429 {
			require.GreaterOrEqual(t, answered, 50, "a person and a program come far")
			return
		}
		answered++
	}
	require.Fail(t, "each request reads the database")
}

func TestRefusalsAreFoldedAndBounded(t *testing.T) {
	var l inside.Refusals
	same := func(i int) inside.Refusal {
		return inside.Refusal{ID: fmt.Sprintf("req_%d", i), Time: start.Add(time.Duration(i) * time.Second), Kind: policy.Egress, What: "tcp evil.example:443", Reason: "no"}
	}
	for i := range 1000 {
		l.Add(same(i))
	}
	list := l.List()
	require.Len(t, list, 1, "a program that tries again and again pushes nothing out")
	require.Equal(t, 1000, list[0].Count)
	require.Equal(t, start, list[0].First)
	require.Equal(t, "req_999", list[0].ID)
	r, ok := l.Find("req_998")
	require.True(t, ok, "each is found by its own id")
	require.Equal(t, "req_998", r.ID)
	_, ok = l.Find("req_1")
	require.False(t, ok)

	for i := range 1000 {
		r := same(1000 + i)
		r.What = fmt.Sprintf("tcp h%d.example:443", i)
		l.Add(r)
	}
	list = l.List()
	require.Len(t, list, 64)
	require.Equal(t, "tcp h999.example:443", list[0].What, "the latest first")

	l.Add(inside.Refusal{What: strings.Repeat("a", 1<<20), Reason: "\xff" + strings.Repeat("ü", 1<<20)})
	require.Less(t, len(l.List()[0].What)+len(l.List()[0].Reason), 1100)
	_, ok = l.Find("")
	require.False(t, ok)
}

func TestTextSteersNoTerminal(t *testing.T) {
	b := newBox()
	b.refused.Add(inside.Refusal{ID: "req_2", Kind: policy.Egress, What: "get /\x1b[2J\nrefused: nothing", Reason: "a\rb\u009bc"})
	_, text := b.do(t, request{path: "/refusals"})
	require.NotContains(t, text, "\x1b")
	require.NotContains(t, text, "\r")
	require.NotContains(t, text, "\u009b")
	require.NotContains(t, text, "\nrefused: nothing")
}
