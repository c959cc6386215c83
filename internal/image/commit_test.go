package image

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// upperOf is an archive as the engine writes it.
func upperOf(t *testing.T, headers ...tar.Header) string {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		require.NoError(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write([]byte(h.Name))
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	path := filepath.Join(t.TempDir(), "upper.tar")
	require.NoError(t, os.WriteFile(path, buf.Bytes(), 0o600))
	return path
}

func TestCommitAppliesWhatWasWritten(t *testing.T) {
	b := Builder{Dir: t.TempDir()}
	base, err := b.Import(t.Context(), Source{Path: ociFolder(t, imageOfLayers(t, v1.Config{}, gzipped(t, debian)))}, nil)
	require.NoError(t, err)
	upper := upperOf(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./etc/new", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 1001, Gid: 7},
		tar.Header{Name: "./etc/hard", Typeflag: tar.TypeLink, Linkname: "./etc/new"},
		tar.Header{Name: "./etc/shadow", Typeflag: tar.TypeChar},
		tar.Header{Name: "./etc/skel/", Typeflag: tar.TypeDir, Mode: 0o700, PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}},
		tar.Header{Name: "./tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		tar.Header{Name: "./tmp/kept", Typeflag: tar.TypeReg, Mode: 0o600},
		tar.Header{Name: "./run/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./run/sshd/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./run/x.pid", Typeflag: tar.TypeReg, Mode: 0o600},
		tar.Header{Name: "./run/e2b/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./run/e2b/.E2B_SANDBOX_ID", Typeflag: tar.TypeReg, Mode: 0o600},
		tar.Header{Name: "./dev", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
	)
	image, err := b.Commit(t.Context(), base.Name, upper, "layer-1")
	require.NoError(t, err)
	assert.Equal(t, "layer-1.erofs", image.Name)
	assert.False(t, image.Cached)
	tree := treeOf(t, image)
	assert.Equal(t, "104755 1001:7", mode(t, tree, "etc/new"))
	assert.Same(t, tree.Lstat("etc/new"), tree.Lstat("etc/hard"))
	assert.Equal(t, "40700 0:0", mode(t, tree, "etc/skel"))
	assert.Zero(t, tree.Lstat("etc/skel").Len())
	assert.Nil(t, tree.Lstat("etc/shadow"))
	assert.Equal(t, "./tmp/kept", content(t, tree, "tmp/kept"))
	assert.Equal(t, "41777 0:0", mode(t, tree, "tmp/.X11-unix"))
	assert.Equal(t, "40755 0:0", mode(t, tree, "dev"), "a folder to be mounted over")
	assert.Equal(t, []string{"lock", "sshd"}, tree.Lstat("run").Names())
	assert.Equal(t, debian["etc/passwd"]+"user:x:1001:1001::/home/user:/bin/bash\n", content(t, tree, "etc/passwd"))
	assertNothingLeft(t, b.Dir)

	again, err := b.Commit(t.Context(), base.Name, "not read", "layer-1")
	require.NoError(t, err)
	assert.True(t, again.Cached)

	images, err := b.List()
	require.NoError(t, err)
	require.Len(t, images, 2)
	assert.Equal(t, "layer-1.erofs", images[0].Name)
	assert.Positive(t, images[0].DiskBytes)
	require.NoError(t, b.Remove("layer-1.erofs"))
	require.NoError(t, b.Remove("layer-1.erofs"), "it is gone")
	assert.NoFileExists(t, image.Path)
}

func TestCommitRefusesWhatIsWrong(t *testing.T) {
	b := Builder{Dir: t.TempDir()}
	base, err := b.Import(t.Context(), Source{Path: ociFolder(t, imageOfLayers(t, v1.Config{}, gzipped(t, files{"a": "b"})))}, nil)
	require.NoError(t, err)
	good := upperOf(t, tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755})
	out := upperOf(t, tar.Header{Name: "./../../x", Typeflag: tar.TypeReg})
	require.NoError(t, os.WriteFile(filepath.Join(b.Dir, "none.erofs"), []byte("no image"), 0o600))
	for _, test := range []struct{ name, base, upper, image, want string }{
		{"no base", "gone.erofs", good, "x", "no such file"},
		{"a base elsewhere", "../" + base.Name, good, "x", "is not the file name of an image"},
		{"a base that is none", "none.erofs", good, "x", "is not an image"},
		{"no upper", base.Name, good + "x", "x", "no such file"},
		{"a hostile upper", base.Name, out, "x", "leads out of the root"},
		{"a name elsewhere", base.Name, good, "../x", "is not the file name of an image"},
		{"an empty name", base.Name, good, "", "is not the file name of an image"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := b.Commit(t.Context(), test.base, test.upper, test.image)
			require.ErrorContains(t, err, test.want)
			assertNothingLeft(t, b.Dir)
			assert.NoFileExists(t, filepath.Join(b.Dir, "x.erofs"))
		})
	}
	require.ErrorContains(t, b.Remove("../x.erofs"), "is not the file name")
	require.ErrorContains(t, b.Remove("build"), "is not the file name")
}
