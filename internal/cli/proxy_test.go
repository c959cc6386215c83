package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

func TestProxiesAreURLs(t *testing.T) {
	for text, want := range map[string]*sandbox.EgressProxy{
		"":                                nil,
		"socks5://proxy.example.com:1080": {Kind: "socks5", Address: "proxy.example.com:1080"},
		"socks5://u:p%40@10.0.0.9:1080":   {Kind: "socks5", Address: "10.0.0.9:1080", Username: "u", Password: "p@"},
		"http://proxy.example.com:3128/":  {Kind: "http", Address: "proxy.example.com:3128"},
		"https://u:p@proxy.example.com:1": {Kind: "http", Address: "proxy.example.com:1", Username: "u", Password: "p", TLS: true},
	} {
		got, err := parseProxy(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"proxy.example.com:1080", "socks5://proxy.example.com", "ftp://proxy:21", "socks5://:1080", "http://proxy:80/path", "http://proxy:80?x",
		"socks5://user:secret@proxy:0", "socks4://user:secret@proxy:1080",
	} {
		_, err := parseProxy(text)
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "secret", "a password is not shown")
	}
}
