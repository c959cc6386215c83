package intercept

import (
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func FuzzPath(f *testing.F) {
	for _, s := range []string{"/", "/a//b/", "/%2e%2e/", "/..;/x", "/a%252fb", "*", "//h/p", "/%C3%A4", "/a%5c..", "/a%2f\"", "/a%2e%2e|"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := url.ParseRequestURI(raw)
		if err != nil || u.Scheme != "" {
			return
		}
		got, err := judgedPath(u)
		if err != nil || got == "*" {
			return
		}
		require.Equal(t, path.Clean(got), got)
		require.True(t, strings.HasPrefix(got, "/") && utf8.ValidString(got))
		// However often a server decodes, and whether it resolves segments before or after:
		// it comes to no path above one that was judged.
		for text := sentPath(&http.Request{RequestURI: raw, URL: u}); ; {
			for segment := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '/' || r == '\\' }) {
				segment, _, _ = strings.Cut(segment, ";")
				require.NotEqual(t, "..", segment)
			}
			again, err := url.PathUnescape(text)
			if err != nil || again == text {
				return
			}
			text = again
		}
	})
}

func FuzzHost(f *testing.F) {
	for _, s := range []string{"a.example:443", "[::1]:80", "1.2.3.4", "A.", "a:b", "0x7f.1", "[::ffff:1.2.3.4]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := parseHost(s)
		if err != nil {
			return
		}
		again, err := parseHost(h.String())
		if h.name == "" && h.addr.Is6() {
			again, err = parseHost("[" + h.String() + "]")
		}
		require.NoError(t, err)
		again.port = h.port
		require.Equal(t, h, again)
	})
}
