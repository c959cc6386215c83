package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tombolo-dev/tombolo/internal/image/rootfs"
)

// files is a layer: contents by name. A name that ends in "/" is a folder, one that
// ends in "@" a link to the content, one that ends in "*" a program.
type files map[string]string

func (f files) tar(t testing.TB) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, name := range sorted(f) {
		h := &tar.Header{Name: strings.TrimRight(name, "@*"), Mode: 0o644, ModTime: time.Unix(1700000000, 0), Typeflag: tar.TypeReg}
		switch {
		case strings.HasSuffix(name, "/"):
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		case strings.HasSuffix(name, "@"):
			h.Typeflag, h.Linkname = tar.TypeSymlink, f[name]
		default:
			h.Size = int64(len(f[name]))
		}
		if strings.HasSuffix(name, "*") {
			h.Mode = 0o755
		}
		require.NoError(t, w.WriteHeader(h))
		if h.Typeflag == tar.TypeReg {
			_, err := io.WriteString(w, f[name])
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func sorted(f files) []string {
	var names []string
	for name := range f {
		names = append(names, name)
	}
	for i := range names {
		for j := i; j > 0 && names[j] < names[j-1]; j-- {
			names[j], names[j-1] = names[j-1], names[j]
		}
	}
	return names
}

// debian is what a small image of that family has.
var debian = files{
	"etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/bash\n",
	"etc/group":  "root:x:0:\nnode:x:1000:", "etc/shadow": "root:*:1::::::\n", "etc/gshadow": "root:*::\n",
	"etc/debian_version": "13.1\n", "etc/sudoers": "@includedir /etc/sudoers.d\n", "etc/skel/.bashrc": "# bashrc\n",
	"etc/skel/.config/": "", "bin@": "usr/bin", "usr/bin/bash*": "#!", "usr/bin/pgrep*": "#!", "var/run@": "/run",
	"run/lock/": "", "run/some.pid": "12", "etc/resolv.conf@": "../run/resolv.conf", "etc/machine-id": "abc\n", "dev/console": "",
	"usr/local/bin/tool*": "#!", "usr/local/lib/x": "x", "etc/profile": "PATH=/usr/bin\n", "usr/share/base-files/profile": "PATH=/usr/bin\n",
}

func imageOfLayers(t testing.TB, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layers...)
	require.NoError(t, err)
	file, err := image.ConfigFile()
	require.NoError(t, err)
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", "amd64", config
	image, err = mutate.ConfigFile(image, file)
	require.NoError(t, err)
	return image
}

func gzipped(t testing.TB, f files) v1.Layer {
	t.Helper()
	text := f.tar(t)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil })
	require.NoError(t, err)
	return l
}

func zstded(t testing.TB, f files) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w, err := zstd.NewWriter(&buf)
	require.NoError(t, err)
	_, err = w.Write(f.tar(t))
	require.NoError(t, errors.Join(err, w.Close()))
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil },
		tarball.WithMediaType(types.OCILayerZStd))
	require.NoError(t, err)
	return l
}

// registryFor serves a registry on loopback; handle, which may be nil, sees each
// request first and answers it when it returns true.
func registryFor(t testing.TB, handle func(http.ResponseWriter, *http.Request) bool) (host string) {
	t.Helper()
	next := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handle == nil || !handle(w, r) {
			next.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	return u.Host
}

func push(t testing.TB, reference string, image v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(reference, name.Insecure)
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, image))
	digest, err := image.Digest()
	require.NoError(t, err)
	return digest.String()
}

// importer is a Builder that may reach the registry, with a trust of one certificate.
func importer(t testing.TB, host string) Builder {
	t.Helper()
	return Builder{
		Dir: t.TempDir(), CABundle: "testdata/ca.pem", PrivateRegistries: []string{host},
		Refuse: func(a netip.Addr) string {
			if a.IsLoopback() {
				return "loopback"
			}
			return ""
		},
	}
}

// treeOf reads an image back.
func treeOf(t testing.TB, image Image) *rootfs.Tree {
	t.Helper()
	f, err := os.Open(image.Path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	tree := rootfs.New(nil, rootfs.Limits{})
	require.NoError(t, tree.AddImage(t.Context(), f))
	return tree
}

func content(t testing.TB, tree *rootfs.Tree, path string) string {
	t.Helper()
	text, err := tree.ReadFile(path, 1<<20)
	require.NoError(t, err, path)
	return string(text)
}

func mode(t testing.TB, tree *rootfs.Tree, path string) string {
	t.Helper()
	n := tree.Lstat(path)
	require.NotNil(t, n, path)
	return fmt.Sprintf("%o %d:%d", n.Mode, n.UID, n.GID)
}

func TestImportMakesAnImageOfARegistrysLayers(t *testing.T) {
	host := registryFor(t, nil)
	image := imageOfLayers(t, v1.Config{
		Env: []string{"PATH=/opt/bin:/usr/bin", "broken"}, User: "node:node", WorkingDir: "/app",
		Shell: []string{"/bin/ash", "-c"}, OnBuild: []string{"RUN z"},
	}, gzipped(t, debian), zstded(t, files{"opt/bin/ss*": "#!", "etc/.wh.gone": "", "usr/share/x/.wh..wh..opq": ""}))
	digest := push(t, host+"/some/image:tag", image)
	b := importer(t, host)
	var told []Progress
	got, err := b.Import(t.Context(), Source{Reference: host + "/some/image:tag"}, func(p Progress) { told = append(told, p) })
	require.NoError(t, err)
	assert.Equal(t, digest, got.Digest)
	assert.Regexp(t, `^oci-[0-9a-f]{32}\.erofs$`, got.Name)
	assert.False(t, got.Cached)
	assert.Equal(t, Config{
		Env: []string{"PATH=/opt/bin:/usr/bin"}, User: "node:node", WorkingDir: "/app",
		Shell: []string{"/bin/ash", "-c"}, OnBuild: []string{"RUN z"},
	}, got.Config)
	require.NotEmpty(t, told)
	last := told[len(told)-1]
	assert.Equal(t, 2, last.Layers)
	assert.Equal(t, 2, last.Layer)
	assert.Positive(t, last.TotalBytes)
	assert.Equal(t, last.TotalBytes, last.Bytes)
	assertNothingLeft(t, b.Dir)

	tree := treeOf(t, got.Image)
	assert.Equal(t, int64(1700000000), tree.Lstat("etc/passwd").Sec|tree.Lstat("usr/bin/bash").Sec, "times are kept")
	assert.Equal(t, "100644 0:0", mode(t, tree, "etc/passwd"))
	assert.Contains(t, content(t, tree, "etc/passwd"), "\nuser:x:1001:1001::/home/user:/bin/bash\n", "1000 is node's")
	assert.Contains(t, content(t, tree, "etc/group"), "node:x:1000:\nuser:x:1001:\n")
	assert.Contains(t, content(t, tree, "etc/shadow"), "\nuser:!:")
	assert.Contains(t, content(t, tree, "etc/gshadow"), "\nuser:!::")
	assert.Equal(t, "40755 1001:1001", mode(t, tree, "home/user"))
	assert.Equal(t, "100644 1001:1001", mode(t, tree, "home/user/.bashrc"))
	assert.Equal(t, "40755 1001:1001", mode(t, tree, "home/user/.config"))
	assert.Equal(t, "100440 0:0", mode(t, tree, "etc/sudoers.d/user"))
	assert.Equal(t, "40777 0:0", mode(t, tree, "code"))
	assert.Equal(t, "100777 0:0", mode(t, tree, "usr/local/bin/tool"))
	assert.Equal(t, "100666 0:0", mode(t, tree, "usr/local/lib/x"))
	assert.Equal(t, "41777 0:0", mode(t, tree, "tmp"))
	assert.Equal(t, "41777 0:0", mode(t, tree, "tmp/.X11-unix"))
	assert.Equal(t, "nameserver 10.0.0.1\noptions no-aaaa\n", content(t, tree, "etc/resolv.conf"))
	assert.Contains(t, content(t, tree, "etc/hosts"), "127.0.0.1 localhost")
	assert.Equal(t, "", content(t, tree, "etc/machine-id"))
	assert.NotContains(t, content(t, tree, "etc/profile"), "PATH=/usr/bin\n", "a profile that takes the image's PATH away")
	for _, dir := range []string{"proc", "dev", "sys", "run", ".tombolo", ".volumes", "run/lock"} {
		assert.Equal(t, "40755 0:0", mode(t, tree, dir), dir)
	}
	for _, gone := range []string{"dev/console", "run/some.pid", "usr/bin/ss"} {
		assert.Nil(t, tree.Lstat(gone), gone)
	}
	assert.Equal(t, "#!", content(t, tree, "usr/bin/pgrep"))
	assert.Equal(t, agentProgram, tree.Lstat("usr/bin/curl").Target)
	certificate, err := os.ReadFile("testdata/ca.pem")
	require.NoError(t, err)
	assert.Equal(t, string(certificate), content(t, tree, "etc/ssl/certs/ca-certificates.crt"))
	assert.Equal(t, 1, tree.Lstat("usr/local/share/ca-certificates").Len(), "a certificate that an update finds")

	again, err := b.Import(t.Context(), Source{Reference: host + "/some/image@" + digest}, nil)
	require.NoError(t, err)
	assert.True(t, again.Cached)
	assert.Equal(t, got.Path, again.Path)
	assert.Equal(t, got.Config, again.Config)
}

func TestImportDoesForEveryFamily(t *testing.T) {
	certificate, err := os.ReadFile("testdata/ca.pem")
	require.NoError(t, err)
	for _, test := range []struct {
		name   string
		layer  files
		passwd string
		bundle string
		anchor string
		sudo   bool
	}{
		{"scratch", files{"app*": "#!"}, "user:x:1000:1000::/home/user:/bin/sh", "etc/ssl/certs/ca-certificates.crt", "", false},
		{"alpine", files{
			"etc/alpine-release": "3.22.1\n", "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:root\nusers:x:1000:\n",
			"bin/busybox*": "#!", "bin/sh@": "/bin/busybox", "etc/ssl/cert.pem@": "certs/ca-certificates.crt",
			"etc/ssl/certs/ca-certificates.crt": "own",
		}, "user:x:1000:1001::/home/user:/bin/sh", "etc/ssl/cert.pem", "usr/local/share/ca-certificates", false},
		{"red hat", files{
			"etc/passwd": "root:x:0:0:root:/root:/bin/bash", "etc/group": "root:x:0:", "usr/bin/bash*": "#!", "bin@": "usr/bin", "usr/bin/sudo*": "#!",
			"etc/pki/ca-trust/source/anchors/": "", "etc/pki/tls/certs/ca-bundle.crt@": "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
			"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": "own\n", "etc/ssl/certs@": "../pki/tls/certs",
		}, "user:x:1000:1000::/home/user:/bin/bash", "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "etc/pki/ca-trust/source/anchors", true},
		{"user is there", files{
			"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1234:99::/home/user:/bin/zsh\n", "home/user/own": "",
		}, "user:x:1234:99::/home/user:/bin/zsh", "etc/ssl/certs/ca-certificates.crt", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := Builder{Dir: t.TempDir(), CABundle: "testdata/ca.pem"}
			got, err := b.Import(t.Context(), Source{Path: ociFolder(t, imageOfLayers(t, v1.Config{}, gzipped(t, test.layer)))}, nil)
			require.NoError(t, err)
			tree := treeOf(t, got.Image)
			passwd := content(t, tree, "etc/passwd")
			assert.Contains(t, passwd, "root:x:0:0:")
			assert.Contains(t, passwd, test.passwd+"\n")
			assert.Equal(t, 2, strings.Count(passwd, "\n"))
			assert.Contains(t, content(t, tree, test.bundle), string(certificate))
			if strings.Contains(string(test.layer[test.bundle]), "own") {
				assert.Contains(t, content(t, tree, test.bundle), "own\n-----BEGIN")
			}
			if test.anchor != "" {
				require.NotNil(t, tree.Lstat(test.anchor))
				assert.Equal(t, 1, tree.Lstat(test.anchor).Len())
			}
			assert.Equal(t, test.sudo, tree.Lstat("etc/sudoers.d/user") != nil)
			assert.NotNil(t, tree.Lstat("home/user"))
			assert.Equal(t, agentProgram, tree.Lstat("usr/bin/ss").Target)
		})
	}
}

func TestToolsGoWhereTheImageLooksForPrograms(t *testing.T) {
	b := Builder{Dir: t.TempDir(), CABundle: "testdata/ca.pem"}
	image := imageOfLayers(t, v1.Config{Env: []string{"PATH=/opt:/bin"}}, gzipped(t, files{"bin/sh*": "#!", "opt/curl*": "#!"}))
	got, err := b.Import(t.Context(), Source{Path: ociFolder(t, image)}, nil)
	require.NoError(t, err)
	tree := treeOf(t, got.Image)
	assert.Equal(t, agentProgram, tree.Lstat("bin/ss").Target)
	assert.Nil(t, tree.Lstat("bin/curl"))
}

func TestAnImportRemovesWhatAKilledOneLeft(t *testing.T) {
	b := Builder{Dir: t.TempDir()}
	left := filepath.Join(b.Dir, "build", "oci-00000000000000000000000000000000")
	require.NoError(t, os.MkdirAll(left, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(left, "spool"), []byte("x"), 0o600))
	_, err := b.Import(t.Context(), Source{Path: ociFolder(t, imageOfLayers(t, v1.Config{}, gzipped(t, files{"a": "b"})))}, nil)
	require.NoError(t, err)
	assertNothingLeft(t, b.Dir)
}

func ociFolder(t testing.TB, image v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	at, err := layout.Write(dir, empty.Index)
	require.NoError(t, err)
	require.NoError(t, at.AppendImage(image))
	return dir
}

// packed is a folder as a tar archive.
func packed(t testing.TB, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image.tar"))
	require.NoError(t, err)
	defer f.Close()
	w := tar.NewWriter(f)
	require.NoError(t, w.AddFS(os.DirFS(dir)))
	require.NoError(t, w.Close())
	return f.Name()
}

func TestImportReadsArchives(t *testing.T) {
	image := imageOfLayers(t, v1.Config{User: "x"}, gzipped(t, debian), gzipped(t, files{"etc/second": "2"}))
	folder := ociFolder(t, image)
	docker := filepath.Join(t.TempDir(), "docker.tar")
	tag, err := name.NewTag("some/image:tag")
	require.NoError(t, err)
	require.NoError(t, tarball.WriteToFile(docker, tag, image))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: imageOfLayers(t, v1.Config{}), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}},
		mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
	nested := t.TempDir()
	at, err := layout.Write(nested, empty.Index)
	require.NoError(t, err)
	require.NoError(t, at.AppendIndex(index))

	for name, path := range map[string]string{"layout": folder, "packed layout": packed(t, folder), "docker-archive": docker, "index in a layout": nested} {
		t.Run(name, func(t *testing.T) {
			b := Builder{Dir: t.TempDir()}
			got, err := b.Import(t.Context(), Source{Path: path}, nil)
			require.NoError(t, err)
			assert.Equal(t, "x", got.Config.User)
			assert.Equal(t, "2", content(t, treeOf(t, got.Image), "etc/second"))
			assertNothingLeft(t, b.Dir)
		})
	}
}

func TestImportRefusesWhatIsWrong(t *testing.T) {
	amd64 := imageOfLayers(t, v1.Config{}, gzipped(t, files{"a": "b"}))
	arm := func() v1.Image {
		file, err := amd64.ConfigFile()
		require.NoError(t, err)
		file = file.DeepCopy()
		file.Architecture = "arm64"
		image, err := mutate.ConfigFile(amd64, file)
		require.NoError(t, err)
		return image
	}()
	bomb := func() v1.Layer {
		var buf bytes.Buffer
		w, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
		require.NoError(t, err)
		archive := tar.NewWriter(w)
		require.NoError(t, archive.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 64 << 20}))
		_, err = io.CopyN(archive, zeroReader{}, 64<<20)
		require.NoError(t, errors.Join(err, archive.Close(), w.Close()))
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
		require.NoError(t, err)
		return l
	}()
	damaged := filepath.Join(t.TempDir(), "damaged")
	require.NoError(t, os.CopyFS(damaged, os.DirFS(ociFolder(t, amd64))))
	layers, err := amd64.Layers()
	require.NoError(t, err)
	digest, err := layers[0].Digest()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(damaged, "blobs/sha256", digest.Hex), files{"a": "c"}.tar(t), 0o644))
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, []byte("no archive at all"), 0o644))
	for _, test := range []struct {
		name string
		path string
		want string
	}{
		{"another processor", ociFolder(t, arm), "the image is for linux/arm64; sandboxes run linux/amd64"},
		{"no layer of files", ociFolder(t, imageOfLayers(t, v1.Config{}, static.NewLayer([]byte("{}"), "application/json"))), "which is no layer of files"},
		{"another content", damaged, "it is not what the image's config says"},
		{"a bomb", ociFolder(t, imageOfLayers(t, v1.Config{}, bomb)), "more than 1048576 bytes"},
		{"an empty folder", t.TempDir(), "is neither an OCI layout nor a docker-archive"},
		{"a text", text, "is not a tar archive"},
		{"nothing", filepath.Join(t.TempDir(), "none"), "no such file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := Builder{Dir: t.TempDir(), Limits: rootfs.Limits{FileBytes: 1 << 20, Bytes: 8 << 20}}
			_, err := b.Import(t.Context(), Source{Path: test.path}, nil)
			require.ErrorContains(t, err, test.want)
			if _, err := os.Stat(filepath.Join(b.Dir, "build")); err == nil {
				assertNothingLeft(t, b.Dir)
			}
			images, err := b.List()
			require.NoError(t, err)
			assert.Empty(t, images)
		})
	}
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestImportSaysWhyARegistryGivesNothing(t *testing.T) {
	host := registryFor(t, func(w http.ResponseWriter, r *http.Request) bool {
		user, password, ok := r.BasicAuth()
		if !strings.Contains(r.URL.Path, "/locked/") && r.URL.Path != "/v2/" || ok && user == "me" && password == "right" || r.Method == http.MethodPut {
			return false
		}
		if r.URL.Path == "/v2/" && r.Header.Get("X-Test") == "" && !strings.Contains(r.UserAgent(), "tombolo") {
			return false // the push
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		if r.URL.Path == "/v2/" || strings.Contains(r.URL.Path, "/locked/") {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	})
	push(t, host+"/open/image:1", imageOfLayers(t, v1.Config{}, gzipped(t, files{"a": "b"})))
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: imageOfLayers(t, v1.Config{}), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}},
		mutate.IndexAddendum{Add: empty.Image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "windows", Architecture: "amd64"}}})
	ref, err := name.ParseReference(host+"/open/index:1", name.Insecure)
	require.NoError(t, err)
	require.NoError(t, remote.WriteIndex(ref, index))
	closed := closedPort(t)
	for _, test := range []struct {
		name      string
		reference string
		login     *Login
		private   []string
		want      []string
	}{
		{"an unknown image", host + "/open/none:1", nil, []string{host}, []string{"there is no such image at " + host}},
		{"an unknown tag", host + "/open/image:2", nil, []string{host}, []string{"there is no such image at " + host}},
		{"no login", host + "/locked/image:1", nil, []string{host}, []string{"or it needs a login"}},
		{"a wrong login", host + "/locked/image:1", &Login{"me", "wrong"}, []string{host}, []string{"does not take the login"}},
		{"a right login", host + "/locked/image:1", &Login{"me", "right"}, []string{host}, []string{"there is no such image"}},
		{"no image for this machine", host + "/open/index:1", nil, []string{host}, []string{"no image for linux/amd64 in it, but for linux/arm64, windows/amd64"}},
		{"nobody listens", closed + "/a/b:1", nil, []string{closed}, []string{"the registry " + closed + " cannot be reached"}},
		{"not allowed", host + "/open/image:1", nil, nil, []string{"is loopback", "--private-registry HOST:PORT"}},
		{"a name for a private address", "localhost:" + strings.Split(host, ":")[1] + "/open/image:1", nil, nil, []string{"is loopback", "--private-registry"}},
		{"another listed one", host + "/open/image:1", nil, []string{"registry.example:5000"}, []string{"is loopback"}},
		{"no reference", "UPPER CASE", nil, nil, []string{"is not a reference of an image"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := importer(t, "")
			b.PrivateRegistries = test.private
			_, err := b.Import(t.Context(), Source{Reference: test.reference, Login: test.login}, nil)
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
			assert.NotContains(t, err.Error(), "wrong", "the password")
		})
	}
}

func closedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// TestARegistryLeadsNowhereElse has a registry that is allowed send the import to an
// address that is not.
func TestARegistryLeadsNowhereElse(t *testing.T) {
	var reached atomic.Int32
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer inside.Close()
	image := imageOfLayers(t, v1.Config{}, gzipped(t, files{"a": "b"}))
	for _, test := range []struct {
		name  string
		lead  func(http.ResponseWriter, *http.Request) bool
		match string
	}{
		{"a redirect of a blob", func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			http.Redirect(w, r, inside.URL+"/x", http.StatusTemporaryRedirect)
			return true
		}, "is loopback"},
		{"a redirect of the manifest", func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			http.Redirect(w, r, inside.URL+"/x", http.StatusFound)
			return true
		}, "is loopback"},
		{"a realm for tokens", func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.UserAgent(), "tombolo") {
				return false
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+inside.URL+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}, "private or link-local"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var on atomic.Bool
			host := registryFor(t, func(w http.ResponseWriter, r *http.Request) bool { return on.Load() && test.lead(w, r) })
			push(t, host+"/a/b:1", image)
			on.Store(true)
			b := importer(t, host)
			_, err := b.Import(t.Context(), Source{Reference: host + "/a/b:1"}, nil)
			require.ErrorContains(t, err, test.match)
			assert.Zero(t, reached.Load(), "the address was connected to")
		})
	}
}

// TestAProxyIsAskedForPublicHostsOnly has a proxy on loopback that can reach anything.
func TestAProxyIsAskedForPublicHostsOnly(t *testing.T) {
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Host)
		io.WriteString(w, "answer")
	}))
	defer proxy.Close()
	address, err := url.Parse(proxy.URL)
	require.NoError(t, err)
	g, err := importer(t, "listed.invalid:5000").newGuard(true)
	require.NoError(t, err)
	defer g.close()
	g.proxy = func(*http.Request) (*url.URL, error) { return address, nil }
	get := func(host string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/v2/", nil)
		require.NoError(t, err)
		answer, err := g.RoundTrip(req)
		if err == nil {
			answer.Body.Close()
		}
		return err
	}
	for _, host := range []string{"localhost", "127.0.0.1:80", "[::1]", "[::ffff:127.0.0.1]"} {
		var refused *RefusedError
		require.ErrorAs(t, get(host), &refused, host)
	}
	require.Empty(t, asked)
	for _, host := range []string{"only-the-proxy-knows.invalid", "listed.invalid:5000", "203.0.113.7"} {
		require.NoError(t, get(host), host)
	}
	require.Len(t, asked, 3)
}

func TestImportsOfOneImageMakeItOnce(t *testing.T) {
	var blobs atomic.Int32
	host := registryFor(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			blobs.Add(1)
		}
		return false
	})
	push(t, host+"/a/b:1", imageOfLayers(t, v1.Config{}, gzipped(t, debian)))
	b := importer(t, host)
	var group sync.WaitGroup
	var made atomic.Int32
	for range 4 {
		group.Go(func() {
			got, err := b.Import(t.Context(), Source{Reference: host + "/a/b:1"}, nil)
			assert.NoError(t, err)
			if !got.Cached {
				made.Add(1)
			}
		})
	}
	group.Wait()
	assert.EqualValues(t, 1, made.Load())
	assert.EqualValues(t, 4+1, blobs.Load(), "four configs and one layer")
	assertNothingLeft(t, b.Dir)
}

func TestACancelledImportLeavesNothing(t *testing.T) {
	blocked := make(chan struct{})
	release := make(chan struct{})
	var layer string
	host := registryFor(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || layer == "" || !strings.Contains(r.URL.Path, layer) {
			return false
		}
		w.Header().Set("Content-Length", "1000000")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		close(blocked)
		<-release
		return true
	})
	defer close(release)
	image := imageOfLayers(t, v1.Config{}, gzipped(t, debian))
	push(t, host+"/a/b:1", image)
	layers, err := image.Layers()
	require.NoError(t, err)
	digest, err := layers[0].Digest()
	require.NoError(t, err)
	layer = digest.Hex
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("enough")
	go func() { <-blocked; cancel(because) }()
	b := importer(t, host)
	_, err = b.Import(ctx, Source{Reference: host + "/a/b:1"}, nil)
	require.ErrorIs(t, err, because)
	assertNothingLeft(t, b.Dir)
	images, err := b.List()
	require.NoError(t, err)
	assert.Empty(t, images)
}

func TestImportBeginsABrokenDownloadAgain(t *testing.T) {
	var broken atomic.Int32
	var layer string
	host := registryFor(t, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || layer == "" || !strings.Contains(r.URL.Path, layer) || broken.Add(1) > 2 {
			return false
		}
		w.Header().Set("Content-Length", "1000000")
		io.WriteString(w, "half")
		panic(http.ErrAbortHandler)
	})
	image := imageOfLayers(t, v1.Config{}, gzipped(t, debian))
	push(t, host+"/a/b:1", image)
	layers, err := image.Layers()
	require.NoError(t, err)
	digest, err := layers[0].Digest()
	require.NoError(t, err)
	layer = digest.Hex
	got, err := importer(t, host).Import(t.Context(), Source{Reference: host + "/a/b:1"}, nil)
	require.NoError(t, err)
	assert.NotNil(t, treeOf(t, got.Image).Lstat("etc/debian_version"))
}
