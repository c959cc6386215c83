package edge

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLabelTarget(t *testing.T) {
	tests := []struct {
		host string
		id   string // empty: no label
		port uint16
	}{
		{"8000-iabc.example.com", "iabc", 8000},
		{"1-iabc.example.com:443", "iabc", 1},
		{"65535-iabc.localhost", "iabc", 65535},
		{"49983-iabc-00000000.127.0.0.1", "iabc", 49983},
		{"49983-iabc-x-y.z", "iabc", 49983},
		{"8000-IABC.Example.COM", "iabc", 8000},
		{"8000-iabc.", "iabc", 8000},
		{"8000-" + strings.Repeat("a", 63) + ".x", strings.Repeat("a", 63), 8000},

		{"", "", 0},
		{"localhost:3000", "", 0},
		{"127.0.0.1:3000", "", 0},
		{"[::1]:3000", "", 0},
		{"[2001:db8::1-1]", "", 0},
		{"8000-iabc", "", 0},      // no rest
		{"8000-iabc:3000", "", 0}, // no rest
		{"8000iabc.example.com", "", 0},
		{"0-iabc.example.com", "", 0},
		{"65536-iabc.example.com", "", 0},
		{"08000-iabc.example.com", "", 0},
		{"+80-iabc.example.com", "", 0},
		{"-iabc.example.com", "", 0},
		{"8000-.example.com", "", 0},
		{"8000--iabc.example.com", "", 0},
		{"8000-i_abc.example.com", "", 0},
		{"8000-iäbc.example.com", "", 0},
		{"8000-i%2fabc.example.com", "", 0},
		{"127-0-0-1.example.com", "", 0},
		{"8000-" + strings.Repeat("a", 64) + ".x", "", 0},
	}
	for _, tt := range tests {
		got, ok := labelTarget(tt.host)
		require.Equal(t, tt.id != "", ok, "%q", tt.host)
		require.Equal(t, target{id: tt.id, port: tt.port}, got, "%q", tt.host)
	}
}

var plainID = regexp.MustCompile(`^[a-z0-9]{1,63}$`)

func FuzzLabelTarget(f *testing.F) {
	for _, host := range []string{"8000-iabc.example.com", "49983-iabc-0.127.0.0.1:1", "[::1]:1", "1-.-", "65536-a.b"} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		got, ok := labelTarget(host)
		if !ok {
			require.Zero(t, got)
			return
		}
		require.Regexp(t, plainID, got.id)
		require.NotZero(t, got.port)
		require.Contains(t, strings.ToLower(host), "-"+got.id)
	})
}

func FuzzHeaderTarget(f *testing.F) {
	f.Add("iabc", "49983")
	f.Add("iabc-1", "65536")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, id, port string) {
		got, err := headerTarget(http.Header{idHeader: {id}, portHeader: {port}})
		if err != nil {
			require.Zero(t, got)
			return
		}
		require.Regexp(t, plainID, got.id)
		require.Equal(t, "localhost:"+port, got.host)
	})
}
