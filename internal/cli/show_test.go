package cli

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/sandbox"
)

// TestNothingSecretIsShown: what is printed may be kept in logs.
func TestNothingSecretIsShown(t *testing.T) {
	info := sandbox.Info{ID: "i1", AccessToken: "hidden-agent", TrafficToken: "hidden-traffic", Network: sandbox.NetworkOptions{
		Proxy: &sandbox.EgressProxy{Address: "proxy.example:1080", Username: "u", Password: "hidden-proxy"},
		Headers: []sandbox.HostHeaders{{Host: "api.example.com", Headers: map[string]string{
			"Authorization": "Bearer hidden-header", "X-Key": "${e2b.secrets.api}",
		}}},
	}}
	raw, err := json.Marshal(showAll([]sandbox.Info{info}))
	require.NoError(t, err)
	require.NotContains(t, string(raw), "hidden")
	for _, kept := range []string{"i1", "proxy.example:1080", "Authorization", "${e2b.secrets.api}"} {
		require.Contains(t, string(raw), kept)
	}
	require.Equal(t, "hidden-proxy", info.Network.Proxy.Password, "the sandbox keeps what it has")
	require.Equal(t, "Bearer hidden-header", info.Network.Headers[0].Headers["Authorization"])
}
