package secret_test

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/secret"
)

func newRequest(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	return req
}

// request is one with the placeholder of a secret as its bearer token.
func request(t testing.TB, v *secret.Vault, name string) *http.Request {
	t.Helper()
	s, err := v.Get(t.Context(), "k", name)
	require.NoError(t, err)
	req := newRequest(t, "GET", "https://api.example.com/v1/models", "")
	req.Header.Set("Authorization", "Bearer "+s.Placeholder)
	return req
}

// sentBy is what a bound host gets as the value of a secret.
func sentBy(t testing.TB, v *secret.Vault, name string) string {
	t.Helper()
	req := request(t, v, name)
	_, err := v.Session("k", []string{name}).Rewrite(req, "api.example.com", nil)
	require.NoError(t, err)
	return strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
}

func basic(login string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(login)) }

func TestPlaceholderBecomesTheValueWhereItIsBound(t *testing.T) {
	v := newVault(t)
	const text = `v&=+"/ü %#value`
	header := secret.Binding{Host: []string{"api.example.com"}}
	everywhere := secret.Binding{Host: []string{"api.example.com", "*.example.org"}, In: []string{"x-api-key", "?key", "body", "Authorization"}}
	narrow := secret.Binding{Host: []string{"api.example.com"}, Method: []string{"POST"}, Path: []string{"/v1/**"}}
	h, e, n := add(t, v, "header", text, header), add(t, v, "everywhere", text, everywhere), add(t, v, "narrow", text, narrow)
	session := v.Session("k", []string{h.ID, e.Name, n.Name})
	add(t, v, "unattached", text)

	type sent struct{ method, url, raw, header, value, kind, body string } // raw: the path as it is sent
	for about, tt := range map[string]struct {
		sent   sent
		host   string
		want   sent // where it is not empty
		used   []secret.Use
		strays []secret.Use
	}{
		"a header": {
			sent: sent{header: "X-Token", value: h.Placeholder}, want: sent{value: text},
			used: []secret.Use{{Secret: "header", Place: "X-Token"}},
		},
		"a part of a header": {
			sent: sent{header: "authorization", value: "Bearer " + h.Placeholder}, want: sent{value: "Bearer " + text},
			used: []secret.Use{{Secret: "header", Place: "Authorization"}},
		},
		"twice in one, beside another": {
			sent: sent{header: "Authorization", value: h.Placeholder + "," + e.Placeholder + "," + h.Placeholder}, want: sent{value: text + "," + text + "," + text},
			used: []secret.Use{{Secret: "everywhere", Place: "Authorization"}, {Secret: "header", Place: "Authorization"}},
		},
		"the password of Basic": {
			sent: sent{header: "Authorization", value: basic("me:" + h.Placeholder)}, want: sent{value: basic("me:" + text)},
			used: []secret.Use{{Secret: "header", Place: "Authorization"}},
		},
		"Basic in lower case and without padding": {
			sent: sent{header: "Authorization", value: "basic " + strings.TrimRight(strings.TrimPrefix(basic(h.Placeholder+":x"), "Basic "), "=")}, want: sent{value: basic(text + ":x")},
			used: []secret.Use{{Secret: "header", Place: "Authorization"}},
		},
		"a cookie": {
			sent: sent{header: "Cookie", value: "a=b; session=" + h.Placeholder + "; c=d"}, want: sent{value: "a=b; session=" + text + "; c=d"},
			used: []secret.Use{{Secret: "header", Place: "Cookie"}},
		},
		"a parameter that is bound": {
			sent: sent{url: "/x?a=%20b&key=" + e.Placeholder + "&c"}, want: sent{url: "/x?a=%20b&key=v%26%3D%2B%22%2F%C3%BC+%25%23value&c"},
			used: []secret.Use{{Secret: "everywhere", Place: "?key"}},
		},
		"its name encoded": {
			sent: sent{url: "/x?%6bey=" + e.Placeholder}, want: sent{url: "/x?%6bey=v%26%3D%2B%22%2F%C3%BC+%25%23value"},
			used: []secret.Use{{Secret: "everywhere", Place: "?key"}},
		},
		"JSON": {
			sent: sent{method: "POST", kind: "application/json; charset=utf-8", body: `{"key":"` + e.Placeholder + `","n":1}`}, want: sent{body: `{"key":"v&=+\"/ü %#value","n":1}`},
			used: []secret.Use{{Secret: "everywhere", Place: "body"}},
		},
		"a form": {
			sent: sent{method: "POST", kind: "application/x-www-form-urlencoded", body: "a=b&key=" + e.Placeholder}, want: sent{body: "a=b&key=v%26%3D%2B%22%2F%C3%BC+%25%23value"},
			used: []secret.Use{{Secret: "everywhere", Place: "body"}},
		},
		"plain text": {
			sent: sent{method: "POST", kind: "text/plain", body: e.Placeholder + "\n"}, want: sent{body: text + "\n"},
			used: []secret.Use{{Secret: "everywhere", Place: "body"}},
		},
		"a host of a pattern": {
			host: "a.b.example.org", sent: sent{header: "X-Api-Key", value: e.Placeholder}, want: sent{value: text},
			used: []secret.Use{{Secret: "everywhere", Place: "X-Api-Key"}},
		},
		"method and path that are bound": {
			sent: sent{method: "POST", url: "/v1/a/b", header: "X-Token", value: n.Placeholder}, want: sent{value: text},
			used: []secret.Use{{Secret: "narrow", Place: "X-Token"}},
		},

		"another host":                                     {host: "evil.example.com", sent: sent{header: "X-Token", value: h.Placeholder}, strays: []secret.Use{{Secret: "header", Place: "X-Token"}}},
		"a host with the bound one in it":                  {host: "api.example.com.evil.com", sent: sent{header: "X-Token", value: h.Placeholder}, strays: []secret.Use{{Secret: "header", Place: "X-Token"}}},
		"the host above a pattern":                         {host: "example.org", sent: sent{header: "X-Api-Key", value: e.Placeholder}, strays: []secret.Use{{Secret: "everywhere", Place: "X-Api-Key"}}},
		"the Host of the request says nothing":             {host: "evil.example.com", sent: sent{url: "https://api.example.com/", header: "X-Token", value: h.Placeholder}, strays: []secret.Use{{Secret: "header", Place: "X-Token"}}},
		"another method":                                   {sent: sent{method: "GET", url: "/v1/a", header: "X-Token", value: n.Placeholder}, strays: []secret.Use{{Secret: "narrow", Place: "X-Token"}}},
		"another path":                                     {sent: sent{method: "POST", url: "/v2/a", header: "X-Token", value: n.Placeholder}, strays: []secret.Use{{Secret: "narrow", Place: "X-Token"}}},
		"a path that leads out of the bound one":           {sent: sent{method: "POST", url: "/v1/../admin", header: "X-Token", value: n.Placeholder}, strays: []secret.Use{{Secret: "narrow", Place: "X-Token"}}},
		"a path that some servers read as the bound one":   {sent: sent{method: "POST", url: "/public/..%2fv1/a", header: "X-Token", value: n.Placeholder}, strays: []secret.Use{{Secret: "narrow", Place: "X-Token"}}},
		"a slash encoded beside a letter that should be":   {sent: sent{method: "POST", url: "/v1/x%2F%C3%A9", raw: "/v1/x%2Fé", header: "X-Token", value: n.Placeholder}, strays: []secret.Use{{Secret: "narrow", Place: "X-Token"}}},
		"what some servers decode twice":                   {sent: sent{method: "POST", url: "/v1/x%252fa", header: "X-Token", value: n.Placeholder}, strays: []secret.Use{{Secret: "narrow", Place: "X-Token"}}},
		"encoded dots":                                     {sent: sent{method: "POST", url: "/v1/%2e%2e/a", header: "X-Token", value: n.Placeholder}, strays: []secret.Use{{Secret: "narrow", Place: "X-Token"}}},
		"an empty element":                                 {sent: sent{method: "POST", url: "/v1//a", header: "X-Token", value: n.Placeholder}, strays: []secret.Use{{Secret: "narrow", Place: "X-Token"}}},
		"a header that is not bound":                       {sent: sent{header: "X-Other", value: e.Placeholder}, strays: []secret.Use{{Secret: "everywhere", Place: "X-Other"}}},
		"a header that frames the request":                 {sent: sent{header: "Te", value: h.Placeholder}, strays: []secret.Use{{Secret: "header", Place: "Te"}}},
		"the name of a header":                             {sent: sent{header: strings.ToLower(h.Placeholder), value: "x"}},
		"a parameter that is not bound":                    {sent: sent{url: "/?other=" + e.Placeholder}, strays: []secret.Use{{Secret: "everywhere", Place: "?other"}}},
		"a parameter of one that is bound to headers":      {sent: sent{url: "/?key=" + h.Placeholder}, strays: []secret.Use{{Secret: "header", Place: "?key"}}},
		"the name of a parameter":                          {sent: sent{url: "/?" + e.Placeholder + "=1"}, strays: []secret.Use{{Secret: "everywhere", Place: "the name of a parameter"}}},
		"a parameter whose name cannot be read":            {sent: sent{url: "/?%zz=" + e.Placeholder}, strays: []secret.Use{{Secret: "everywhere", Place: "the query"}}},
		"the path":                                         {sent: sent{url: "/bot" + e.Placeholder + "/x"}, strays: []secret.Use{{Secret: "everywhere", Place: "path"}}},
		"a body of one that is bound to headers":           {sent: sent{method: "POST", kind: "application/json", body: `"` + h.Placeholder + `"`}},
		"a body of a type that is no text":                 {sent: sent{method: "POST", kind: "application/octet-stream", body: e.Placeholder}},
		"a body without type":                              {sent: sent{method: "POST", body: e.Placeholder}},
		"a body that is too large":                         {sent: sent{method: "POST", kind: "text/plain", body: e.Placeholder + strings.Repeat("x", secret.MaxBody)}, strays: []secret.Use{{Secret: "everywhere", Place: "body"}}},
		"a placeholder of JSON that is escaped":            {sent: sent{method: "POST", kind: "application/json", body: `"\u0074` + e.Placeholder[1:] + `"`}},
		"a placeholder in other case":                      {sent: sent{header: "X-Token", value: strings.ToUpper(h.Placeholder)}},
		"the beginning of a placeholder":                   {sent: sent{header: "X-Token", value: h.Placeholder[:len(h.Placeholder)-1]}},
		"a reference is none to whoever is inside":         {sent: sent{header: "X-Token", value: "${e2b.secrets.header}"}},
		"Basic that is no base64":                          {sent: sent{header: "Authorization", value: "Basic !!!"}},
		"Basic in a header that is not for it":             {sent: sent{header: "X-Authorization", value: basic("me:" + h.Placeholder)}},
		"a placeholder that was put into another's header": {host: "evil.example.com", sent: sent{header: "Authorization", value: basic("me:" + h.Placeholder)}, strays: []secret.Use{{Secret: "header", Place: "Authorization"}}},
	} {
		t.Run(about, func(t *testing.T) {
			url := tt.sent.url
			if !strings.HasPrefix(url, "https:") {
				url = "https://api.example.com" + url
			}
			req := newRequest(t, orText(tt.sent.method, "GET"), url, tt.sent.body)
			if tt.sent.raw != "" { // as package intercept has it
				req.URL.RawPath, req.URL.Opaque = "", tt.sent.raw
			}
			if tt.sent.header != "" {
				req.Header[tt.sent.header] = []string{tt.sent.value}
			}
			if tt.sent.kind != "" {
				req.Header.Set("Content-Type", tt.sent.kind)
			}
			before := req.URL.String()
			result, err := session.Rewrite(req, orText(tt.host, "api.example.com"), nil)
			require.NoError(t, err)
			require.Equal(t, tt.used, result.Used)
			if !strings.HasPrefix(about, "the name of a header") {
				require.Equal(t, tt.strays, result.Strays)
			}
			if tt.sent.header != "" {
				require.Equal(t, []string{orText(tt.want.value, tt.sent.value)}, req.Header[tt.sent.header])
			}
			if tt.want.url != "" {
				require.Equal(t, "https://api.example.com"+tt.want.url, req.URL.String())
			} else {
				require.Equal(t, before, req.URL.String())
			}
			body, err := io.ReadAll(req.Body)
			require.NoError(t, err)
			require.Equal(t, orText(tt.want.body, tt.sent.body), string(body))
			require.EqualValues(t, len(body), req.ContentLength)
		})
	}
}

func orText(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

func TestOnlyAttachedSecretsAreUsed(t *testing.T) {
	v := newVault(t)
	add(t, v, "mine", topSecret)
	add(t, v, "other", topSecret)
	req := request(t, v, "other")
	before := req.Header.Get("Authorization")
	result, err := v.Session("k", []string{"mine"}).Rewrite(req, "api.example.com", nil)
	require.NoError(t, err)
	require.Empty(t, result.Used)
	require.Equal(t, before, req.Header.Get("Authorization"), "a placeholder that came from another sandbox is nothing here")
}

func TestValueIsNotRead(t *testing.T) {
	v := newVault(t)
	second := add(t, v, "second", "value of the second")
	first := add(t, v, "first", "holds "+second.Placeholder+" and ${e2b.secrets.second}")
	session := v.Session("k", []string{"first", "second"})
	require.NoError(t, session.SetTransforms(map[string]secret.Transform{"api.example.com": {Headers: map[string]string{"X-Both": "${e2b.secrets.first}|${e2b.secrets.SECOND}"}}}))
	req := newRequest(t, "GET", "https://api.example.com/", "")
	req.Header.Set("A", first.Placeholder)
	_, err := session.Rewrite(req, "api.example.com", nil)
	require.NoError(t, err)
	require.Equal(t, "holds "+second.Placeholder+" and ${e2b.secrets.second}", req.Header.Get("A"))
	require.Equal(t, "holds "+second.Placeholder+" and ${e2b.secrets.second}|value of the second", req.Header.Get("X-Both"))
}

func TestValueBreaksNoHeader(t *testing.T) {
	v := newVault(t)
	for name, text := range map[string]string{"crlf": "value\r\nX-Admin: yes", "lf": "value\nnext", "cr": "value\rnext", "del": "value\x7fnext", "bell": "value\anext"} {
		s := add(t, v, name, text, secret.Binding{Host: []string{"api.example.com"}}, secret.Binding{Host: []string{"api.example.com"}, In: []string{"?q", "body"}})
		session := v.Session("k", []string{name})
		for _, sent := range []string{s.Placeholder, basic("me:" + s.Placeholder)} {
			req := newRequest(t, "GET", "https://api.example.com/", "")
			req.Header.Set("Authorization", sent)
			_, err := session.Rewrite(req, "api.example.com", nil)
			bad := (*secret.InvalidError)(nil)
			require.ErrorAs(t, err, &bad, name)
			require.NotContains(t, err.Error(), "next")
			require.Equal(t, sent, req.Header.Get("Authorization"), "nothing was changed")
		}
		require.NoError(t, session.SetTransforms(map[string]secret.Transform{"api.example.com": {Headers: map[string]string{"X": "${e2b.secrets." + name + "}"}}}))
		_, err := session.Rewrite(newRequest(t, "GET", "https://api.example.com/", ""), "api.example.com", nil)
		require.Error(t, err, name)
		require.NoError(t, session.SetTransforms(nil))

		req := newRequest(t, "POST", "https://api.example.com/?q="+s.Placeholder, `{"a":"`+s.Placeholder+`"}`)
		req.Header.Set("Content-Type", "application/json")
		_, err = session.Rewrite(req, "api.example.com", nil)
		require.NoError(t, err)
		require.Equal(t, text, req.URL.Query().Get("q"), "elsewhere it is encoded")
	}
}

func TestNothingIsDecryptedBeforeItIsAllowed(t *testing.T) {
	v := newVault(t)
	one, two := add(t, v, "one", topSecret), add(t, v, "two", topSecret)
	session := v.Session("k", []string{"one", "two"})
	req := newRequest(t, "GET", "https://api.example.com/", "")
	req.Header.Set("A", one.Placeholder)
	req.Header.Set("B", two.Placeholder)
	var asked []secret.Use
	refusal := errors.New("refused")
	_, err := session.Rewrite(req, "api.example.com", func(u secret.Use) error {
		if asked = append(asked, u); u.Secret == "two" {
			return refusal
		}
		return nil
	})
	require.ErrorIs(t, err, refusal)
	require.Equal(t, []secret.Use{{Secret: "one", Place: "A"}, {Secret: "two", Place: "B"}}, asked)
	require.Equal(t, one.Placeholder, req.Header.Get("A"), "one refusal refuses the request")

	_, err = session.Rewrite(req, "api.example.com", func(u secret.Use) error {
		if u.Secret == "one" {
			_, err := v.Update(t.Context(), "k", "one", secret.Change{Value: value("a new value")})
			return err
		}
		_, err := v.Update(t.Context(), "k", "two", secret.Change{Bindings: &[]secret.Binding{{Host: []string{"b.example.com"}}}})
		return err
	})
	require.ErrorContains(t, err, `"two" was changed while the request waited`)
	req.Header.Del("B")
	_, err = session.Rewrite(req, "api.example.com", nil)
	require.NoError(t, err)
	require.Equal(t, "a new value", req.Header.Get("A"))

	_, err = session.Rewrite(request(t, v, "one"), "api.example.com", func(secret.Use) error {
		_, err := v.Delete(t.Context(), "k", "one")
		return err
	})
	require.ErrorContains(t, err, "changed while the request waited")
}

func TestTransformsSetHeaders(t *testing.T) {
	v := newVault(t)
	unbound, err := v.Create(t.Context(), "k", secret.New{Name: "unbound", Value: value(topSecret)})
	require.NoError(t, err)
	add(t, v, "bound", topSecret, secret.Binding{Host: []string{"api.example.com"}, Path: []string{"/v1/**"}, In: []string{"X-Bound"}})
	session := v.Session("k", nil)
	transforms := map[string]secret.Transform{
		"api.example.com": {Headers: map[string]string{"authorization": "Bearer ${e2b.secrets.unbound}", "X-Bound": "${e2b.secrets.bound}", "X-Plain": "plain"}},
		"*.example.com":   {Headers: map[string]string{"X-Plain": "of all", "X-All": "all"}},
	}
	require.NoError(t, v.CheckTransforms(t.Context(), "k", transforms))
	require.NoError(t, session.SetTransforms(transforms))
	require.Equal(t, []string{"*.example.com", "api.example.com"}, session.Hosts())
	require.True(t, session.Intercepts("a.example.com"))
	require.False(t, session.Intercepts("example.com"))

	send := func(host, path string) (http.Header, secret.Result) {
		req := newRequest(t, "GET", "https://"+host+path, "")
		req.Header = http.Header{"Authorization": {"Bearer mine", "twice"}, "x-plain": {"mine"}, "X-Bound": {unbound.Placeholder}}
		result, err := session.Rewrite(req, host, nil)
		require.NoError(t, err)
		return req.Header, result
	}
	h, result := send("api.example.com", "/v1/x")
	require.Equal(t, http.Header{"Authorization": {"Bearer " + topSecret}, "X-Bound": {topSecret}, "X-Plain": {"plain"}}, h, "the nearest transform alone")
	require.Equal(t, []secret.Use{{Secret: "bound", Place: "X-Bound"}, {Secret: "unbound", Place: "Authorization"}}, result.Used)
	require.NotNil(t, result.Scrub)
	require.Regexp(t, "^tombolo_(un)?bound_[A-Z2-7]+$", result.Scrub.String(topSecret))

	h, result = send("api.example.com", "/v2/x")
	require.Equal(t, []string{unbound.Placeholder}, h["X-Bound"], "a bound secret goes nowhere else by a transform")
	require.Contains(t, result.Strays, secret.Use{Secret: "bound", Place: "X-Bound"})
	h, result = send("b.example.com", "/")
	require.Equal(t, http.Header{"Authorization": {"Bearer mine", "twice"}, "X-Bound": {unbound.Placeholder}, "X-Plain": {"of all"}, "X-All": {"all"}}, h)
	require.Empty(t, result.Used)
	require.Nil(t, result.Scrub)

	_, err = v.Delete(t.Context(), "k", "unbound")
	require.NoError(t, err)
	_, err = session.Rewrite(newRequest(t, "GET", "https://api.example.com/", ""), "api.example.com", nil)
	require.ErrorContains(t, err, `"unbound", and there is none of this name`, "it does not go out without")
}

func TestWhatCannotBeATransformIsRefused(t *testing.T) {
	v := newVault(t)
	add(t, v, "bound", topSecret)
	one := func(host, name, text string) map[string]secret.Transform {
		return map[string]secret.Transform{host: {Headers: map[string]string{name: text}}}
	}
	headers := map[string]string{}
	for name := range entries(21, 1) {
		headers["X-"+name] = "x"
	}
	hosts := map[string]secret.Transform{}
	for name := range entries(11, 1) {
		hosts["h"+name+".example.com"] = secret.Transform{}
	}
	for about, transforms := range map[string]map[string]secret.Transform{
		"line break":             one("api.example.com", "X", "a\r\nY: b"),
		"NUL":                    one("api.example.com", "X", "a\x00"),
		"name with a colon":      one("api.example.com", "X: y", "a"),
		"no name":                one("api.example.com", "", "a"),
		"framing":                one("api.example.com", "transfer-encoding", "chunked"),
		"another host":           one("api.example.com", "Host", "evil.example.com"),
		"all hosts":              one("*", "X", "a"),
		"no host":                one("a b", "X", "a"),
		"a URL":                  one("https://api.example.com/", "X", "a"),
		"unknown secret":         one("api.example.com", "X", "${e2b.secrets.none}"),
		"secret bound elsewhere": one("b.example.com", "X", "${e2b.secrets.bound}"),
		"and to hosts below":     one("*.api.example.com", "X", "${e2b.secrets.bound}"),
		"identity":               one("api.example.com", "X", "${e2b.identity.tokens.x}"),
		"overlong value":         one("api.example.com", "X", strings.Repeat("a", 2049)),
		"overlong name":          one("api.example.com", strings.Repeat("a", 65), "a"),
		"one header twice":       {"api.example.com": {Headers: map[string]string{"x-a": "1", "X-A": "2"}}},
		"many headers":           {"api.example.com": {Headers: headers}},
		"many hosts":             hosts,
	} {
		bad := (*secret.InvalidError)(nil)
		require.ErrorAs(t, v.CheckTransforms(t.Context(), "k", transforms), &bad, about)
	}
	require.NoError(t, v.CheckTransforms(t.Context(), "k", one("API.example.com", "X", "${e2b.secrets.BOUND}")))
}

func TestAnswersAreScrubbed(t *testing.T) {
	v := newVault(t)
	const text = "p@ss/w+rd=\"ü&<x>'!(*)"
	s := add(t, v, "a", text)
	result, err := v.Session("k", []string{"a"}).Rewrite(request(t, v, "a"), "api.example.com", nil)
	require.NoError(t, err)
	encodings := map[string]string{
		"itself":             text,
		"JSON":               `p@ss/w+rd=\"ü&<x>'!(*)`,
		"JSON, HTML escaped": `p@ss/w+rd=\"ü\u0026\u003cx\u003e'!(*)`,
		"JSON of PHP":        `p@ss\/w+rd=\"ü&<x>'!(*)`,
		"JSON in ASCII":      `p@ss/w+rd=\"\u00fc&<x>'!(*)`,
		"a form":             "p%40ss%2Fw%2Brd%3D%22%C3%BC%26%3Cx%3E%27%21%28%2A%29",
		"in lower case":      "p%40ss%2fw%2brd%3d%22%c3%bc%26%3cx%3e%27%21%28%2a%29",
		"encodeURIComponent": "p%40ss%2Fw%2Brd%3D%22%C3%BC%26%3Cx%3E'!(*)",
		"HTML":               "p@ss/w+rd=&#34;ü&amp;&lt;x&gt;&#39;!(*)",
		"hex":                hex.EncodeToString([]byte(text)),
	}
	for about, encoded := range encodings {
		require.Equal(t, "x"+s.Placeholder+"y", result.Scrub.String("x"+encoded+"y"), about)
	}
	for _, login := range []string{"", "u:", "us:", "use:", "user:"} {
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
			for _, after := range []string{"", "a", "ab", "abc"} {
				whole := encoding.EncodeToString([]byte(login + text + after))
				scrubbed := result.Scrub.String(whole)
				require.Contains(t, scrubbed, s.Placeholder, whole)
				require.LessOrEqual(t, len(scrubbed)-len(s.Placeholder), 4*(len(login)+len(after)+6)/3, "but for what its neighbours share")
			}
		}
	}

	_, err = v.Update(t.Context(), "k", "a", secret.Change{Value: value("a new value")})
	require.NoError(t, err)
	scrub, err := v.Session("k", []string{"a"}).Scrubber(t.Context())
	require.NoError(t, err)
	require.Equal(t, s.Placeholder+" "+s.Placeholder, scrub.String("a new value "+text), "the value before is one too")
	none, err := v.Session("k", nil).Scrubber(t.Context())
	require.NoError(t, err)
	require.Nil(t, none)
}

func TestPlaceholdersAreFoundElsewhere(t *testing.T) {
	v := newVault(t)
	a := add(t, v, "a", topSecret)
	add(t, v, "b", topSecret)
	session := v.Session("k", []string{"a", "b"})
	require.Equal(t, []string{"a"}, session.Find([]byte("MAIL FROM "+a.Placeholder)))
	require.Empty(t, session.Find([]byte("nothing")))
}

func TestPlaceholderLooksLikeAKey(t *testing.T) {
	v := newVault(t)
	s, err := v.Create(t.Context(), "k", secret.New{Name: "my.GitHub_token", Value: value(topSecret), PlaceholderPrefix: "ghp_"})
	require.NoError(t, err)
	require.Regexp(t, `^ghp_tombolo_my-github_token_[A-Za-z0-9]{26}$`, s.Placeholder)
	s, err = v.Create(t.Context(), "k", secret.New{Name: "other", Value: value(topSecret), Metadata: map[string]string{"tombolo.placeholder-prefix": "sk-"}})
	require.NoError(t, err)
	require.Regexp(t, `^sk-tombolo_other_`, s.Placeholder)
}
