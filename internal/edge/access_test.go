package edge_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/edge"
)

const secret = "traffic-token-of-iaaa"

// startPrivate serves an edge to a sandbox with private ports.
func startPrivate(t testing.TB) (addr string, s *sandboxes) {
	s = newSandboxes()
	for _, port := range []uint16{userPort, 49983, 49999} {
		s.serve(t, "iaaa", port, names("inside"))
	}
	s.set("iaaa", func(b *box) { b.info.Network.PrivateTraffic = true })
	return start(t, s), s
}

func TestPrivatePortsTakeTheTokenOnly(t *testing.T) {
	addr, s := startPrivate(t)
	get := func(port string, headers ...string) *http.Response {
		return do(t, request(t, "GET", "http://"+addr+"/", append([]string{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", port}, headers...)...))
	}
	require.Equal(t, 200, get("49983").StatusCode, "the agent has a token of its own")
	for _, port := range []string{"8000", "49999", "8001"} {
		for _, headers := range [][]string{
			nil, {"E2b-Traffic-Access-Token", ""}, {"E2b-Traffic-Access-Token", "x"}, {"E2b-Traffic-Access-Token", secret + "x"},
			{"E2b-Traffic-Access-Token", strings.ToUpper(secret)}, {"X-Access-Token", secret}, {"Authorization", "Bearer " + secret},
			{"Cookie", "e2b-traffic-access-token=" + secret, "Sec-Fetch-Site", "same-origin"}, // not by name
		} {
			res := get(port, headers...)
			require.Equal(t, http.StatusForbidden, res.StatusCode, "%s %v", port, headers)
			require.Equal(t, "application/json", res.Header.Get("Content-Type"))
			require.Contains(t, body(t, res), "e2b-traffic-access-token")
		}
	}
	for _, port := range []string{"8000", "49999"} {
		res := get(port, "E2b-Traffic-Access-Token", secret)
		require.Equal(t, 200, res.StatusCode)
		require.Empty(t, res.Header.Get("X-Got-E2b-Traffic-Access-Token"), "the token stays outside")
	}
	require.Equal(t, http.StatusBadGateway, get("8001", "E2b-Traffic-Access-Token", secret).StatusCode)

	s.set("iaaa", func(b *box) { b.info.TrafficToken = "" })
	require.Equal(t, http.StatusForbidden, get("8000").StatusCode, "no token is not the empty token")
	require.Equal(t, http.StatusForbidden, get("8000", "E2b-Traffic-Access-Token", "").StatusCode)
}

func TestBrowserKeepsTheTokenOfAPrivatePort(t *testing.T) {
	addr, _ := startPrivate(t)
	const host = "8000-iaaa.sbx.localhost"
	get := func(method, uri string, headers ...string) *http.Response {
		return do(t, request(t, method, "http://"+addr+uri, append([]string{"Host", host}, headers...)...))
	}
	page := get("GET", "/", "User-Agent", "Mozilla/5.0", "Accept", "text/html")
	require.Equal(t, http.StatusForbidden, page.StatusCode)
	require.Contains(t, body(t, page), "?e2b-traffic-access-token=TOKEN")

	entry := get("GET", "//evil.example/a%20b?x=1&e2b-traffic-access-token="+secret)
	require.Equal(t, http.StatusSeeOther, entry.StatusCode)
	require.Equal(t, "/evil.example/a%20b?x=1", entry.Header.Get("Location"), "on this host, without the token")
	for path, want := range map[string]string{`/\evil.example`: "/%5Cevil.example", "/%2F/evil.example": "/%2F/evil.example", "/": "/"} {
		res := get("GET", path+"?e2b-traffic-access-token="+secret)
		require.Equal(t, want, res.Header.Get("Location"))
	}
	require.Len(t, entry.Cookies(), 1)
	cookie := entry.Cookies()[0]
	require.True(t, cookie.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, cookie.SameSite)
	require.Empty(t, cookie.Domain, "for this name only")
	require.Equal(t, http.StatusForbidden, get("GET", "/?e2b-traffic-access-token=wrong").StatusCode)
	require.Equal(t, http.StatusForbidden, get("POST", "/?e2b-traffic-access-token="+secret).StatusCode)

	with := func(headers ...string) *http.Response {
		return get("GET", "/", append(headers, "Cookie", "a=b; e2b-traffic-access-token="+secret+"; c=d")...)
	}
	for _, own := range [][]string{{"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}, {"Origin", "https://" + host}} {
		res := with(own...)
		require.Equal(t, 200, res.StatusCode, own)
		require.Equal(t, "a=b; c=d", res.Header.Get("X-Got-Cookie"), "the sandbox does not see the token")
	}
	for _, foreign := range [][]string{
		nil, {"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "cross-site"},
		{"Origin", "https://8000-ibbb.sbx.localhost"}, {"Origin", "null"}, {"Sec-Fetch-Site", "same-site", "Origin", "https://" + host},
	} {
		require.Equal(t, http.StatusForbidden, with(foreign...).StatusCode, "a page beside this one: %v", foreign)
	}
	require.Equal(t, 200, get("GET", "/", "Sec-Fetch-Site", "none", "Cookie", "e2b-traffic-access-token=planted; e2b-traffic-access-token="+secret).StatusCode)
}

func TestWebSocketOfAPrivatePort(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", userPort, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := websocket.Accept(w, r, nil); err == nil {
			c.Close(websocket.StatusNormalClosure, "")
		}
	}))
	s.set("iaaa", func(b *box) { b.info.Network.PrivateTraffic = true })
	addr := start(t, s)
	const host = "8000-iaaa.sbx.localhost"
	for want, headers := range map[int]http.Header{
		101: {"Origin": {"https://" + host}, "Cookie": {"e2b-traffic-access-token=" + secret}},
		403: {"Origin": {"https://8000-ibbb.sbx.localhost"}, "Cookie": {"e2b-traffic-access-token=" + secret}},
	} {
		c, res, _ := websocket.Dial(t.Context(), "ws://"+addr+"/", &websocket.DialOptions{Host: host, HTTPHeader: headers})
		require.Equal(t, want, res.StatusCode)
		if c != nil {
			c.CloseNow()
		}
	}
}

func TestServerInsideSeesTheMaskedHost(t *testing.T) {
	s := newSandboxes()
	for _, port := range []uint16{userPort, 49983, 49999} {
		s.serve(t, "iaaa", port, names("inside"))
	}
	s.set("iaaa", func(b *box) { b.info.Network.MaskRequestHost = "app-${PORT}.example.com:${PORT}" })
	addr := start(t, s)
	for _, tt := range []struct {
		headers []string
		want    string
	}{
		{[]string{"Host", "8000-iaaa.sbx.localhost"}, "app-8000.example.com:8000"},
		{toUser, "app-8000.example.com:8000"},
		{[]string{"Host", "49999-iaaa.sbx.localhost"}, "app-49999.example.com:49999"},
		{[]string{"Host", "49983-iaaa.sbx.localhost"}, "49983-iaaa.sbx.localhost"},
	} {
		r := request(t, "GET", "http://"+addr+"/", tt.headers...)
		asked := r.Host
		res := do(t, r)
		require.Equal(t, tt.want, res.Header.Get("X-Host"), tt.headers)
		require.Equal(t, asked, res.Header.Get("X-Got-X-Forwarded-Host"))
	}
}

// One row, one attempt to be taken for somebody else or to reach what is not for
// this client.
func TestHostileHeaders(t *testing.T) {
	s := newSandboxes()
	for _, port := range []uint16{userPort, 49983, 49982} {
		s.serve(t, "iaaa", port, names("inside"))
	}
	s.serve(t, "ibbb", userPort, names("other"))
	s.set("ibbb", func(b *box) { b.info.Network.PrivateTraffic = true })
	addr := start(t, s)
	for name, tt := range map[string]struct {
		headers []string
		want    int
		from    string
	}{
		"host of another scheme":          {[]string{"Host", "8000-iaaa.example.com:99999"}, 200, "inside"},
		"two ids in the label":            {[]string{"Host", "8000-iaaa-ibbb.example.com"}, 200, "inside"},
		"host only port by label":         {[]string{"Host", "49982-iaaa.example.com"}, 404, ""},
		"host only port by header":        {[]string{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "49982"}, 404, ""},
		"header cannot move the label":    {[]string{"Host", "8000-ibbb.example.com", "E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "8000"}, 403, ""},
		"forwarded host is not the host":  {[]string{"X-Forwarded-Host", "8000-iaaa.example.com"}, 200, "control"},
		"forwarded for is not the client": {[]string{"Host", "8000-iaaa.example.com", "X-Forwarded-For", "127.0.0.1", "X-Real-Ip", "127.0.0.1"}, 200, "inside"},
		"connection header for the token": {[]string{"Host", "8000-ibbb.example.com", "Connection", "E2b-Traffic-Access-Token"}, 403, ""},
		"another sandbox's token":         {[]string{"Host", "8000-ibbb.example.com", "E2b-Traffic-Access-Token", secret}, 403, ""},
		"an id in the path":               {[]string{"Host", "example.com", "E2b-Sandbox-Id", "iaaa/../ibbb", "E2b-Sandbox-Port", "8000"}, 400, ""},
		"a port in words":                 {[]string{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "http"}, 400, ""},
		"a port with a sign":              {[]string{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "+8000"}, 400, ""},
		"a negative port":                 {[]string{"E2b-Sandbox-Id", "iaaa", "E2b-Sandbox-Port", "-1"}, 400, ""},
		"a long id":                       {[]string{"E2b-Sandbox-Id", strings.Repeat("i", 64), "E2b-Sandbox-Port", "8000"}, 400, ""},
		"no sandbox":                      {[]string{"Host", "8000-izzz.example.com"}, 502, ""},
	} {
		t.Run(name, func(t *testing.T) {
			res := do(t, request(t, "GET", "http://"+addr+"/", tt.headers...))
			require.Equal(t, tt.want, res.StatusCode)
			require.Equal(t, tt.from, res.Header.Get("X-From"))
			if tt.from == "inside" {
				require.Equal(t, "127.0.0.1", res.Header.Get("X-Got-X-Forwarded-For"))
			}
		})
	}
}

func TestInsideWrapsWhatGoesIntoSandboxes(t *testing.T) {
	s := newSandboxes()
	s.serve(t, "iaaa", userPort, names("inside"))
	wrap := func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r.Header.Set("Traceparent", "set outside")
			return next.RoundTrip(r)
		})
	}
	addr := serve(t, edge.New(edge.Options{Sandboxes: s, Control: http.NotFoundHandler(), Inside: wrap}), nil)
	res := do(t, request(t, "GET", "http://"+addr+"/", toUser...))
	require.Equal(t, "set outside", res.Header.Get("X-Got-Traceparent"))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
