package agent_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tombolo-dev/tombolo/internal/agent/hostapi"
)

func files(query ...string) string {
	v := url.Values{}
	for i := 0; i < len(query); i += 2 {
		v.Set(query[i], query[i+1])
	}
	return "/files?" + v.Encode()
}

var octets = http.Header{"Content-Type": {"application/octet-stream"}}

// form writes a multipart body; the names are the parts' file names.
func form(t *testing.T, parts ...string) (http.Header, io.Reader) {
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for i := 0; i < len(parts); i += 2 {
		p, err := w.CreatePart(textproto.MIMEHeader{
			"Content-Disposition": {fmt.Sprintf(`form-data; name="file"; filename="%s"`, parts[i])},
		})
		require.NoError(t, err)
		_, err = io.WriteString(p, parts[i+1])
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return http.Header{"Content-Type": {w.FormDataContentType()}}, &body
}

func TestUploadedFilesComeBack(t *testing.T) {
	s := start(t)
	require.NoError(t, os.Chmod(s.dir, 0o755))
	s.username = "nobody"
	header, body := form(t, s.path("a/one.txt"), "eins", s.path("zwei ü.txt"), "zwei")
	res, text := s.do("POST", files(), header, body)
	require.Equal(t, http.StatusOK, res.StatusCode, text)
	var answer []map[string]string
	require.NoError(t, json.Unmarshal([]byte(text), &answer))
	require.Equal(t, []map[string]string{
		{"path": s.path("a/one.txt"), "name": "one.txt", "type": "file"},
		{"path": s.path("zwei ü.txt"), "name": "zwei ü.txt", "type": "file"},
	}, answer)
	res, text = s.do("GET", files("path", s.path("a/one.txt")), nil, nil)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "eins", text)
	for _, path := range []string{"a", "a/one.txt"} {
		e, err := s.stat(s.path(path))
		require.NoError(t, err)
		require.Equal(t, "nobody", e.GetOwner(), path)
	}
}

func TestOverwritingKeepsTheMode(t *testing.T) {
	s := start(t)
	path := s.put("run.sh", "a longer text")
	require.NoError(t, os.Chmod(path, 0o750))
	res, text := s.do("POST", files("path", path), octets, strings.NewReader("new"))
	require.Equal(t, http.StatusOK, res.StatusCode, text)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "new", string(got))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o750), info.Mode())
}

func TestGzipBothWays(t *testing.T) {
	s := start(t)
	text := strings.Repeat("tombolo ", 10000)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := io.WriteString(z, text)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	res, answer := s.do("POST", files("path", s.path("f")), http.Header{
		"Content-Type": {"application/octet-stream"}, "Content-Encoding": {"gzip"},
	}, &packed)
	require.Equal(t, http.StatusOK, res.StatusCode, answer)

	res, body := s.do("GET", files("path", s.path("f")), http.Header{"Accept-Encoding": {"gzip"}}, nil)
	require.Equal(t, "gzip", res.Header.Get("Content-Encoding"))
	unpacked, err := gzip.NewReader(strings.NewReader(body))
	require.NoError(t, err)
	got, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	require.Equal(t, text, string(got))

	res, body = s.do("GET", files("path", s.path("f")), http.Header{"Accept-Encoding": {"gzip, deflate, br"}}, nil)
	require.Empty(t, res.Header.Get("Content-Encoding"), "what a library lists by default is no wish")
	require.Equal(t, text, body)
	res, _ = s.do("GET", files("path", s.path("f")), http.Header{"Accept-Encoding": {"identity;q=0, br"}}, nil)
	require.Equal(t, http.StatusNotAcceptable, res.StatusCode)
}

func TestRangesAndConditions(t *testing.T) {
	s := start(t)
	path := s.put("f", "0123456789")
	res, body := s.do("GET", files("path", path), http.Header{"Range": {"bytes=2-4"}}, nil)
	require.Equal(t, http.StatusPartialContent, res.StatusCode)
	require.Equal(t, "234", body)
	require.Equal(t, "bytes 2-4/10", res.Header.Get("Content-Range"))
	res, _ = s.do("GET", files("path", path), http.Header{"If-Modified-Since": {time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)}}, nil)
	require.Equal(t, http.StatusNotModified, res.StatusCode)
}

func TestMetadataStaysWithTheFile(t *testing.T) {
	s := start(t)
	path := s.path("f")
	header := http.Header{"Content-Type": {"application/octet-stream"}, "X-Metadata-Author": {"ada"}, "X-Metadata-Kind": {"draft"}}
	res, text := s.do("POST", files("path", path), header, strings.NewReader("x"))
	if res.StatusCode == http.StatusBadRequest && strings.Contains(text, "keeps no metadata") {
		t.Skip("the temporary folder keeps no extended attributes")
	}
	require.Equal(t, http.StatusOK, res.StatusCode, text)
	require.Contains(t, text, `"metadata":{"author":"ada","kind":"draft"}`)
	e, err := s.stat(path)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"author": "ada", "kind": "draft"}, e.GetMetadata())

	header.Del("X-Metadata-Kind")
	s.do("POST", files("path", path), header, strings.NewReader("y"))
	e, err = s.stat(path)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"author": "ada"}, e.GetMetadata(), "metadata describes the new content only")

	header.Set("X-Metadata-Long", strings.Repeat("x", 5000))
	res, _ = s.do("POST", files("path", path), header, strings.NewReader("z"))
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
}

func TestFileErrors(t *testing.T) {
	s := start(t)
	file := s.put("f", "")
	twoParts, twoBody := form(t, "a", "1", "b", "2")
	for name, c := range map[string]struct {
		method, path string
		header       http.Header
		body         io.Reader
		status       int
	}{
		"missing file":       {"GET", files("path", s.path("missing")), nil, nil, 404},
		"directory":          {"GET", files("path", s.dir), nil, nil, 400},
		"device":             {"GET", files("path", "/dev/zero"), nil, nil, 400},
		"NUL byte":           {"GET", files("path", "/a\x00"), nil, nil, 400},
		"unknown user":       {"GET", files("path", file, "username", "stranger"), nil, nil, 401},
		"write to directory": {"POST", files("path", s.dir), octets, strings.NewReader("x"), 400},
		"parent is a file":   {"POST", files("path", file+"/x"), octets, strings.NewReader("x"), 400},
		"no path":            {"POST", files(), octets, strings.NewReader("x"), 400},
		"strange type":       {"POST", files("path", s.path("x")), http.Header{"Content-Type": {"text/plain"}}, strings.NewReader("x"), 400},
		"strange coding":     {"POST", files("path", s.path("x")), http.Header{"Content-Type": octets["Content-Type"], "Content-Encoding": {"br"}}, strings.NewReader("x"), 400},
		"path for two parts": {"POST", files("path", s.path("two")), twoParts, twoBody, 400},
		"write to a device":  {"POST", files("path", "/dev/full"), octets, strings.NewReader("x"), 400},
	} {
		res, body := s.do(c.method, c.path, c.header, c.body)
		require.Equal(t, c.status, res.StatusCode, "%s: %s", name, body)
		require.Contains(t, body, fmt.Sprintf(`"code":%d`, c.status), name)
	}
}

func TestBrokenUploadLeavesNoFile(t *testing.T) {
	s := start(t)
	body := io.MultiReader(strings.NewReader("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + s.path("f") + "\"\r\n\r\nhalf of i"))
	res, _ := s.do("POST", files(), http.Header{"Content-Type": {"multipart/form-data; boundary=b"}}, body)
	require.Equal(t, http.StatusBadRequest, res.StatusCode)
	require.NoFileExists(t, s.path("f"))
}

func TestFullDiskIsInsufficientStorage(t *testing.T) {
	s := start(t)
	if err := unix.Mount("tmpfs", s.dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("cannot mount a small disk: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(s.dir, unix.MNT_DETACH)) })
	old := s.put("old", "old")
	large := strings.Repeat("x", 3<<20)
	header, body := form(t, s.path("form"), large)
	for _, c := range []struct {
		path   string
		header http.Header
		body   io.Reader
	}{
		{files("path", s.path("new")), octets, strings.NewReader(large)},
		{files(), header, body},
		{files("path", old), octets, strings.NewReader(large)},
	} {
		res, text := s.do("POST", c.path, c.header, c.body)
		require.Equal(t, http.StatusInsufficientStorage, res.StatusCode, text)
	}
	require.NoFileExists(t, s.path("new"))
	require.NoFileExists(t, s.path("form"))
	require.FileExists(t, old)
}

func signature(path, operation, user, token, expiration string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "=")
}

func TestSignedURLNeedsNoToken(t *testing.T) {
	s := start(t)
	path := s.put("f", "content")
	s.init(hostapi.Init{AccessToken: "secret"})
	future := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)
	past := strconv.FormatInt(time.Now().Add(-time.Hour).Unix(), 10)
	for name, c := range map[string]struct {
		query []string
		want  int
		text  string
	}{
		"signed":       {[]string{"path", path, "signature", signature(path, "read", "", "secret", "")}, 200, "content"},
		"with a user":  {[]string{"path", path, "username", "root", "signature", signature(path, "read", "root", "secret", "")}, 200, "content"},
		"in time":      {[]string{"path", path, "signature_expiration", future, "signature", signature(path, "read", "", "secret", future)}, 200, "content"},
		"late":         {[]string{"path", path, "signature_expiration", past, "signature", signature(path, "read", "", "secret", past)}, 401, "signature is already expired"},
		"extended":     {[]string{"path", path, "signature_expiration", future, "signature", signature(path, "read", "", "secret", past)}, 401, "invalid signature"},
		"for writing":  {[]string{"path", path, "signature", signature(path, "write", "", "secret", "")}, 401, "invalid signature"},
		"other path":   {[]string{"path", "/etc/shadow", "signature", signature(path, "read", "", "secret", "")}, 401, "invalid signature"},
		"other user":   {[]string{"path", path, "username", "root", "signature", signature(path, "read", "", "secret", "")}, 401, "invalid signature"},
		"not signed":   {[]string{"path", path}, 401, "missing signature"},
		"empty":        {[]string{"path", path, "signature", ""}, 401, "missing signature"},
		"wrong prefix": {[]string{"path", path, "signature", signature(path, "read", "", "secret", "")[3:]}, 401, "invalid signature"},
	} {
		res, body := s.do("GET", files(c.query...), nil, nil)
		require.Equal(t, c.want, res.StatusCode, name)
		require.Contains(t, body, c.text, name)
	}
	res, _ := s.do("POST", files("path", path, "signature", signature(path, "write", "", "secret", "")), octets, strings.NewReader("new"))
	require.Equal(t, http.StatusOK, res.StatusCode)
	s.token = "wrong"
	res, _ = s.do("GET", files("path", path, "signature", signature(path, "read", "", "secret", "")), nil, nil)
	require.Equal(t, http.StatusUnauthorized, res.StatusCode, "a wrong token is not made good by a signature")
}

func TestComposeJoinsAndRemoves(t *testing.T) {
	s := start(t)
	one, two := s.put("1", "one "), s.put("2", "two")
	body, err := json.Marshal(map[string]any{"source_paths": []string{one, two}, "destination": s.path("new/whole")})
	require.NoError(t, err)
	res, text := s.do("POST", "/files/compose", nil, bytes.NewReader(body))
	require.Equal(t, http.StatusOK, res.StatusCode, text)
	require.Contains(t, text, `"name":"whole"`)
	got, err := os.ReadFile(s.path("new/whole"))
	require.NoError(t, err)
	require.Equal(t, "one two", string(got))
	require.NoFileExists(t, one)
	require.NoFileExists(t, two)
	res, _ = s.do("POST", "/files/compose", nil, bytes.NewReader(body))
	require.Equal(t, http.StatusNotFound, res.StatusCode)
	got, err = os.ReadFile(s.path("new/whole"))
	require.NoError(t, err)
	require.Equal(t, "one two", string(got))
}

func TestUnreadableFileIsAnErrorAndNoBrokenConnection(t *testing.T) {
	s := start(t)
	for _, encoding := range []string{"identity", "gzip"} {
		res, text := s.do("GET", files("path", "/proc/self/mem"), http.Header{"Accept-Encoding": {encoding}}, nil)
		require.Equal(t, http.StatusInternalServerError, res.StatusCode, text)
		require.Contains(t, text, "/proc/self/mem")
	}
	res, text := s.do("GET", files("path", "/proc/self/status"), nil, nil)
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Contains(t, text, "Pid:")
}
