package edge_test

import (
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// names answers with what tells servers apart.
func names(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-From", name)
		w.Header().Set("X-Host", r.Host)
		w.Header().Set("X-URI", r.RequestURI)
		for k, v := range r.Header {
			w.Header()["X-Got-"+k] = v
		}
	})
}

func TestRequestsAreRoutedByLabelThenHeaders(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", 49983, names("a:49983"))
	s.serve(t, "iaaa", 8000, names("a:8000"))
	s.serve(t, "ibbb", 49999, names("b:49999"))
	addr := start(t, s)

	tests := []struct {
		name           string
		headers        []string
		wantFrom, host string
	}{
		{"nothing", nil, "control", ""},
		{"label", []string{"Host", "8000-iaaa.sbx.example.com"}, "a:8000", "8000-iaaa.sbx.example.com"},
		{"label and port", []string{"Host", "8000-iaaa.localhost:3000"}, "a:8000", "8000-iaaa.localhost:3000"},
		{"label with a client id", []string{"Host", "49983-iaaa-00000000.127.0.0.1"}, "a:49983", "49983-iaaa-00000000.127.0.0.1"},
		{"label in capitals", []string{"Host", "8000-IAAA.example.com"}, "a:8000", "8000-IAAA.example.com"},
		{"headers", []string{"E2b-Sandbox-Id", "ibbb", "E2b-Sandbox-Port", "49999"}, "b:49999", "localhost:49999"},
		{"headers with a client id", []string{"E2b-Sandbox-Id", "ibbb-1234", "E2b-Sandbox-Port", "49999"}, "b:49999", "localhost:49999"},
		{"label beats headers", []string{"Host", "8000-iaaa.example.com", "E2b-Sandbox-Id", "ibbb", "E2b-Sandbox-Port", "49999"}, "a:8000", "8000-iaaa.example.com"},
		{"an address written with dashes", []string{"Host", "127-0-0-1.example.com"}, "control", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := do(t, request(t, "GET", "http://"+addr+"/x", tt.headers...))
			require.Equal(t, http.StatusOK, res.StatusCode)
			require.Equal(t, tt.wantFrom, res.Header.Get("X-From"))
			require.Equal(t, tt.host, res.Header.Get("X-Host"))
		})
	}
}

func TestBadRoutingHeadersAreNamed(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", 80, names("a"))
	addr := start(t, s)
	for _, headers := range [][]string{
		{"E2b-Sandbox-Id", "iaaa"},
		{"E2b-Sandbox-Port", "80"},
		{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "0"},
		{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "080"},
		{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "65616"}, // 80 in 16 bits
		{"E2b-Sandbox-Id", "../a", "E2b-Sandbox-Port", "80"},
	} {
		res := do(t, request(t, "GET", "http://"+addr+"/", headers...))
		require.Equal(t, http.StatusBadRequest, res.StatusCode, headers)
		require.Contains(t, body(t, res), "E2b-Sandbox-")
	}
}

func TestHostOnlyEndpointsAreOutOfReach(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", 49983, names("agent"))
	s.serve(t, "iaaa", 49982, names("host port"))
	s.serve(t, "iaaa", 8000, names("user"))
	addr := start(t, s)
	const agent, host, user = "49983", "49982", "8000"
	tests := []struct {
		method, port, path string
		want               int
	}{
		{"POST", agent, "/init", 404},
		{"POST", agent, "//init", 404},
		{"POST", agent, "/x/../init", 404},
		{"POST", agent, "/%69nit", 404},
		{"POST", agent, "/init/", 404},
		{"POST", agent, "/INIT", 404},
		{"POST", agent, "/relieve", 404},
		{"POST", agent, "/warm", 404},
		{"POST", agent, "/freeze", 404},
		{"POST", agent, "/upgrade?x=1", 404},
		{"GET", host, "/", 404},
		{"POST", host, "/init", 404},
		{"GET", agent, "/health", 200},
		{"POST", agent, "/files?path=/init", 200},
		{"POST", user, "/init", 200},
	}
	for _, tt := range tests {
		res := do(t, request(t, tt.method, "http://"+addr+tt.path, "E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", tt.port))
		require.Equal(t, tt.want, res.StatusCode, "%s %s on port %s", tt.method, tt.path, tt.port)
	}
}

// sign makes the query of a file URL as the clients do.
func sign(id, path, operation, user, expiration string) url.Values {
	raw := path + ":" + operation + ":" + user + ":token-of-" + id
	q := url.Values{"path": {path}}
	if user != "" {
		q.Set("username", user)
	}
	if expiration != "" {
		raw += ":" + expiration
		q.Set("signature_expiration", expiration)
	}
	sum := sha256.Sum256([]byte(raw))
	q.Set("signature", "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
	return q
}

func TestSignedFileURLFindsItsSandbox(t *testing.T) {
	s := newSandboxes()
	for _, id := range []string{"iaaa", "ibbb", "iccc"} {
		s.serve(t, id, 49983, names(id))
	}
	addr := start(t, s)
	get := func(method string, q string) *http.Response {
		return do(t, request(t, method, "http://"+addr+"/files?"+q))
	}

	for _, id := range []string{"iaaa", "ibbb", "iccc"} {
		require.Equal(t, id, get("GET", sign(id, "/a b.txt", "read", "", "").Encode()).Header.Get("X-From"))
		require.Equal(t, id, get("HEAD", sign(id, "/a b.txt", "read", "", "").Encode()).Header.Get("X-From"))
		require.Equal(t, id, get("POST", sign(id, "", "write", "root", "1999999999").Encode()).Header.Get("X-From"))
	}

	// A signature with '+' in it that the client did not escape.
	for i := range 200 {
		q := sign("ibbb", "/"+strings.Repeat("x", i), "read", "", "")
		if strings.Contains(q.Get("signature"), "+") {
			raw := strings.ReplaceAll(q.Encode(), "%2B", "+")
			require.Equal(t, "ibbb", get("GET", raw).Header.Get("X-From"))
			break
		}
	}

	bad := sign("iaaa", "/a", "read", "", "1999999999")
	for key, value := range map[string]string{"path": "/b", "username": "root", "signature": "v1_x", "signature_expiration": "2999999999"} {
		q, err := url.ParseQuery(bad.Encode())
		require.NoError(t, err)
		q.Set(key, value)
		res := get("GET", q.Encode())
		require.Equal(t, http.StatusUnauthorized, res.StatusCode, "changed %s", key)
	}
	require.Equal(t, http.StatusUnauthorized, get("POST", bad.Encode()).StatusCode, "signed for reading")
	require.Equal(t, "control", get("GET", "path=/a").Header.Get("X-From"), "no signature")
	require.Equal(t, "control", get("DELETE", bad.Encode()).Header.Get("X-From"))

	s.kill("iaaa", "killed")
	require.Equal(t, http.StatusUnauthorized, get("GET", bad.Encode()).StatusCode)
}

func TestSignedFileIsNoPageOfOurOrigin(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", 49983, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Content-Security-Policy", "default-src *")
		io.WriteString(w, "<script>steal()</script>")
	}))
	q := sign("iaaa", "/x.html", "read", "", "")
	res := do(t, request(t, "GET", "http://"+start(t, s)+"/files?"+q.Encode()))
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, []string{"sandbox"}, res.Header.Values("Content-Security-Policy"))
	require.Empty(t, res.Header.Get("Set-Cookie"))
}

func TestDeadSandboxIsToldApartFromClosedPort(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", 8000, names("a"))
	s.serve(t, "ibbb", 8000, names("b"))
	addr := start(t, s)
	s.kill("ibbb", "its timeout of 5m0s passed")

	tests := []struct {
		id, port string
		want     string
	}{
		{"iaaa", "8001", `{"sandboxId":"iaaa","message":"The sandbox is running but port is not open","port":8001,"code":502}`},
		{"ibbb", "8000", `{"sandboxId":"ibbb","message":"The sandbox was not found","code":502,"reason":"its timeout of 5m0s passed"}`},
		{"iccc", "8000", `{"sandboxId":"iccc","message":"The sandbox was not found","code":502}`},
	}
	for _, tt := range tests {
		res := do(t, request(t, "GET", "http://"+addr+"/", "E2b-Sandbox-Id", tt.id, "E2b-Sandbox-Port", tt.port))
		require.Equal(t, http.StatusBadGateway, res.StatusCode)
		require.Equal(t, "application/json", res.Header.Get("Content-Type"))
		require.JSONEq(t, tt.want, body(t, res))
	}
}

func TestBrowsersGetAnEscapedPage(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", 8000, names("a"))
	addr := start(t, s)
	s.kill("iaaa", `<script>alert("x")</script>`)
	res := do(t, request(t, "GET", "http://"+addr+"/", "Host", "8000-iaaa.example.com",
		"User-Agent", "Mozilla/5.0 (X11)", "Accept", "text/html,*/*"))
	require.Equal(t, http.StatusBadGateway, res.StatusCode)
	require.Equal(t, "text/html; charset=utf-8", res.Header.Get("Content-Type"))
	page := body(t, res)
	require.Contains(t, page, "The sandbox was not found")
	require.Contains(t, page, "&lt;script&gt;")
	require.NotContains(t, page, "<script>")
}

func TestPreflightOfUserPortReachesTheSandbox(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", 8000, names("a"))
	addr := start(t, s)
	res := do(t, request(t, "OPTIONS", "http://"+addr+"/", "Host", "8000-iaaa.example.com",
		"Origin", "https://x", "Access-Control-Request-Method", "PUT"))
	require.Equal(t, "a", res.Header.Get("X-From"))

	res = do(t, request(t, "OPTIONS", "http://"+addr+"/", "Origin", "https://x", "Access-Control-Request-Method", "POST",
		"Access-Control-Request-Headers", "content-type,e2b-sandbox-id,e2b-sandbox-port"))
	require.Equal(t, http.StatusNoContent, res.StatusCode)
	require.Equal(t, "content-type,e2b-sandbox-id,e2b-sandbox-port", res.Header.Get("Access-Control-Allow-Headers"))
}

func body(t testing.TB, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return string(b)
}
