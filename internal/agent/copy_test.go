package agent_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

// The steps of a build move files by the host's port: out of one sandbox as an
// archive, into another by its copy.
func TestHostCopies(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the agent copies as root")
	}
	s := start(t)
	require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "app/sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "app/sub/f"), []byte("content"), 0o600))

	body, err := json.Marshal(hostapi.Archive{Patterns: []string{s.dir + "/ap*"}})
	require.NoError(t, err)
	status, archive := s.hostPost(t, "/archive", body)
	require.Equal(t, http.StatusOK, status, archive)

	copying := hostapi.Copy{Destination: s.dir + "/copy/"}
	status, text := s.hostPost(t, copyPath(t, copying), []byte(archive))
	require.Equal(t, http.StatusNoContent, status, text)
	got, err := os.ReadFile(filepath.Join(s.dir, "copy/sub/f"))
	require.NoError(t, err)
	require.Equal(t, "content", string(got))

	status, text = s.hostPost(t, "/archive", []byte(`{"patterns": ["/no/such/thing"]}`))
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, text, "/no/such/thing")
	copying.User = "nobody-of-that-name"
	status, text = s.hostPost(t, copyPath(t, copying), []byte(archive))
	require.Equal(t, http.StatusBadRequest, status)
	require.Equal(t, "invalid username: 'nobody-of-that-name'\n", text)
	var cut bytes.Buffer
	w := tar.NewWriter(&cut)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "a", Size: 10_000, Mode: 0o644}))
	status, text = s.hostPost(t, copyPath(t, hostapi.Copy{Source: "a", Destination: s.dir + "/a"}), cut.Bytes())
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, text, "cannot be read")
	require.NoFileExists(t, filepath.Join(s.dir, "a"))
}

func copyPath(t *testing.T, req hostapi.Copy) string {
	t.Helper()
	text, err := json.Marshal(req)
	require.NoError(t, err)
	return "/copy?copy=" + url.QueryEscape(string(text))
}

func (s *sandbox) hostPost(t *testing.T, path string, body []byte) (int, string) {
	t.Helper()
	resp, err := http.Post("http://"+s.agent.Addr("host")+path, "application/octet-stream", bytes.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}
