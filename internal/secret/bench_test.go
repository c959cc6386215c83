package secret_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/secret"
)

// BenchmarkRewrite is what secrets add to one request.
func BenchmarkRewrite(b *testing.B) {
	v := newVault(b)
	var names []string
	for n := range 8 {
		names = append(names, add(b, v, fmt.Sprintf("s%d", n), "sk-proj-"+strings.Repeat("0123456789", 4), secret.Binding{Host: []string{fmt.Sprintf("h%d.example.com", n)}}).Name)
	}
	session := v.Session("k", names)
	s, err := v.Get(b.Context(), "k", "s3")
	require.NoError(b, err)
	for _, tt := range []struct{ name, host, token string }{{"used", "h3.example.com", s.Placeholder}, {"none", "other.example.com", "none"}} {
		b.Run(tt.name, func(b *testing.B) {
			for b.Loop() {
				req := newRequest(b, "GET", "https://"+tt.host+"/v1/models", "")
				req.Header.Set("Authorization", "Bearer "+tt.token)
				_, err := session.Rewrite(req, tt.host, nil)
				require.NoError(b, err)
			}
		})
	}
}
