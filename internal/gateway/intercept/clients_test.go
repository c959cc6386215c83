package intercept_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/gateway"
	"github.com/tombolo-dev/tombolo/internal/gateway/intercept"
)

// python has requests and httpx, when `make clients` was run.
const python = "../../../.tombolo/clients/python/bin/python"

// withSecret puts the secret in the place of its placeholder and takes it out of answers.
func withSecret(ctx context.Context, r gateway.Request, out *http.Request) (gateway.Scrubber, error) {
	for _, values := range out.Header {
		for i, v := range values {
			values[i] = strings.ReplaceAll(v, placeholder, secret)
		}
	}
	return scrubs(secret, placeholder)(ctx, r, out)
}

// run runs a program that trusts the authority, as one in a sandbox does.
func (w *world) run(t *testing.T, program string, args ...string) (out string, err error) {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not there: %v", program, err)
	}
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(bundle, w.ca.PEM(), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, path, args...)
	c.Env = append(os.Environ(), "HOME="+t.TempDir(), "NO_PROXY=*", "no_proxy=*", "URL="+w.url(""),
		"NPM_CONFIG_GLOBALCONFIG=/dev/null") // which may name other authorities
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT"} {
		c.Env = append(c.Env, name+"="+bundle)
	}
	var errors bytes.Buffer
	c.Stderr = &errors
	stdout, err := c.Output()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, errors.String())
	}
	return strings.TrimSpace(string(stdout)), err
}

// Every client sends the placeholder, and the destination echoes what came of it.
func TestClients(t *testing.T) {
	const header = "Authorization: Bearer " + placeholder
	rows := []struct {
		name, program string
		args          []string
		http2         bool
	}{
		{name: "curl", program: "curl", args: []string{"-sS", "--fail", "--http1.1", "-H", header, "URL/hello"}},
		{name: "curl with HTTP/2", program: "curl", args: []string{"-sS", "--fail", "--http2", "-H", header, "URL/hello"}, http2: true},
		{name: "curl compressed", program: "curl", args: []string{"-sS", "--fail", "--http1.1", "--compressed", "-H", header, "URL/hello"}},
		{name: "curl upload", program: "curl", args: []string{"-sS", "--fail", "--http1.1", "-T", "/bin/sh", "-H", header, "URL/hello"}},
		{name: "urllib", program: python, args: []string{"-c", `
import os, urllib.request
r = urllib.request.Request(os.environ["URL"] + "/hello", headers={"Authorization": "Bearer ` + placeholder + `"})
print(urllib.request.urlopen(r).read().decode())`}},
		{name: "requests", program: python, args: []string{"-c", `
import os, requests
s = requests.Session()
for _ in range(3):
    r = s.get(os.environ["URL"] + "/hello", headers={"Authorization": "Bearer ` + placeholder + `"})
    r.raise_for_status()
print(r.text)`}},
		{name: "httpx", program: python, args: []string{"-c", `
import asyncio, httpx, os, ssl
async def main():
    async with httpx.AsyncClient(verify=ssl.create_default_context()) as c:
        get = lambda: c.get(os.environ["URL"] + "/hello", headers={"Authorization": "Bearer ` + placeholder + `"})
        for r in await asyncio.gather(*(get() for _ in range(10))): r.raise_for_status()
        print(r.text)
asyncio.run(main())`}},
		{name: "node", program: "node", args: []string{"-e", `
fetch(process.env.URL + "/hello", {headers: {Authorization: "Bearer ` + placeholder + `"}})
  .then(r => r.text()).then(console.log)`}},
		{name: "node with HTTP/2", program: "node", http2: true, args: []string{"-e", `
const c = require("http2").connect(process.env.URL, {ca: require("fs").readFileSync(process.env.SSL_CERT_FILE)})
const r = c.request({":path": "/hello", authorization: "Bearer ` + placeholder + `"})
r.on("data", d => console.log(d.toString())).on("end", () => c.close())`}},
	}
	to := serverFor(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.Header.Get("Authorization") != "Bearer "+secret {
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprint(w, "hello "+r.Header.Get("Authorization"))
	}))
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			w := inWorld(t, to, encrypted, intercept.Config{})
			w.rewrite = withSecret
			for i, arg := range row.args {
				row.args[i] = strings.Replace(arg, "URL/", w.url("/"), 1)
			}
			out, err := w.run(t, row.program, row.args...)
			require.NoError(t, err)
			require.Equal(t, "hello Bearer "+placeholder, out)
		})
	}
}

func TestGit(t *testing.T) {
	core, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Skipf("git is not there: %v", err)
	}
	root := t.TempDir()
	git := func(dir string, args ...string) {
		c := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@a.example"}, args...)...)
		out, err := c.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	git(root, "init", "--bare", "-q", "-b", "main", "r.git")
	git(root, "-C", "r.git", "config", "http.receivepack", "true")
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(core)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"},
	}
	to := serverFor(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	w := inWorld(t, to, encrypted, intercept.Config{})
	w.rewrite = withSecret
	auth := "http.extraHeader=Authorization: Bearer " + placeholder

	work := filepath.Join(t.TempDir(), "work")
	_, err = w.run(t, "git", "-c", auth, "clone", "-q", w.url("/r.git"), work)
	require.NoError(t, err)
	random, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(work, "large"), random[:4<<20], 0o600))
	git(work, "add", "large")
	git(work, "commit", "-q", "-m", "large")
	_, err = w.run(t, "git", "-C", work, "-c", auth, "push", "-q", "origin", "HEAD:main") // in chunks
	require.NoError(t, err)
	again := filepath.Join(t.TempDir(), "again")
	_, err = w.run(t, "git", "-c", auth, "clone", "-q", w.url("/r.git"), again)
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(again, "large"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(random[:4<<20], got))
}

func TestPip(t *testing.T) {
	wheel := wheelOf(t, "thing", "1.0")
	to := serverFor(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/simple/thing/":
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, `<a href="/files/thing-1.0-py3-none-any.whl">thing-1.0-py3-none-any.whl</a>`)
		case "/files/thing-1.0-py3-none-any.whl":
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(wheel)) // pip asks for ranges
		default:
			http.NotFound(w, r)
		}
	}))
	w := inWorld(t, to, encrypted, intercept.Config{})
	w.rewrite = withSecret
	into := t.TempDir()
	_, err := w.run(t, python, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", into, "--index-url", w.url("/simple"), "thing")
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(into, "thing-1.0-py3-none-any.whl"))
	require.NoError(t, err)
	require.Equal(t, wheel, got)
}

func wheelOf(t *testing.T, name, version string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	info := name + "-" + version + ".dist-info/"
	for path, text := range map[string]string{
		name + ".py":      "x = 1\n",
		info + "METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":   "",
	} {
		f, err := z.Create(path)
		require.NoError(t, err)
		io.WriteString(f, text)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

// npm asks for packages with a scope by a path with an encoded slash.
func TestNpm(t *testing.T) {
	packed := []byte("no real archive, which npm view does not ask for")
	to := serverFor(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != "/@scope%2fthing" || r.Header.Get("Authorization") != "Bearer "+secret {
			http.NotFound(w, r)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{
			"name": "@scope/thing", "dist-tags": map[string]string{"latest": "1.2.3"},
			"versions": map[string]any{"1.2.3": map[string]any{
				"name": "@scope/thing", "version": "1.2.3",
				"dist": map[string]string{"tarball": "https://" + r.Host + "/thing.tgz", "shasum": fmt.Sprintf("%x", sha1.Sum(packed))},
			}},
		})
	}))
	w := inWorld(t, to, encrypted, intercept.Config{})
	w.rewrite = withSecret
	registry := w.url("/")
	out, err := w.run(t, "npm", "view", "--fetch-retries=0", "--no-update-notifier", "--registry", registry, "--"+strings.TrimPrefix(registry, "https:")+":_authToken="+placeholder, "@scope/thing", "version")
	require.NoError(t, err)
	require.Equal(t, "1.2.3", out)
	require.Equal(t, "/@scope/thing", w.lastJudged().Path)
}
