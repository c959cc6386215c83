package tool

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func run(t *testing.T, what func(out io.Writer) error) (string, int) {
	t.Helper()
	var out bytes.Buffer
	err := what(&out)
	if err == nil {
		return out.String(), 0
	}
	var end exit
	require.ErrorAs(t, err, &end)
	return out.String() + end.message, end.code
}

// The commands are those that E2B's clients send as ready commands.
func TestSSFindsWhatListens(t *testing.T) {
	for _, network := range []string{"tcp4", "tcp6"} {
		l, err := net.Listen(network, "localhost:0")
		if err != nil {
			t.Logf("no %s here: %v", network, err)
			continue
		}
		defer l.Close()
		port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		text, code := run(t, func(out io.Writer) error { return ss([]string{"-Htuln", "sport", "=", ":" + port}, proc, out) })
		require.Zero(t, code)
		require.Equal(t, 1, strings.Count(text, "\n"), text)
		require.Contains(t, text, "LISTEN")
		require.Contains(t, text, ":"+port)
		text, _ = run(t, func(out io.Writer) error { return ss([]string{"-tuln"}, proc, out) })
		require.Contains(t, text, "Netid State")
		require.Contains(t, text, ":"+port+" ")
	}
	text, _ := run(t, func(out io.Writer) error { return ss([]string{"-Htuln", "sport = :1"}, proc, out) })
	require.Empty(t, text)
	for _, args := range [][]string{{"-p"}, {"dport = :80"}, {"sport", ">", ":80"}} {
		text, code := run(t, func(out io.Writer) error { return ss(args, proc, out) })
		require.Equal(t, 255, code)
		require.Contains(t, text, "install the real one (package iproute2)")
	}
}

func TestSSReadsAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1F90": "127.0.0.1:8080", "00000000:0000": "0.0.0.0:*",
		"00000000000000000000000001000000:0050": "[::1]:80",
	} {
		got, err := parseAddress(text)
		require.NoError(t, err)
		require.Equal(t, want, address(got))
	}
}

func TestPgrep(t *testing.T) {
	program := filepath.Join(t.TempDir(), "daemon-xyz")
	raw, err := os.ReadFile("/bin/sleep")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, raw, 0o755))
	cmd := exec.Command(program, "1000")
	require.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := fmt.Sprintln(cmd.Process.Pid)
	for args, want := range map[string]string{
		"daemon-xyz": pid, "-x daemon-xyz": pid, "-f daemon-xyz.1000$": pid, "-l mon-x": strings.TrimSpace(pid) + " daemon-xyz\n",
		"-c daemon-xyz": "1\n", "-i DAEMON-XYZ": pid,
	} {
		text, code := run(t, func(out io.Writer) error { return pgrep(strings.Fields(args), proc, os.Getpid(), out) })
		require.Zero(t, code, args)
		require.Equal(t, want, text, args)
	}
	for args, want := range map[string]int{"-x daemon-xy": 1, "no-such-program": 1, "-u root x": 2, "": 2, "(": 2} {
		_, code := run(t, func(out io.Writer) error { return pgrep(strings.Fields(args), proc, os.Getpid(), out) })
		require.Equal(t, want, code, args)
	}
}

func TestCurl(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, "/", http.StatusFound)
		case "/none":
			http.NotFound(w, r)
		default:
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %s", r.Method, r.Header.Get("X-A"), body)
		}
	}))
	defer server.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	for _, test := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"-s", "-o", "/dev/null", "-w", "%{http_code}", server.URL}, "200", 0},
		{[]string{"-s", "-o", "/dev/null", "-w", "%{http_code}", closed.URL}, "000", curlConnect},
		{[]string{"-sSfL", server.URL + "/away"}, "GET  ", 0},
		{[]string{"-s", "-o/dev/null", `-w%{http_code}\n`, server.URL + "/away"}, "302\n", 0},
		{[]string{"-sf", server.URL + "/none"}, "", curlHTTP},
		{[]string{"-fsS", server.URL + "/none"}, "The requested URL returned error: 404", curlHTTP},
		{[]string{"--request", "PUT", "-H", "X-A: b", "-d", "c=1", "-d", "e", strings.TrimPrefix(server.URL, "http://")}, "PUT b c=1&e", 0},
		{[]string{"-m", "x", server.URL}, `option -m: "x" is no number of seconds`, curlUsage},
		{[]string{"ftp://x/"}, "ftp://x/: only http and https are there", 3},
	} {
		text, code := run(t, func(out io.Writer) error { return curl(test.args, strings.NewReader(""), out) })
		require.Equal(t, test.want, text, test.args)
		require.Equal(t, test.code, code, test.args)
	}
	text, code := run(t, func(out io.Writer) error { return curl([]string{"--retry", "3", "x"}, nil, out) })
	require.Equal(t, curlUsage, code)
	require.Contains(t, text, `"--retry" is not there`)
}
