package secret_test

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http/httpguts"

	"github.com/tombolo-dev/tombolo/internal/secret"
)

// FuzzRewrite sends what a hostile sandbox makes of two placeholders, "A" of a secret for
// this host and "B" of one for another.
func FuzzRewrite(f *testing.F) {
	f.Add("GET", "/v1/x", "key=A", "Authorization", "Bearer A", "application/json", `{"a":"A B"}`)
	f.Add("POST", "/a/../b", "A=B&%6bey=B;A", "Cookie", "a=A; B", "application/x-www-form-urlencoded", "a=A&B")
	f.Add("PUT", "/A", "key=%ff&&=", "Te", "AAAA", "text/plain", "ABAB")
	v := newVault(f)
	const own, foreign = "value for this host \"&=", "value for another"
	a := add(f, v, "a", own, secret.Binding{Host: []string{"api.example.com"}, In: []string{"Authorization", "Cookie", "?key", "body", "Te2"}, Method: []string{"GET", "POST"}})
	b := add(f, v, "b", foreign, secret.Binding{Host: []string{"b.example.com"}, In: []string{"Authorization", "Cookie", "?key", "body"}})
	session := v.Session("k", []string{"a", "b"})
	fill := strings.NewReplacer("A", a.Placeholder, "B", b.Placeholder)
	f.Fuzz(func(t *testing.T, method, path, query, name, text, kind, body string) {
		name, text = strings.TrimSpace(name), fill.Replace(text)
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(text) || !httpguts.ValidHeaderFieldValue(kind) {
			return
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "https://api.example.com/", strings.NewReader(fill.Replace(body)))
		if err != nil {
			return
		}
		req.URL = &url.URL{Scheme: "https", Host: "api.example.com", Path: fill.Replace(path), RawQuery: fill.Replace(query)}
		req.Header = http.Header{http.CanonicalHeaderKey(name): {text}, "Content-Type": {kind}}
		before := *req.URL
		headers := len(req.Header)
		result, err := session.Rewrite(req, "api.example.com", nil)
		require.NoError(t, err)

		var out bytes.Buffer
		sent, err := io.ReadAll(req.Body)
		require.NoError(t, err)
		require.NoError(t, req.Header.Write(&out))
		out.WriteString(req.URL.String())
		out.Write(sent)
		require.NotContains(t, out.String(), foreign)
		if len(result.Used) == 0 {
			require.NotContains(t, out.String(), "value for this host")
			require.Equal(t, before, *req.URL)
			require.Equal(t, fill.Replace(body), string(sent))
		}
		require.Equal(t, before.Path, req.URL.Path)
		require.Len(t, req.Header, headers)
		require.Equal(t, strings.Count(before.RawQuery, "&"), strings.Count(req.URL.RawQuery, "&"), "a value adds no parameter")
		for _, values := range req.Header {
			for _, value := range values {
				require.True(t, httpguts.ValidHeaderFieldValue(value))
			}
		}
		require.EqualValues(t, len(sent), req.ContentLength)
		for _, use := range result.Used {
			require.Equal(t, "a", use.Secret)
			require.Contains(t, []string{"Authorization", "Cookie", "?key", "body", "Te2"}, use.Place)
		}
	})
}
