package sandbox

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckMaskHost(t *testing.T) {
	for _, good := range []string{
		"", "localhost", "localhost:${PORT}", "localhost:3000", "app-${PORT}.example.com", "${PORT}.example.com:${PORT}",
		"example.com.", "127.0.0.1:${PORT}", "[::1]", "[::1]:${PORT}", "_svc.example.com", strings.Repeat("a", 63) + ".x",
	} {
		require.NoError(t, CheckMaskHost(good), good)
	}
	for _, bad := range []string{
		" ", "localhost:", "localhost:0", "localhost:65536", "localhost:x", "localhost:80:81", "a b", "a\r\nX-Evil: 1", "a\x00",
		"http://localhost", "user@localhost", "a/b", "a?b", "a..b", ".", "-a", "a-", "${port}", "$PORT", "[::1", "[::1]x", "[a]b]:1", "::1",
		"ä.example.com", strings.Repeat("a", 64), strings.Repeat("a.", 140), "localhost:${PORT}${PORT}",
	} {
		var invalid *InvalidError
		require.ErrorAs(t, CheckMaskHost(bad), &invalid, bad)
	}
}

func TestMaskHostReplacesEveryPlaceholder(t *testing.T) {
	require.Equal(t, "8000.example.com:8000", MaskHost("${PORT}.example.com:${PORT}", 8000))
	require.Equal(t, "localhost", MaskHost("localhost", 8000))
}
